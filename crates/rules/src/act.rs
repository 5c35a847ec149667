//! Acts of a program, as far as rules can speak of them.

use std::fmt;

/// Something that a program does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Act {
    /// Imports a module.
    Import(String),
    /// Uses something that a module holds, by its dotted name.
    Use(String),
    /// Uses a name that has this meaning if a star import replaced its own.
    UseOfStar(String),
    /// Uses something of what a function returned: `pathlib.Path.unlink` for `pathlib.Path().unlink`.
    UseOfResult(String),
    /// Takes attributes, one of the other, of something unknown: it may be any value that escaped.
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
    /// Does something that cannot be known if it is done to a module, which it is only where a module escaped.
    UndecidableOfModule(String),
}

impl fmt::Display for Act {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Import(module) => write!(formatter, "imports `{}`", short(module)),
            Self::Use(name) | Self::UseOfStar(name) | Self::UseOfResult(name) => {
                write!(formatter, "uses `{}`", short(name))
            }
            Self::Reach(name) => write!(formatter, "uses `.{}` of what may be a module", short(name)),
            Self::Attribute(name) => write!(formatter, "uses the attribute `{}`", short(name)),
            Self::Hostfile(file) => write!(formatter, "names the file `{}`", short(file)),
            Self::Address(address) => write!(formatter, "fetches `{}`", short(address)),
            Self::Shell(command) => write!(formatter, "runs `{}`", short(command)),
            Self::Undecidable(what) | Self::UndecidableOfModule(what) => formatter.write_str(&short(what)),
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
    /// True if a function of an earlier program does it: then only the values that escape now are new to it.
    pub(crate) is_earlier: bool,
}
