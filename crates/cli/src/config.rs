//! The configuration: a file, the environment and flags, in rising order.
//!
//! Each section has a file, which declares its settings (`declare.rs`). All layers have the same keys and the same texts, so a value is
//! parsed in one place, whatever its origin.

mod api;
mod approval;
mod declare;
mod duration;
mod environment;
mod file;
mod headers;
mod host_environment;
mod key;
mod model;
mod raw_value;
mod reference;
mod sandbox;
mod server;
mod size;
mod suggestion;
#[cfg(test)]
mod tests;
mod value;

use std::fmt;
use std::path::{Path, PathBuf};

use aludel_agent::Secret;
pub(crate) use api::ApiSetting;
pub(crate) use host_environment::HostEnvironment;
pub(crate) use key::KeySource;
pub(crate) use model::ModelSection;
pub(crate) use raw_value::{ConfigError, RawValue, ValueOrigin};
pub(crate) use reference::{explain, help, markdown, schema};
pub(crate) use sandbox::{BackendSetting, MAX_TEMPLATES, RequireSetting};
pub(crate) use server::{Collector, LogFormatSetting};

use approval::ApprovalSection;
use declare::SettingKey;
pub(crate) use duration::DurationValue;
use model::{Overlay, RawModel};
use raw_value::Setting;
pub(crate) use sandbox::SandboxSection;
use server::ServerSection;
use size::Size;
pub(crate) use suggestion::nearest;
use value::Switch;

/// The configuration in effect.
#[derive(Debug)]
pub(crate) struct Config {
    /// `[server]`
    pub(crate) server: ServerSection,
    /// `[sandbox]`
    pub(crate) sandbox: SandboxSection,
    /// `[approval]`
    pub(crate) approval: ApprovalSection,
    /// The models, first the default one. The scripted model is always among them.
    pub(crate) models: Vec<ModelSection>,
    /// The configuration file, if there was one.
    pub(crate) file: Option<PathBuf>,
    /// Warnings about settings that work all the same.
    pub(crate) warnings: Vec<String>,
}

/// A value on the command line.
#[derive(Debug, Clone)]
pub(crate) struct Flag {
    /// As it is written, for example `--memory`.
    pub(crate) flag: &'static str,
    /// Its section of the configuration.
    pub(crate) section: Section,
    /// Its key within the section.
    pub(crate) key: &'static str,
    /// The value as it is written.
    pub(crate) text: String,
}

/// A part of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Section {
    /// `[server]`
    Server,
    /// `[sandbox]`
    Sandbox,
    /// `[approval]`
    Approval,
    /// `[[model]]`
    Model,
}

impl Section {
    const ALL: [Self; 4] = [Self::Server, Self::Sandbox, Self::Approval, Self::Model];

    fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Sandbox => "sandbox",
            Self::Approval => "approval",
            Self::Model => "model",
        }
    }

    fn keys(self) -> &'static [SettingKey] {
        match self {
            Self::Server => ServerSection::KEYS,
            Self::Sandbox => SandboxSection::KEYS,
            Self::Approval => ApprovalSection::KEYS,
            Self::Model => ModelSection::KEYS,
        }
    }
}

/// Settings as they were given, layer over layer.
#[derive(Debug, Default)]
struct Layers {
    server: ServerSection,
    sandbox: SandboxSection,
    approval: ApprovalSection,
    models: Vec<RawModel>,
}

impl Layers {
    /// Sets a key; those of the section `model` are set by `of_model`.
    fn set(
        &mut self,
        section: Section,
        key: &str,
        given: RawValue,
        of_model: impl FnOnce(RawValue) -> Result<(), ConfigError>,
    ) -> Result<(), ConfigError> {
        match section {
            Section::Server => self.server.set(key, given),
            Section::Sandbox => self.sandbox.set(key, given),
            Section::Approval => self.approval.set(key, given),
            Section::Model => of_model(given),
        }
    }

    /// Sets a key of a layer above the file; those of the section `model` are collected in `model`.
    fn overlay(
        &mut self,
        model: &mut Overlay,
        section: Section,
        key: &'static str,
        given: RawValue,
    ) -> Result<(), ConfigError> {
        self.set(section, key, given, |given| {
            model.push((key, given));
            Ok(())
        })
    }

