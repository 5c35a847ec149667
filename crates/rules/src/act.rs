//! Acts of a program, as far as rules can speak of them.

use std::fmt;

/// Something that a program does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Act {
    /// Imports a module.
    Import(String),
    /// Calls something or hands it on, by its dotted name.
    Refer(String),
    /// Takes attributes, one of the other, of something unknown: it may be of any module that was handed on.
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
    /// Does something that cannot be known if it is done to a module, which it is only where modules were handed on.
    IfModule(String),
}

impl fmt::Display for Act {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Import(module) => write!(formatter, "imports `{}`", short(module)),
            Self::Refer(name) => write!(formatter, "uses `{}`", short(name.trim_start_matches('*'))),
            Self::Reach(name) => write!(formatter, "uses `.{}` of what may be a module", short(name)),
            Self::Attribute(name) => write!(formatter, "uses the attribute `{}`", short(name)),
            Self::Hostfile(file) => write!(formatter, "names the file `{}`", short(file)),
            Self::Address(address) => write!(formatter, "fetches `{}`", short(address)),
            Self::Shell(command) => write!(formatter, "runs `{}`", short(command)),
            Self::Undecidable(what) | Self::IfModule(what) => formatter.write_str(&short(what)),
        }
    }
}

fn short(text: &str) -> String {
    text.chars().take(80).map(|one| if one.is_control() { ' ' } else { one }).collect()
}

/// Something that a program does, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// From 1; 0 for the program as a whole.
    pub(crate) line: usize,
    pub(crate) act: Act,
    /// True if a function of an earlier program does it: then only the values handed on now are new to it.
    pub(crate) is_earlier: bool,
}
