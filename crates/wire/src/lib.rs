//! Messages of the protocols that aludel speaks, as plain data in both directions. No I/O, no rules: who reads them decides what they mean.
//!
//! Input is taken as real clients and servers send it: unknown fields are ignored, `null` is the same as absent, and an unknown kind of
//! tool, item or content part is kept as JSON instead of failing the message around it. What must come back as it was sent is a
//! [`Document`].
#![forbid(unsafe_code)]

mod document;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod json_text;
mod lenient;

pub mod anthropic;
pub mod assistants;
pub mod chat;
pub mod e2b;
pub mod gemini;
pub mod openai;
pub mod opensandbox;

pub use document::Document;
pub use json_text::JsonText;
