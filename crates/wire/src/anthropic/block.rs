//! Content blocks: the parts of messages, from clients and to them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Document, Null};

/// A block as it was sent, kept word for word.
pub type BlockDocument = Document<Block>;

/// Content of a message, of a tool's result, or of a system prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Content {
    /// Text.
    Text(String),
    /// Blocks.
    Blocks(Vec<BlockDocument>),
}

/// One block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// Text.
    Text {
        /// The text.
        text: String,
        /// Passages that the text quotes: nothing finds them here.
        #[serde(default)]
        citations: Null,
    },
    /// An image.
    Image {
        /// Its origin.
        source: ImageSource,
    },
    /// A document for the model to read.
    Document {
        /// Its origin.
        source: DocumentSource,
        /// Its title.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        title: Option<String>,
        /// Words about it that are not quoted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        context: Option<String>,
    },
    /// A result of the client's own search.
    SearchResult {
        /// Its address.
        source: String,
        /// Its title.
        title: String,
        /// Its text.
        content: Vec<BlockDocument>,
    },
    /// Thoughts of the model.
    Thinking {
        /// The thoughts.
        thinking: String,
        /// The proof that they are the model's own.
        #[serde(default)]
        signature: String,
    },
    /// Thoughts that only the model's server can read.
    RedactedThinking {
        /// The thoughts.
        data: String,
    },
    /// A call of a tool of the client's.
    ToolUse {
        /// The call's id.
        id: String,
        /// The tool.
        name: String,
        /// Its arguments.
        input: Map<String, Value>,
        /// The caller: the model, or a program.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        caller: Option<Caller>,
    },
    /// The client's answer to such a call.
    ToolResult {
        /// The call's id.
        tool_use_id: String,
        /// The answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content: Option<Content>,
        /// True if the tool failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        is_error: Option<bool>,
    },
    /// A call of a tool that the server carries out.
    ServerToolUse {
        /// The call's id, `srvtoolu_…`.
        id: String,
        /// The tool.
        name: ServerTool,
        /// Its arguments.
        input: Map<String, Value>,
        /// The caller: the model, or a program.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        caller: Option<Caller>,
    },
    /// The end of a Python program.
    CodeExecutionToolResult {
        /// The call's id.
        tool_use_id: String,
        /// Its output.
        content: CodeExecutionResult,
    },
    /// The end of a shell command.
    BashCodeExecutionToolResult {
        /// The call's id.
        tool_use_id: String,
        /// Its output.
        content: CodeExecutionResult,
    },
    /// The end of a change of a file.
    TextEditorCodeExecutionToolResult {
        /// The call's id.
        tool_use_id: String,
        /// Its outcome.
        content: EditorResult,
    },
    /// A file for the container.
    ContainerUpload {
        /// The file's id.
        file_id: String,
    },
}

/// The origin of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ImageSource {
    /// The message itself.
    Base64 {
        /// The MIME type.
        media_type: String,
        /// The image as base64.
        data: String,
    },
    /// An address that the model's server fetches.
    Url {
        /// The address.
        url: String,
    },
    /// A file of the Files API.
    File {
        /// Its id.
        file_id: String,
    },
}

/// The origin of a document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum DocumentSource {
    /// The message itself, as plain text.
    Text {
        /// The text.
        data: String,
    },
    /// The message itself, as text or blocks.
    Content {
        /// The content.
        content: Content,
    },
    /// The message itself.
    Base64 {
        /// The MIME type.
        media_type: String,
        /// The document as base64.
        data: String,
    },
    /// An address that the model's server fetches.
    Url {
        /// The address.
        url: String,
    },
    /// A file of the Files API.
    File {
        /// Its id.
        file_id: String,
    },
}

/// The caller of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type")]
pub enum Caller {
    /// The model.
    #[serde(rename = "direct")]
    Direct,
    /// A program.
    #[serde(untagged)]
    Program(ProgramCaller),
    /// Another caller.
    #[serde(untagged)]
    Other(Value),
}

