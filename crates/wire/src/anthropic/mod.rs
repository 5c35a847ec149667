//! Anthropic's Messages API, with its Files, Models and the token counter.
//!
//! A request's messages, blocks and tools are parsed one by one, so that an error can name the wrong one.

mod block;
mod error;
mod event;
mod files;
mod message;
mod models;
mod request;

pub use block::{
    Block, BlockDocument, Caller, CodeExecutionResult, Content, DocumentSource, EditorResult, ErrorCode, ImageSource,
    OutputFile, ProgramCaller, ProgramResult, ServerTool,
};
pub use error::{Details, Error, ErrorEnvelope};
pub use event::{Delta, Event, MessageChange};
pub use files::{DeletedFile, File, Page};
pub use message::{AppliedEdits, CacheCreation, Container, Message, ServiceTier, StopReason, TokenDetails, Usage};
pub use models::Model;
pub use request::{
    ContainerField, ContextEdit, ContextManagement, CountTokens, Effort, InputMessage, MessageDocument, OutputConfig,
    OutputFormat, Request, Role, Thinking, ThoughtDisplay, TokenCount, Tool, ToolChoice, ToolDocument, ToolKind,
};
