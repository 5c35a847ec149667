//! `[server]`: where aludel listens and keeps its data.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use super::given::{ConfigError, Given, Setting};
use super::{Entry, Surroundings};

/// What was given.
#[derive(Debug, Default)]
pub(crate) struct RawServer {
    listen: Option<Setting<SocketAddr>>,
    data: Option<Setting<PathBuf>>,
}

/// What holds.
#[derive(Debug)]
pub(crate) struct Server {
    /// The address of `aludel serve`.
    pub(crate) listen: Setting<SocketAddr>,
    /// The directory of templates and running sandboxes.
    pub(crate) data: Setting<PathBuf>,
}

impl RawServer {
    pub(crate) const KEYS: &[&str] = &["listen", "data"];

    pub(crate) fn set(&mut self, key: &str, given: Given) -> Result<(), ConfigError> {
        match key {
            "listen" => self.listen = Some(given.parse::<Listen>("server.listen")?.map(|listen| listen.0)),
            "data" => self.data = Some(given.parse_path("server.data")?),
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
        Ok(Server { listen: self.listen.unwrap_or_else(listen), data })
    }
}

impl Server {
    pub(crate) fn entries(&self) -> Vec<Entry> {
        vec![Entry::new("server.listen", &self.listen), Entry::shown("server.data", self.data.display(), &self.data)]
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
