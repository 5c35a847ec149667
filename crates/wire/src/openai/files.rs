//! The Files and Uploads APIs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

super::literal! {
    /// The kind of object that a file is.
    FileObject = "file";
    /// The kind of object that a upload is.
    UploadObject = "upload";
    /// The kind of object that a part is.
    UploadPartObject = "upload.part";
    /// The status of a file that is ready: clients wait for it.
    Processed = "processed";
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct File {
    /// Its id, `file-…`.
    pub id: String,
    /// The kind of object.
    pub object: FileObject,
    /// Its size.
    pub bytes: u64,
    /// When it was made, seconds since 1970.
    pub created_at: i64,
    /// When it goes away by itself.
    pub expires_at: Option<i64>,
    /// The client's name for it.
    pub filename: String,
    /// The purpose.
    pub purpose: String,
    /// The status.
    pub status: Processed,
    /// Never anything.
    pub status_details: Option<String>,
}

/// An upload in parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Upload {
    /// Its id, `upload_…`.
    pub id: String,
    /// The kind of object.
    pub object: UploadObject,
    /// Number of bytes that were announced.
    pub bytes: u64,
    /// When it began, seconds since 1970.
    pub created_at: i64,
    /// When it must be complete.
    pub expires_at: i64,
    /// The file's name.
    pub filename: String,
    /// The file's purpose.
    pub purpose: String,
    /// `pending`, `completed`, `cancelled` or `expired`.
    pub status: &'static str,
    /// The file that it became.
    pub file: Option<File>,
}

/// A part of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct UploadPart {
    /// Its id, `part_…`.
    pub id: String,
    /// The kind of object.
    pub object: UploadPartObject,
    /// When it came, seconds since 1970.
    pub created_at: i64,
    /// The object that it is a part of.
    pub upload_id: String,
}

/// `POST /uploads`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CreateUpload {
    /// The file's name.
    pub filename: String,
    /// The file's purpose.
    pub purpose: String,
    /// Number of bytes that its parts have together.
    pub bytes: u64,
    /// The file's media type.
    pub mime_type: String,
    /// The life of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_after: Option<Life>,
}

/// The life of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Life {
    /// The moment from which it runs: `created_at`.
    pub anchor: String,
    /// The time, seconds.
    pub seconds: i64,
}

/// `POST /uploads/{id}/complete`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CompleteUpload {
    /// The parts, in their order in the file.
    pub part_ids: Vec<String>,
    /// The MD5 digest of the file, in hexadecimal, to find out if all of it has arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub md5: Option<String>,
}
