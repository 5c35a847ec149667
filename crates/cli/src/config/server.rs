//! `[server]`: where aludel listens and keeps its data.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::LazyLock;

use aludel_server::{MCP_RETURN_AFTER, Origins, RUN_LIFETIME};

use super::declare::{choice, settings, values};
use super::raw_value::{ConfigError, Setting};
use super::value::FilePath;
use super::{ConfigEntry, DurationValue, HostEnvironment, Size, Switch};

/// Requests that are answered at once, unless it is said.
const REQUESTS: usize = 256;

static SESSIONS: LazyLock<aludel_engine::SessionSettings> = LazyLock::new(aludel_engine::SessionSettings::default);

settings! {
    /// The server: its address, its data, and the most that it takes on.
    pub(crate) struct ServerSection of "server" {
        /// Address and port on which `aludel serve` listens. Without API keys only this machine is served.
        listen: Listen = Listen(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080));
        /// Directory of templates, running sandboxes and the state of a server.
        ///
        /// Unless it is given, `aludel` below `XDG_DATA_HOME`, `/var/lib/aludel` for root, and `~/.local/share/aludel` for others.
        data: FilePath = FilePath::default();
        /// Live sandboxes at once, 1 to 100000. One more ends an idle one of the key that has most; those that clients of E2B and
        /// OpenSandbox own are never ended for another, and a new one waits up to ten seconds for a free place.
        containers: Count = Count(SESSIONS.sessions);
        /// Requests that are answered at once, 1 to 100000. One more hears 429.
        requests: Count = Count(REQUESTS);
        /// The most of them that are of one key, which never gets more than two thirds of `requests`.
        requests_per_key: Count = Count(REQUESTS);
        /// Bytes that one key may store: files, conversations, responses, and its share of the audit log.
        storage: Size = Size::from_bytes(SESSIONS.storage);
        /// Figures for Prometheus at `/metrics`.
        metrics: Switch = Switch(false);
        /// Format of the log on stderr: `text` tells failures alone, `json` has a line for each request, `off` nothing.
        log: LogFormatSetting = LogFormatSetting::Text;
        /// Prompts, programs and their output in the log and in traces.
        log_contents: Switch = Switch(false);
        /// Address of an OpenTelemetry collector for traces (OTLP over HTTP), such as `http://127.0.0.1:4318`, or `off`.
        traces: Collector = Collector::None;
        /// Address by which people reach the server, for links in answers, such as `https://aludel.example.com`; the name by which the
        /// client asked unless it is given.
        url: PublicUrl = PublicUrl::default();
        /// Web pages that may ask the server from a browser, such as `["https://app.example.com"]`, or `"*"` for all.
        origins: Origins = Origins::default();
        /// Time after which a call of an MCP tool returns although its program goes on; the tool `wait` collects it.
        mcp_return_after: DurationValue = DurationValue::from_secs(MCP_RETURN_AFTER.as_secs());
        /// Time after which a run of the Assistants API expires, done or not; whole seconds, at least one.
        run_lifetime: DurationValue = DurationValue::from_secs(RUN_LIFETIME.as_secs());
        /// A Unix socket in the data directory, by which `aludel run` of the same user gets the server's sandboxes at once.
        socket: Switch = Switch(true);
    }
}

values! { Listen: Text, Collector: Text, PublicUrl: Text, Origins: List, Count: Number }

impl ServerSection {
    /// Fills in the place of the data.
    pub(crate) fn resolve(mut self, host: &HostEnvironment) -> Result<Self, ConfigError> {
        if !self.data.is_given() {
            self.data = Setting::default(FilePath(host.data_directory()?));
        }
        // Processes in other directories use it too.
        self.data = self.data.map(|data| FilePath(host.absolute(&data)));
        Ok(self)
    }

    pub(crate) fn entries(&self) -> Vec<ConfigEntry> {
        self.entries_of("server")
    }
}

/// The address by which people reach the server; without one it is the name that a client used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PublicUrl(pub(crate) Option<String>);

impl std::str::FromStr for PublicUrl {
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

impl fmt::Display for PublicUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0.as_deref().unwrap_or("as clients name it"))
    }
}

/// An address and a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listen(pub(crate) SocketAddr);

impl std::str::FromStr for Listen {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self).map_err(|_| "is not an address and a port, like 127.0.0.1:8080")
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

choice! {
    /// Format of the server's log.
    pub(crate) enum LogFormatSetting {
        /// Lines for people.
        Text = "text",
        /// An object a line.
        Json = "json",
        /// No log.
        Off = "off",
    }
}

/// Receiver of traces.
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

/// A limit of things at the same time.
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
