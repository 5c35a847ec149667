//! The service `filesystem.Filesystem`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::int64;

/// A request that names a path and nothing else: to look at it, to make a directory, or to remove it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PathRequest {
    /// The path.
    #[serde(default)]
    pub path: String,
}

/// A request to move something.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct MoveRequest {
    /// The path now.
    #[serde(default)]
    pub source: String,
    /// The path then.
    #[serde(default)]
    pub destination: String,
}

/// A request to list a directory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ListDirRequest {
    /// The directory.
    #[serde(default)]
    pub path: String,
    /// Levels below it; 0 means 1.
    #[serde(default)]
    pub depth: u32,
}

/// A request to watch a directory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WatchRequest {
    /// The directory.
    #[serde(default)]
    pub path: String,
    /// True if all below it is watched, too.
    #[serde(default)]
    pub recursive: bool,
    /// True if each event brings the file that it is about.
    #[serde(default, alias = "include_entry")]
    pub include_entry: bool,
}

/// A request about a watcher that clients poll.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WatcherRequest {
    /// The watcher.
    #[serde(default, alias = "watcher_id")]
    pub watcher_id: String,
}

/// An answer about one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EntryResponse {
    /// The file.
    pub entry: EntryInfo,
}

/// A list of files.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ListDirResponse {
    /// The files.
    pub entries: Vec<EntryInfo>,
}

/// A watcher that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreateWatcherResponse {
    /// Its id.
    #[serde(alias = "watcher_id")]
    pub watcher_id: String,
}

/// Changes since the last poll.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct WatcherEvents {
    /// One by one.
    pub events: Vec<FilesystemEvent>,
}

/// A message of the stream of a watcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WatchMessage {
    /// The directory is watched; the first message.
    Start(super::process::Empty),
    /// Something changed.
    Filesystem(Box<FilesystemEvent>),
    /// Nothing.
    Keepalive(super::process::Empty),
}

/// A change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FilesystemEvent {
    /// Path, relative to the watched directory.
    pub name: String,
    /// The kind of change.
    pub r#type: EventType,
    /// The file that it is about, if that was asked for and is still there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<EntryInfo>,
}

/// Kinds of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EventType {
    /// It is new here.
    #[serde(rename = "EVENT_TYPE_CREATE")]
    Create,
    /// Its contents changed.
    #[serde(rename = "EVENT_TYPE_WRITE")]
    Write,
    /// It was removed.
    #[serde(rename = "EVENT_TYPE_REMOVE")]
    Remove,
    /// It was moved away.
    #[serde(rename = "EVENT_TYPE_RENAME")]
    Rename,
    /// Its permissions or other properties changed.
    #[serde(rename = "EVENT_TYPE_CHMOD")]
    Chmod,
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EntryInfo {
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// Its type; of a link, that of its target.
    #[serde(default)]
    pub r#type: FileType,
    /// Its path.
    #[serde(default)]
    pub path: String,
    /// Bytes.
    #[serde(default, with = "int64")]
    #[schemars(with = "String")]
    pub size: i64,
    /// Permission bits; of a link, those of its target.
    #[serde(default)]
    pub mode: u32,
    /// Type and permissions in words, for example `-rw-r--r--`.
    #[serde(default)]
    pub permissions: String,
    /// Name of its user.
    #[serde(default)]
    pub owner: String,
    /// Name of its group.
    #[serde(default)]
    pub group: String,
    /// Time of its last change, RFC 3339.
    #[serde(default, alias = "modified_time")]
    pub modified_time: String,
    /// Path that a link leads to.
    #[serde(default, alias = "symlink_target", skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<String>,
    /// The client's attributes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

/// Types of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum FileType {
    /// Something else, or a link that leads nowhere.
    #[default]
    #[serde(rename = "FILE_TYPE_UNSPECIFIED")]
    Unspecified,
    /// A regular file.
    #[serde(rename = "FILE_TYPE_FILE")]
    File,
    /// A directory.
    #[serde(rename = "FILE_TYPE_DIRECTORY")]
    Directory,
    /// A link.
    #[serde(rename = "FILE_TYPE_SYMLINK")]
    Symlink,
}
