//! Recorded messages, and reading and writing them again.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The entries of a file in `fixtures`: one JSON value a line.
pub(crate) fn fixture(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!lines.is_empty(), "{name} is empty");
    lines
}

/// Reads a value as a `T` and asserts that it is written as it was.
pub(crate) fn round_trip<T: DeserializeOwned + Serialize>(value: &Value) -> T {
    let read: T = serde_json::from_str(&value.to_string()).unwrap_or_else(|error| panic!("{error}: {value}"));
    assert_eq!(serde_json::to_value(&read).unwrap(), *value);
    read
}
