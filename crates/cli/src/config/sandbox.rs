//! `[sandbox]`: where sandboxes come from and what each may use.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use aludel_sandbox::{DEFAULT_IMAGE, DockerConfig, Limits};

use super::given::{ConfigError, Given, Setting};
use super::{Entry, Size, Span};

/// What was given.
#[derive(Debug, Default)]
pub(crate) struct RawSandbox {
    backend: Option<Setting<Backend>>,
    require: Option<Setting<Require>>,
    memory: Option<Setting<Memory>>,
    timeout: Option<Setting<Span>>,
    idle: Option<Setting<Span>>,
    pool: Option<Setting<Pool>>,
    disk: Option<Setting<Size>>,
    cpus: Option<Setting<Cores>>,
    processes: Option<Setting<Processes>>,
    output: Option<Setting<Size>>,
    cpu_time: Option<Setting<CpuTime>>,
    fresh: Option<Setting<bool>>,
    max_memory: Option<Setting<Memory>>,
    linger: Option<Setting<Span>>,
    lifetime: Option<Setting<Span>>,
    keep: Option<Setting<Span>>,
    docker_image: Option<Setting<String>>,
    docker_runtime: Option<Setting<String>>,
    docker_host: Option<Setting<String>>,
}

/// What holds.
#[derive(Debug)]
pub(crate) struct Sandbox {
    /// Where sandboxes come from.
    pub(crate) backend: Setting<Backend>,
    /// How much of the isolation the host must be able to enforce.
    pub(crate) require: Setting<Require>,
    /// Memory of one sandbox.
    pub(crate) memory: Setting<Memory>,
    /// Wall clock of one execution.
    pub(crate) timeout: Setting<Span>,
    /// How long a session may be left alone before it ends.
    pub(crate) idle: Setting<Span>,
    /// How many sandboxes a server keeps ready.
    pub(crate) pool: Setting<Pool>,
    /// All files of one workspace together.
    pub(crate) disk: Setting<Size>,
    /// Processor time of one sandbox, in cores.
    pub(crate) cpus: Setting<Cores>,
    /// Processes and threads of one sandbox.
    pub(crate) processes: Setting<Processes>,
    /// Output of one execution; of more than that, the middle is left out.
    pub(crate) output: Setting<Size>,
    /// Processor time of one execution.
    pub(crate) cpu_time: Setting<CpuTime>,
    /// Whether every kernel is a new interpreter, with an address layout of its own, instead of a fork.
    pub(crate) fresh: Setting<bool>,
    /// The most memory that a client of the server can ask for.
    pub(crate) max_memory: Setting<Memory>,
    /// How long a server keeps the sandbox of a chat completion for the next request.
    pub(crate) linger: Setting<Span>,
    /// The longest time that a sandbox may live which a client owns.
    pub(crate) lifetime: Setting<Span>,
    /// How long a server keeps the files of a session that ended.
    pub(crate) keep: Setting<Span>,
    /// Image of the backend `docker`.
    pub(crate) docker_image: Setting<String>,
    /// Runtime of its containers, by the engine's name for it; `default` for the engine's own.
    pub(crate) docker_runtime: Setting<String>,
    /// Socket of its engine, `unix:///PATH`; `auto` for `DOCKER_HOST` or the first in the usual places.
    pub(crate) docker_host: Setting<String>,
}

impl RawSandbox {
    pub(crate) const KEYS: &[&str] = &[
        "backend",
        "require",
        "memory",
        "timeout",
        "idle",
        "pool",
        "disk",
        "cpus",
        "processes",
        "output",
        "cpu_time",
        "fresh",
        "max_memory",
        "linger",
        "lifetime",
        "keep",
        "docker.image",
        "docker.runtime",
        "docker.host",
    ];

