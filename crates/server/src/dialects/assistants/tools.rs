//! The tools of assistants and runs, and other fields that both have.

use aludel_agent::CodeInterpreter;
use aludel_agent::upstream::{AnswerFormat, FunctionTool, ToolChoice};
use aludel_engine::KernelSpec;
use aludel_store::Tenant;
use aludel_wire::assistants::{
    FormatObject, Function, NamedTool, NewToolResources, ResponseFormat, Tool, ToolChoice as SentChoice, ToolDocument,
    ToolResources,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize as _, Serialize};
use serde_json::{Map, Value};
use tracing::info;

use super::error::unsupported;
use super::written;
use crate::app::App;
use crate::dialects::openai::attachment::stored_file;
use crate::dialects::openai::tools::check_function_name;
use crate::error::ApiError;

/// Tools of one assistant.
const MAX_TOOLS: usize = 128;
/// Bytes of all tools of one assistant, of its tool choice, and of its response format: each event of a run repeats them.
const MAX_TOOLS_BYTES: usize = 256 << 10;
const MAX_CHOICE: usize = 1 << 10;
const MAX_FORMAT: usize = 64 << 10;
/// Characters of a model's name, and of an effort.
const MAX_WORD: usize = 256;
/// Files of the code interpreter, of an assistant or of a thread.
const MAX_FILES: usize = 20;
/// The header that warns that file search is replaced by programs.
const FILE_SEARCH: HeaderName = HeaderName::from_static("x-aludel-file-search");
const FILES_GO_TO_PROGRAMS: HeaderValue = HeaderValue::from_static("its files are given to code_interpreter");

/// The tools of an assistant or a run.
#[derive(Debug, Default)]
pub(super) struct Tools {
    /// True if the model may run programs.
    pub(super) runs_code: bool,
    /// Functions of the client's.
    pub(super) functions: Vec<FunctionTool>,
}

impl Tools {
    /// Parses tools. File search is replaced by programs that read the files.
    pub(super) fn read(tools: &[ToolDocument]) -> Result<Self, ApiError> {
        if tools.len() > MAX_TOOLS {
            return Err(ApiError::invalid("tools", format!("Too many 'tools': at most {MAX_TOOLS}.")));
        }
        check_size("tools", &tools, MAX_TOOLS_BYTES)?;
        let mut read = Self::default();
        for (index, sent) in tools.iter().enumerate() {
            match tool(sent, &format!("tools[{index}]"))? {
                Tool::CodeInterpreter {} | Tool::FileSearch {} => read.runs_code = true,
                Tool::Function { function: Function { name, description, parameters, strict } } => {
                    check_function_name(&name, &format!("tools[{index}].function"))?;
                    let parameters = Value::Object(parameters.unwrap_or_else(any_object)).into();
                    let description = description.unwrap_or_default();
                    read.functions.push(FunctionTool { name, description, parameters, strict });
                }
            }
        }
        Ok(read)
    }

    /// Reads the tool choice.
    pub(super) fn choice(&self, choice: &Value, kernel: &KernelSpec) -> Result<ToolChoice, ApiError> {
        let invalid = |message: String| Err(ApiError::invalid("tool_choice", message));
        check_size("tool_choice", choice, MAX_CHOICE)?;
        match SentChoice::deserialize(choice) {
            Ok(SentChoice::Word(word)) => match word.as_str() {
                "auto" => Ok(ToolChoice::Auto),
                "none" => Ok(ToolChoice::None),
                "required" => Ok(ToolChoice::Required),
                other => {
                    invalid(format!("Invalid value: '{other}'. Supported values are: 'none', 'auto', and 'required'."))
                }
            },
            Ok(SentChoice::Named(NamedTool::CodeInterpreter {} | NamedTool::FileSearch {})) if self.runs_code => {
                Ok(ToolChoice::Named(CodeInterpreter::name_beside(kernel, &self.functions)))
            }
            Ok(SentChoice::Named(NamedTool::Function { function }))
                if self.functions.iter().any(|tool| tool.name == function.name) =>
            {
                Ok(ToolChoice::Named(function.name))
            }
            Ok(SentChoice::Named(_)) => invalid("The tool of 'tool_choice' is not among 'tools'.".to_owned()),
            Err(_) => invalid("Invalid 'tool_choice': it must be a text or a tool.".to_owned()),
        }
    }
}

