//! The Containers API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

super::literal! {
    /// The kind of object that a container is.
    ContainerObject = "container";
    /// The kind of object that a container's file is.
    ContainerFileObject = "container.file";
    /// From when on a container's time runs.
    LastActive = "last_active_at";
}

/// A container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Container {
    /// Its id, `cntr_…`.
    pub id: String,
    /// The kind of object.
    pub object: ContainerObject,
    /// When it was made, seconds since 1970.
    pub created_at: i64,
    /// `running` or `expired`.
    pub status: &'static str,
    /// The client's name for it.
    pub name: String,
    /// When it was last used.
    pub last_active_at: i64,
    /// Time for which it may be left alone.
    pub expires_after: ExpiresAfter,
    /// The memory that was asked for.
    pub memory_limit: String,
    /// The network that it may reach.
    pub network_policy: NetworkPolicy,
}

/// Time for which a container may be left alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ExpiresAfter {
    /// From when on.
    pub anchor: LastActive,
    /// The time.
    pub minutes: u64,
}

/// The network that a container may reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum NetworkPolicy {
    /// Nothing.
    Disabled,
    /// Some domains.
    Allowlist {
        /// Names of the allowed domains.
        #[serde(default)]
        allowed_domains: Vec<String>,
    },
}

/// A file of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ContainerFile {
    /// Its id, `cfile_…`.
    pub id: String,
    /// The kind of object.
    pub object: ContainerFileObject,
    /// Container that it belongs to, `cntr_…`.
    pub container_id: String,
    /// When it was made, seconds since 1970.
    pub created_at: i64,
    /// Its size.
    pub bytes: u64,
    /// Its path, `/mnt/data/…`.
    pub path: String,
    /// The party that put it there: `user` or `assistant`.
    pub source: &'static str,
}
