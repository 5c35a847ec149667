//! The Containers API.

use serde::{Deserialize, Serialize};

super::literal! {
    /// What a container says it is.
    ContainerObject = "container";
    /// What a container's file says it is.
    ContainerFileObject = "container.file";
    /// From when on a container's time runs.
    LastActive = "last_active_at";
}

/// A container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Container {
    /// Its id, `cntr_…`.
    pub id: String,
    /// What it is.
    pub object: ContainerObject,
    /// When it was made, seconds since 1970.
    pub created_at: i64,
    /// `running` or `expired`.
    pub status: &'static str,
    /// What the client called it.
    pub name: String,
    /// When it was last used.
    pub last_active_at: i64,
    /// How long it may be left alone.
    pub expires_after: ExpiresAfter,
    /// How much memory was asked for.
    pub memory_limit: String,
    /// What it may reach.
    pub network_policy: NetworkPolicy,
}

/// How long a container may be left alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExpiresAfter {
    /// From when on.
    pub anchor: LastActive,
    /// How long.
    pub minutes: u64,
}

/// What a container may reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum NetworkPolicy {
    /// Nothing.
    Disabled,
    /// Some domains.
    Allowlist {
        /// Which.
        #[serde(default)]
        allowed_domains: Vec<String>,
    },
}

/// A file of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ContainerFile {
    /// Its id, `cfile_…`.
    pub id: String,
    /// What it is.
    pub object: ContainerFileObject,
    /// Where it is.
    pub container_id: String,
    /// When it was made, seconds since 1970.
    pub created_at: i64,
    /// Its size.
    pub bytes: u64,
    /// Its path, `/mnt/data/…`.
    pub path: String,
    /// Who put it there: `user` or `assistant`.
    pub source: &'static str,
}
