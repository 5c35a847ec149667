//! The turn loop: a model writes code, the sandbox runs it, and the model sees the output, until it answers.
//!
//! This crate knows no HTTP server, no terminal and no files of the host. `examples/approval.rs` is a complete example.
#![forbid(unsafe_code)]

/// The programs of the guide, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/rust.md")]
pub struct Guide;

mod agent;
mod approval;
mod callable;
mod contents;
mod event;
pub mod excerpt;
mod fenced;
mod future_stream;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod interpreter;
mod item;
mod observation;
mod partial_json;
mod parts;
mod program_call;
mod random;
mod runtime;
mod secret;
mod shell;
mod tool;
mod trace;
mod turn;
pub mod upstream;

pub use agent::{Agent, AgentBuilder, Answerer, TurnStream};
pub use approval::{ApprovalDecision, ApprovalRequest, denied};
pub use event::{Budget, CutOff, Ending, Event};
pub use interpreter::CodeInterpreter;
pub use item::{Call, CallOutput, ImageDetail, Item, Part, RemoteImage, text_of};
pub use observation::{describe_outcome, framed, size};
pub use parts::Budgets;
pub use program_call::{arguments_of, code_of};
pub use runtime::{BareSandbox, Runtime, RuntimeError};
pub use secret::Secret;
pub use shell::ProgramTool;
pub use tool::Tool;
pub use trace::ProgramSpan;
pub use turn::{LEAST_TOKENS, Turn, estimated_tokens};
