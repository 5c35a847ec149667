//! `[[model]]`: the language models that can be asked.

use std::fmt;
use std::str::FromStr;

use aludel_engine::Shown;

use super::given::{ConfigError, Given, Origin, Setting};
use super::headers::Headers;
use super::key::KeySource;
use super::{Entry, Span};

/// The name of the scripted model, which is always there.
pub(crate) const DEMO: &str = "demo";

/// Makes models of what was given. The scripted model is added when it was not configured under its own name.
pub(crate) fn resolve_all(raw: Vec<RawModel>) -> Result<Vec<Model>, ConfigError> {
    let names: Vec<String> = raw.iter().filter(|model| model.url.is_some()).filter_map(RawModel::name).collect();
    let mut models: Vec<Model> = Vec::new();
    for model in raw {
        // A key or a timeout for whichever model there is, and there is none.
        if model.is_loose() && model.url.is_none() {
            continue;
        }
        let model = model.resolve(&names)?;
        if models.iter().any(|other| *other.name == *model.name) {
            let Model { name, .. } = model;
            let why = "is there twice; give one of them another name".to_owned();
            return Err(ConfigError::Model { origin: name.origin.clone(), name: (*name).clone(), why });
        }
        models.push(model);
    }
    if !models.iter().any(|model| *model.name == DEMO) {
        models.push(Model::demo());
    }
    for model in &models {
        for other in &model.fallback.0 {
            if *other == *model.name || !models.iter().any(|model| *model.name == *other) {
                let why = format!("cannot fall back to `{other}`: there is no other model of that name");
                let origin = model.fallback.origin.clone();
                return Err(ConfigError::Model { origin, name: (*model.name).clone(), why });
            }
        }
    }
    Ok(models)
}

/// What was given.
#[derive(Debug, Default)]
pub(crate) struct RawModel {
    start: Origin,
    name: Option<Setting<String>>,
    url: Option<Setting<String>>,
    api: Option<Setting<Api>>,
    key: Option<Setting<KeySource>>,
    upstream_name: Option<Setting<String>>,
    vision: Option<Setting<bool>>,
    function_calling: Option<Setting<bool>>,
    idle_timeout: Option<Setting<Span>>,
    fallback: Option<Setting<Names>>,
    headers: Option<Setting<Headers>>,
    max_output_tokens: Option<Setting<Count>>,
    requests: Option<Setting<Count>>,
    code_interpreter: Option<Setting<Interpreting>>,
}

/// What holds.
#[derive(Debug)]
pub(crate) struct Model {
    /// What people and clients call it.
    pub(crate) name: Setting<String>,
    /// Where it is.
    pub(crate) endpoint: Endpoint,
    /// The models that step in for it, in order.
    pub(crate) fallback: Setting<Names>,
    /// The code interpreter for clients that do not ask for it.
    pub(crate) code_interpreter: Setting<Interpreting>,
}

/// Where a model is.
#[derive(Debug)]
pub(crate) enum Endpoint {
    /// In this program: a script.
    Demo,
    /// Behind an API.
    Http(Box<Http>),
}

/// A model behind an API.
#[derive(Debug)]
pub(crate) struct Http {
    /// The protocol.
    pub(crate) api: Setting<Api>,
    /// The API's base.
    pub(crate) url: Setting<String>,
    /// The key that it wants.
    pub(crate) key: Setting<KeySource>,
    /// What the API calls the model.
    pub(crate) upstream_name: Setting<String>,
    /// Whether the model takes images.
    pub(crate) vision: Setting<bool>,
    /// Whether it can call functions.
    pub(crate) function_calling: Setting<bool>,
    /// How long it may be silent.
    pub(crate) idle_timeout: Setting<Span>,
    /// Headers of every request.
    pub(crate) headers: Setting<Headers>,
    /// The most tokens of one answer.
    pub(crate) max_output_tokens: Setting<Count>,
    /// How many requests may be under way at once.
    pub(crate) requests: Setting<Count>,
}

/// The protocol of an API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    /// Chat Completions.
    Chat,
    /// Responses.
    Responses,
    /// Anthropic's Messages.
    Anthropic,
    /// Google's Gemini.
    Gemini,
    /// None: the script.
    Demo,
}

impl RawModel {
    pub(crate) const KEYS: &[&str] = &[
        "name",
        "url",
        "api",
        "key",
        "upstream_name",
        "vision",
        "function_calling",
        "idle_timeout",
        "fallback",
        "headers",
        "max_output_tokens",
        "requests",
        "code_interpreter",
    ];

    /// Those that may have several values.
    pub(crate) const LISTS: &[&str] = &["fallback"];

    /// Those that are tables of their own.
    pub(crate) const TABLES: &[&str] = &["headers"];

