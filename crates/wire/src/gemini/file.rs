//! Files of the Files API.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// A file in a message, by its address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileData {
    /// Its type, as the client says it.
    #[serde(default, alias = "mime_type", skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// Its address.
    #[serde(default, alias = "file_uri")]
    pub file_uri: String,
}

/// The description with which an upload begins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileMetadata {
    /// `files/` and the id that the client chooses for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A name for people.
    #[serde(default, alias = "display_name", skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// Its type.
    #[serde(default, alias = "mime_type", skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// Its size: a number, or the digits of one.
    #[serde(
        default,
        alias = "size_bytes",
        deserialize_with = "number_or_digits",
        skip_serializing_if = "Option::is_none"
    )]
    pub size_bytes: Option<u64>,
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct File {
    /// `files/` and its id.
    pub name: String,
    /// Its name for people.
    pub display_name: String,
    /// Its type.
    pub mime_type: String,
    /// Its size in digits.
    pub size_bytes: String,
    /// Time of creation.
    pub create_time: String,
    /// Time of the last change.
    pub update_time: String,
    /// Time at which it is deleted, unless it is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiration_time: Option<String>,
    /// The SHA-256 of its content: the base64 of its hexadecimal digits, as the vendor's server sends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256_hash: Option<String>,
    /// The address that messages name it by.
    pub uri: String,
    /// The address of its content.
    pub download_uri: String,
    /// State of its preparation.
    pub state: FileState,
    /// Origin.
    pub source: FileSource,
}

/// The state of a file's preparation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum FileState {
    /// It can be used.
    Active,
}

/// The origin of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum FileSource {
    /// A client.
    Uploaded,
}

/// The end of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UploadedFile {
    /// The file.
    pub file: File,
}

/// `GET /v1/files`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileList {
    /// The files of this page.
    pub files: Vec<File>,
    /// The beginning of the next page, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_page_token: Option<String>,
}

/// Deserializes a number, which JavaScript clients write as text.
fn number_or_digits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        Number(u64),
        Digits(String),
    }
    match Option::deserialize(deserializer)? {
        None => Ok(None),
        Some(Given::Number(number)) => Ok(Some(number)),
        Some(Given::Digits(digits)) => digits.parse().map(Some).map_err(serde::de::Error::custom),
    }
}
