//! `[[model]]`: the language models that can be asked.

use std::collections::BTreeMap;
use std::time::Duration;

use aludel_agent::Secret;

use super::{Value, units};

/// How long a model may be silent, unless it is said otherwise.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(180);

/// A model that can be asked.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    /// What it is called here.
    pub(crate) name: String,
    pub(crate) api: Api,
    /// Whether it takes images.
    pub(crate) vision: bool,
    /// Whether it can call functions.
    pub(crate) function_calling: bool,
    /// How long it may be silent.
    pub(crate) idle_timeout: Duration,
}

/// How a model is reached.
#[derive(Debug, Clone)]
pub(crate) enum Api {
    /// The scripted one.
    Demo,
    /// OpenAI's Chat Completions.
    Chat {
        url: String,
        key: Option<Secret>,
        /// The model's name at the upstream.
        upstream_name: String,
    },
}

impl Model {
    /// A model of which only the API is known.
    pub(crate) fn new(name: impl Into<String>, api: Api) -> Self {
        Self { name: name.into(), api, vision: false, function_calling: true, idle_timeout: IDLE_TIMEOUT }
    }

    /// The scripted model, which is always there.
    pub(crate) fn demo() -> Self {
        Self::new("demo", Api::Demo)
    }

    /// Makes a model of what was given; an error names the place.
    pub(super) fn resolve(entries: &BTreeMap<String, Value>) -> Result<Self, String> {
        let text = |key: &str| entries.get(key).map(|value| value.text.clone());
        let place = entries.values().next().map(|value| value.origin.to_string()).unwrap_or_default();
        let flag = |key: &str, default: bool| match text(key).as_deref() {
            None => Ok(default),
            Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(other) => Err(format!("{place}: model.{key}: {other:?} is neither true nor false")),
        };
        let name = text("name").ok_or_else(|| format!("{place}: a model needs a name"))?;
        let api = match text("api").as_deref().unwrap_or("chat") {
            "demo" => Api::Demo,
            "chat" => Api::Chat {
                url: text("url")
                    .ok_or_else(|| format!("{place}: the model {name} needs a url, which usually ends in /v1"))?,
                key: text("key")
                    .map(|key| read_key(&key))
                    .transpose()
                    .map_err(|error| format!("{place}: the key of {name}: {error}"))?,
                upstream_name: text("upstream_name").unwrap_or_else(|| name.clone()),
            },
            other => {
                return Err(format!("{place}: model.api: {other:?} is not available yet; use \"chat\" or \"demo\""));
            }
        };
        let idle_timeout = match text("idle_timeout") {
            Some(text) => units::duration(&text).map_err(|error| format!("{place}: model.idle_timeout: {error}"))?,
            None => IDLE_TIMEOUT,
        };
        Ok(Self {
            api,
            vision: flag("vision", false)?,
            function_calling: flag("function_calling", true)?,
            idle_timeout,
            name,
        })
    }
}

/// Reads a key: `env:NAME`, `file:PATH`, or the key itself.
pub(crate) fn read_key(text: &str) -> Result<Secret, String> {
    if let Some(name) = text.strip_prefix("env:") {
        let value = std::env::var(name).map_err(|_| format!("the environment variable {name} is not set"))?;
        return Ok(Secret::new(value).from_origin(text));
    }
    if let Some(path) = text.strip_prefix("file:") {
        let value = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        return Ok(Secret::new(value).from_origin(text));
    }
    Ok(Secret::new(text))
}
