//! Plain data as its JSON text.

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

/// Writes plain data.
pub(crate) fn raw_json(data: &impl Serialize) -> Box<RawValue> {
    // With texts for keys: this cannot fail.
    to_raw_value(data).unwrap_or_default()
}

/// The text.
pub(crate) fn into_text(json: Box<RawValue>) -> String {
    Box::<str>::from(json).into()
}
