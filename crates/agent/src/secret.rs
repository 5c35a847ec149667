//! A value that is never printed.

use std::fmt;

/// A key or password. Neither `Debug` nor `Display` shows it, and it cannot be serialized.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    value: String,
    origin: Option<String>,
}

impl Secret {
    /// Wraps the value, without the white space around it that files and shells leave.
    pub fn new(value: impl AsRef<str>) -> Self {
        Self { value: value.as_ref().trim().to_owned(), origin: None }
    }

    /// Sets the value's origin, for example `env:OPENAI_API_KEY`, so that an error can name it.
    #[must_use]
    pub fn from_origin(self, origin: impl Into<String>) -> Self {
        Self { origin: Some(origin.into()), ..self }
    }

    /// The value itself.
    pub fn expose(&self) -> &str {
        &self.value
    }

    /// Returns the origin of the value, if that was noted.
    pub fn origin(&self) -> Option<&str> {
        self.origin.as_deref()
    }

    /// Removes every occurrence of the value from the text: some servers quote the key that they refuse.
    pub(crate) fn redact(&self, text: &str) -> String {
        if self.value.is_empty() { text.to_owned() } else { text.replace(&self.value, "***") }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_print() {
        let secret = Secret::new("  sk-123\n").from_origin("env:KEY");
        assert_eq!(secret.expose(), "sk-123");
        assert_eq!(format!("{secret:?} {:?}", Some(&secret)), "*** Some(***)");
        assert_eq!(secret.redact("bad key sk-123!"), "bad key ***!");
        assert_eq!(Secret::new("").redact("unchanged"), "unchanged");
    }
}
