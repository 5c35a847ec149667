//! The Containers API.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

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

/// `POST /containers`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CreateContainer {
    /// The client's name for it.
    pub name: String,
    /// Files that it begins with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_ids: Option<Vec<String>>,
    /// The memory of its programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<MemoryLimit>,
    /// The network that it may reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_policy: Option<NetworkPolicy>,
    /// Skills that it begins with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skills: Option<Vec<Value>>,
    /// Time for which it may be left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_after: Option<IdleTime>,
    /// Environment variables of its programs, an object of texts: not of OpenAI's API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BTreeMap<String, String>>")]
    pub env: Option<Value>,
}

/// The memory of a container's programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MemoryLimit {
    /// 1 GiB.
    #[serde(rename = "1g")]
    One,
    /// 4 GiB.
    #[serde(rename = "4g")]
    Four,
    /// 16 GiB.
    #[serde(rename = "16g")]
    Sixteen,
    /// 64 GiB.
    #[serde(rename = "64g")]
    SixtyFour,
}

impl MemoryLimit {
    /// All of them, the least first.
    pub const ALL: [Self; 4] = [Self::One, Self::Four, Self::Sixteen, Self::SixtyFour];

    /// Returns the number of GiB.
    pub fn gib(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Four => 4,
            Self::Sixteen => 16,
            Self::SixtyFour => 64,
        }
    }
}

/// Time for which a container may be left alone, as clients ask for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IdleTime {
    /// The moment from which it runs.
    pub anchor: IdleAnchor,
    /// The time, minutes.
    pub minutes: u64,
}

/// The moment from which an idle time runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum IdleAnchor {
    /// The last use.
    LastActiveAt,
}

/// `POST /containers/{id}/files`, with the id of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AddContainerFile {
    /// The file to be put in.
    pub file_id: String,
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
