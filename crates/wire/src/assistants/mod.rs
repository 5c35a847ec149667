//! OpenAI's Assistants API, version 2: assistants, threads, messages, runs, steps and the events of a stream.
//!
//! Clients require every field of an object, even if it is `null`.

mod assistant;
mod event;
mod message;
mod outcome;
mod request;
mod run;
mod step;
mod thread;

pub use assistant::{Assistant, CodeInterpreterFiles, FileSearchStores, Function, Tool, ToolDocument, ToolResources};
pub use event::{
    CodeDelta, CodeOutputDelta, ContentDelta, EventName, FunctionDelta, MessageDelta, StepDelta, StepDeltaDetails,
    TextDelta, ToolCallDelta,
};
pub use message::{
    Annotation, Attachment, Content, ContentPart, FilePath, ImageFile, ImageUrl, IncompleteMessage, Message,
    MessageContent, MessageStatus, Role, Text, TextField,
};
pub use outcome::{ErrorCode, LastError, Usage};
pub use request::{
    CreateAssistant, CreateMessage, CreateRun, CreateThread, CreateThreadAndRun, FormatObject, NamedFunction,
    NamedTool, NewToolResources, ResponseFormat, SubmitToolOutputs, ToolChoice, ToolOutput, UpdateMetadata,
    UpdateThread,
};
pub use run::{IncompleteRun, RequiredAction, Run, RunStatus, SubmitAction, Truncation};
pub use step::{CalledFunction, CodeCall, CodeOutput, RunStep, StepDetails, StepStatus, ToolCall, WrittenMessage};
pub use thread::Thread;

/// Writes the one value that a field of this object always has.
macro_rules! literal {
    ($($(#[$about:meta])* $name:ident = $text:literal;)*) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub enum $name {
            /// The only value.
            #[default]
            #[serde(rename = $text)]
            It,
        }
    )*};
}
pub(crate) use literal;
