//! Assistants and their tools.

use std::collections::HashSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Document;

super::literal! {
    /// The type of an assistant.
    AssistantObject = "assistant";
}

/// A model with instructions and tools.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Assistant {
    /// Its id, `asst_…`.
    pub id: String,
    /// Its type.
    #[serde(default)]
    pub object: AssistantObject,
    /// When it was made, seconds since 1970.
    pub created_at: i64,
    /// Its name.
    pub name: Option<String>,
    /// Its description.
    pub description: Option<String>,
    /// The model.
    pub model: String,
    /// The system prompt.
    pub instructions: Option<String>,
    /// Its tools, as they were sent.
    pub tools: Vec<ToolDocument>,
    /// The files of its tools.
    pub tool_resources: ToolResources,
    /// The client's own notes.
    pub metadata: Map<String, Value>,
    /// Randomness.
    pub temperature: Option<f64>,
    /// Nucleus sampling.
    pub top_p: Option<f64>,
    /// The form of answers, as it was sent.
    pub response_format: Value,
    /// The effort of a reasoning model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
}

/// A tool as it was sent.
pub type ToolDocument = Document<Tool>;

/// A tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Tool {
    /// Programs of the model are run.
    CodeInterpreter {},
    /// The vendor's search in files.
    FileSearch {},
    /// A function of the client's.
    Function {
        /// The function.
        function: Function,
    },
}

/// A function of the client's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Its purpose, for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// A JSON Schema of its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Map<String, Value>>,
    /// True if the arguments must match the schema exactly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// The files of tools.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ToolResources {
    /// The files of the code interpreter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_interpreter: Option<CodeInterpreterFiles>,
    /// The stores of the file search.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_search: Option<FileSearchStores>,
}

/// The files of the code interpreter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CodeInterpreterFiles {
    /// Ids of files of the Files API.
    #[serde(default)]
    pub file_ids: Vec<String>,
}

/// The stores of the file search.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileSearchStores {
    /// Ids of vector stores.
    #[serde(default)]
    pub vector_store_ids: Vec<String>,
}

impl ToolResources {
    /// The ids of the code interpreter's files.
    pub fn file_ids(&self) -> &[String] {
        self.code_interpreter.as_ref().map_or(&[], |files| &files.file_ids)
    }

    /// Adds files of the code interpreter that are not there yet.
    pub fn add_files(&mut self, ids: impl IntoIterator<Item = String>) {
        let mut there: HashSet<String> = self.file_ids().iter().cloned().collect();
        let mut new = ids.into_iter().filter(|id| there.insert(id.clone())).peekable();
        if new.peek().is_some() {
            self.code_interpreter.get_or_insert_default().file_ids.extend(new);
        }
    }

    /// Takes files of the code interpreter out.
    pub fn take_files(&mut self, ids: &[String]) {
        if let Some(files) = &mut self.code_interpreter {
            files.file_ids.retain(|id| !ids.contains(id));
        }
    }
}
