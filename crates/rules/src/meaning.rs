//! Possible meanings of a name or an expression, as far as reading tells.

use std::collections::BTreeSet;

use crate::act::Act;
use crate::dotted::{first, last, tails};
use crate::lists::LISTS;

/// Meanings of one thing; what has more is taken for unknown, too.
pub(crate) const MAX_MEANINGS: usize = 16;
/// Bytes of the beginning of a text of which the rest is unknown.
const MAX_BEGINNING: usize = 64;
/// Bytes of a dotted name: of a longer one only the first part and the end are kept, which is what names are compared by.
const MAX_PATH: usize = 200;
/// Functions that keep their names wherever they are imported.
const EVERYWHERE: [(&str, &str); 3] =
    [("import_module", "importlib.import_module"), ("__import__", "builtins.__import__"), ("exec_", "builtins.exec")];

/// One of the things that something may mean.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Meaning {
    /// A module, or something that it holds: `os.system`.
    Path(String),
    /// The same, if a star import replaced the name's other meaning.
    OfStar(String),
    /// The result of a call of a function, or of a method of such a result: `pathlib.Path`.
    Result(String),
    /// Attributes, one of the other, of the result of a function, or of something unknown.
    Member { of: Option<String>, path: String },
    /// All names of a module, `vars(os)`, or of something unknown.
    Table(Option<String>),
    /// The program's own names: `globals()`.
    Globals,
    /// A text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A text that begins so, and goes on unknown.
    Beginning(String),
    /// A number.
    Number(i64),
    /// A function that the program defines.
    Function,
    /// Anything.
    Unknown,
}

/// All the things that something may mean. Nothing is known of one that is empty.
pub(crate) type Meanings = BTreeSet<Meaning>;

impl Meaning {
    /// Bytes that it takes.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Path(text) | Self::OfStar(text) | Self::Result(text) | Self::Text(text) | Self::Beginning(text) => {
                text.len()
            }
            Self::Member { of, path } => of.as_ref().map_or(0, String::len) + path.len(),
            Self::Table(of) => of.as_ref().map_or(0, String::len),
            Self::Bytes(bytes) => bytes.len(),
            Self::Globals | Self::Number(_) | Self::Function | Self::Unknown => 0,
        }
    }

    /// The name of the function or module that it comes from, as far as that is known.
    pub(crate) fn origin(&self) -> Option<&str> {
        match self {
            Self::Path(path) | Self::Result(path) | Self::Member { of: Some(path), .. } => Some(path),
            _ => None,
        }
    }

    /// The dotted name under which Python's own modules know it, where it is one of a module, whatever holds that.
    pub(crate) fn canonical(&self) -> Option<&str> {
        match self {
            Self::Path(path) | Self::Member { path, .. } => Some(canonical(path)),
            _ => None,
        }
    }

    /// Returns true if it is known by the name of something.
    pub(crate) fn is_named(&self) -> bool {
        matches!(self, Self::Path(_) | Self::OfStar(_) | Self::Result(_) | Self::Member { .. })
    }

    /// Returns true if it is a result of this function.
    pub(crate) fn is_result_of(&self, function: &str) -> bool {
        matches!(self, Self::Result(of) if of == function)
    }

    /// Returns true for a table of names, by which everything in it can be reached.
    pub(crate) fn is_table(&self) -> bool {
        matches!(self, Self::Table(_) | Self::Globals) || self.canonical() == Some("sys.modules")
    }

    /// All names of it.
    pub(crate) fn table(&self) -> Self {
        Self::Table(match self {
            Self::Path(path) | Self::OfStar(path) => Some(path.clone()),
            _ => None,
        })
    }

    /// Its attribute of a name.
    pub(crate) fn attribute(&self, name: &str) -> Self {
        match self {
            _ if name == "__dict__" => self.table(),
            Self::Path(_) | Self::Unknown if name == "__builtins__" => Self::Path(name.trim_matches('_').to_owned()),
            Self::Path(path) => Self::Path(below(path, name)),
            Self::OfStar(path) => Self::OfStar(below(path, name)),
            Self::Result(of) => Self::Member { of: Some(of.clone()), path: name.to_owned() },
            Self::Member { of, path } => Self::Member { of: of.clone(), path: below(path, name) },
            Self::Unknown | Self::Function => Self::Member { of: None, path: name.to_owned() },
            _ => Self::Unknown,
        }
    }

    /// The result of a call of it. Results of methods are taken for the same kind of thing.
    pub(crate) fn result(&self) -> Self {
        self.origin().map_or(Self::Unknown, |of| Self::Result(of.to_owned()))
    }

    /// The acts of a program that uses it.
    pub(crate) fn acts(&self) -> Vec<Act> {
        match self {
            Self::Path(path) if path.contains('.') || path == "get_ipython" => vec![Act::Use(path.clone())],
            Self::OfStar(path) => vec![Act::UseOfStar(path.clone())],
            Self::Result(of) if of.contains('.') => vec![Act::UseOfResult(of.clone())],
            // The result of a call may hold any value that escaped.
            Self::Member { of: Some(of), path } => {
                vec![Act::Reach(path.clone()), Act::UseOfResult(format!("{of}.{path}"))]
            }
            Self::Member { of: None, path } => vec![Act::Reach(path.clone())],
            _ => Vec::new(),
        }
    }

    /// The value that stands for it where it escapes. Of what is inside of an object nothing is known but that it may be a module.
    pub(crate) fn escaped(&self, may_be_module: impl Fn(&str) -> bool) -> Option<Self> {
        match self {
            Self::Path(_) | Self::Result(_) => Some(self.clone()),
            Self::OfStar(path) | Self::Member { path, .. } if may_be_module(last(path)) => {
                Some(Self::Path(last(path).to_owned()))
            }
            _ => None,
        }
    }
}

