//! Acts of a program, as far as rules can speak of them.

use std::fmt;

/// Something that a program does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Act {
    /// Imports a module.
    Import(String),
    /// Uses something that a module holds, by its dotted name.
    Use(String),
    /// Uses names by which this is reached, if it is there: of what a function returned, of what was handed on, of a star import.
    Reach(String),
    /// Uses an attribute of this name.
    Attribute(String),
    /// Names a file outside of its own.
    Hostfile(String),
    /// Gives an address of the network to something that fetches it.
    Address(String),
    /// Uses IPython's way to a shell.
    Shell(String),
    /// Does something that cannot be known.
    Undecidable(String),
}

impl fmt::Display for Act {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Import(module) => write!(formatter, "imports `{}`", short(module)),
            Self::Use(name) => write!(formatter, "uses `{}`", short(name)),
            Self::Reach(name) => write!(formatter, "may reach `{}` by its names", short(name)),
            Self::Attribute(name) => write!(formatter, "uses the attribute `{}`", short(name)),
            Self::Hostfile(file) => write!(formatter, "names the file `{}`", short(file)),
            Self::Address(address) => write!(formatter, "fetches `{}`", short(address)),
            Self::Shell(command) => write!(formatter, "runs `{}`", short(command)),
            Self::Undecidable(what) => formatter.write_str(&short(what)),
        }
    }
}

fn short(text: &str) -> String {
    text.chars().take(80).map(|one| if one.is_control() { ' ' } else { one }).collect()
}
