//! Lenient parsing of fields: an invalid value counts as absent, and the code that needs the field reports it.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{DeserializeOwned, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::JsonText;

/// Reads a value, or its default where it is of another type.
pub(crate) fn field<'de, D: Deserializer<'de>, T: Default + DeserializeOwned>(deserializer: D) -> Result<T, D::Error> {
    Ok(T::deserialize(Value::deserialize(deserializer)?).unwrap_or_default())
}

/// Reads an object, or its default where it is none.
pub(crate) fn object<'de, D: Deserializer<'de>, T: Default + DeserializeOwned>(deserializer: D) -> Result<T, D::Error> {
    let value = Value::deserialize(deserializer)?;
    // Serde would read a list as the fields of a structure in their order.
    Ok(if value.is_object() { T::deserialize(value).unwrap_or_default() } else { T::default() })
}

/// Reads the text of an object; `None` where it is none.
pub(crate) fn object_text<'de, D: Deserializer<'de>, T>(deserializer: D) -> Result<Option<JsonText<T>>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(value.is_object().then(|| value.into()))
}

/// Reads an object. Anything else is an error, a list of its fields included.
pub(crate) fn only_object<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<T, D::Error> {
    let value = Value::deserialize(deserializer)?;
    if !value.is_object() {
        return Err(D::Error::custom("expected an object"));
    }
    T::deserialize(value).map_err(D::Error::custom)
}

/// Deserializes the valid entries of a list; empty if it is not a list.
pub(crate) fn list<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Ok(entries(Value::deserialize(deserializer)?).unwrap_or_default())
}

/// Deserializes the valid entries of a list; `None` if it is not a list.
pub(crate) fn optional_list<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error> {
    Ok(entries(Value::deserialize(deserializer)?))
}

fn entries<T: DeserializeOwned>(value: Value) -> Option<Vec<T>> {
    match value {
        Value::Array(values) => {
            // As in `object`, a list is not read as an object.
            let values = values.into_iter().filter(|value| !value.is_array());
            Some(values.filter_map(|value| T::deserialize(value).ok()).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => None,
    }
}

/// A list, or one value in its place; empty where there is none.
pub(crate) fn one_or_many<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    struct OneOrMany<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrMany<T> {
        type Value = Vec<T>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a list or an object")
        }

        fn visit_unit<E: Error>(self) -> Result<Vec<T>, E> {
            Ok(Vec::new())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Vec<T>, A::Error> {
            Vec::deserialize(SeqAccessDeserializer::new(list))
        }

        fn visit_map<A: MapAccess<'de>>(self, one: A) -> Result<Vec<T>, A::Error> {
            Ok(vec![T::deserialize(MapAccessDeserializer::new(one))?])
        }
    }
    deserializer.deserialize_any(OneOrMany(PhantomData))
}
