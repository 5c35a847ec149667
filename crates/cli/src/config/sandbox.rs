//! `[sandbox]`: where sandboxes come from and the limits of each.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::LazyLock;

use aludel_engine::Environment;
use aludel_sandbox::template::{Choice, TemplateName};
use aludel_sandbox::{DEFAULT_IMAGE, DockerConfig, E2bConfig, Limits, OpenSandboxConfig};
use aludel_store::KeyId;

use super::declare::{choice, settings, values};
use super::key::KeySource;
use super::raw_value::{ConfigError, Setting};
use super::{ConfigEntry, DurationValue, HostEnvironment, Size, Switch};

/// Names of settings that differ between sandboxes, or that only a server uses.
const NOT_COMMON: [&str; 16] = [
    "memory",
    "timeout",
    "disk",
    "cpus",
    "processes",
    "output",
    "cpu_time",
    "idle",
    "pool",
    "templates",
    "key_templates",
    "max_memory",
    "linger",
    "answers",
    "lifetime",
    "keep",
];

/// Ready templates of a server, besides the usual one.
pub(crate) const MAX_TEMPLATES: usize = 8;

static LIMITS: LazyLock<Limits> = LazyLock::new(Limits::default);

settings! {
    /// Sandboxes: their origin, and the limits of each.
    pub(crate) struct SandboxSection of "sandbox" {
        /// Origin of sandboxes: `local` makes them of Linux namespaces on this host, `docker` takes containers of an engine, Docker's
        /// or Podman's, `e2b` and `opensandbox` take those of a service that speaks E2B's or OpenSandbox's protocol, and `auto` takes the
        /// first that works: E2B if its key is in the settings, OpenSandbox if its address is, this host, containers.
        ///
        /// Containers and sandboxes of a service start in seconds instead of milliseconds. Programs and files leave this host for a
        /// service.
        backend: BackendSetting = BackendSetting::Auto;
        /// Template of sandboxes: `default`, or the name of one of your own, as `aludel template build --name NAME` makes it.
        template: Choice = Choice::Default;
        /// Directory whose templates all users of this host share. They are looked for after those of `server.data`, and only read, but by
        /// `aludel template build --shared`.
        shared: DirectoryPath = DirectoryPath("/usr/local/share/aludel".into());
        /// Further templates of your own that a server has ready, at most 8: a `[[model]]` has its `template`, and clients of E2B and
        /// OpenSandbox name one. Each takes the memory of an interpreter with its imports.
        templates: TemplateNames = TemplateNames::default();
        /// Templates of keys, as `{ KEY_ID = "NAME" }` with ids of `aludel keys list`. A model's own comes first.
        key_templates: KeyTemplates = KeyTemplates::default();
        /// Environment variables of the programs of all sessions, as `{ NAME = "value" }`, below those that a client gives. Programs and
        /// models can read them. Sandboxes that clients of E2B and OpenSandbox own have those of their clients alone.
        env: SessionVariables = SessionVariables::default();
        /// Isolation that the host must be able to enforce: with `default` what is missing is said at the start, with `strict` it is an
        /// error. `aludel doctor` lists it.
        require: RequireSetting = RequireSetting::Default;
        /// Memory of all processes of a sandbox, with its files, at least 64m.
        memory: MemorySize = MemorySize(Size::from_bytes(LIMITS.memory));
        /// Wall clock of one program. One that takes longer is stopped. In sandboxes that clients of E2B and OpenSandbox own, programs have
        /// the time that these clients give.
        timeout: DurationValue = DurationValue::from_secs(LIMITS.timeout.as_secs());
        /// Time after which a sandbox that nobody uses ends. Its files are kept.
        idle: DurationValue = DurationValue::from_secs(20 * 60);
        /// Number of sandboxes that a server keeps ready, 0 to 256.
        pool: PoolSize = PoolSize(4);
        /// All files of a sandbox together. They are kept in memory, so it can be no more than `memory`; half of it unless it is given.
        disk: Size = Size::from_bytes(LIMITS.memory / 2);
        /// Processor time of a sandbox, in cores, 0.1 to 1024.
        cpus: Cores = Cores(LIMITS.cpus);
        /// Processes and threads of a sandbox together, 8 to 32768.
        processes: ProcessCount = ProcessCount(LIMITS.processes);
        /// Output of one program. Of a longer one the middle is left out.
        output: Size = Size::from_bytes(LIMITS.output);
        /// Processor time of one program, or `unlimited`.
        cpu_time: CpuTime = CpuTime(None);
        /// A new interpreter for every sandbox, with an address layout of its own, instead of a fork of a warm one. It takes a second
        /// instead of milliseconds.
        fresh: Switch = Switch(false);
        /// Seed of `hash()` for texts in Python, from which the order of sets follows: `random`, or a number from 0 to 4294967295 for the
        /// same order in all sandboxes and after each start.
        hash_seed: HashSeed = HashSeed(None);
        /// The most memory that a client of the server can ask for; `memory` unless it is given.
        max_memory: MemorySize = MemorySize(Size::from_bytes(LIMITS.memory));
        /// Time for which a server keeps the sandbox of a chat completion, or of Gemini's `generateContent`, for the next request. Its
        /// files stay for longer.
        linger: DurationValue = DurationValue::from_secs(2 * 60);
        /// Time for which a program of a server waits for the answers of its client's tools.
        answers: DurationValue = DurationValue::from_secs(5 * 60);
        /// The longest time to the end of a sandbox that a client owns (E2B, OpenSandbox), from each time that the client extends it.
        lifetime: DurationValue = DurationValue::from_secs(24 * 3600);
        /// Time for which a server keeps the files of a sandbox that ended.
        keep: DurationValue = DurationValue::from_secs(30 * 24 * 3600);
        /// Image of the backend `docker`.
        docker_image as "docker.image": String = DEFAULT_IMAGE.to_owned();
        /// Runtime of its containers, by the engine's name for it, such as `runsc`; `default` for the engine's own.
        docker_runtime as "docker.runtime": String = "default".to_owned();
        /// Socket of its engine, as `unix:///PATH`; `auto` for `DOCKER_HOST` or the first in the usual places.
        docker_host as "docker.host": String = "auto".to_owned();
        /// Key of an account at E2B, or of a server that speaks its protocol, as `env:NAME` or `file:PATH`. With it, `sandbox.backend =
        /// "auto"` takes sandboxes there; with `sandbox.backend = "e2b"` it is `E2B_API_KEY` unless it is given.
        e2b_key as "e2b.key": KeySource = KeySource::None;
        /// Domain of that service; `auto` for `E2B_DOMAIN` or `e2b.app`.
        e2b_domain as "e2b.domain": String = "auto".to_owned();
        /// Address of its API; `auto` for `E2B_API_URL` or `https://api.DOMAIN`.
        e2b_url as "e2b.url": String = "auto".to_owned();
        /// Address of its sandboxes; `auto` for `E2B_SANDBOX_URL`, or one for each of them below the domain.
        e2b_sandbox_url as "e2b.sandbox_url": String = "auto".to_owned();
        /// Template of sandboxes there, which has Python and IPython.
        e2b_template as "e2b.template": String = E2bConfig::TEMPLATE.to_owned();
        /// Address of a server that speaks OpenSandbox's protocol. With it, `sandbox.backend = "auto"` takes sandboxes there; with
        /// `sandbox.backend = "opensandbox"` it is `OPEN_SANDBOX_DOMAIN` or `http://localhost:8080` unless it is given.
        opensandbox_url as "opensandbox.url": String = "auto".to_owned();
        /// Key that this server asks for, as `env:NAME` or `file:PATH`; `OPEN_SANDBOX_API_KEY` unless it is given.
        opensandbox_key as "opensandbox.key": KeySource = KeySource::None;
        /// Image of sandboxes there, which has Python and IPython.
        opensandbox_image as "opensandbox.image": String = OpenSandboxConfig::IMAGE.to_owned();
        /// Network that programs there reach: `none`, which the server must be able to promise, or the server's `default`.
        opensandbox_network as "opensandbox.network": NetworkSetting = NetworkSetting::None;
        /// Send all requests to the server itself, where the sandboxes' own addresses lead nowhere from here.
        opensandbox_use_server_proxy as "opensandbox.use_server_proxy": Switch = Switch(false);
    }
}