    pub(crate) fn set(&mut self, key: &str, given: Given) -> Result<(), ConfigError> {
        match key {
            "backend" => self.backend = Some(given.parse("sandbox.backend")?),
            "require" => self.require = Some(given.parse("sandbox.require")?),
            "memory" => self.memory = Some(given.parse("sandbox.memory")?),
            "timeout" => self.timeout = Some(given.parse("sandbox.timeout")?),
            "idle" => self.idle = Some(given.parse("sandbox.idle")?),
            "pool" => self.pool = Some(given.parse("sandbox.pool")?),
            "disk" => self.disk = Some(given.parse("sandbox.disk")?),
            "cpus" => self.cpus = Some(given.parse("sandbox.cpus")?),
            "processes" => self.processes = Some(given.parse("sandbox.processes")?),
            "cpu_time" => self.cpu_time = Some(given.parse("sandbox.cpu_time")?),
            "fresh" => self.fresh = Some(given.parse("sandbox.fresh")?),
            "output" => self.output = Some(given.parse("sandbox.output")?),
            "max_memory" => self.max_memory = Some(given.parse("sandbox.max_memory")?),
            "linger" => self.linger = Some(given.parse("sandbox.linger")?),
            "lifetime" => self.lifetime = Some(given.parse("sandbox.lifetime")?),
            "keep" => self.keep = Some(given.parse("sandbox.keep")?),
            "docker.image" => self.docker_image = Some(given.parse("sandbox.docker.image")?),
            "docker.runtime" => self.docker_runtime = Some(given.parse("sandbox.docker.runtime")?),
            "docker.host" => self.docker_host = Some(given.parse("sandbox.docker.host")?),
            _ => return Err(super::unknown_key("sandbox", key, Self::KEYS, given.origin)),
        }
        Ok(())
    }

    pub(crate) fn resolve(self) -> Result<Sandbox, ConfigError> {
        let limits = Limits::default();
        let memory = self.memory.unwrap_or(Setting::default(Memory(Size::from_bytes(limits.memory))));
        // Files are kept in memory, so unless it is said otherwise they may take half of it.
        let disk = self.disk.unwrap_or(Setting::default(Size::from_bytes(memory.0.bytes() / 2)));
        if *disk > memory.0 {
            let why = format!("is more than sandbox.memory ({}), and files are kept in memory", *memory);
            let text = disk.to_string();
            return Err(ConfigError::Value { origin: disk.origin, key: "sandbox.disk".to_owned(), text, why });
        }
        let max_memory = self.max_memory.unwrap_or(Setting::default(*memory));
        if max_memory.0 < memory.0 {
            let why = format!("is less than sandbox.memory ({}), which everybody gets", *memory);
            let text = max_memory.to_string();
            return Err(ConfigError::Value {
                origin: max_memory.origin,
                key: "sandbox.max_memory".to_owned(),
                text,
                why,
            });
        }
        Ok(Sandbox {
            backend: self.backend.unwrap_or(Setting::default(Backend::Auto)),
            require: self.require.unwrap_or(Setting::default(Require::Default)),
            memory,
            timeout: self.timeout.unwrap_or(Setting::default(Span::from_secs(limits.timeout.as_secs()))),
            idle: self.idle.unwrap_or(Setting::default(Span::from_secs(20 * 60))),
            pool: self.pool.unwrap_or(Setting::default(Pool(4))),
            disk,
            cpus: self.cpus.unwrap_or(Setting::default(Cores(limits.cpus))),
            processes: self.processes.unwrap_or(Setting::default(Processes(limits.processes))),
            output: self.output.unwrap_or(Setting::default(Size::from_bytes(limits.output))),
            cpu_time: self.cpu_time.unwrap_or(Setting::default(CpuTime(None))),
            fresh: self.fresh.unwrap_or(Setting::default(false)),
            max_memory,
            linger: self.linger.unwrap_or(Setting::default(Span::from_secs(2 * 60))),
            lifetime: self.lifetime.unwrap_or(Setting::default(Span::from_secs(24 * 3600))),
            keep: self.keep.unwrap_or(Setting::default(Span::from_secs(30 * 24 * 3600))),
            docker_image: self.docker_image.unwrap_or(Setting::default(DEFAULT_IMAGE.to_owned())),
            docker_runtime: self.docker_runtime.unwrap_or(Setting::default("default".to_owned())),
            docker_host: self.docker_host.unwrap_or(Setting::default("auto".to_owned())),
        })
    }
}