    fn set_flags(&mut self, flags: &[Flag]) -> Result<(), ConfigError> {
        let mut model = Overlay::new();
        for Flag { flag, section, key, text } in flags {
            let given = RawValue { text: text.clone(), origin: ValueOrigin::Flag(flag) };
            self.overlay(&mut model, *section, key, given)?;
        }
        RawModel::overlay(&mut self.models, model)
    }
}

/// Reads all layers. `file` is the requested one; without it, the usual places are searched.
pub(crate) fn load(host: &HostEnvironment, file: Option<&Path>, flags: &[Flag]) -> Result<Config, ConfigError> {
    let named = file.or(host.variable("ALUDEL_CONFIG").map(Path::new)).map(Path::to_path_buf);
    let file = named.or_else(|| host.config_files().into_iter().find(|file| file.exists()));
    let mut layers = Layers::default();
    if let Some(file) = &file {
        file::read(file, &mut layers)?;
    }
    environment::read(host, &mut layers)?;
    layers.set_flags(flags)?;
    let Layers { server, sandbox, approval, models } = layers;
    let models = model::resolve_all(models)?;
    let warnings = models.iter().filter_map(ModelSection::warning).collect();
    let (server, sandbox) = (server.resolve(host)?, sandbox.resolve()?);
    Ok(Config { server, sandbox, approval, models, file, warnings })
}

/// A secret whose place a flag names: env:NAME or file:PATH.
pub(crate) fn secret(flag: &'static str, text: &str, host: &HostEnvironment) -> Result<Option<Secret>, ConfigError> {
    let given = RawValue { text: text.to_owned(), origin: ValueOrigin::Flag(flag) };
    KeySource::parse(given, flag)?.fetch_for("the key", host)
}

/// One line of `aludel config`.
#[derive(Debug)]
pub(crate) struct ConfigEntry {
    /// The key with its section.
    pub(crate) key: String,
    /// The value, secrets hidden.
    pub(crate) value: String,
    /// Its origin.
    pub(crate) origin: ValueOrigin,
}

impl ConfigEntry {
    fn new<T: fmt::Display>(key: impl Into<String>, setting: &Setting<T>) -> Self {
        Self { key: key.into(), value: setting.to_string(), origin: setting.origin.clone() }
    }
}

impl Config {
    /// Limits and expiry of sessions.
    pub(crate) fn sessions(&self) -> aludel_engine::SessionSettings {
        let (server, sandbox) = (&self.server, &self.sandbox);
        aludel_engine::SessionSettings {
            limits: sandbox.limits(),
            max_memory: sandbox.max_memory.0.bytes(),
            idle: sandbox.idle.duration(),
            linger: sandbox.linger.duration(),
            sandbox_lifetime: sandbox.lifetime.duration(),
            answers: sandbox.answers.duration(),
            retention: sandbox.keep.duration(),
            sessions: server.containers.0,
            storage: server.storage.bytes(),
            templates: sandbox.key_templates.0.clone(),
            environment: sandbox.env.0.clone(),
        }
    }

    /// Every value with its origin.
    pub(crate) fn entries(&self) -> Vec<ConfigEntry> {
        let mut entries = self.server.entries();
        entries.extend(self.sandbox.entries());
        entries.extend(self.approval.entries());
        entries.extend(self.models.iter().flat_map(ModelSection::entries));
        entries
    }

    /// The values that hold as long as a server runs.
    fn fixed(&self) -> Vec<ConfigEntry> {
        let mut entries = self.server.entries();
        entries.extend(self.sandbox.entries());
        entries.push(self.approval.fixed());
        entries
    }

    /// The keys with another value in `new` that take effect only at a restart.
    pub(crate) fn changed(&self, new: &Self) -> Vec<String> {
        let pairs = self.fixed().into_iter().zip(new.fixed());
        pairs.filter(|(was, is)| was.value != is.value).map(|(was, _)| was.key).collect()
    }
}

fn unknown_key(section: &str, key: &str, known: &[SettingKey], origin: ValueOrigin) -> ConfigError {
    let known: Vec<&str> = known.iter().map(|key| key.name).collect();
    let nearest = nearest(key, known.iter().copied()).map(str::to_owned);
    ConfigError::UnknownKey { origin, key: format!("{section}.{key}"), nearest, known: known.join(", ") }
}
