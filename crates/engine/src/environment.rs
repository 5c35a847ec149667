//! Environment variables of programs.

use std::collections::BTreeMap;
use std::fmt;

use crate::Error;

/// Most variables of one session or sandbox, and most metadata entries of a sandbox.
pub(crate) const MAX_ENTRIES: usize = 256;
/// Most bytes of either, names and values together.
pub(crate) const MAX_BYTES: usize = 64 << 10;

/// Environment variables that are within the bounds and valid for Linux. The debug output shows only their names.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Checks variables.
    pub fn new(variables: BTreeMap<String, String>) -> Result<Self, Error> {
        let bytes: usize = variables.iter().map(|(name, value)| name.len() + value.len()).sum();
        if variables.len() > MAX_ENTRIES || bytes > MAX_BYTES {
            return Err(refused(format!("at most {MAX_ENTRIES} entries of {} KB together", MAX_BYTES >> 10)));
        }
        check_names(&variables)?;
        Ok(Self(variables))
    }

    /// These variables with another set added, which wins on equal names.
    pub fn with(&self, others: &Self) -> Result<Self, Error> {
        Self::new(self.0.iter().chain(&others.0).map(|(name, value)| (name.clone(), value.clone())).collect())
    }

    /// These variables with another set added, which wins on equal names. Each set is within the bounds.
    pub(crate) fn below(&self, others: Self) -> Self {
        Self(self.0.clone().into_iter().chain(others.0).collect())
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names and values, by name.
    pub fn to_vec(&self) -> Vec<(String, String)> {
        self.0.clone().into_iter().collect()
    }

    /// The variables as they are stored.
    pub(crate) fn to_json(&self) -> Option<String> {
        // It cannot fail: the keys are texts.
        (!self.is_empty()).then(|| serde_json::to_string(&self.0).unwrap_or_default())
    }

    /// The variables as they were stored.
    pub(crate) fn from_json(stored: Option<&str>) -> Result<Self, Error> {
        match stored {
            None => Ok(Self::default()),
            // The parser's error could quote a value.
            Some(text) => Ok(Self(serde_json::from_str(text).map_err(|_| Error::internal("stored variables"))?)),
        }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.0.keys()).finish()
    }
}

/// Checks that Linux accepts variables with these names and values.
pub(crate) fn check_names(variables: &BTreeMap<String, String>) -> Result<(), Error> {
    for (name, value) in variables {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(refused(format!("'{}' cannot be an environment variable", name.escape_debug())));
        }
    }
    Ok(())
}

fn refused(reason: String) -> Error {
    Error::Invalid { field: "environment", reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Environment, Error> {
        Environment::new(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn variables_are_bounded_and_their_values_are_not_shown() {
        let some = of(&[("TOKEN", "sesame")]).unwrap();
        assert_eq!(format!("{some:?}"), r#"{"TOKEN"}"#);
        assert_eq!(Environment::from_json(some.to_json().as_deref()).unwrap(), some);
        let broken = Environment::from_json(Some(r#"{"TOKEN": ["sesame"]}"#)).unwrap_err();
        assert!(!broken.to_string().contains("sesame"));
        for refused in [[("", "x")], [("A=B", "x")], [("A", "\0")], [("A", &*"x".repeat(MAX_BYTES))]] {
            assert!(of(&refused).is_err(), "{}", refused[0].0);
        }
        let half = |name: &str| of(&[(name, &"x".repeat(MAX_BYTES / 2 - 1))]).unwrap();
        assert!(half("A").with(&half("B")).unwrap().with(&some).is_err());
        assert_eq!(half("A").with(&half("A")).unwrap(), half("A"));
    }
}
