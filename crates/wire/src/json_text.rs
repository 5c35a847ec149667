//! JSON as its text.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

/// A JSON value that is kept as its text, and is described as a `T`. It is copied and written at once, which takes a tree of values a step
/// for each of them.
pub struct JsonText<T = Value> {
    text: Arc<RawValue>,
    described_as: PhantomData<fn() -> T>,
}

impl<T> JsonText<T> {
    /// The text.
    pub fn get(&self) -> &str {
        self.text.get()
    }

    /// The same text, described as anything.
    pub fn of_any(&self) -> JsonText {
        JsonText { text: Arc::clone(&self.text), described_as: PhantomData }
    }

    /// Builds the value.
    pub fn value(&self) -> Value {
        // It was written from one.
        serde_json::from_str(self.get()).unwrap_or_default()
    }
}

impl<T> From<&Value> for JsonText<T> {
    fn from(value: &Value) -> Self {
        // A tree has texts for keys: writing it cannot fail.
        let text = to_raw_value(value).unwrap_or_default();
        Self { text: text.into(), described_as: PhantomData }
    }
}

impl<T> From<Value> for JsonText<T> {
    fn from(value: Value) -> Self {
        Self::from(&value)
    }
}

impl<T> Clone for JsonText<T> {
    fn clone(&self) -> Self {
        Self { text: Arc::clone(&self.text), described_as: PhantomData }
    }
}

impl<T> fmt::Debug for JsonText<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.get())
    }
}

impl<T> PartialEq for JsonText<T> {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl<T> Serialize for JsonText<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

/// By way of a tree, which can be read wherever a value can.
impl<'de, T> Deserialize<'de> for JsonText<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Value::deserialize(deserializer)?.into())
    }
}

impl<T: JsonSchema> JsonSchema for JsonText<T> {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A tag is looked for in a copy of what is read, of which no text can be had.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(tag = "type")]
    enum Tagged {
        It { field: JsonText },
    }

    #[test]
    fn a_text_is_read_and_written_wherever_a_value_is() {
        let value = json!({ "type": "It", "field": { "a": [1, 2.5, "\u{1f600}\n"] } });
        let from_value = Tagged::deserialize(&value).unwrap();
        let from_text: Tagged = serde_json::from_str(&value.to_string()).unwrap();
        assert_eq!(from_value, from_text);
        assert_eq!(serde_json::to_value(&from_value).unwrap(), value);
        assert_eq!(serde_json::to_string(&from_value).unwrap(), r#"{"type":"It","field":{"a":[1,2.5,"😀\n"]}}"#);
        let Tagged::It { field } = from_value;
        assert_eq!(field.value(), value["field"]);
    }
}