values! { SessionVariables: Table, KeyTemplates: Table, Choice: Text, DirectoryPath: Text, TemplateNames: List, MemorySize: Text, PoolSize: Number, Cores: Number, CpuTime: Text, ProcessCount: Number, HashSeed: Text }

impl SandboxSection {
    /// Fills in the defaults that depend on other settings, and checks settings that depend on each other.
    pub(crate) fn resolve(mut self) -> Result<Self, ConfigError> {
        let memory = self.memory.0;
        if !self.disk.is_given() {
            self.disk = Setting::default(Size::from_bytes(memory.bytes() / 2));
        }
        if !self.max_memory.is_given() {
            self.max_memory = Setting::default(MemorySize(memory));
        }
        let wrong = |key: &str, setting: String, origin, why| ConfigError::Value {
            origin,
            key: format!("sandbox.{key}"),
            text: setting,
            why,
        };
        if *self.disk > memory {
            let why = format!("is more than sandbox.memory ({memory}), and files are kept in memory");
            return Err(wrong("disk", self.disk.to_string(), self.disk.origin, why));
        }
        if self.max_memory.0 < memory {
            let why = format!("is less than sandbox.memory ({memory}), which everybody gets");
            return Err(wrong("max_memory", self.max_memory.to_string(), self.max_memory.origin, why));
        }
        Ok(self)
    }