/// A program that calls a tool of the client's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProgramCaller {
    /// The tool that runs it, with its version.
    pub r#type: String,
    /// The call of that tool.
    pub tool_id: String,
}

/// A tool that a server carries out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ServerTool {
    /// A Python program.
    CodeExecution,
    /// A shell command.
    BashCodeExecution,
    /// A change of a file.
    TextEditorCodeExecution,
    /// Another tool.
    #[serde(untagged)]
    Other(String),
}

/// The end of a program or a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CodeExecutionResult {
    /// A Python program ended, well or not.
    CodeExecutionResult(ProgramResult),
    /// A Python program ended whose output only the server that ran it can read.
    EncryptedCodeExecutionResult {
        /// The output.
        encrypted_stdout: String,
        /// Standard error.
        stderr: String,
        /// The exit status.
        return_code: i64,
    },
    /// A Python program could not be run, or was not let run to its end.
    CodeExecutionToolResultError {
        /// The reason.
        error_code: ErrorCode,
    },
    /// A command ended, well or not.
    BashCodeExecutionResult(ProgramResult),
    /// A command could not be run, or was not let run to its end.
    BashCodeExecutionToolResultError {
        /// The reason.
        error_code: ErrorCode,
    },
}

/// The output of a program or a command.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ProgramResult {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// The exit status.
    pub return_code: i64,
    /// The files that it made.
    #[serde(default)]
    pub content: Vec<OutputFile>,
}

/// A file that a program or a command made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputFile {
    /// A file of a Python program.
    CodeExecutionOutput {
        /// Its id.
        file_id: String,
    },
    /// A file of a command.
    BashCodeExecutionOutput {
        /// Its id.
        file_id: String,
    },
}

/// The reason for which a tool has no result. Clients know these and no others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The arguments cannot be used.
    InvalidToolInput,
    /// The tool cannot be reached, or the turn ended before.
    Unavailable,
    /// Too much is asked for at once.
    TooManyRequests,
    /// It took too long.
    ExecutionTimeExceeded,
    /// The file of the editor is not there.
    FileNotFound,
    /// Another reason, of a server that is not ours.
    #[serde(untagged)]
    Other(String),
}

/// The outcome of a change of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type")]
pub enum EditorResult {
    /// A file, shown.
    #[serde(rename = "text_editor_code_execution_view_result")]
    View {
        /// `text`, `image` or `pdf`.
        file_type: String,
        /// Its content.
        content: String,
        /// Lines that are shown.
        #[serde(default)]
        num_lines: Option<u64>,
        /// The first of them.
        #[serde(default)]
        start_line: Option<u64>,
        /// Lines of the file.
        #[serde(default)]
        total_lines: Option<u64>,
    },
    /// A file, made.
    #[serde(rename = "text_editor_code_execution_create_result")]
    Create {
        /// True if there was one before.
        is_file_update: bool,
    },
    /// A text in a file, replaced.
    #[serde(rename = "text_editor_code_execution_str_replace_result")]
    Replace {
        /// The changed lines.
        #[serde(default)]
        lines: Option<Vec<String>>,
        /// The first line that changed, before.
        #[serde(default)]
        old_start: Option<u64>,
        /// Lines that changed, before.
        #[serde(default)]
        old_lines: Option<u64>,
        /// The first line that changed, after.
        #[serde(default)]
        new_start: Option<u64>,
        /// Lines that changed, after.
        #[serde(default)]
        new_lines: Option<u64>,
    },
    /// Nothing was changed.
    #[serde(rename = "text_editor_code_execution_tool_result_error")]
    Error {
        /// The reason.
        error_code: ErrorCode,
        /// The reason in words.
        #[serde(default)]
        error_message: Option<String>,
    },
}

impl ServerTool {
    /// The tool's name.
    pub fn name(&self) -> &str {
        match self {
            Self::CodeExecution => "code_execution",
            Self::BashCodeExecution => "bash_code_execution",
            Self::TextEditorCodeExecution => "text_editor_code_execution",
            Self::Other(name) => name,
        }
    }
}
