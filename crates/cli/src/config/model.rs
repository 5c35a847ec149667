//! `[[model]]`: the language models that can be asked.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use aludel_agent::upstream::http::Protocol;
use aludel_engine::ProgramParts;
use aludel_sandbox::template::Choice;

use super::api::ApiSetting;
use super::declare::{choice, settings, values};
use super::headers::Headers;
use super::key::KeySource;
use super::raw_value::{ConfigError, RawValue, Setting, ValueOrigin};
use super::{ConfigEntry, DurationValue, Switch};

/// The name of the scripted model, which is always there.
pub(crate) const DEMO: &str = "demo";

settings! {
    /// A language model. The file has a `[[model]]` for each; the first is asked when nobody names one. Variables and flags change the
    /// model that they name (`ALUDEL_MODEL_NAME`, `--model`), or else the first.
    pub(crate) struct ModelSection of "model" {
        /// Name by which people and clients ask for it.
        name: Word = Word::default();
        /// Base of its API, such as `http://localhost:11434/v1`.
        url: ApiUrl = ApiUrl::default();
        /// Protocol of its API:
        api: ApiSetting = ApiSetting::Http(Protocol::CHAT_COMPLETIONS);
        /// Its key, as `env:NAME` or `file:PATH`.
        key: KeySource = KeySource::None;
        /// Name of the model at its API; the name here unless it is given.
        upstream_name: Word = Word::default();
        /// It takes images: pictures that programs make are shown to it.
        vision: Switch = Switch(false);
        /// It can call functions. One that cannot writes programs in fenced blocks.
        function_calling: Switch = Switch(true);
        /// Time for which it may be silent.
        idle_timeout: DurationValue = DurationValue::from_secs(120);
        /// Models that are asked instead when it is busy, broken or out of reach, in order.
        fallback: ModelNames = ModelNames::default();
        /// Headers of every request to it. Values can be `env:NAME` or `file:PATH`.
        headers: Headers = Headers::default();
        /// The most tokens that the model writes for one request to it, also where nobody says a number.
        max_output_tokens: OptionalCount = OptionalCount::default();
        /// The most requests to it at once. One more falls back, or hears 429.
        requests: OptionalCount = OptionalCount::default();
        /// The code interpreter for clients that do not ask for it, such as chat products: `true` shows programs, output, pictures and
        /// files in the text, `output` leaves the programs out, `files` all but pictures and files. It holds for Chat Completions
        /// alone; clients of the other APIs ask for the tool.
        code_interpreter: InterpreterSetting = InterpreterSetting::No;
        /// Template of the sandboxes of its programs; `default` for that of `sandbox.template`.
        template: Choice = Choice::Default;
    }
}

values! { Word: Text, ApiUrl: Text, ModelNames: List, OptionalCount: Number }

choice! {
    /// The parts of programs that are shown to clients that know of no code interpreter, if those have one.
    pub(crate) enum InterpreterSetting {
        /// They have none.
        No = "false",
        /// All.
        Yes = "true",
        /// Output, pictures and files.
        Output = "output",
        /// Pictures and files.
        Files = "files",
    }
}

impl InterpreterSetting {
    /// The same as the server knows it.
    pub(crate) fn program_parts(self) -> Option<ProgramParts> {
        match self {
            Self::No => None,
            Self::Yes => Some(ProgramParts::All),
            Self::Output => Some(ProgramParts::Output),
            Self::Files => Some(ProgramParts::Files),
        }
    }
}

/// A model as it was given, layer over layer.
#[derive(Debug, Default)]
pub(crate) struct RawModel {
    /// The position of its table; the default for a model of another layer.
    start: ValueOrigin,
    model: ModelSection,
}

