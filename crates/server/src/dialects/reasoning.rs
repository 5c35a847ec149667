//! Reasoning of a model in a form that a client can store and send back.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// The prefix of wrapped reasoning.
const WRAPPED: &str = "aludel.";

/// Wraps reasoning: opaque to a client, but no secret from it.
pub(crate) fn wrapped(reasoning: &str) -> String {
    format!("{WRAPPED}{}", BASE64_STANDARD.encode(reasoning))
}

/// Unwraps reasoning; `None` if it was not wrapped here.
pub(crate) fn unwrapped(text: &str) -> Option<String> {
    let bytes = BASE64_STANDARD.decode(text.strip_prefix(WRAPPED)?).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
