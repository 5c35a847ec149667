//! Tools, and the choice between them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{Document, JsonText, lenient};

/// A tool as it was sent, kept word for word: an answer repeats it.
pub type ToolDocument = Document<Tool>;

/// A tool that is offered to the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Tool {
    /// The code interpreter.
    CodeInterpreter(CodeInterpreterTool),
    /// An MCP server.
    Mcp(McpTool),
    /// A function of the client's.
    Function(FunctionTool),
    /// A tool of a kind that is not known.
    #[serde(untagged)]
    Other(Value),
}

impl Document<Tool> {
    /// Reads the tool.
    pub fn tool(&self) -> Tool {
        let other = || Tool::Other(self.json().clone());
        match self.text("type") {
            // Its parameters may be large, and are copied in search of the tag.
            Some("function") => Tool::Function(self.function()),
            Some(_) => self.read().unwrap_or_else(|_| other()),
            None => other(),
        }
    }

    fn function(&self) -> FunctionTool {
        let field = |name: &str| self.json().get(name);
        FunctionTool {
            name: self.text("name").map(str::to_owned),
            description: self.text("description").map(str::to_owned),
            parameters: field("parameters").filter(|schema| schema.is_object()).map(JsonText::from),
            strict: field("strict").and_then(Value::as_bool),
        }
    }

    /// Blanks out the values of `domain_secrets` and of environment variables, which are never returned.
    pub fn blank_secrets(&mut self) {
        let secrets = self.json_mut().pointer_mut("/container/network_policy/domain_secrets");
        for secret in secrets.and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(secret) = secret.as_object_mut() {
                secret.insert("value".to_owned(), "".into());
            }
        }
        let variables = self.json_mut().pointer_mut("/container/env");
        for value in variables.and_then(Value::as_object_mut).into_iter().flat_map(|variables| variables.values_mut()) {
            *value = "".into();
        }
    }
}

/// The code interpreter.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct CodeInterpreterTool {
    /// A container's id, or `{"type": "auto", …}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Value>,
}

/// An MCP server.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct McpTool {
    /// The client's name for it.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub server_label: Option<String>,
    /// Its URL.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub server_url: Option<String>,
    /// The calls that wait for approval; all of them where it is absent.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub require_approval: Option<RequireApproval>,
}

/// The calls that wait for approval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RequireApproval {
    /// `always` or `never`.
    Word(String),
    /// By tool.
    Filter(#[serde(deserialize_with = "lenient::only_object")] ApprovalFilter),
    /// Anything else.
    Other(Value),
}

/// The calls that wait for approval, by tool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ApprovalFilter {
    /// Tools of which every call waits.
    #[serde(default, deserialize_with = "lenient::object", skip_serializing_if = "Option::is_none")]
    pub always: Option<ToolNames>,
    /// Tools of which no call waits.
    #[serde(default, deserialize_with = "lenient::object", skip_serializing_if = "Option::is_none")]
    pub never: Option<ToolNames>,
}

/// Some tools of an MCP server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ToolNames {
    /// Their names.
    #[serde(default, deserialize_with = "lenient::list")]
    pub tool_names: Vec<String>,
}

/// A function of the client's. In this API its fields stand beside its type, in Chat Completions one level below.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct FunctionTool {
    /// Its name.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A description for the model.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// A JSON Schema of its arguments.
    #[serde(default, deserialize_with = "lenient::object_text", skip_serializing_if = "Option::is_none")]
    pub parameters: Option<JsonText<Map<String, Value>>>,
    /// True if the arguments must match the schema exactly.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

impl FunctionTool {
    /// The schema of its arguments; any object where there is none.
    pub fn parameters_or_any(&self) -> JsonText {
        match &self.parameters {
            Some(parameters) => parameters.of_any(),
            None => json!({ "type": "object", "properties": {} }).into(),
        }
    }
}

/// The tool that the model must call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ToolChoice {
    /// `none`, `auto` or `required`.
    Word(String),
    /// One tool, or some of them.
    Named(#[serde(deserialize_with = "lenient::only_object")] NamedToolChoice),
    /// Anything else.
    Other(Value),
}

/// A choice of one tool, or of some.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct NamedToolChoice {
    /// The tool's type; `allowed_tools` for a choice of some.
    #[serde(rename = "type", default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The tool's name, where its type is not enough.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `auto` or `required`, for a choice of some.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The tools, for a choice of some.
    #[serde(default, deserialize_with = "lenient::list", skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<AllowedTool>,
}

/// One of the tools that the model may call.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct AllowedTool {
    /// Its type.
    #[serde(rename = "type", default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its name, where its type is not enough.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}
