//! Languages by name.

use std::fmt;
use std::str::FromStr;

/// The language of a kernel other than the sandbox's own: in lower case, by the first of its names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Language(String);

/// Languages with several names, first the name of their kernels.
const NAMES: [&[&str]; 5] = [
    &["python", "py", "python3", "ipython"],
    &["bash", "sh", "shell"],
    &["javascript", "js", "node"],
    &["typescript", "ts"],
    &["r", "rscript"],
];
/// The longest name, bytes.
const MAX_NAME: usize = 32;

impl Language {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Language {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// An invalid name of a language: valid are 1 to 32 letters, digits and `+`, `#`, `-`, `_`, `.`.
#[derive(Debug, thiserror::Error)]
#[error("the name of a language is 1 to {MAX_NAME} letters, digits and + # - _ .")]
pub struct NoLanguage;

impl FromStr for Language {
    type Err = NoLanguage;

    fn from_str(text: &str) -> Result<Self, NoLanguage> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+#-_.".contains(&byte);
        if !(1..=MAX_NAME).contains(&text.len()) || !text.bytes().all(plain) {
            return Err(NoLanguage);
        }
        let text = text.to_ascii_lowercase();
        let names = NAMES.iter().find(|names| names.contains(&text.as_str()));
        Ok(Self(names.map_or(text, |names| names[0].to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_language_has_one_name() {
        let name = |text: &str| text.parse::<Language>().unwrap().0;
        assert_eq!(["JS", "javascript", "Sh", "c++", "R"].map(name), ["javascript", "javascript", "bash", "c++", "r"]);
        for text in ["", "a b", "ä", "../x", &"x".repeat(33)] {
            assert!(text.parse::<Language>().is_err(), "{text:?}");
        }
    }
}
