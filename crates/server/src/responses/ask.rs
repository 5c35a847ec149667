//! What a request for a response asks for.

use aludel_agent::CodeInterpreter;
use aludel_agent::upstream::{AnswerFormat, FunctionTool, Sampling, ToolChoice};
use aludel_store::{ConversationId, ResponseId};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::conversations::stored_item;
use crate::error::ApiError;
use crate::http::Fields;
use crate::turn::{Interpreter, check_function_name};

/// Input items of one request; more is no conversation.
const MAX_ITEMS: usize = 10_000;
/// Tools of one request.
const MAX_TOOLS: usize = 256;
/// The name of our own tool, as clients of our MCP guise know it.
const PYTHON: &str = "python";

/// A request, understood.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) model: String,
    /// New items, in the form in which they are kept.
    pub(super) input: Vec<Value>,
    pub(super) instructions: Option<String>,
    pub(super) previous: Option<ResponseId>,
    pub(super) conversation: Option<ConversationId>,
    pub(super) store: bool,
    pub(super) background: bool,
    pub(super) stream: bool,
    pub(super) interpreter: Option<Interpreter>,
    /// Whether programs are calls of an MCP server, which is us, and wait for approval.
    pub(super) mcp: Option<Mcp>,
    pub(super) functions: Vec<FunctionTool>,
    pub(super) tool_choice: ToolChoice,
    pub(super) max_tool_calls: Option<u32>,
    pub(super) sampling: Sampling,
    /// Whether the oldest part of a conversation may be left out when it is too long for the model.
    pub(super) truncate: bool,
    pub(super) include: Include,
    /// The fields that an answer repeats.
    pub(super) echo: Map<String, Value>,
}

/// The interpreter in the guise of an MCP server: the one kind of hosted tool that clients can approve.
#[derive(Debug, Clone)]
pub(super) struct Mcp {
    /// What the client calls it.
    pub(super) label: String,
    /// Whether every program waits for approval.
    pub(super) asks: bool,
}

/// What an answer holds beyond what it always holds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Include {
    /// What programs printed and showed.
    pub(super) outputs: bool,
    /// Thoughts in a form that can be sent back.
    pub(super) reasoning: bool,
}

