//! Environment, working directory and user of the process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::raw_value::ConfigError;

/// The process's environment. It is read only here, so that tests can replace it.
pub(crate) struct HostEnvironment {
    variables: BTreeMap<String, String>,
    directory: PathBuf,
    is_root: bool,
}

impl HostEnvironment {
    /// This process's own.
    pub(crate) fn of_this_process() -> Self {
        // None of our variables is other than Unicode.
        let variables =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Self {
            variables: variables.collect(),
            directory: PathBuf::from("."),
            is_root: rustix::process::geteuid().is_root(),
        }
    }

    /// Made-up ones.
    #[cfg(test)]
    pub(crate) fn made_up(directory: &Path, variables: &[(&str, &str)]) -> Self {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Self { variables: variables.collect(), directory: directory.to_path_buf(), is_root: false }
    }

    /// An environment variable. An empty one counts as unset, as in the XDG specification.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// All environment variables, by name.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The path, seen from anywhere.
    pub(crate) fn absolute(&self, path: &Path) -> PathBuf {
        let path = self.directory.join(path);
        // Without a working directory, a relative path stays relative and is not found.
        std::path::absolute(&path).unwrap_or(path)
    }

    /// Returns the default directory for data.
    pub(crate) fn data_directory(&self) -> Result<PathBuf, ConfigError> {
        if let Some(data) = self.variable("XDG_DATA_HOME") {
            return Ok(Path::new(data).join("aludel"));
        }
        if self.is_root {
            return Ok(PathBuf::from("/var/lib/aludel"));
        }
        let home = self.variable("HOME").ok_or(ConfigError::NoHome)?;
        Ok(Path::new(home).join(".local/share/aludel"))
    }

    /// Returns the possible paths of the configuration file; the first that exists counts.
    pub(crate) fn config_files(&self) -> Vec<PathBuf> {
        let mut files = vec![self.directory.join("aludel.toml")];
        let home = self.variable("HOME").map(|home| Path::new(home).join(".config"));
        let configuration = self.variable("XDG_CONFIG_HOME").map(PathBuf::from).or(home);
        files.extend(configuration.map(|directory| directory.join("aludel/aludel.toml")));
        files.push(PathBuf::from("/etc/aludel/aludel.toml"));
        files
    }
}
