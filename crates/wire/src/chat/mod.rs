//! OpenAI Chat Completions.

mod message;
mod request;
mod response;

pub use message::{Call, CalledFunction, Content, ContentPart, ImageUrl, KnownPart, Message};
pub use request::{
    Function, FunctionTool, NamedFunction, NamedToolChoice, Request, StreamOptions, Tool, ToolChoice, ToolChoiceMode,
};
pub use response::{
    Answer, CallDelta, CalledFunctionDelta, Choice, Chunk, ChunkChoice, Delta, ErrorBody, ErrorEnvelope, InputDetails,
    OutputDetails, Response, Usage,
};

#[cfg(test)]
mod tests;
