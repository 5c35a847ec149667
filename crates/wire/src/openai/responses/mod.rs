//! The Responses API.
//!
//! All output is fully typed. Input is a [`Document`](crate::Document): it is stored and returned unchanged, and parsed by these types, for
//! which a field of a wrong type counts as absent.

mod event;
mod item;
mod part;
mod request;
mod response;
mod tool;

pub use event::{Event, StreamEvent};
pub use item::{
    CodeInterpreterCall, FunctionCall, FunctionCallOutput, FunctionOutput, Item, ItemDocument, ItemReference,
    ItemStatus, McpApprovalRequest, McpApprovalResponse, McpCall, Message, MessageContent, ProgramOutput, Reasoning,
    ReasoningText, Role,
};
pub use part::{Annotation, ContainerFileCitation, ContentPart, InputFile, InputImage, OutputText};
pub use request::{
    ConversationField, Input, InputTokens, InputTokensObject, ReasoningOptions, Request, TextFormat, TextOptions,
};
pub use response::{
    ConversationReference, IncompleteDetails, InputTokensDetails, OutputTokensDetails, Response, ResponseError,
    ResponseObject, Status, Usage,
};
pub use tool::{
    AllowedTool, ApprovalFilter, CodeInterpreterTool, FunctionTool, McpTool, NamedToolChoice, RequireApproval, Tool,
    ToolChoice, ToolDocument, ToolNames,
};
