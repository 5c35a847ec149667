//! Types of settings: paths, switches, and types that are parsed from text.

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::declare::{Value, ValueForm, values};
use super::raw_value::{ConfigError, RawValue, Setting};
use super::{DurationValue, Size};

/// A path, relative to the file that it is written in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FilePath(pub(crate) PathBuf);

impl Value for FilePath {
    const FORM: ValueForm = ValueForm::Text;

    fn read(given: RawValue, name: &str) -> Result<Setting<Self>, ConfigError> {
        let RawValue { text, origin } = given;
        let why = match text.as_str() {
            "" => "is empty; give a path",
            // It is not expanded here, and a directory called ~ would be a trap.
            tilde if tilde.starts_with('~') => "begins with ~, which only shells understand; write the whole path",
            path => return Ok(Setting::new(Self(origin.resolve(Path::new(path))), origin)),
        };
        Err(ConfigError::Value { origin, key: name.to_owned(), text, why: why.to_owned() })
    }
}

impl Deref for FilePath {
    type Target = PathBuf;

    fn deref(&self) -> &PathBuf {
        &self.0
    }
}

impl fmt::Display for FilePath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(formatter)
    }
}

/// Yes or no.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Switch(pub(crate) bool);

impl FromStr for Switch {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self).map_err(|_| "is neither true nor false")
    }
}

impl fmt::Display for Switch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

values! { String: Text, Switch: Switch, Size: Text, DurationValue: Text }
