//! The Files and Uploads APIs.

use serde::Serialize;

super::literal! {
    /// What a file says it is.
    FileObject = "file";
    /// What an upload says it is.
    UploadObject = "upload";
    /// What a part says it is.
    UploadPartObject = "upload.part";
    /// How far a file is: clients wait until it says this.
    Processed = "processed";
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct File {
    /// Its id, `file-…`.
    pub id: String,
    /// What it is.
    pub object: FileObject,
    /// Its size.
    pub bytes: u64,
    /// When it was made, seconds since 1970.
    pub created_at: i64,
    /// When it goes away by itself.
    pub expires_at: Option<i64>,
    /// What the client called it.
    pub filename: String,
    /// What it is for.
    pub purpose: String,
    /// How far it is.
    pub status: Processed,
    /// Never anything.
    pub status_details: Option<String>,
}

/// An upload in parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Upload {
    /// Its id, `upload_…`.
    pub id: String,
    /// What it is.
    pub object: UploadObject,
    /// How many bytes were announced.
    pub bytes: u64,
    /// When it began, seconds since 1970.
    pub created_at: i64,
    /// When it must be complete.
    pub expires_at: i64,
    /// What the file will be called.
    pub filename: String,
    /// What it will be for.
    pub purpose: String,
    /// `pending`, `completed`, `cancelled` or `expired`.
    pub status: &'static str,
    /// The file that it became.
    pub file: Option<File>,
}

/// A part of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UploadPart {
    /// Its id, `part_…`.
    pub id: String,
    /// What it is.
    pub object: UploadPartObject,
    /// When it came, seconds since 1970.
    pub created_at: i64,
    /// What it is a part of.
    pub upload_id: String,
}
