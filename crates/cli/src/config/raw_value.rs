//! A value in its written form with its origin, and possible errors in it.

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum ValueOrigin {
    /// It was not given.
    #[default]
    Default,
    /// A configuration file.
    File {
        /// Its path.
        path: Arc<Path>,
        /// The line, counted from 1.
        line: usize,
    },
    /// An environment variable, by name.
    Environment(String),
    /// A flag of the command line.
    Flag(&'static str),
}

impl ValueOrigin {
    /// Resolves a relative path: from the directory of the file that contains it, otherwise from the working directory.
    pub(crate) fn resolve(&self, path: &Path) -> PathBuf {
        match self {
            Self::File { path: file, .. } => file.parent().unwrap_or(Path::new("")).join(path),
            Self::Default | Self::Environment(_) | Self::Flag(_) => path.to_path_buf(),
        }
    }
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => formatter.write_str("default"),
            Self::File { path, line } => write!(formatter, "{}:{line}", path.display()),
            Self::Environment(name) => write!(formatter, "${name}"),
            Self::Flag(flag) => formatter.write_str(flag),
        }
    }
}

/// A value that is understood, with its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting<T> {
    value: T,
    /// Its origin.
    pub(crate) origin: ValueOrigin,
}

impl<T> Setting<T> {
    /// A value that was given.
    pub(crate) fn new(value: T, origin: ValueOrigin) -> Self {
        Self { value, origin }
    }

    /// A value that was not given.
    pub(crate) fn default(value: T) -> Self {
        Self { value, origin: ValueOrigin::Default }
    }

    /// The same setting with another value.
    pub(crate) fn map<U>(self, convert: impl FnOnce(T) -> U) -> Setting<U> {
        Setting { value: convert(self.value), origin: self.origin }
    }

    /// Returns true if it was set, and is not a default.
    pub(crate) fn is_given(&self) -> bool {
        self.origin != ValueOrigin::Default
    }
}

impl<T> Deref for Setting<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// A value in its written form, before it is parsed. It may be a secret, so it cannot be printed.
pub(crate) struct RawValue {
    /// The text; numbers and booleans of a file included.
    pub(crate) text: String,
    /// Its origin in the configuration.
    pub(crate) origin: ValueOrigin,
}

impl RawValue {
    /// Reads the value as what the key `name` needs.
    pub(crate) fn parse<T>(self, name: &str) -> Result<Setting<T>, ConfigError>
    where
        T: FromStr,
        T::Err: fmt::Display,
    {
        let Self { text, origin } = self;
        match text.parse() {
            Ok(value) => Ok(Setting { value, origin }),
            Err(error) => Err(ConfigError::Value { origin, key: name.to_owned(), text, why: error.to_string() }),
        }
    }
}

/// A mistake in a configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// A key that does not exist.
    #[error("{origin}: there is no `{key}`{}", suggestion(nearest.as_deref(), known))]
    UnknownKey {
        /// Its origin.
        origin: ValueOrigin,
        /// As it is written.
        key: String,
        /// The key that was probably meant.
        nearest: Option<String>,
        /// Keys that are known there.
        known: String,
    },
    /// A value that does not fit its key.
    #[error("{origin}: {key} = {text:?} {why}")]
    Value {
        /// Its origin.
        origin: ValueOrigin,
        /// The key.
        key: String,
        /// The value as it is written.
        text: String,
        /// The mistake and its remedy, as a continuation of the value.
        why: String,
    },
    /// A table in place of a value, or a value in place of a table.
    #[error("{origin}: `{key}` is of type {found}, but should be {wanted}")]
    Shape {
        /// Its origin.
        origin: ValueOrigin,
        /// The key.
        key: String,
        /// Type of the value.
        found: &'static str,
        /// Type that is wanted.
        wanted: &'static str,
    },
    /// A file that is not TOML.
    #[error("{origin}: this is not TOML: {message}")]
    Syntax {
        /// Origin of the mistake.
        origin: ValueOrigin,
        /// The parser's words.
        message: String,
    },
    /// A file that cannot be read.
    #[error("cannot read the configuration {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A model that is missing something, or that is there twice.
    #[error("{origin}: the model `{name}` {why}")]
    Model {
        /// Its origin.
        origin: ValueOrigin,
        /// Its name.
        name: String,
        /// The mistake, so that it reads on from the name.
        why: String,
    },
    /// A model without a name.
    #[error("{origin}: {}", advice_for_name(origin))]
    NamelessModel {
        /// Its origin.
        origin: ValueOrigin,
    },
    /// A value that names no source of a key. Not quoted, because it may be the key.
    #[error("{origin}: {name} {why}")]
    KeySource {
        /// Its origin.
        origin: ValueOrigin,
        /// The setting.
        name: String,
        /// The mistake.
        why: &'static str,
    },
    /// A key that cannot be had.
    #[error("{what} ({origin}): {why}")]
    Key {
        /// The key, by its purpose.
        what: String,
        /// Origin of the setting that names the key's source.
        origin: ValueOrigin,
        /// The mistake.
        why: String,
    },
    /// A part of several settings, or one in a separate file.
    #[error("{origin}: {part}: {why}")]
    Part {
        /// Place of the setting that leads to it.
        origin: ValueOrigin,
        /// The part in words.
        part: String,
        /// The mistake.
        why: String,
    },
    /// No place for the data.
    #[error(
        "there is no place for aludel's data: neither HOME nor XDG_DATA_HOME is set. Give --data DIR or set ALUDEL_SERVER_DATA"
    )]
    NoHome,
}

fn suggestion(nearest: Option<&str>, known: &str) -> String {
    match nearest {
        Some(nearest) => format!("; did you mean `{nearest}`?"),
        None => format!("; known are: {known}"),
    }
}

fn advice_for_name(origin: &ValueOrigin) -> &'static str {
    match origin {
        ValueOrigin::Flag(_) => "a url needs the model's name too; add --model NAME",
        ValueOrigin::Environment(_) => "a model needs a name; set ALUDEL_MODEL_NAME",
        ValueOrigin::Default | ValueOrigin::File { .. } => "a [[model]] needs a name; add: name = \"…\"",
    }
}