    pub(crate) fn set(&mut self, key: &str, given: Given) -> Result<(), ConfigError> {
        match key {
            "name" => self.name = Some(given.parse::<Word>("model.name")?.map(|word| word.0)),
            "url" => self.url = Some(given.parse::<Url>("model.url")?.map(|url| url.0)),
            "api" => self.api = Some(given.parse("model.api")?),
            "key" => self.key = Some(KeySource::parse(given, "model.key")?),
            "upstream_name" => {
                self.upstream_name = Some(given.parse::<Word>("model.upstream_name")?.map(|word| word.0));
            }
            "vision" => self.vision = Some(given.parse::<Switch>("model.vision")?.map(|switch| switch.0)),
            "function_calling" => {
                self.function_calling = Some(given.parse::<Switch>("model.function_calling")?.map(|switch| switch.0));
            }
            "idle_timeout" => self.idle_timeout = Some(given.parse("model.idle_timeout")?),
            "fallback" => self.fallback = Some(given.parse("model.fallback")?),
            "headers" => self.headers = Some(Headers::parse(given)?),
            "max_output_tokens" => self.max_output_tokens = Some(given.parse("model.max_output_tokens")?),
            "requests" => self.requests = Some(given.parse("model.requests")?),
            "code_interpreter" => self.code_interpreter = Some(given.parse("model.code_interpreter")?),
            _ => return Err(super::unknown_key("model", key, Self::KEYS, given.origin)),
        }
        Ok(())
    }

    /// The model of a table that begins here.
    pub(crate) fn starting_at(start: Origin) -> Self {
        Self { start, ..Self::default() }
    }

    /// Whether no table holds it: it comes from the environment, without saying which model it is about.
    fn is_loose(&self) -> bool {
        self.name.is_none() && self.start == Origin::Default
    }

    fn name(&self) -> Option<String> {
        self.name.as_ref().map(|name| (**name).clone())
    }

    /// Whether nothing was given at all.
    fn is_empty(&self) -> bool {
        let Self {
            start: _,
            name,
            url,
            api,
            key,
            upstream_name,
            vision,
            function_calling,
            idle_timeout,
            fallback,
            headers,
            max_output_tokens,
            requests,
            code_interpreter,
        } = self;
        name.is_none()
            && url.is_none()
            && api.is_none()
            && key.is_none()
            && upstream_name.is_none()
            && vision.is_none()
            && function_calling.is_none()
            && idle_timeout.is_none()
            && fallback.is_none()
            && headers.is_none()
            && max_output_tokens.is_none()
            && requests.is_none()
            && code_interpreter.is_none()
    }

    /// Puts what a higher layer says about one model over what is known, and that model first, which makes it the default.
    ///
    /// It is the model of the same name or, when no name is given, the first. A key and headers are sent only to the url that they were given
    /// for: whoever gives another url gives these too.
    pub(crate) fn overlay(self, models: &mut Vec<Self>) {
        if self.is_empty() {
            return;
        }
        let place = match &self.name {
            Some(name) => {
                let same = |model: &Self| model.name.as_deref() == Some(&**name);
                models.iter().position(|model| same(model) || model.is_loose())
            }
            None => (!models.is_empty()).then_some(0),
        };
        let below = place.map(|place| models.remove(place)).unwrap_or_default();
        let (key_below, headers_below) = if self.url.is_some() { (None, None) } else { (below.key, below.headers) };
        let merged = Self {
            start: below.start,
            name: self.name.or(below.name),
            url: self.url.or(below.url),
            api: self.api.or(below.api),
            key: self.key.or(key_below),
            upstream_name: self.upstream_name.or(below.upstream_name),
            vision: self.vision.or(below.vision),
            function_calling: self.function_calling.or(below.function_calling),
            idle_timeout: self.idle_timeout.or(below.idle_timeout),
            fallback: self.fallback.or(below.fallback),
            headers: self.headers.or(headers_below),
            max_output_tokens: self.max_output_tokens.or(below.max_output_tokens),
            requests: self.requests.or(below.requests),
            code_interpreter: self.code_interpreter.or(below.code_interpreter),
        };
        models.insert(0, merged);
    }

    /// `names` are those of the models that are there.
    fn resolve(self, names: &[String]) -> Result<Model, ConfigError> {
        let Some(name) = self.name else {
            let origin = self.url.map_or(self.start, |url| url.origin);
            return Err(ConfigError::NamelessModel { origin });
        };
        let api = self.api.unwrap_or(Setting::default(if *name == DEMO && self.url.is_none() {
            Api::Demo
        } else {
            Api::Chat
        }));
        let code_interpreter = self.code_interpreter.unwrap_or(Setting::default(Interpreting::default()));
        if *api == Api::Demo {
            let fallback = Setting::default(Names::default());
            return Ok(Model { name, endpoint: Endpoint::Demo, fallback, code_interpreter });
        }
        let Some(url) = self.url else {
            let why = match &name.origin {
                Origin::File { .. } => "needs a url; add: url = \"https://…/v1\"".to_owned(),
                // Somebody asked for a model by a name that nothing else is known of.
                _ => format!(
                    "is not configured; there are: {}. Add a [[model]] to aludel.toml, or give its url too",
                    names.iter().map(String::as_str).chain([DEMO]).collect::<Vec<_>>().join(", ")
                ),
            };
            return Err(ConfigError::Model { origin: name.origin.clone(), name: (*name).clone(), why });
        };
        let upstream_name = self.upstream_name.unwrap_or(Setting::default((*name).clone()));
        let http = Http {
            api,
            url,
            key: self.key.unwrap_or(Setting::default(KeySource::None)),
            upstream_name,
            vision: self.vision.unwrap_or(Setting::default(false)),
            function_calling: self.function_calling.unwrap_or(Setting::default(true)),
            idle_timeout: self.idle_timeout.unwrap_or(Setting::default(Span::from_secs(120))),
            headers: self.headers.unwrap_or(Setting::default(Headers::default())),
            max_output_tokens: self.max_output_tokens.unwrap_or(Setting::default(Count::default())),
            requests: self.requests.unwrap_or(Setting::default(Count::default())),
        };
        let fallback = self.fallback.unwrap_or(Setting::default(Names::default()));
        Ok(Model { name, endpoint: Endpoint::Http(Box::new(http)), fallback, code_interpreter })
    }
}