/// A dotted name with one more part.
fn below(path: &str, name: &str) -> String {
    let path = format!("{path}.{name}");
    if path.len() <= MAX_PATH {
        return path;
    }
    let first = first(&path).get(..MAX_PATH / 4).unwrap_or(first(&path));
    let end = path.match_indices('.').map(|(at, _)| &path[at..]).find(|end| end.len() <= MAX_PATH - first.len());
    format!("{first}{}", end.unwrap_or_default())
}

pub(crate) fn unknown() -> Meanings {
    Meanings::from([Meaning::Unknown])
}

pub(crate) fn path(name: impl Into<String>) -> Meanings {
    Meanings::from([Meaning::Path(name.into())])
}

/// Adds meanings.
pub(crate) fn add(to: &mut Meanings, more: Meanings) {
    for meaning in more {
        if to.len() < MAX_MEANINGS || to.contains(&meaning) {
            to.insert(meaning);
        } else {
            to.insert(Meaning::Unknown);
        }
    }
}

/// The texts that something may be, and whether it can be nothing else.
pub(crate) fn texts(meanings: &Meanings) -> (Vec<String>, bool) {
    let text = |meaning: &Meaning| match meaning {
        Meaning::Text(text) => Some(text.clone()),
        Meaning::Bytes(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    };
    let texts: Vec<String> = meanings.iter().filter_map(text).collect();
    let is_all = !texts.is_empty() && texts.len() == meanings.len();
    (texts, is_all)
}

/// A text that begins with a known one.
pub(crate) fn beginning(known: &str) -> Option<Meaning> {
    let kept: String = known.chars().take(MAX_BEGINNING).collect();
    (!kept.is_empty()).then_some(Meaning::Beginning(kept))
}

/// Returns the name by which the innermost module that is followed would be imported: `sys.modules` for `os.sys.modules`.
fn canonical(name: &str) -> &str {
    if let Some((_, function)) = EVERYWHERE.iter().find(|(written, _)| *written == last(name)) {
        return function;
    }
    let mut found = name;
    for tail in tails(name) {
        // `timeit.timeit` is a function, and no module.
        if LISTS.followed_modules.contains(first(tail)) && first(found) != tail {
            found = tail;
        }
    }
    found
}