impl Sandbox {
    pub(crate) fn entries(&self) -> Vec<Entry> {
        vec![
            Entry::new("sandbox.backend", &self.backend),
            Entry::new("sandbox.require", &self.require),
            Entry::new("sandbox.memory", &self.memory),
            Entry::new("sandbox.timeout", &self.timeout),
            Entry::new("sandbox.idle", &self.idle),
            Entry::new("sandbox.pool", &self.pool),
            Entry::new("sandbox.disk", &self.disk),
            Entry::new("sandbox.cpus", &self.cpus),
            Entry::new("sandbox.processes", &self.processes),
            Entry::new("sandbox.output", &self.output),
            Entry::new("sandbox.cpu_time", &self.cpu_time),
            Entry::new("sandbox.fresh", &self.fresh),
            Entry::new("sandbox.max_memory", &self.max_memory),
            Entry::new("sandbox.linger", &self.linger),
            Entry::new("sandbox.lifetime", &self.lifetime),
            Entry::new("sandbox.keep", &self.keep),
            Entry::new("sandbox.docker.image", &self.docker_image),
            Entry::new("sandbox.docker.runtime", &self.docker_runtime),
            Entry::new("sandbox.docker.host", &self.docker_host),
        ]
    }

    /// The settings that every sandbox here has in common, by key: all but limits, which each can have its own, and what only a server does.
    pub(crate) fn common(&self) -> Vec<(String, String)> {
        const OTHERS: [&str; 13] = [
            "memory",
            "timeout",
            "disk",
            "cpus",
            "processes",
            "output",
            "cpu_time",
            "idle",
            "pool",
            "max_memory",
            "linger",
            "lifetime",
            "keep",
        ];
        let is_common = |entry: &Entry| OTHERS.iter().all(|key| entry.key.strip_prefix("sandbox.") != Some(key));
        self.entries().into_iter().filter(is_common).map(|entry| (entry.key, entry.value)).collect()
    }

    /// The settings of the backend `docker`.
    pub(crate) fn docker(&self, data: &Path) -> DockerConfig {
        let named = |setting: &Setting<String>, none: &str| Some((**setting).clone()).filter(|name| name != none);
        DockerConfig {
            data: data.to_path_buf(),
            host: named(&self.docker_host, "auto"),
            image: (*self.docker_image).clone(),
            runtime: named(&self.docker_runtime, "default"),
        }
    }

    /// The limits of one sandbox; what has no key is the engine's default.
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
            ..defaults
        }
    }
}

/// Where sandboxes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    /// The first that can be used: `Local`, then `Docker`.
    Auto,
    /// Linux namespaces on this host.
    Local,
    /// Containers of an engine, Docker's or Podman's: cells and files, without services, commands, terminals, ports and a pool.
    Docker,
}

impl Backend {
    /// All backends, by name.
    const ALL: &[(&str, Self)] = &[("auto", Self::Auto), ("local", Self::Local), ("docker", Self::Docker)];
}

impl FromStr for Backend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.iter().find(|(name, _)| *name == text);
        named.map(|(_, backend)| *backend).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|(name, _)| *name).collect();
            format!("is not a backend of this version; there are {}", names.join(", "))
        })
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::ALL.iter().find(|(_, backend)| backend == self);
        formatter.write_str(named.map_or("", |(name, _)| name))
    }
}

/// How much of the isolation the host must be able to enforce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Require {
    /// What is missing is said.
    Default,
    /// What is missing is an error.
    Strict,
}

impl FromStr for Require {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "default" => Ok(Self::Default),
            "strict" => Ok(Self::Strict),
            _ => Err("is neither default nor strict"),
        }
    }
}

impl fmt::Display for Require {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Default => "default",
            Self::Strict => "strict",
        })
    }
}

impl From<Require> for aludel_sandbox::Require {
    fn from(require: Require) -> Self {
        match require {
            Require::Default => Self::Default,
            Require::Strict => Self::Strict,
        }
    }
}

/// The memory of a sandbox: enough that an interpreter with its libraries can live in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory(pub(crate) Size);

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const LEAST: Size = Size::from_bytes(64 << 20);
        let size: Size = text.parse()?;
        if size < LEAST { Err(format!("is too little for an interpreter; at least {LEAST}")) } else { Ok(Self(size)) }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// How many sandboxes are kept ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pool(pub(crate) usize);

impl FromStr for Pool {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(count @ 0..=256) => Ok(Self(count)),
            _ => Err("is not a number from 0 to 256"),
        }
    }
}

impl fmt::Display for Pool {
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
pub(crate) struct CpuTime(Option<Span>);

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

/// Processes and threads together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Processes(u32);

impl FromStr for Processes {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(count @ 8..=32_768) => Ok(Self(count)),
            _ => Err("is not a number from 8 to 32768"),
        }
    }
}

impl fmt::Display for Processes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}
