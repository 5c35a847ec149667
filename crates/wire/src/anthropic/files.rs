//! The Files API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename = "file")]
pub struct File {
    /// Its id.
    pub id: String,
    /// Its name.
    pub filename: String,
    /// Its MIME type.
    pub mime_type: String,
    /// Its size.
    pub size_bytes: u64,
    /// Time of its creation, as RFC 3339 has it.
    pub created_at: String,
    /// True if its content can be had.
    pub downloadable: bool,
    /// Time at which it goes away by itself.
    pub expires_at: Option<String>,
}

/// A file that is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename = "file_deleted")]
pub struct DeletedFile {
    /// Its id.
    pub id: String,
}

/// A page of a list. Clients of one age look at `next_page`, those of another at the three fields after it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Page<T> {
    /// The entries.
    pub data: Vec<T>,
    /// The value of `page` for the next one, if there is one.
    pub next_page: Option<String>,
    /// True if there are more.
    pub has_more: bool,
    /// The id of the first entry.
    pub first_id: Option<String>,
    /// The id of the last entry.
    pub last_id: Option<String>,
}

impl<T> Page<T> {
    /// A page, with what finds the id of an entry.
    pub fn new(data: Vec<T>, has_more: bool, id: impl Fn(&T) -> &str) -> Self {
        let id_of = |entry: Option<&T>| entry.map(|entry| id(entry).to_owned());
        let (first_id, last_id) = (id_of(data.first()), id_of(data.last()));
        Self { data, next_page: last_id.clone().filter(|_| has_more), has_more, first_id, last_id }
    }
}
