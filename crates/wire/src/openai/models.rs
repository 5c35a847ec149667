//! The Models API.

use serde::Serialize;

super::literal! {
    /// What a model says it is.
    ModelObject = "model";
}

/// A model that can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Model {
    /// Its name.
    pub id: String,
    /// What it is.
    pub object: ModelObject,
    /// Since when it is there, seconds since 1970.
    pub created: i64,
    /// Who offers it.
    pub owned_by: String,
}

impl Model {
    /// A model of this name.
    pub fn new(id: impl Into<String>, created: i64, owned_by: impl Into<String>) -> Self {
        Self { id: id.into(), object: ModelObject::It, created, owned_by: owned_by.into() }
    }
}
