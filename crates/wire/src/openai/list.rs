//! Lists and deletions.

use schemars::JsonSchema;
use serde::Serialize;

super::literal! {
    /// The kind of object that a list is.
    ListObject = "list";
}

/// A page of a list. Clients ask for the next one with `after` the last id, until `has_more` is false.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct List<T> {
    /// The kind of object.
    pub object: ListObject,
    /// The page.
    pub data: Vec<T>,
    /// The id of its first entry.
    pub first_id: Option<String>,
    /// The id of its last entry.
    pub last_id: Option<String>,
    /// True if there are more after it.
    pub has_more: bool,
}

impl<T> List<T> {
    /// A page, with what finds the id of an entry.
    pub fn new(data: Vec<T>, has_more: bool, id: impl Fn(&T) -> String) -> Self {
        let (first_id, last_id) = (data.first().map(&id), data.last().map(&id));
        Self { object: ListObject::It, data, first_id, last_id, has_more }
    }
}

/// Confirmation that an object was deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Deleted {
    /// Its id.
    pub id: String,
    /// The kind of the deleted object, for example `container.deleted`.
    pub object: &'static str,
    /// Always true.
    pub deleted: bool,
}

impl Deleted {
    /// Says that it is gone.
    pub fn new(id: impl Into<String>, object: &'static str) -> Self {
        Self { id: id.into(), object, deleted: true }
    }
}
