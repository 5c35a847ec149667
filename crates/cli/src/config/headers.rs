//! Headers that go with every request to a model.

use std::fmt;

use aludel_agent::Secret;

use super::HostEnvironment;
use super::declare::{Value, ValueForm};
use super::key::KeySource;
use super::raw_value::{ConfigError, RawValue, Setting};

/// Names, and where the values are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Headers(Vec<(String, Setting<KeySource>)>);

impl Value for Headers {
    const FORM: ValueForm = ValueForm::Table;

    /// Parses lines of `NAME: VALUE`, where the value is `env:NAME`, `file:PATH` or the value itself. Errors do not quote it.
    fn read(given: RawValue, setting: &str) -> Result<Setting<Self>, ConfigError> {
        let RawValue { text, origin } = given;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let headers = lines.map(|line| {
            let parts = line.split_once(':').map(|(name, value)| (name.trim(), value.trim()));
            let is_token = |name: &str| {
                let is_fine = |byte| {
                    matches!(byte, b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z') || b"!#$%&'*+-.^_`|~".contains(&byte)
                };
                !name.is_empty() && name.bytes().all(is_fine)
            };
            let Some((name, value)) = parts.filter(|(name, _)| is_token(name)) else {
                let why = "needs names of headers; write headers = { NAME = \"VALUE\" }";
                return Err(ConfigError::KeySource { origin: origin.clone(), name: setting.to_owned(), why });
            };
            let given = RawValue { text: value.to_owned(), origin: origin.clone() };
            Ok((name.to_owned(), KeySource::parse(given, &format!("{setting}.{name}"))?))
        });
        Ok(Setting::new(Self(headers.collect::<Result<_, _>>()?), origin.clone()))
    }
}

impl Headers {
    /// Fetches the values for `model`.
    pub(crate) fn fetch(&self, model: &str, host: &HostEnvironment) -> Result<Vec<(String, Secret)>, ConfigError> {
        let fetched = self.0.iter().filter_map(|(name, source)| {
            let value = source.fetch_text_for(&format!("the header {name} of the model `{model}`"), host);
            value.transpose().map(|value| Ok((name.clone(), value?)))
        });
        fetched.collect()
    }
}

impl fmt::Display for Headers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<String> = self.0.iter().map(|(name, source)| format!("{name}: {}", **source)).collect();
        formatter.write_str(&headers.join(", "))
    }
}