    pub(crate) fn entries(&self) -> Vec<ConfigEntry> {
        self.entries_of("sandbox")
    }

    /// The settings that every sandbox here has in common, by key.
    pub(crate) fn common(&self) -> Vec<(String, String)> {
        let is_common =
            |entry: &ConfigEntry| NOT_COMMON.iter().all(|key| entry.key.strip_prefix("sandbox.") != Some(key));
        self.entries().into_iter().filter(is_common).map(|entry| (entry.key, entry.value)).collect()
    }

    /// The settings of the backend `docker`, with a pool of this size.
    pub(crate) fn docker(&self, data: &Path, pool: usize) -> DockerConfig {
        let named = |setting: &Setting<String>, none: &str| Some((**setting).clone()).filter(|name| name != none);
        DockerConfig {
            data: data.to_path_buf(),
            host: named(&self.docker_host, "auto"),
            image: (*self.docker_image).clone(),
            runtime: named(&self.docker_runtime, "default"),
            pool,
            limits: self.limits(),
        }
    }

    /// Returns true if the settings have a key of E2B.
    pub(crate) fn has_e2b_key(&self) -> bool {
        *self.e2b_key != KeySource::None
    }

    /// The settings of the backend `e2b`.
    pub(crate) fn e2b(&self, host: &HostEnvironment) -> Result<E2bConfig, ConfigError> {
        let named = |setting: &Setting<String>, variable: &str| {
            let given = Some((**setting).clone()).filter(|text| text != "auto");
            given.or_else(|| host.variable(variable).map(str::to_owned))
        };
        let key = self.e2b_key.fetch_for("the key of E2B (sandbox.e2b.key)", host)?;
        let key = key.map(|key| key.expose().to_owned());
        let key = key.or_else(|| host.variable("E2B_API_KEY").map(str::to_owned));
        Ok(E2bConfig {
            key: key.unwrap_or_default(),
            domain: named(&self.e2b_domain, "E2B_DOMAIN").unwrap_or_else(|| E2bConfig::DOMAIN.to_owned()),
            url: named(&self.e2b_url, "E2B_API_URL"),
            sandbox_url: named(&self.e2b_sandbox_url, "E2B_SANDBOX_URL"),
            template: (*self.e2b_template).clone(),
        })
    }

    /// Returns true if the settings have the address of an OpenSandbox server.
    pub(crate) fn has_opensandbox_url(&self) -> bool {
        *self.opensandbox_url != "auto"
    }

