//! The configuration: `aludel.toml`, then the environment, then flags, each over the one before.
//!
//! What the user typed is text with an origin ([`Raw`]); what the program needs is typed and complete ([`Config`]).

mod model;
mod settings;
mod units;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use aludel_sandbox::{Limits, Require};
use toml::de::{DeTable, DeValue};

use crate::exit::usage;
pub(crate) use model::{Api, Model, read_key};
use settings::{MODEL_KEYS, SETTINGS, nearest};

/// Values from flags, by the path of their setting.
pub(crate) type Flags = Vec<(&'static str, String)>;

/// What the user typed, each value with where it came from.
#[derive(Debug, Default)]
pub(crate) struct Raw {
    values: BTreeMap<String, Value>,
    models: Vec<BTreeMap<String, Value>>,
}

#[derive(Debug, Clone)]
struct Value {
    text: String,
    origin: Origin,
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    Default,
    File { path: PathBuf, line: usize },
    Environment(String),
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => formatter.write_str("default"),
            Self::File { path, line } => write!(formatter, "{}:{line}", path.display()),
            Self::Environment(name) => formatter.write_str(name),
            Self::Flag => formatter.write_str("flag"),
        }
    }
}

/// What the program needs.
#[derive(Debug)]
pub(crate) struct Config {
    /// Where templates and instances are.
    pub(crate) data: PathBuf,
    pub(crate) limits: Limits,
    pub(crate) require: Require,
    /// Sandboxes that are kept ready.
    pub(crate) pool: usize,
    pub(crate) models: Vec<Model>,
}

impl Raw {
    /// Reads all sources.
    pub(crate) fn load(file: Option<&Path>, flags: &Flags) -> anyhow::Result<Self> {
        let mut raw = Self::defaults();
        if let Some(path) = find_file(file) {
            let text = std::fs::read_to_string(&path).map_err(|error| usage(format!("{}: {error}", path.display())))?;
            raw.read_file(&path, &text).map_err(usage)?;
        }
        for setting in SETTINGS {
            let variable = setting.variable();
            if let Ok(text) = std::env::var(&variable) {
                raw.set(setting.path(), text, Origin::Environment(variable));
            }
        }
        for (path, text) in flags {
            raw.set((*path).to_owned(), text.clone(), Origin::Flag);
        }
        Ok(raw)
    }

    fn defaults() -> Self {
        let mut raw = Self::default();
        for setting in SETTINGS {
            raw.set(setting.path(), setting.default.to_owned(), Origin::Default);
        }
        raw
    }

    fn set(&mut self, path: String, text: String, origin: Origin) {
        self.values.insert(path, Value { text, origin });
    }

    /// Takes the values of a file; an error names the line.
    fn read_file(&mut self, path: &Path, text: &str) -> Result<(), String> {
        let file = File { path, text };
        let table = DeTable::parse(text).map_err(|error| {
            let place = error.span().map_or_else(|| path.display().to_string(), |span| file.place(span.start));
            format!("{place}: {}", error.message())
        })?;
        for (section, content) in table.get_ref() {
            let place = file.place(section.span().start);
            match (section.get_ref().as_ref(), content.get_ref()) {
                ("model", DeValue::Array(models)) => {
                    for model in models {
                        let DeValue::Table(entries) = model.get_ref() else {
                            return Err(format!(
                                "{}: a model is a table; begin it with [[model]]",
                                file.place(model.span().start)
                            ));
                        };
                        self.models.push(file.entries(entries, "model", MODEL_KEYS.iter().copied())?);
                    }
                }
                ("model", _) => return Err(format!("{place}: begin each model with [[model]], in double brackets")),
                (name, DeValue::Table(entries)) if SETTINGS.iter().any(|setting| setting.section == name) => {
                    let known = SETTINGS.iter().filter(|setting| setting.section == name).map(|setting| setting.name);
                    let entries = file.entries(entries, name, known)?;
                    self.values.extend(entries.into_iter().map(|(key, value)| (format!("{name}.{key}"), value)));
                }
                (name, _) => {
                    let known = SETTINGS.iter().map(|setting| setting.section).chain(["model"]);
                    return Err(format!("{place}: unknown section `{name}`{}", suggestion(name, known)));
                }
            }
        }
        Ok(())
    }

    /// Path, value and origin of everything, for `aludel config`. Keys of models are hidden.
    pub(crate) fn describe(&self) -> Vec<(String, String, String)> {
        let row = |path: String, value: &Value| {
            let hidden = path.ends_with(".key") && !value.text.starts_with("env:") && !value.text.starts_with("file:");
            (path, if hidden { "***".to_owned() } else { value.text.clone() }, value.origin.to_string())
        };
        let settings =
            SETTINGS.iter().filter_map(|setting| Some(row(setting.path(), self.values.get(&setting.path())?)));
        let models = self
            .models
            .iter()
            .enumerate()
            .flat_map(|(place, model)| model.iter().map(move |(key, value)| (format!("model[{place}].{key}"), value)))
            .map(|(path, value)| row(path, value));
        settings.chain(models).collect()
    }

