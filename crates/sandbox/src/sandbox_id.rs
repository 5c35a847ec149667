//! Ids of sandboxes.

use std::fmt;
use std::str::FromStr;

/// The id of a sandbox, chosen by the caller: 1 to 64 letters, digits, `-` and `_`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxId(String);

/// A text that is no id of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the id of a sandbox is 1 to 64 letters, digits, - and _")]
pub struct InvalidSandboxId;

impl SandboxId {
    /// A new id, unlike all others.
    pub fn unique() -> Self {
        Self(format!("sbx_{}", crate::random::hex::<12>()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SandboxId {
    type Err = InvalidSandboxId;

    fn from_str(text: &str) -> Result<Self, InvalidSandboxId> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if (1..=64).contains(&text.len()) && text.bytes().all(plain) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidSandboxId)
        }
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_plain() {
        for text in ["a", "sbx_0-Z", &"x".repeat(64), SandboxId::unique().as_str()] {
            assert_eq!(text.parse::<SandboxId>().unwrap().as_str(), text);
        }
        for text in ["", "a/b", "..", "ä", "a b", &"x".repeat(65)] {
            assert!(text.parse::<SandboxId>().is_err(), "{text:?}");
        }
        assert_ne!(SandboxId::unique(), SandboxId::unique());
    }
}
