//! Reasoning of a model in a form that a client can store and send back.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// The mark of reasoning that we wrapped.
const WRAPPED: &str = "aludel.";

/// Wraps reasoning: opaque to a client, but no secret from it.
pub(crate) fn wrapped(reasoning: &str) -> String {
    format!("{WRAPPED}{}", BASE64_STANDARD.encode(reasoning))
}

/// The reasoning that we wrapped.
pub(crate) fn unwrapped(text: &str) -> Option<String> {
    let bytes = BASE64_STANDARD.decode(text.strip_prefix(WRAPPED)?).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