    fn get<T>(&self, path: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> anyhow::Result<T> {
        let value = self.values.get(path).ok_or_else(|| anyhow::anyhow!("there is no setting {path}"))?;
        parse(&value.text).map_err(|error| usage(format!("{path} ({}): {error}", value.origin)))
    }

    /// Makes the typed configuration, or says which value cannot be used and where it stands.
    pub(crate) fn resolve(&self) -> anyhow::Result<Config> {
        self.get("sandbox.backend", |text| match text {
            "auto" | "local" => Ok(()),
            other => Err(format!("{other:?} is not available yet; use \"local\"")),
        })?;
        self.get("sandbox.idle", units::duration)?;
        self.get("server.listen", |text| {
            text.parse::<std::net::SocketAddr>().map_err(|error| format!("{text:?}: {error}"))
        })?;
        let require = self.get("sandbox.require", |text| match text {
            "default" => Ok(Require::Default),
            "strict" => Ok(Require::Strict),
            other => Err(format!("{other:?} is neither \"default\" nor \"strict\"")),
        })?;
        let pool = self.get("sandbox.pool", |text| in_range(text, "number of sandboxes", 0, 1000))?;
        let models = self.models.iter().map(Model::resolve).collect::<Result<Vec<_>, _>>().map_err(usage)?;
        Ok(Config { data: self.data()?, limits: self.limits()?, require, pool, models })
    }

    fn limits(&self) -> anyhow::Result<Limits> {
        let memory = self.get("sandbox.memory", |text| match units::bytes(text)? {
            bytes if bytes < 64 << 20 => Err(format!("{text} is too little for an interpreter; at least 64m")),
            bytes => Ok(bytes),
        })?;
        // Files are kept in memory, so unless it is said otherwise they may take half of it.
        let disk = self.get("sandbox.disk", |text| match text {
            "" => Ok(memory / 2),
            text => match units::bytes(text)? {
                bytes if bytes > memory => {
                    Err(format!("{text} is more than sandbox.memory, and files are kept in memory"))
                }
                bytes => Ok(bytes),
            },
        })?;
        Ok(Limits {
            memory,
            cpus: self.get("sandbox.cpus", |text| in_range(text, "number of processors", 0.01, 1024.0))?,
            processes: self.get("sandbox.processes", |text| in_range(text, "number of processes", 8, 100_000))?,
            timeout: self.get("sandbox.timeout", units::duration)?,
            disk,
            file_size: disk,
            output: self.get("sandbox.output", units::bytes)?,
            // It counts as memory.
            tmp: Limits::default().tmp.min(memory / 2),
            ..Limits::default()
        })
    }

    fn data(&self) -> anyhow::Result<PathBuf> {
        let given = self.get("server.data", |text| Ok(text.to_owned()))?;
        if !given.is_empty() {
            return Ok(std::path::absolute(given)?);
        }
        let directory = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let base = directory("XDG_DATA_HOME").or_else(|| directory("HOME").map(|home| home.join(".local/share")));
        base.map(|base| base.join("aludel")).ok_or_else(|| {
            usage("there is no HOME to keep data in; name a directory with --data or ALUDEL_SERVER_DATA")
        })
    }
}

impl Config {
    /// The model of that name; without a name the first one, or the demo when none is configured.
    pub(crate) fn model(&self, name: Option<&str>) -> anyhow::Result<Model> {
        let Some(name) = name else { return Ok(self.models.first().cloned().unwrap_or_else(Model::demo)) };
        let found = self.models.iter().find(|model| model.name == name).cloned();
        found.or_else(|| (name == "demo").then(Model::demo)).ok_or_else(|| {
            let known: Vec<_> = self.models.iter().map(|model| model.name.as_str()).chain(["demo"]).collect();
            usage(format!(
                "there is no model `{name}`; there is: {}. Add a [[model]] section, or give --url",
                known.join(", ")
            ))
        })
    }
}

/// A configuration file that is being read.
struct File<'a> {
    path: &'a Path,
    text: &'a str,
}

impl File<'_> {
    fn line(&self, offset: usize) -> usize {
        self.text.get(..offset).map_or(1, |before| before.matches('\n').count() + 1)
    }

    fn place(&self, offset: usize) -> String {
        format!("{}:{}", self.path.display(), self.line(offset))
    }

    /// The values of a section, of which only these keys are known.
    fn entries<'k>(
        &self,
        entries: &DeTable<'_>,
        section: &str,
        known: impl Iterator<Item = &'k str> + Clone,
    ) -> Result<BTreeMap<String, Value>, String> {
        let mut found = BTreeMap::new();
        for (key, value) in entries {
            let (name, offset) = (key.get_ref().as_ref(), key.span().start);
            if !known.clone().any(|known| known == name) {
                return Err(format!(
                    "{}: unknown key `{name}` in [{section}]{}",
                    self.place(offset),
                    suggestion(name, known)
                ));
            }
            let text = match value.get_ref() {
                DeValue::String(text) => text.to_string(),
                DeValue::Integer(number) => number.as_str().replace('_', ""),
                DeValue::Float(number) => number.as_str().replace('_', ""),
                DeValue::Boolean(flag) => flag.to_string(),
                _ => return Err(format!("{}: `{name}` is a single value, not a list or table", self.place(offset))),
            };
            let origin = Origin::File { path: self.path.to_path_buf(), line: self.line(offset) };
            found.insert(name.to_owned(), Value { text, origin });
        }
        Ok(found)
    }
}

