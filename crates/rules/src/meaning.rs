//! Meaning of a name or an expression, as far as reading tells.

use std::collections::BTreeSet;

use crate::dotted::{below, first};

/// Texts that one name may be; more of them are not kept.
const MAX_TEXTS: usize = 16;
/// Bytes of a text that are kept.
const MAX_TEXT: usize = 1 << 10;

/// One thing that something means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// A module, or something that it holds: `os.system`.
    Path(String),
    /// The result of a call, or something of that: `pathlib.Path.unlink` for `pathlib.Path().unlink`.
    Result(String),
    /// One of these texts. If it is not `whole`, it may be one that begins so, or anything else.
    Text { texts: BTreeSet<String>, whole: bool },
    /// Anything.
    Unknown,
}

impl Meaning {
    /// A text that is written out.
    pub(crate) fn text(text: &str) -> Self {
        let end = text.floor_char_boundary(MAX_TEXT);
        Self::Text { texts: BTreeSet::from([text[..end].to_owned()]), whole: end == text.len() }
    }

    /// The same text, with something done to it.
    pub(crate) fn changed(self) -> Self {
        match self {
            Self::Text { texts, .. } => Self::Text { texts, whole: false },
            _ => Self::Unknown,
        }
    }

    /// Something that means one or the other.
    pub(crate) fn or(self, other: Self) -> Self {
        match (self, other) {
            (one, other) if one == other => one,
            (Self::Text { mut texts, whole }, Self::Text { texts: more, whole: is_whole }) => {
                texts.extend(more);
                let is_all = texts.len() <= MAX_TEXTS;
                let texts = texts.into_iter().take(MAX_TEXTS).collect();
                Self::Text { texts, whole: whole && is_whole && is_all }
            }
            // Tables and files are made of others.
            (Self::Result(one), Self::Result(other)) if first(&one) == first(&other) => Self::Result(one),
            (text @ Self::Text { .. }, _) | (_, text @ Self::Text { .. }) => text.changed(),
            _ => Self::Unknown,
        }
    }

    /// Its attribute of a name, as far as that is known.
    pub(crate) fn attribute(&self, name: &str) -> Self {
        match self {
            Self::Path(path) => below(path, name).map_or(Self::Unknown, Self::Path),
            Self::Result(path) => below(path, name).map_or(Self::Unknown, Self::Result),
            other => other.clone().changed(),
        }
    }

    /// The result of a call of it. Results of methods are taken for the same kind of thing.
    pub(crate) fn result(&self) -> Self {
        match self {
            Self::Path(path) | Self::Result(path) => Self::Result(path.clone()),
            other => other.clone().changed(),
        }
    }

    /// The name of the function or module that it comes from.
    pub(crate) fn origin(&self) -> Option<&str> {
        match self {
            Self::Path(path) | Self::Result(path) => Some(path),
            _ => None,
        }
    }

    /// Texts that it may be, or that it may begin with.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &String> {
        let texts = if let Self::Text { texts, .. } = self { Some(texts) } else { None };
        texts.into_iter().flatten()
    }

    /// Returns true if it is a text that is known.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self, Self::Text { whole: true, .. })
    }

    /// Returns true if it is a table of the program's own names, by which everything can be reached.
    pub(crate) fn is_table(&self) -> bool {
        matches!(self, Self::Result(of) if ["builtins.globals", "builtins.locals"].contains(&&**of))
    }

    /// Bytes that it takes.
    pub(crate) fn size(&self) -> usize {
        self.origin().map_or(0, str::len) + self.texts().map(String::len).sum::<usize>()
    }
}
