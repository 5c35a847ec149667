//! Names of templates.

use std::fmt;
use std::str::FromStr;

/// The name of the template that everybody has.
const DEFAULT: &str = "default";
/// Bytes of the longest name.
const MAX_BYTES: usize = 32;

/// The name of an operator's template: 1 to 32 lower-case letters, digits, `-`, `_` and `.`, beginning with a letter or digit. Names that
/// begin with `default` are reserved for the default template.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TemplateName(String);

impl TemplateName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TemplateName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_first = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_plain = |byte: u8| is_first(byte) || matches!(byte, b'-' | b'_' | b'.');
        let is_name = text.bytes().next().is_some_and(is_first) && text.bytes().all(is_plain);
        if text.len() > MAX_BYTES || !is_name {
            return Err("is no name of a template: 1 to 32 of a-z, 0-9, - _ ., with a letter or digit first");
        }
        if text.starts_with(DEFAULT) {
            return Err("begins with `default`, as only the names of the default template do");
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for TemplateName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A template, as a setting or a request names it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Choice {
    /// The reserved name: `default`.
    #[default]
    Default,
    /// One of the operator's own.
    Own(TemplateName),
}

impl Choice {
    /// The name of a template of the operator's own.
    pub fn own(&self) -> Option<&TemplateName> {
        match self {
            Self::Default => None,
            Self::Own(name) => Some(name),
        }
    }
}

impl FromStr for Choice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == DEFAULT { Ok(Self::Default) } else { text.parse().map(Self::Own) }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => formatter.write_str(DEFAULT),
            Self::Own(name) => name.fmt(formatter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_not_the_defaults() {
        for name in ["ml", "a", "3d", "geo-2.1_x", &"x".repeat(32)] {
            assert_eq!(name.parse::<TemplateName>().unwrap().as_str(), name);
        }
        for name in ["", ".", "..", "-x", "a/b", "Ml", "ä", "a b", "default", "default-0", "defaults", &"x".repeat(33)]
        {
            assert!(name.parse::<TemplateName>().is_err(), "{name:?}");
        }
        assert_eq!("default".parse(), Ok(Choice::Default));
        assert!("default-1".parse::<Choice>().is_err());
    }
}
