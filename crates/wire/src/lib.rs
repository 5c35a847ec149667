//! Messages of the supported protocols, as plain data in both directions. No I/O and no rules: the meaning is up to the code that uses
//! them.
//!
//! Input is accepted in the forms of real clients and servers: unknown fields are ignored, `null` is the same as absent, and an unknown
//! kind of tool, item or content part is kept as JSON instead of failing the message around it. A value that must be returned unchanged is
//! a [`Document`].
#![forbid(unsafe_code)]

mod document;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod json_text;
mod lenient;
mod null;

pub mod anthropic;
pub mod assistants;
pub mod chat;
pub mod e2b;
pub mod gemini;
pub mod openai;
pub mod opensandbox;

pub use document::Document;
pub use json_text::JsonText;
pub use null::Null;
