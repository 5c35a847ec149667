//! Requests. Errors name the first wrong field, in this order.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Attachment, CodeInterpreterFiles, MessageContent, Role, ToolDocument, ToolResources, Truncation};

/// `POST /assistants`, and an update of one, where nothing need be there.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CreateAssistant {
    /// The model.
    pub model: Option<String>,
    /// Its name.
    pub name: Option<String>,
    /// Its description.
    pub description: Option<String>,
    /// The system prompt.
    pub instructions: Option<String>,
    /// Its tools.
    pub tools: Option<Vec<ToolDocument>>,
    /// The files of its tools.
    pub tool_resources: Option<NewToolResources>,
    /// The client's own notes.
    pub metadata: Option<Map<String, Value>>,
    /// Randomness.
    pub temperature: Option<f64>,
    /// Nucleus sampling.
    pub top_p: Option<f64>,
    /// The form of answers.
    pub response_format: Option<Value>,
    /// The effort of a reasoning model.
    pub reasoning_effort: Option<String>,
}

/// The files of tools as clients send them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NewToolResources {
    /// The files of the code interpreter.
    #[serde(default)]
    pub code_interpreter: Option<CodeInterpreterFiles>,
    /// The stores of the file search.
    #[serde(default)]
    pub file_search: Option<NewFileSearch>,
}

/// The stores of the file search as clients send them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NewFileSearch {
    /// Stores that are there.
    #[serde(default)]
    pub vector_store_ids: Option<Vec<String>>,
    /// Stores to be made.
    #[serde(default)]
    pub vector_stores: Option<Vec<CodeInterpreterFiles>>,
}

impl NewToolResources {
    /// Ids of vector stores that it names.
    pub fn vector_stores(&self) -> &[String] {
        self.file_search.as_ref().and_then(|search| search.vector_store_ids.as_deref()).unwrap_or_default()
    }

    /// The files of all tools, as those of the code interpreter.
    pub fn into_files(self) -> ToolResources {
        let mut resources = ToolResources { code_interpreter: self.code_interpreter, file_search: None };
        let stores = self.file_search.and_then(|search| search.vector_stores).unwrap_or_default();
        resources.add_files(stores.into_iter().flat_map(|store| store.file_ids));
        resources
    }
}

/// `POST /threads`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CreateThread {
    /// Its first messages.
    #[serde(default)]
    pub messages: Option<Vec<CreateMessage>>,
    /// The files of its tools.
    #[serde(default)]
    pub tool_resources: Option<NewToolResources>,
    /// The client's own notes.
    #[serde(default)]
    pub metadata: Option<Map<String, Value>>,
}

/// `POST /threads/{thread}`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UpdateThread {
    /// The files of its tools.
    pub tool_resources: Option<NewToolResources>,
    /// The client's own notes.
    pub metadata: Option<Map<String, Value>>,
}

/// `POST /threads/{thread}/messages`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CreateMessage {
    /// Its author.
    pub role: Role,
    /// Its parts.
    pub content: MessageContent,
    /// Files that come with it.
    #[serde(default)]
    pub attachments: Option<Vec<Attachment>>,
    /// The client's own notes.
    #[serde(default)]
    pub metadata: Option<Map<String, Value>>,
}

/// An update of a message or a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UpdateMetadata {
    /// The client's own notes.
    pub metadata: Option<Map<String, Value>>,
}

/// `POST /threads/{thread}/runs`. What is absent is the assistant's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CreateRun {
    /// The assistant.
    pub assistant_id: String,
    /// The model.
    pub model: Option<String>,
    /// The system prompt.
    pub instructions: Option<String>,
    /// More of the system prompt.
    pub additional_instructions: Option<String>,
    /// Messages that the thread gets first.
    pub additional_messages: Option<Vec<CreateMessage>>,
    /// The tools.
    pub tools: Option<Vec<ToolDocument>>,
    /// The client's own notes.
    pub metadata: Option<Map<String, Value>>,
    /// Randomness.
    pub temperature: Option<f64>,
    /// Nucleus sampling.
    pub top_p: Option<f64>,
    /// The effort of a reasoning model.
    pub reasoning_effort: Option<String>,
    /// The most tokens that the model may read.
    pub max_prompt_tokens: Option<u32>,
    /// The most tokens that the model may write.
    pub max_completion_tokens: Option<u32>,
    /// The part of the thread that the model gets.
    pub truncation_strategy: Option<Truncation>,
    /// The tool that the model must call.
    pub tool_choice: Option<Value>,
    /// True if the model may call several tools at once.
    pub parallel_tool_calls: Option<bool>,
    /// The form of the answer.
    pub response_format: Option<Value>,
    /// True if it comes as a stream.
    pub stream: Option<bool>,
}

/// The parts of `POST /threads/runs` that are no run's. The others are those of [`CreateRun`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CreateThreadAndRun {
    /// The thread.
    pub thread: Option<CreateThread>,
    /// The files of the run's tools.
    pub tool_resources: Option<NewToolResources>,
}

/// One tool that the model must call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum NamedTool {
    /// A program.
    CodeInterpreter {},
    /// The vendor's search in files.
    FileSearch {},
    /// A function of the client's.
    Function {
        /// The function.
        function: NamedFunction,
    },
}

/// A function by its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NamedFunction {
    /// Its name.
    pub name: String,
}

/// `POST /threads/{thread}/runs/{run}/submit_tool_outputs`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SubmitToolOutputs {
    /// The outputs of the client's functions.
    pub tool_outputs: Vec<ToolOutput>,
    /// True if the rest comes as a stream.
    pub stream: Option<bool>,
}

/// The output of a function of the client's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ToolOutput {
    /// The call.
    #[serde(default)]
    pub tool_call_id: String,
    /// The output.
    #[serde(default)]
    pub output: Option<String>,
}

/// The form of an answer: `auto`, or an object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ResponseFormat {
    /// `auto`.
    Word(String),
    /// A form.
    Object(FormatObject),
}

/// The form of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FormatObject {
    /// Free.
    Text {},
    /// Some JSON object.
    JsonObject {},
    /// JSON that a schema describes.
    JsonSchema {
        /// The schema with its name.
        json_schema: Map<String, Value>,
    },
}

/// The tool that the model must call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ToolChoice {
    /// `none`, `auto` or `required`.
    Word(String),
    /// One tool.
    Named(NamedTool),
}
