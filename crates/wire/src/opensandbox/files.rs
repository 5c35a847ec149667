//! Files of a sandbox.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A file or directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileInfo {
    /// Absolute path.
    pub path: String,
    /// Its kind.
    pub r#type: FileType,
    /// Bytes.
    pub size: u64,
    /// The time of its last change, RFC 3339.
    pub modified_at: String,
    /// The time since which it is there, RFC 3339.
    pub created_at: String,
    /// Name of its user.
    pub owner: String,
    /// Name of its group.
    pub group: String,
    /// Permissions: the digits of an octal number, read as a decimal one.
    pub mode: u32,
}

/// Kinds of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// Anything else.
    Other,
}

/// The permissions and the owner of a file, as a request names them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Permission {
    /// Permissions: the digits of an octal number, read as a decimal one; 0 changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Name of its user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Name of its group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// The part of an upload that says where the next part goes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct UploadMetadata {
    /// The path.
    pub path: String,
    /// The file's permissions and owner.
    #[serde(flatten)]
    pub permission: Permission,
}

/// A file that is moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Move {
    /// Its path.
    pub src: String,
    /// Its new path.
    pub dest: String,
}

/// Replacement of a text in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Replacement {
    /// The text that goes.
    pub old: String,
    /// The text that comes.
    pub new: String,
}

/// The number of times that a text was replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Replaced {
    /// The number.
    pub replaced_count: u64,
}
