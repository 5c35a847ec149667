//! The protocol of a model's API: one that the agent knows, or none for the scripted model.

use std::fmt;
use std::str::FromStr;

use aludel_agent::upstream::http::Protocol;

use super::declare::{Value, ValueForm};
use super::raw_value::{ConfigError, RawValue, Setting};

/// The word for the script.
const DEMO: &str = "demo";

/// The protocol of an API.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ApiSetting {
    /// A protocol of models' servers.
    Http(Protocol),
    /// None: the script.
    Demo,
}

impl ApiSetting {
    /// All words.
    fn words() -> Vec<&'static str> {
        Protocol::ALL.iter().map(|protocol| protocol.word).chain([DEMO]).collect()
    }
}

impl FromStr for ApiSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == DEMO {
            return Ok(Self::Demo);
        }
        match Protocol::ALL.iter().find(|protocol| protocol.word == text) {
            Some(protocol) => Ok(Self::Http(*protocol)),
            None => Err(format!("is none of: {}", Self::words().join(", "))),
        }
    }
}

impl fmt::Display for ApiSetting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Http(protocol) => protocol.word,
            Self::Demo => DEMO,
        })
    }
}

impl Value for ApiSetting {
    const FORM: ValueForm = ValueForm::Choice(Self::words);

    fn read(given: RawValue, name: &str) -> Result<Setting<Self>, ConfigError> {
        given.parse(name)
    }

    fn about() -> Vec<String> {
        let protocols = Protocol::ALL.iter().map(|Protocol { title, word, .. }| format!("{title} (`{word}`),"));
        protocols.chain([format!("or a script of its own for trying aludel out (`{DEMO}`).")]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_as_it_is_written() {
        for word in ApiSetting::words() {
            assert_eq!(word.parse::<ApiSetting>().map(|api| api.to_string()), Ok(word.to_owned()));
        }
    }
}