impl Model {
    /// The scripted model, as nobody configured it.
    fn demo() -> Self {
        Self {
            name: Setting::default(DEMO.to_owned()),
            endpoint: Endpoint::Demo,
            fallback: Setting::default(Names::default()),
            code_interpreter: Setting::default(Interpreting::default()),
        }
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        let key = |key: &str| format!("model.{}.{key}", *self.name);
        match &self.endpoint {
            Endpoint::Demo => vec![Entry::shown(key("api"), Api::Demo, &self.name)],
            Endpoint::Http(http) => vec![
                Entry::new(key("api"), &http.api),
                Entry::new(key("url"), &http.url),
                Entry::new(key("key"), &http.key),
                Entry::new(key("upstream_name"), &http.upstream_name),
                Entry::new(key("vision"), &http.vision),
                Entry::new(key("function_calling"), &http.function_calling),
                Entry::new(key("idle_timeout"), &http.idle_timeout),
                Entry::new(key("fallback"), &self.fallback),
                Entry::new(key("headers"), &http.headers),
                Entry::new(key("max_output_tokens"), &http.max_output_tokens),
                Entry::new(key("requests"), &http.requests),
                Entry::new(key("code_interpreter"), &self.code_interpreter),
            ],
        }
    }

    /// What should be said about it, although it works.
    pub(crate) fn warning(&self) -> Option<String> {
        let Endpoint::Http(http) = &self.endpoint else { return None };
        match (&*http.key, &http.key.origin) {
            (KeySource::Literal(_), origin @ Origin::File { .. }) => Some(format!(
                "{origin}: the key of the model `{}` stands in the file itself; better put it elsewhere and write \
                 env:NAME or file:PATH",
                *self.name
            )),
            _ => None,
        }
    }
}

impl FromStr for Api {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "chat" => Ok(Self::Chat),
            "responses" => Ok(Self::Responses),
            "anthropic" => Ok(Self::Anthropic),
            "gemini" => Ok(Self::Gemini),
            "demo" => Ok(Self::Demo),
            _ => Err("is not an API that this version speaks; there are chat, responses, anthropic, gemini and demo"),
        }
    }
}

impl fmt::Display for Api {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Chat => "chat",
            Self::Responses => "responses",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
            Self::Demo => "demo",
        })
    }
}

/// A name: not empty, and nothing in it that a terminal would obey.
struct Word(String);

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
pub(crate) struct Names(pub(crate) Vec<String>);

impl FromStr for Names {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        names.map(|name| name.parse().map(|Word(name)| name)).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Names {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0.join(", "))
    }
}

/// A number of at least one, if there is one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count(pub(crate) Option<u32>);

impl FromStr for Count {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.replace('_', "").parse() {
            Ok(number @ 1..) => Ok(Self(Some(number))),
            _ => Err("is no whole number from 1 on"),
        }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => number.fmt(formatter),
            None => formatter.write_str("any"),
        }
    }
}

/// The parts of programs that clients see which know of no code interpreter, if those have one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Interpreting(pub(crate) Option<Shown>);

impl FromStr for Interpreting {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(match text {
            "false" => None,
            "true" => Some(Shown::All),
            "output" => Some(Shown::Output),
            "files" => Some(Shown::Files),
            _ => return Err("is neither true nor false, nor the parts to show: output or files"),
        }))
    }
}

impl fmt::Display for Interpreting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self.0 {
            None => "false",
            Some(Shown::All) => "true",
            Some(Shown::Output) => "output",
            Some(Shown::Files) => "files",
        })
    }
}

/// The base of an API. The agent looks at it more closely when it is used.
struct Url(String);

impl FromStr for Url {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.starts_with("http://") || text.starts_with("https://") {
            Ok(Self(text.to_owned()))
        } else {
            Err("does not begin with http:// or https://")
        }
    }
}

/// Yes or no.
pub(super) struct Switch(pub(super) bool);

impl FromStr for Switch {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self).map_err(|_| "is neither true nor false")
    }
}
