//! Google's Gemini API: `generateContent` with code execution, files, models and the token counter, and interactions.
//!
//! Fields are written in camel case; requests may also have them in snake case, because the official clients mix both.

mod answer;
mod content;
mod file;
pub mod interactions;
mod request;

pub use answer::{
    Candidate, Error, ErrorEnvelope, FinishReason, GenerateContentResponse, Model, ModelList, TokenCount, UsageMetadata,
};
pub use content::{
    Blob, CodeExecutionResult, Content, ExecutableCode, FunctionCall, FunctionResponse, Language, Outcome, Part, Role,
};
pub use file::{File, FileData, FileList, FileMetadata, FileSource, FileState, UploadedFile};
pub use request::{
    CallingMode, FunctionCallingConfig, FunctionDeclaration, GenerateContentRequest, GenerationConfig, ThinkingConfig,
    Tool, ToolConfig,
};
