//! JSON that stays as it was sent.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// A JSON value that is kept, stored and given back as it was sent, and is read as a `T`. Nothing is checked until it is read.
pub struct Document<T> {
    json: Value,
    read_as: PhantomData<fn() -> T>,
}

impl<T> Document<T> {
    /// The value.
    pub fn json(&self) -> &Value {
        &self.json
    }

    /// The value, by itself.
    pub fn into_json(self) -> Value {
        self.json
    }

    /// Returns true if it is an object.
    pub fn is_object(&self) -> bool {
        self.json.is_object()
    }

    /// A field that is a text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.json.get(name)?.as_str()
    }

    /// Returns true if there is a field of this name, even `null`.
    pub fn has(&self, name: &str) -> bool {
        self.json.get(name).is_some()
    }

    /// Returns true if a field is absent or `null`.
    pub fn lacks(&self, name: &str) -> bool {
        self.json.get(name).is_none_or(Value::is_null)
    }

    /// Returns true if a field is a list.
    pub fn is_list(&self, name: &str) -> bool {
        self.json.get(name).is_some_and(Value::is_array)
    }

    /// Sets a field. Does nothing to a value that is no object.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<Value>) {
        if let Some(fields) = self.json.as_object_mut() {
            fields.insert(name.to_owned(), value.into());
        }
    }

    pub(crate) fn json_mut(&mut self) -> &mut Value {
        &mut self.json
    }
}

impl<T: DeserializeOwned> Document<T> {
    /// Reads the value.
    pub fn read(&self) -> Result<T, serde_json::Error> {
        T::deserialize(&self.json)
    }
}

impl<T> From<Value> for Document<T> {
    fn from(json: Value) -> Self {
        Self { json, read_as: PhantomData }
    }
}

impl<T> Clone for Document<T> {
    fn clone(&self) -> Self {
        self.json.clone().into()
    }
}

impl<T> fmt::Debug for Document<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.json.fmt(f)
    }
}

impl<T> PartialEq for Document<T> {
    fn eq(&self, other: &Self) -> bool {
        self.json == other.json
    }
}

impl<T> fmt::Display for Document<T> {
    /// Writes the value as JSON on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.json.fmt(f)
    }
}

impl<T> Serialize for Document<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json.serialize(serializer)
    }
}

impl<'de, T> Deserialize<'de> for Document<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Value::deserialize(deserializer)?.into())
    }
}

/// A document is described as what it is read as.
impl<T: JsonSchema> JsonSchema for Document<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}
