//! Place of a model's key, which is fetched when it is needed.

use std::fmt;
use std::path::PathBuf;

use aludel_agent::Secret;

use super::HostEnvironment;
use super::declare::{Value, ValueForm};
use super::raw_value::{ConfigError, RawValue, Setting, ValueOrigin};

/// Place of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeySource {
    /// The model needs none.
    None,
    /// In an environment variable.
    Environment(String),
    /// Alone in a file.
    File(PathBuf),
    /// Right in the configuration.
    Literal(Secret),
}

impl KeySource {
    /// Parses `env:NAME`, `file:PATH` or the key itself, as the setting `name`. Errors never quote the text, which may be the key.
    pub(crate) fn parse(given: RawValue, name: &str) -> Result<Setting<Self>, ConfigError> {
        let RawValue { text, origin } = given;
        let source = match (text.split_once(':'), &origin) {
            (Some(("env", "")), _) => Err("names no variable; write env:NAME"),
            (Some(("env", name)), _) => Ok(Self::Environment(name.to_owned())),
            (Some(("file", "")), _) => Err("names no file; write file:PATH"),
            (Some(("file", path)), _) => Ok(Self::File(origin.resolve(path.as_ref()))),
            _ if text.trim().is_empty() => Err("is empty; write env:NAME or file:PATH"),
            (_, ValueOrigin::Flag(_)) => {
                Err("must be env:NAME or file:PATH: all users of this machine can read a command line")
            }
            _ => Ok(Self::Literal(Secret::new(&text))),
        };
        match source {
            Ok(source) => Ok(Setting::new(source, origin)),
            Err(why) => Err(ConfigError::KeySource { origin, name: name.to_owned(), why }),
        }
    }
}

impl Value for KeySource {
    const FORM: ValueForm = ValueForm::Text;

    fn read(given: RawValue, name: &str) -> Result<Setting<Self>, ConfigError> {
        Self::parse(given, name)
    }
}

impl Setting<KeySource> {
    /// Fetches the key of `model`.
    pub(crate) fn fetch(&self, model: &str, host: &HostEnvironment) -> Result<Option<Secret>, ConfigError> {
        self.fetch_for(&format!("the key of the model `{model}`"), host)
    }

    /// Fetches the secret that is called `what`.
    pub(crate) fn fetch_for(&self, what: &str, host: &HostEnvironment) -> Result<Option<Secret>, ConfigError> {
        let secret = self.fetch_text_for(what, host)?;
        match secret.as_ref().map(Secret::expose) {
            Some(value) if value.chars().any(char::is_whitespace) => {
                Err(self.failed(what, format!("{} holds more than one word, so it is no key", **self)))
            }
            _ => Ok(secret),
        }
    }

    /// Reads the secret called `what`, which may consist of several words.
    pub(crate) fn fetch_text_for(&self, what: &str, host: &HostEnvironment) -> Result<Option<Secret>, ConfigError> {
        let failed = |why: String| self.failed(what, why);
        let secret = match &**self {
            KeySource::None => return Ok(None),
            KeySource::Literal(secret) => secret.clone(),
            KeySource::Environment(name) => match host.variable(name) {
                Some(value) => Secret::new(value),
                None => return Err(failed(format!("the environment variable {name} is not set"))),
            },
            KeySource::File(path) => match std::fs::read_to_string(path) {
                Ok(text) => Secret::new(text),
                Err(error) => return Err(failed(format!("cannot read {}: {error}", path.display()))),
            },
        };
        let secret = match &**self {
            KeySource::Literal(_) => secret,
            elsewhere => secret.from_origin(elsewhere.to_string()),
        };
        match secret.expose() {
            "" => Err(failed(format!("{} is empty", **self))),
            value if value.chars().any(char::is_control) => {
                Err(failed(format!("{} holds more than one line, or what no terminal shows", **self)))
            }
            _ => Ok(Some(secret)),
        }
    }

    fn failed(&self, what: &str, why: String) -> ConfigError {
        ConfigError::Key { what: what.to_owned(), origin: self.origin.clone(), why }
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => formatter.write_str("none"),
            Self::Environment(name) => write!(formatter, "env:{name}"),
            Self::File(path) => write!(formatter, "file:{}", path.display()),
            Self::Literal(_) => formatter.write_str("(hidden)"),
        }
    }
}