fn tool(sent: &ToolDocument, param: &str) -> Result<Tool, ApiError> {
    if !sent.is_object() {
        return Err(ApiError::invalid(param, format!("Invalid '{param}': it must be an object.")));
    }
    sent.read().map_err(|error| match sent.text("type") {
        None => ApiError::missing(format!("{param}.type")),
        Some("code_interpreter" | "file_search" | "function") => {
            ApiError::invalid(param, format!("Invalid '{param}': {error}."))
        }
        Some(other) => {
            let message = format!(
                "Invalid value: '{other}'. Supported values are: 'code_interpreter', 'file_search', and 'function'."
            );
            ApiError::invalid(format!("{param}.type"), message)
        }
    })
}

/// A schema that accepts every object.
fn any_object() -> Map<String, Value> {
    [("type".to_owned(), "object".into()), ("properties".to_owned(), Map::new().into())].into_iter().collect()
}

/// The headers of an answer about these tools: a warning if file search is replaced.
pub(super) fn notes(tools: &[ToolDocument]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if tools.iter().any(|tool| tool.text("type") == Some("file_search")) {
        info!("a client asks for file_search: its files are given to code_interpreter");
        headers.insert(FILE_SEARCH, FILES_GO_TO_PROGRAMS);
    }
    headers
}

/// Checks the files of tools, which all become files of the code interpreter.
pub(super) async fn resources(app: &App, tenant: &Tenant, sent: NewToolResources) -> Result<ToolResources, ApiError> {
    if !sent.vector_stores().is_empty() {
        return Err(unsupported().param("tool_resources.file_search.vector_store_ids"));
    }
    let resources = sent.into_files();
    if resources.file_ids().len() > MAX_FILES {
        let message = format!("Too many files in 'tool_resources': at most {MAX_FILES}.");
        return Err(ApiError::invalid("tool_resources", message));
    }
    for id in resources.file_ids() {
        stored_file(app, tenant, id, "tool_resources").await?;
    }
    Ok(resources)
}

/// Reads the form of an answer.
pub(super) fn answer_format(sent: &Value) -> Result<Option<AnswerFormat>, ApiError> {
    check_size("response_format", sent, MAX_FORMAT)?;
    match ResponseFormat::deserialize(sent) {
        Ok(ResponseFormat::Word(word)) if word == "auto" => Ok(None),
        Ok(ResponseFormat::Object(FormatObject::Text {})) => Ok(None),
        Ok(ResponseFormat::Object(FormatObject::JsonObject {})) => Ok(Some(AnswerFormat::Json)),
        Ok(ResponseFormat::Object(FormatObject::JsonSchema { json_schema })) => {
            Ok(Some(AnswerFormat::Schema(json_schema.into())))
        }
        _ => {
            let message =
                "Invalid 'response_format': it must be 'auto', or of the type 'text', 'json_object' or 'json_schema'.";
            Err(ApiError::invalid("response_format", message))
        }
    }
}

/// Checks the sampling parameters.
pub(super) fn check_sampling(temperature: Option<f64>, top_p: Option<f64>) -> Result<(), ApiError> {
    for (name, value, most) in [("temperature", temperature, 2.0), ("top_p", top_p, 1.0)] {
        if value.is_some_and(|value| !(0.0..=most).contains(&value)) {
            return Err(ApiError::invalid(name, format!("Invalid '{name}': it must be from 0 to {most}.")));
        }
    }
    Ok(())
}

/// Checks the length of a field that is repeated in answers, bytes of JSON.
fn check_size(name: &str, sent: &impl Serialize, most: usize) -> Result<(), ApiError> {
    if written(sent).to_string().len() > most {
        return Err(ApiError::invalid(name, format!("Invalid '{name}': at most {} KB of JSON.", most >> 10)));
    }
    Ok(())
}

/// Checks the length of a name.
pub(super) fn check_word(name: &str, word: Option<&str>) -> Result<(), ApiError> {
    check_length(name, word, MAX_WORD)
}

/// Checks a text's length, characters.
pub(super) fn check_length(name: &str, text: Option<&str>, most: usize) -> Result<(), ApiError> {
    if text.is_some_and(|text| text.chars().count() > most) {
        return Err(ApiError::invalid(name, format!("Invalid '{name}': at most {most} characters.")));
    }
    Ok(())
}