    /// The settings of the backend `opensandbox`.
    pub(crate) fn opensandbox(&self, host: &HostEnvironment) -> Result<OpenSandboxConfig, ConfigError> {
        let url = Some((*self.opensandbox_url).clone()).filter(|url| url != "auto");
        let domain = || host.variable("OPEN_SANDBOX_DOMAIN").filter(|domain| !domain.is_empty());
        let url = url.or_else(|| {
            let domain = domain()?;
            Some(if domain.contains("://") { domain.to_owned() } else { format!("http://{domain}") })
        });
        let key = self.opensandbox_key.fetch_for("the key of OpenSandbox (sandbox.opensandbox.key)", host)?;
        let key = key.map(|key| key.expose().to_owned());
        let key = key.or_else(|| host.variable("OPEN_SANDBOX_API_KEY").map(str::to_owned));
        Ok(OpenSandboxConfig {
            url: url.unwrap_or_else(|| OpenSandboxConfig::URL.to_owned()),
            key: key.filter(|key| !key.is_empty()),
            image: (*self.opensandbox_image).clone(),
            network: match *self.opensandbox_network {
                NetworkSetting::None => aludel_sandbox::Network::None,
                NetworkSetting::Default => aludel_sandbox::Network::Default,
            },
            use_server_proxy: self.opensandbox_use_server_proxy.0,
        })
    }

    /// The limits of one sandbox; without a setting, the engine's default.
    pub(crate) fn limits(&self) -> Limits {
        let (memory, disk) = (self.memory.0.bytes(), self.disk.bytes());
        let defaults = Limits::default();
        Limits {
            memory,
            timeout: self.timeout.duration(),
            disk,
            file_size: disk,
            // It counts as memory.
            tmp: defaults.tmp.min(memory / 2),
            cpus: self.cpus.0,
            processes: self.processes.0,
            output: self.output.bytes(),
            cpu_time: self.cpu_time.0.map(|span| span.duration()),
            // These have no setting.
            kernels: defaults.kernels,
            grace: defaults.grace,
            files: defaults.files,
            open_files: defaults.open_files,
        }
    }
}

choice! {
    /// The origin of sandboxes.
    pub(crate) enum BackendSetting {
        /// The first that can be used: `E2b` if the settings have its key, `OpenSandbox` if they have its address, `Local`, `Docker`.
        Auto = "auto",
        /// Linux namespaces on this host.
        Local = "local",
        /// Containers of an engine, Docker's or Podman's.
        Docker = "docker",
        /// Sandboxes of a service that speaks E2B's protocol.
        E2b = "e2b",
        /// Sandboxes of a server that speaks OpenSandbox's protocol: the same.
        OpenSandbox = "opensandbox",
    }
}

choice! {
    /// The network of programs in sandboxes of OpenSandbox.
    pub(crate) enum NetworkSetting {
        /// None, or no sandbox.
        None = "none",
        /// The server's own choice.
        Default = "default",
    }
}

choice! {
    /// Isolation that the host must be able to enforce.
    pub(crate) enum RequireSetting {
        /// Missing parts are said.
        Default = "default",
        /// A missing part is an error.
        Strict = "strict",
    }
}

impl From<RequireSetting> for aludel_sandbox::Require {
    fn from(require: RequireSetting) -> Self {
        match require {
            RequireSetting::Default => Self::Default,
            RequireSetting::Strict => Self::Strict,
        }
    }
}

/// A directory, by its absolute path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DirectoryPath(pub(crate) PathBuf);

impl FromStr for DirectoryPath {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.starts_with('/') { Ok(Self(text.into())) } else { Err("is no absolute path") }
    }
}

impl fmt::Display for DirectoryPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(formatter)
    }
}

/// The names and texts of a table: as a configuration file has it, in JSON, or as lines of `NAME: VALUE`.
fn pairs(text: &str) -> Option<BTreeMap<String, String>> {
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).ok().or_else(|| {
            let mut tables: BTreeMap<String, BTreeMap<String, String>> =
                toml::from_str(&format!("table = {text}")).ok()?;
            tables.remove("table").filter(|_| tables.is_empty())
        });
    }
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines
        .map(|line| line.split_once(':').map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())))
        .collect()
}

/// Templates by the ids of keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KeyTemplates(pub(crate) BTreeMap<String, TemplateName>);

impl FromStr for KeyTemplates {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pairs = pairs(text).ok_or("needs a table of key ids and templates: { KEY_ID = \"NAME\" }")?;
        let pairs = pairs.into_iter().map(|(key, name)| {
            let key = KeyId::parse(&key).ok_or_else(|| format!("has `{key}`, which is no id of a key"))?;
            Ok((key.to_string(), name.parse::<TemplateName>()?))
        });
        pairs.collect::<Result<_, String>>().map(Self)
    }
}

