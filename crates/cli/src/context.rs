//! Everything that a command is run with besides its arguments.

use std::path::PathBuf;

use crate::config::{Config, ConfigError, Flag, HostEnvironment};

/// Context of every command.
pub(crate) struct CommandContext {
    /// The configuration, all layers together.
    pub(crate) config: Config,
    /// The environment.
    pub(crate) host: HostEnvironment,
    /// The configuration file and the flags of the command line, for loading the configuration again.
    pub(crate) config_sources: (Option<PathBuf>, Vec<Flag>),
    /// True with `--verbose`.
    pub(crate) verbose: bool,
}

impl CommandContext {
    /// The configuration as it is now.
    pub(crate) fn reload(&self) -> Result<Config, ConfigError> {
        let (file, flags) = &self.config_sources;
        crate::config::load(&self.host, file.as_deref(), flags)
    }
}