impl Include {
    /// Reads the names; unknown ones are for tools that we do not have.
    pub(super) fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut include = Self::default();
        for name in names {
            include.outputs |= name == "code_interpreter_call.outputs";
            include.reasoning |= name == "reasoning.encrypted_content";
        }
        include
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Input {
    Text(String),
    Items(Vec<Value>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ConversationField {
    Id(String),
    Object { id: String },
}

impl Ask {
    /// Reads the body of a request.
    /// `host` is what the client calls this server.
    pub(super) fn read(mut fields: Fields, host: &str) -> Result<Self, ApiError> {
        let model: String = fields.required("model")?;
        let input = items(fields.optional("input")?)?;
        let instructions: Option<String> = fields.optional("instructions")?;
        let previous_text: Option<String> = fields.optional("previous_response_id")?;
        let previous = match &previous_text {
            Some(id) => Some(ResponseId::parse(id).ok_or_else(|| no_previous(id))?),
            None => None,
        };
        let conversation = match fields.optional("conversation")? {
            Some(ConversationField::Id(id) | ConversationField::Object { id }) => {
                Some(ConversationId::parse(&id).ok_or_else(|| crate::conversations::no_conversation(&id))?)
            }
            None => None,
        };
        if previous.is_some() && conversation.is_some() {
            let message =
                "Mutually exclusive parameters: 'previous_response_id' and 'conversation' cannot be used together.";
            return Err(ApiError::bad_request(message).code("mutually_exclusive_parameters"));
        }
        let store = fields.optional("store")?.unwrap_or(true);
        let background = fields.optional("background")?.unwrap_or(false);
        let stream = fields.optional("stream")?.unwrap_or(false);
        let tools: Vec<Value> = fields.optional("tools")?.unwrap_or_default();
        let choice: Value = fields.optional("tool_choice")?.unwrap_or_else(|| "auto".into());
        let Tools { mut interpreter, mcp, mut functions } = Tools::read(&tools, host)?;
        let tool_choice = tool_choice(&choice, &mut interpreter, &mut functions)?;
        let max_tool_calls: Option<u32> = fields.optional("max_tool_calls")?;
        let max_output_tokens: Option<u32> = fields.optional("max_output_tokens")?;
        let temperature: Option<f64> = fields.optional("temperature")?;
        let top_p: Option<f64> = fields.optional("top_p")?;
        for (name, value, most) in [("temperature", temperature, 2.0), ("top_p", top_p, 1.0)] {
            if value.is_some_and(|value| !(0.0..=most).contains(&value)) {
                return Err(ApiError::invalid(name, format!("Invalid '{name}': it must be from 0 to {most}.")));
            }
        }
        let reasoning: Option<Map<String, Value>> = fields.optional("reasoning")?;
        let effort = reasoning.as_ref().and_then(|reasoning| reasoning.get("effort")?.as_str().map(str::to_owned));
        let include: Vec<String> = fields.optional("include")?.unwrap_or_default();
        let metadata = crate::conversations::metadata(&mut fields)?.unwrap_or_else(|| json!({}));

        let parallel: Option<bool> = fields.optional("parallel_tool_calls")?;
        let text: Option<Map<String, Value>> = fields.optional("text")?;
        let format = format(text.as_ref().and_then(|text| text.get("format")))?;

        let mut echo = Map::new();
        let reasoning = reasoning.map_or_else(|| json!({ "effort": null, "summary": null }), Value::Object);
        for (name, value) in [
            ("instructions", json!(instructions)),
            ("max_output_tokens", json!(max_output_tokens)),
            ("max_tool_calls", json!(max_tool_calls)),
            ("model", json!(model)),
            ("previous_response_id", json!(previous_text)),
            ("reasoning", reasoning),
            ("store", json!(store)),
            ("background", json!(background)),
            ("temperature", json!(temperature.unwrap_or(1.0))),
            ("top_p", json!(top_p.unwrap_or(1.0))),
            ("tool_choice", choice),
            ("tools", Value::Array(tools.into_iter().map(without_secrets).collect())),
            ("metadata", metadata),
            ("parallel_tool_calls", json!(parallel.unwrap_or(true))),
            (
                "text",
                text.map_or_else(|| json!({ "format": { "type": "text" }, "verbosity": "medium" }), Value::Object),
            ),
        ] {
            echo.insert(name.to_owned(), value);
        }
        for (name, otherwise) in [
            ("prompt_cache_key", Value::Null),
            ("safety_identifier", Value::Null),
            ("service_tier", json!("default")),
            ("top_logprobs", json!(0)),
            ("truncation", json!("disabled")),
            ("user", Value::Null),
        ] {
            echo.insert(name.to_owned(), fields.optional(name)?.unwrap_or(otherwise));
        }
        if echo.get("service_tier").is_some_and(|tier| tier == "auto") {
            echo.insert("service_tier".to_owned(), "default".into());
        }
        if let Some(conversation) = &conversation {
            echo.insert("conversation".to_owned(), json!({ "id": conversation.as_str() }));
        }
        Ok(Self {
            model,
            input,
            instructions,
            previous,
            conversation,
            store,
            background,
            stream,
            interpreter,
            mcp,
            functions,
            tool_choice,
            max_tool_calls,
            sampling: Sampling {
                temperature,
                top_p,
                max_output_tokens,
                reasoning_effort: effort,
                format,
                parallel_calls: parallel,
                ..Sampling::default()
            },
            truncate: echo.get("truncation").is_some_and(|truncation| truncation == "auto"),
            include: Include::of(include.iter().map(String::as_str)),
            echo,
        })
    }
}

/// The form of the answer. In this API the schema stands beside its type, in Chat Completions one level below.
fn format(format: Option<&Value>) -> Result<Option<AnswerFormat>, ApiError> {
    let Some(format) = format.filter(|format| !format.is_null()) else { return Ok(None) };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(AnswerFormat::Json)),
        Some("json_schema") => {
            let mut schema = format.as_object().cloned().unwrap_or_default();
            schema.remove("type");
            for name in ["name", "schema"] {
                if !schema.contains_key(name) {
                    return Err(ApiError::missing(format!("text.format.{name}")));
                }
            }
            Ok(Some(AnswerFormat::Schema(Value::Object(schema))))
        }
        _ => {
            let message = "Invalid 'text.format.type': it must be 'text', 'json_object' or 'json_schema'.";
            Err(ApiError::invalid("text.format.type", message))
        }
    }
}

fn items(input: Option<Input>) -> Result<Vec<Value>, ApiError> {
    let items = match input {
        None => return Err(ApiError::missing("input")),
        Some(Input::Text(text)) => vec![json!({ "role": "user", "content": text })],
        Some(Input::Items(items)) => items,
    };
    if items.len() > MAX_ITEMS {
        return Err(ApiError::invalid("input", format!("Too many items in 'input': at most {MAX_ITEMS}.")));
    }
    let stored = items.into_iter().enumerate().map(|(index, item)| {
        // A reference has the id of what it refers to, and nothing else.
        Ok(stored_item(item, &format!("input[{index}]"))?.1)
    });
    stored.collect()
}

/// 400, for a response that is not there or somebody else's.
pub(super) fn no_previous(id: &str) -> ApiError {
    ApiError::bad_request(format!("Previous response with id '{id}' not found."))
        .param("previous_response_id")
        .code("previous_response_not_found")
}

/// The tools that we can offer to a model.
#[derive(Default)]
struct Tools {
    interpreter: Option<Interpreter>,
    mcp: Option<Mcp>,
    functions: Vec<FunctionTool>,
}

impl Tools {
    fn read(tools: &[Value], host: &str) -> Result<Self, ApiError> {
        if tools.len() > MAX_TOOLS {
            return Err(ApiError::invalid("tools", format!("Too many 'tools': at most {MAX_TOOLS}.")));
        }
        let mut read = Self::default();
        for (index, tool) in tools.iter().enumerate() {
            let param = format!("tools[{index}]");
            match tool.get("type").and_then(Value::as_str) {
                Some("code_interpreter") => read.interpreter = Some(Interpreter::read(tool, &param)?),
                Some("mcp") => {
                    read.mcp = Some(mcp(tool, &param, host)?);
                    read.interpreter.get_or_insert(Interpreter::AUTO);
                }
                Some("function") => read.functions.push(function(tool, &param)?),
                Some(other) => {
                    let message = format!(
                        "Invalid value: '{other}'. Tools here are 'code_interpreter', 'function', and 'mcp' for this server itself."
                    );
                    return Err(ApiError::invalid(format!("{param}.type"), message));
                }
                None => return Err(ApiError::missing(format!("{param}.type"))),
            }
        }
        Ok(read)
    }
}

fn mcp(tool: &Value, param: &str, host: &str) -> Result<Mcp, ApiError> {
    let text = |name: &str| tool.get(name).and_then(Value::as_str);
    let label = text("server_label").ok_or_else(|| ApiError::missing(format!("{param}.server_label")))?;
    let url = text("server_url").ok_or_else(|| ApiError::missing(format!("{param}.server_url")))?;
    let authority = url.split_once("://").map_or("", |(_, rest)| rest.split('/').next().unwrap_or_default());
    if authority != host {
        let message = format!(
            "MCP servers other than this one are not available here; with '{param}.server_url' on {host}, programs wait \
             for your approval."
        );
        return Err(ApiError::invalid(format!("{param}.server_url"), message));
    }
    let asks = match tool.get("require_approval") {
        None | Some(Value::Null) => true,
        Some(Value::String(word)) if word == "always" => true,
        Some(Value::String(word)) if word == "never" => false,
        // By tool: ours is called python.
        Some(Value::Object(filter)) => {
            let never = filter.get("never").and_then(|never| never.get("tool_names")?.as_array());
            !never.is_some_and(|names| names.iter().any(|name| name == PYTHON))
        }
        Some(_) => {
            let message = "Invalid 'require_approval': it must be 'always', 'never' or an object.";
            return Err(ApiError::invalid(format!("{param}.require_approval"), message));
        }
    };
    Ok(Mcp { label: label.to_owned(), asks })
}

fn function(tool: &Value, param: &str) -> Result<FunctionTool, ApiError> {
    let name = tool.get("name").and_then(Value::as_str).ok_or_else(|| ApiError::missing(format!("{param}.name")))?;
    check_function_name(name, param)?;
    Ok(FunctionTool {
        name: name.to_owned(),
        description: tool.get("description").and_then(Value::as_str).unwrap_or_default().to_owned(),
        parameters: match tool.get("parameters") {
            Some(parameters @ Value::Object(_)) => parameters.clone(),
            _ => json!({ "type": "object", "properties": {} }),
        },
    })
}

fn without_secrets(mut tool: Value) -> Value {
    let secrets = tool.pointer_mut("/container/network_policy/domain_secrets").and_then(Value::as_array_mut);
    for secret in secrets.into_iter().flatten() {
        if let Some(secret) = secret.as_object_mut() {
            secret.insert("value".to_owned(), "".into());
        }
    }
    tool
}

fn tool_choice(
    choice: &Value,
    interpreter: &mut Option<Interpreter>,
    functions: &mut Vec<FunctionTool>,
) -> Result<ToolChoice, ApiError> {
    let invalid = |message: String| Err(ApiError::invalid("tool_choice", message));
    let has_interpreter = interpreter.is_some();
    let no_interpreter = || invalid("Tool choice 'code_interpreter' not found in 'tools' parameter.".to_owned());
    match choice {
        Value::String(word) => match word.as_str() {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" => Ok(ToolChoice::Required),
            other => {
                invalid(format!("Invalid value: '{other}'. Supported values are: 'none', 'auto', and 'required'."))
            }
        },
        Value::Object(object) => match object.get("type").and_then(Value::as_str) {
            Some("code_interpreter") if has_interpreter => {
                Ok(ToolChoice::Named(CodeInterpreter::name_beside(functions)))
            }
            Some("code_interpreter") => no_interpreter(),
            // As some gateways have it.
            Some("hosted_tool")
                if has_interpreter && object.get("name").is_some_and(|name| name == "code_interpreter") =>
            {
                Ok(ToolChoice::Named(CodeInterpreter::name_beside(functions)))
            }
            Some("mcp") if has_interpreter => Ok(ToolChoice::Named(CodeInterpreter::name_beside(functions))),
            Some("function") => match object.get("name").and_then(Value::as_str) {
                Some(name) if functions.iter().any(|tool| tool.name == name) => Ok(ToolChoice::Named(name.to_owned())),
                Some(name) => invalid(format!("Tool choice '{name}' not found in 'tools' parameter.")),
                None => Err(ApiError::missing("tool_choice.name")),
            },
            Some("allowed_tools") => {
                let allowed = object.get("tools").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
                functions.retain(|tool| {
                    allowed.iter().any(|entry| entry.get("name").is_some_and(|name| *name == tool.name))
                });
                let ours =
                    |entry: &Value| entry.get("type").is_some_and(|kind| kind == "code_interpreter" || kind == "mcp");
                if !allowed.iter().any(ours) {
                    *interpreter = None;
                }
                let required = object.get("mode").is_some_and(|mode| mode == "required");
                Ok(if required { ToolChoice::Required } else { ToolChoice::Auto })
            }
            Some(other) => invalid(format!("Tool choice '{other}' is not available here.")),
            None => Err(ApiError::missing("tool_choice.type")),
        },
        _ => invalid("Invalid 'tool_choice': it must be a text or an object.".to_owned()),
    }
}