fn in_range<T: std::str::FromStr + PartialOrd + Copy + fmt::Display>(
    text: &str,
    what: &str,
    least: T,
    most: T,
) -> Result<T, String> {
    let number: T = text.parse().map_err(|_| format!("{text:?} is no {what}"))?;
    if number >= least && number <= most {
        Ok(number)
    } else {
        Err(format!("{text} is out of range: {least} to {most}"))
    }
}

fn find_file(given: Option<&Path>) -> Option<PathBuf> {
    let asked_for = given.map(Path::to_path_buf).or_else(|| std::env::var_os("ALUDEL_CONFIG").map(PathBuf::from));
    let user = std::env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".config")))
        .map(|base| base.join("aludel/aludel.toml"));
    let usual = [Some("aludel.toml".into()), user, Some("/etc/aludel/aludel.toml".into())];
    asked_for.or_else(|| usual.into_iter().flatten().find(|path: &PathBuf| path.is_file()))
}

fn suggestion<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Raw, String> {
        let mut raw = Raw::defaults();
        raw.set("server.data".into(), "/data".into(), Origin::Flag);
        raw.read_file(Path::new("aludel.toml"), text).map(|()| raw)
    }

    fn error(text: &str) -> String {
        match read(text) {
            Err(error) => error,
            Ok(raw) => raw.resolve().unwrap_err().to_string(),
        }
    }

    #[test]
    fn an_empty_file_gives_the_defaults() {
        let config = read("").unwrap().resolve().unwrap();
        assert_eq!((config.limits.memory, config.pool, config.models.len()), (1 << 30, 4, 0));
        assert_eq!(config.model(None).unwrap().name, "demo");
    }

    #[test]
    fn a_full_file_is_read() {
        let text = "[server]\nlisten = \"127.0.0.1:9\"\n[sandbox]\nmemory = \"2g\"\npool = 7\ncpus = 1.5\nrequire = \"strict\"\n\
                    [[model]]\nname = \"m\"\nurl = \"http://x/v1\"\nupstream_name = \"n\"\nvision = true\nkey = \"sk-1\"\n";
        let raw = read(text).unwrap();
        let config = raw.resolve().unwrap();
        assert_eq!(
            (config.limits.memory, config.limits.cpus, config.pool, config.require),
            (2 << 30, 1.5, 7, Require::Strict)
        );
        let model = config.model(Some("m")).unwrap();
        assert!(model.vision && matches!(model.api, Api::Chat { ref upstream_name, .. } if upstream_name == "n"));
        let described = raw.describe();
        assert!(described.contains(&("sandbox.memory".into(), "2g".into(), "aludel.toml:4".into())));
        assert!(described.contains(&("model[0].key".into(), "***".into(), "aludel.toml:13".into())));
        assert!(!format!("{config:?}").contains("sk-1"));
    }

    #[test]
    fn mistakes_are_told_with_place_and_suggestion() {
        for (text, words) in [
            ("[sandbox]\nmemroy = \"1g\"", "aludel.toml:2: unknown key `memroy` in [sandbox]; did you mean `memory`?"),
            ("\n[sandbx]\n", "aludel.toml:2: unknown section `sandbx`; did you mean `sandbox`?"),
            ("[sandbox]\nmemory = \"lots\"", "sandbox.memory (aludel.toml:2): \"lots\" is no size"),
            ("[sandbox]\nmemory = \"1m\"", "too little"),
            ("[sandbox]\ncpus = 0", "out of range"),
            ("[sandbox]\ntimeout = [1]", "aludel.toml:2: `timeout` is a single value"),
            ("[sandbox]\nbackend = \"docker\"", "not available yet"),
            ("[model]\nname = \"x\"", "double brackets"),
            ("[[model]]\nname = \"x\"", "needs a url"),
            ("[[model]]\nname = \"x\"\nurl = \"u\"\nkey = \"env:NO_SUCH_VARIABLE_1\"", "NO_SUCH_VARIABLE_1 is not set"),
            ("[[model]]\nnme = \"x\"", "did you mean `name`?"),
            ("a = ", "aludel.toml:1:"),
        ] {
            let error = error(text);
            assert!(error.contains(words), "{text:?}: {error}");
        }
    }
}
