//! `[server]`: where aludel listens and keeps its data.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use aludel_server::{MCP_RETURN_AFTER, Origins};

use super::given::{ConfigError, Given, Setting};
use super::model::Switch;
use super::{Entry, Size, Span, Surroundings};

/// Requests that may be answered at once, unless it is said.
const REQUESTS: usize = 256;

/// What was given.
#[derive(Debug, Default)]
pub(crate) struct RawServer {
    listen: Option<Setting<SocketAddr>>,
    data: Option<Setting<PathBuf>>,
    containers: Option<Setting<Count>>,
    requests: Option<Setting<Count>>,
    requests_per_key: Option<Setting<Count>>,
    storage: Option<Setting<Size>>,
    metrics: Option<Setting<bool>>,
    log: Option<Setting<LogFormat>>,
    log_contents: Option<Setting<bool>>,
    traces: Option<Setting<Collector>>,
    url: Option<Setting<Url>>,
    origins: Option<Setting<Origins>>,
    mcp_return_after: Option<Setting<Span>>,
    socket: Option<Setting<bool>>,
}

/// What holds.
#[derive(Debug)]
pub(crate) struct Server {
    /// The address of `aludel serve`.
    pub(crate) listen: Setting<SocketAddr>,
    /// The directory of templates, running sandboxes and what a server keeps.
    pub(crate) data: Setting<PathBuf>,
    /// How many containers may be live at once.
    pub(crate) containers: Setting<Count>,
    /// How many requests may be answered at once.
    pub(crate) requests: Setting<Count>,
    /// How many of them may be one tenant's.
    pub(crate) requests_per_key: Setting<Count>,
    /// How much one tenant may store.
    pub(crate) storage: Setting<Size>,
    /// Whether there are figures at `/metrics`.
    pub(crate) metrics: Setting<bool>,
    /// What the log looks like.
    pub(crate) log: Setting<LogFormat>,
    /// Whether prompts, programs and what they put out may stand in the log and in traces.
    pub(crate) log_contents: Setting<bool>,
    /// Where traces are sent.
    pub(crate) traces: Setting<Collector>,
    /// The address by which people reach the server, for links in answers.
    pub(crate) url: Setting<Url>,
    /// The web pages that may ask the server from a browser.
    pub(crate) origins: Setting<Origins>,
    /// Time after which a call of an MCP tool returns although its program goes on.
    mcp_return_after: Setting<Span>,
    /// True if `aludel run` uses the sandboxes of a server that runs, over a Unix socket in the data directory.
    pub(crate) socket: Setting<bool>,
}

impl RawServer {
    pub(crate) const KEYS: &[&str] = &[
        "listen",
        "data",
        "containers",
        "requests",
        "requests_per_key",
        "storage",
        "metrics",
        "log",
        "log_contents",
        "traces",
        "url",
        "origins",
        "mcp_return_after",
        "socket",
    ];

    /// The keys that take several values.
    pub(crate) const LISTS: &[&str] = &["origins"];

    pub(crate) fn set(&mut self, key: &str, given: Given) -> Result<(), ConfigError> {
        match key {
            "listen" => self.listen = Some(given.parse::<Listen>("server.listen")?.map(|listen| listen.0)),
            "data" => self.data = Some(given.parse_path("server.data")?),
            "containers" => self.containers = Some(given.parse("server.containers")?),
            "requests" => self.requests = Some(given.parse("server.requests")?),
            "requests_per_key" => self.requests_per_key = Some(given.parse("server.requests_per_key")?),
            "storage" => self.storage = Some(given.parse("server.storage")?),
            "metrics" => self.metrics = Some(given.parse::<Switch>("server.metrics")?.map(|switch| switch.0)),
            "log" => self.log = Some(given.parse("server.log")?),
            "log_contents" => {
                self.log_contents = Some(given.parse::<Switch>("server.log_contents")?.map(|switch| switch.0))
            }
            "traces" => self.traces = Some(given.parse("server.traces")?),
            "origins" => self.origins = Some(given.parse("server.origins")?),
            "url" => self.url = Some(given.parse("server.url")?),
            "mcp_return_after" => self.mcp_return_after = Some(given.parse("server.mcp_return_after")?),
            "socket" => self.socket = Some(given.parse::<Switch>("server.socket")?.map(|switch| switch.0)),
            _ => return Err(super::unknown_key("server", key, Self::KEYS, given.origin)),
        }
        Ok(())
    }