impl fmt::Display for KeyTemplates {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<String> = self.0.iter().map(|(key, name)| format!("{key}: {name}")).collect();
        formatter.write_str(&pairs.join(", "))
    }
}

/// Environment variables of programs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SessionVariables(pub(crate) Environment);

impl FromStr for SessionVariables {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pairs = pairs(text).ok_or("needs a table of names and values: { NAME = \"value\" }")?;
        let variables = Environment::new(pairs);
        variables.map(Self).map_err(|error| format!("cannot be set: {error}"))
    }
}

impl fmt::Display for SessionVariables {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<String> = self.0.to_vec().iter().map(|(name, value)| format!("{name}: {value}")).collect();
        formatter.write_str(&pairs.join(", "))
    }
}

/// Templates besides the usual one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TemplateNames(pub(crate) Vec<TemplateName>);

impl FromStr for TemplateNames {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        let names: Vec<_> = names.map(str::parse).collect::<Result<_, _>>()?;
        if names.len() > MAX_TEMPLATES {
            return Err(format!("are more than {MAX_TEMPLATES} templates"));
        }
        Ok(Self(names))
    }
}

impl fmt::Display for TemplateNames {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(TemplateName::as_str).collect();
        formatter.write_str(&names.join(", "))
    }
}

/// The memory of a sandbox: enough that an interpreter with its libraries can live in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemorySize(pub(crate) Size);

impl FromStr for MemorySize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const LEAST: Size = Size::from_bytes(64 << 20);
        let size: Size = text.parse()?;
        if size < LEAST { Err(format!("is too little for an interpreter; at least {LEAST}")) } else { Ok(Self(size)) }
    }
}

impl fmt::Display for MemorySize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Number of sandboxes that are kept ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolSize(pub(crate) usize);

impl FromStr for PoolSize {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(count @ 0..=256) => Ok(Self(count)),
            _ => Err("is not a number from 0 to 256"),
        }
    }
}

impl fmt::Display for PoolSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Processor time per second of wall clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cores(f64);

impl FromStr for Cores {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(cores) if (0.1..=1024.0).contains(&cores) => Ok(Self(cores)),
            _ => Err("is not a number of cores from 0.1 to 1024"),
        }
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Processor time of one execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CpuTime(Option<DurationValue>);

impl FromStr for CpuTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "unlimited" { Ok(Self(None)) } else { text.parse().map(|span| Self(Some(span))) }
    }
}

impl fmt::Display for CpuTime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(span) => span.fmt(formatter),
            None => formatter.write_str("unlimited"),
        }
    }
}

/// Seed of Python's hashes; `None` for another one at each start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HashSeed(pub(crate) Option<u32>);

impl FromStr for HashSeed {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text, text.parse()) {
            ("random", _) => Ok(Self(None)),
            (_, Ok(seed)) => Ok(Self(Some(seed))),
            _ => Err("is neither `random` nor a number from 0 to 4294967295"),
        }
    }
}

impl fmt::Display for HashSeed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(seed) => seed.fmt(formatter),
            None => formatter.write_str("random"),
        }
    }
}

/// Processes and threads together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessCount(u32);

impl FromStr for ProcessCount {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(count @ 8..=32_768) => Ok(Self(count)),
            _ => Err("is not a number from 8 to 32768"),
        }
    }
}

impl fmt::Display for ProcessCount {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_in_each_of_its_forms() {
        let expected = Some([("A".to_owned(), "b c".to_owned()), ("D".to_owned(), "e:f".to_owned())].into());
        for text in ["A: b c\n D: e:f\n", r#"{"A": "b c", "D": "e:f"}"#, r#"{ A = "b c", D = "e:f" }"#] {
            assert_eq!(pairs(text), expected, "{text}");
        }
        for text in ["A=b", "{A", r#"{"A": 1}"#, "{A = \"b\"}\n[sandbox]\nmemory = \"1g\""] {
            assert_eq!(pairs(text), None, "{text}");
        }
    }
}
