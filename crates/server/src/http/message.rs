//! Parsing of a message field by field, so that an error names the first wrong field.

use std::fmt;

use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};

use crate::error::ApiError;

/// Parses a message from a JSON object. Fields that its type does not declare are ignored.
pub(super) fn read<T: DeserializeOwned>(fields: Map<String, Value>) -> Result<T, ApiError> {
    T::deserialize(Message(fields)).map_err(|wrong| match wrong {
        MessageError::Missing(name) => ApiError::missing(name),
        MessageError::Value(name, error) => ApiError::invalid(name, format!("Invalid value for '{name}': {error}.")),
        MessageError::Other(message) => ApiError::bad_request(message),
    })
}

/// The reason for which a message cannot be read.
#[derive(Debug)]
enum MessageError {
    /// A missing field.
    Missing(&'static str),
    /// An invalid value of a field.
    Value(&'static str, serde_json::Error),
    Other(String),
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(name) => write!(f, "missing field `{name}`"),
            Self::Value(name, _) => write!(f, "invalid field `{name}`"),
            Self::Other(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for MessageError {}

impl serde::de::Error for MessageError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Other(message.to_string())
    }

    fn missing_field(name: &'static str) -> Self {
        Self::Missing(name)
    }
}

/// A message whose fields are read in the order of their declaration.
struct Message(Map<String, Value>);

impl<'de> Deserializer<'de> for Message {
    type Error = MessageError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, MessageError> {
        Value::Object(self.0).deserialize_any(visitor).map_err(serde::de::Error::custom)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, MessageError> {
        visitor.visit_map(OrderedFields { fields: self.0, names: fields.iter(), next: None })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct seq
        tuple tuple_struct map enum identifier ignored_any
    }
}

/// Gives out fields in the order of their declaration.
struct OrderedFields {
    fields: Map<String, Value>,
    names: std::slice::Iter<'static, &'static str>,
    /// The field whose name was given out last.
    next: Option<(&'static str, Value)>,
}

impl<'de> MapAccess<'de> for OrderedFields {
    type Error = MessageError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, MessageError> {
        for name in self.names.by_ref() {
            match self.fields.remove(*name) {
                None | Some(Value::Null) => {}
                Some(value) => {
                    self.next = Some((name, value));
                    return seed.deserialize(name.into_deserializer()).map(Some);
                }
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, MessageError> {
        let (name, value) = self.next.take().unwrap_or_default();
        seed.deserialize(value).map_err(|error| MessageError::Value(name, error))
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Sent {
        name: String,
        count: Option<u32>,
        #[serde(default)]
        all: Vec<bool>,
    }

    fn read(body: &Value) -> Result<Sent, ApiError> {
        super::read(body.as_object().unwrap().clone())
    }

    #[test]
    fn a_message_is_read_in_the_order_of_its_fields() {
        let read_all = read(&json!({ "all": [true], "count": 1, "name": "n", "more": {} })).unwrap();
        assert_eq!(read_all, Sent { name: "n".into(), count: Some(1), all: vec![true] });
        let nulls = read(&json!({ "all": null, "count": null, "name": "n" })).unwrap();
        assert_eq!(nulls, Sent { name: "n".into(), count: None, all: Vec::new() });
        for (body, param, code, message) in [
            (json!({}), "name", "missing_required_parameter", "Missing required parameter: 'name'."),
            (json!({ "name": null }), "name", "missing_required_parameter", "Missing required parameter: 'name'."),
            (
                json!({ "all": 1, "count": -1, "name": 5 }),
                "name",
                "invalid_value",
                "Invalid value for 'name': invalid type: integer `5`, expected a string.",
            ),
            (
                json!({ "all": 1, "count": -1, "name": "n" }),
                "count",
                "invalid_value",
                "Invalid value for 'count': invalid value: integer `-1`, expected u32.",
            ),
            (
                json!({ "all": [1], "name": "n" }),
                "all",
                "invalid_value",
                "Invalid value for 'all': invalid type: integer `1`, expected a boolean.",
            ),
        ] {
            let error = read(&body).unwrap_err();
            assert_eq!((error.param.as_deref(), error.code, &*error.message), (Some(param), Some(code), message));
        }
    }
}