/// Keys of a model, in a layer above the file.
pub(crate) type Overlay = Vec<(&'static str, RawValue)>;

impl RawModel {
    /// The model of a table that begins here.
    pub(crate) fn starting_at(start: ValueOrigin) -> Self {
        Self { start, ..Self::default() }
    }

    /// Sets a key.
    pub(crate) fn set(&mut self, key: &str, given: RawValue) -> Result<(), ConfigError> {
        self.model.set(key, given)
    }

    /// Returns true if no table has it, and no variable or flag names its model.
    fn is_loose(&self) -> bool {
        !self.model.name.is_given() && self.start == ValueOrigin::Default
    }

    /// Applies keys of a higher layer to their model, and puts that model first, which makes it the default.
    ///
    /// It is the model of the same name or, when no name is given, the first. A key and headers are sent only to the url of their own
    /// layer: a layer with another url must have these too.
    pub(crate) fn overlay(models: &mut Vec<Self>, keys: Overlay) -> Result<(), ConfigError> {
        if keys.is_empty() {
            return Ok(());
        }
        let given = |key: &str| keys.iter().find(|(known, _)| *known == key).map(|(_, given)| given);
        let place = match given("name") {
            Some(name) => models.iter().position(|model| **model.model.name == *name.text || model.is_loose()),
            None => (!models.is_empty()).then_some(0),
        };
        let mut below = place.map(|place| models.remove(place)).unwrap_or_default();
        if given("url").is_some() {
            let ModelSection { key, headers, .. } = ModelSection::default();
            (below.model.key, below.model.headers) = (key, headers);
        }
        for (key, given) in keys {
            below.set(key, given)?;
        }
        models.insert(0, below);
        Ok(())
    }

    /// Fills in the defaults that depend on other settings, and checks them. `names` are those of the existing models.
    fn resolve(self, names: &[String]) -> Result<ModelSection, ConfigError> {
        let Self { start, mut model } = self;
        if !model.name.is_given() {
            let origin = if model.url.is_given() { model.url.origin } else { start };
            return Err(ConfigError::NamelessModel { origin });
        }
        if !model.api.is_given() && **model.name == DEMO && !model.url.is_given() {
            model.api = Setting::default(ApiSetting::Demo);
        }
        if model.is_demo() {
            let (name, api, code_interpreter) = (model.name, model.api, model.code_interpreter);
            return Ok(ModelSection { name, api, code_interpreter, ..ModelSection::default() });
        }
        if !model.url.is_given() {
            let why = match &model.name.origin {
                ValueOrigin::File { .. } => "needs a url; add: url = \"https://…/v1\"".to_owned(),
                // The model was requested by name, and nothing else is known about it.
                _ => format!(
                    "is not configured; there are: {}. Add a [[model]] to aludel.toml, or give its url too",
                    names.iter().map(String::as_str).chain([DEMO]).collect::<Vec<_>>().join(", ")
                ),
            };
            return Err(model.wrong(why));
        }
        if !model.upstream_name.is_given() {
            model.upstream_name = Setting::default((*model.name).clone());
        }
        Ok(model)
    }
}

/// Resolves all given models. Adds the scripted model unless it was configured under its own name.
pub(crate) fn resolve_all(given: Vec<RawModel>) -> Result<Vec<ModelSection>, ConfigError> {
    let named = given.iter().filter(|given| given.model.url.is_given() && given.model.name.is_given());
    let names: Vec<String> = named.map(|given| given.model.name.to_string()).collect();
    let mut models: Vec<ModelSection> = Vec::new();
    for model in given {
        // A key or a timeout without a model's name, and there is no model.
        if model.is_loose() && !model.model.url.is_given() {
            continue;
        }
        let model = model.resolve(&names)?;
        if models.iter().any(|other| *other.name == *model.name) {
            return Err(model.wrong("is there twice; give one of them another name".to_owned()));
        }
        models.push(model);
    }
    if !models.iter().any(|model| **model.name == DEMO) {
        models.push(ModelSection::demo());
    }
    for model in &models {
        for other in &model.fallback.0 {
            if **other == **model.name || !models.iter().any(|model| **model.name == *other) {
                let why = format!("cannot fall back to `{other}`: there is no other model of that name");
                let origin = model.fallback.origin.clone();
                return Err(ConfigError::Model { origin, name: model.name.to_string(), why });
            }
        }
    }
    Ok(models)
}

impl ModelSection {
    /// The scripted model with default settings.
    fn demo() -> Self {
        let (name, api) = (Setting::default(Word(DEMO.to_owned())), Setting::default(ApiSetting::Demo));
        Self { name, api, ..Self::default() }
    }

    /// Returns true if it is the script, which has no address.
    pub(crate) fn is_demo(&self) -> bool {
        matches!(*self.api, ApiSetting::Demo)
    }

    fn wrong(&self, why: String) -> ConfigError {
        ConfigError::Model { origin: self.name.origin.clone(), name: self.name.to_string(), why }
    }

    pub(crate) fn entries(&self) -> Vec<ConfigEntry> {
        let section = format!("model.{}", *self.name);
        if self.is_demo() {
            return vec![ConfigEntry {
                key: format!("{section}.api"),
                value: self.api.to_string(),
                origin: self.name.origin.clone(),
            }];
        }
        let mut entries = self.entries_of(&section);
        // The name is in the keys.
        entries.remove(0);
        entries
    }

    /// Returns a warning about a model that works all the same.
    pub(crate) fn warning(&self) -> Option<String> {
        match (&*self.key, &self.key.origin) {
            (KeySource::Literal(_), origin @ ValueOrigin::File { .. }) => Some(format!(
                "{origin}: the key of the model `{}` stands in the file itself; better put it elsewhere and write \
                 env:NAME or file:PATH",
                *self.name
            )),
            _ => None,
        }
    }
}

/// A name: not empty, and nothing in it that a terminal would obey.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Word(String);

impl Deref for Word {
    type Target = String;

    fn deref(&self) -> &String {
        &self.0
    }
}

impl fmt::Display for Word {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl FromStr for Word {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.trim().is_empty() || text.chars().any(char::is_control) {
            return Err("is not a name");
        }
        Ok(Self(text.to_owned()))
    }
}

/// Names of models, with commas between them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ModelNames(pub(crate) Vec<String>);

impl FromStr for ModelNames {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        names.map(|name| name.parse().map(|Word(name)| name)).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for ModelNames {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0.join(", "))
    }
}

/// A number of at least one, if there is one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OptionalCount(pub(crate) Option<u32>);

impl FromStr for OptionalCount {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.replace('_', "").parse() {
            Ok(number @ 1..) => Ok(Self(Some(number))),
            _ => Err("is no whole number from 1 on"),
        }
    }
}

impl fmt::Display for OptionalCount {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => number.fmt(formatter),
            None => formatter.write_str("any"),
        }
    }
}

/// The base of an API. The agent looks at it more closely when it is used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ApiUrl(String);

impl Deref for ApiUrl {
    type Target = String;

    fn deref(&self) -> &String {
        &self.0
    }
}

impl fmt::Display for ApiUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl FromStr for ApiUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.starts_with("http://") || text.starts_with("https://") {
            Ok(Self(text.to_owned()))
        } else {
            Err("does not begin with http:// or https://")
        }
    }
}
