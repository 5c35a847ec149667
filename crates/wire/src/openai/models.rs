//! The Models API.

use schemars::JsonSchema;
use serde::Serialize;

super::literal! {
    /// The kind of object that a model is.
    ModelObject = "model";
}

/// A model that can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Model {
    /// Its name.
    pub id: String,
    /// The kind of object.
    pub object: ModelObject,
    /// Since when it is there, seconds since 1970.
    pub created: i64,
    /// The owner.
    pub owned_by: String,
}

impl Model {
    /// A model of this name.
    pub fn new(id: impl Into<String>, created: i64, owned_by: impl Into<String>) -> Self {
        Self { id: id.into(), object: ModelObject::It, created, owned_by: owned_by.into() }
    }
}