    pub(crate) fn resolve(self, surroundings: &Surroundings) -> Result<Server, ConfigError> {
        let listen = || Setting::default(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080));
        let data = match self.data {
            Some(data) => data,
            None => Setting::default(surroundings.data_directory()?),
        };
        // Processes that work elsewhere use it too.
        let data = data.map(|data| surroundings.absolute(&data));
        let sessions = aludel_engine::Settings::default();
        Ok(Server {
            listen: self.listen.unwrap_or_else(listen),
            data,
            containers: self.containers.unwrap_or(Setting::default(Count(sessions.sessions))),
            requests: self.requests.unwrap_or(Setting::default(Count(REQUESTS))),
            requests_per_key: self.requests_per_key.unwrap_or(Setting::default(Count(REQUESTS))),
            storage: self.storage.unwrap_or(Setting::default(Size::from_bytes(sessions.storage))),
            metrics: self.metrics.unwrap_or(Setting::default(false)),
            log: self.log.unwrap_or(Setting::default(LogFormat::Text)),
            log_contents: self.log_contents.unwrap_or(Setting::default(false)),
            traces: self.traces.unwrap_or(Setting::default(Collector::None)),
            url: self.url.unwrap_or(Setting::default(Url::default())),
            origins: self.origins.unwrap_or(Setting::default(Origins::default())),
            mcp_return_after: self
                .mcp_return_after
                .unwrap_or(Setting::default(Span::from_secs(MCP_RETURN_AFTER.as_secs()))),
            socket: self.socket.unwrap_or(Setting::default(true)),
        })
    }
}

impl Server {
    /// Time after which a call of an MCP tool returns although its program goes on.
    pub(crate) fn mcp_return_after(&self) -> Duration {
        self.mcp_return_after.duration()
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        vec![
            Entry::new("server.listen", &self.listen),
            Entry::shown("server.data", self.data.display(), &self.data),
            Entry::new("server.containers", &self.containers),
            Entry::new("server.requests", &self.requests),
            Entry::new("server.requests_per_key", &self.requests_per_key),
            Entry::new("server.storage", &self.storage),
            Entry::new("server.metrics", &self.metrics),
            Entry::new("server.log", &self.log),
            Entry::new("server.log_contents", &self.log_contents),
            Entry::new("server.traces", &self.traces),
            Entry::new("server.url", &self.url),
            Entry::new("server.origins", &self.origins),
            Entry::new("server.mcp_return_after", &self.mcp_return_after),
            Entry::new("server.socket", &self.socket),
        ]
    }
}

/// The address by which people reach the server; without one it is the name that a client used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Url(pub(crate) Option<String>);

impl std::str::FromStr for Url {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_address = text.starts_with("http://") || text.starts_with("https://");
        let is_plain = !text.contains(|character: char| character.is_whitespace() || "?#()<>".contains(character));
        if is_address && is_plain {
            Ok(Self(Some(text.to_owned())))
        } else {
            Err("is not like https://aludel.example.com")
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0.as_deref().unwrap_or("as clients name it"))
    }
}

/// An address, with an error that says what one looks like.
struct Listen(SocketAddr);

impl std::str::FromStr for Listen {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self).map_err(|_| "is not an address and a port, like 127.0.0.1:8080")
    }
}

/// Format of the server's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Lines for people.
    Text,
    /// An object a line.
    Json,
    /// No log.
    Off,
}

impl std::str::FromStr for LogFormat {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            "off" => Ok(Self::Off),
            _ => Err("is none of: text, json, off"),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
            Self::Off => "off",
        })
    }
}

/// Where traces are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Collector {
    /// Nowhere.
    None,
    /// To this address.
    At(String),
}

impl std::str::FromStr for Collector {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(Self::None),
            address if address.starts_with("http://") || address.starts_with("https://") => {
                Ok(Self::At(address.into()))
            }
            _ => Err("is neither off nor an address like http://127.0.0.1:4318"),
        }
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::None => "off",
            Self::At(address) => address,
        })
    }
}

/// How many there may be at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count(pub(crate) usize);

impl std::str::FromStr for Count {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(count @ 1..=100_000) => Ok(Self(count)),
            _ => Err("is not a number from 1 to 100000"),
        }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}
