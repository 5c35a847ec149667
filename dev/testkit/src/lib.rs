//! Parts that tests share: scripted models, and sandboxes, scripted or real.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up should say so and stop")]

mod sandbox;
mod upstream;

pub use sandbox::{Bench, Keeper, data, local};
pub use upstream::{End, Scripted, ScriptedTransport, ScriptedUpstream, chat_options};
