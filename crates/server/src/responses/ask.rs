//! What a request for a response asks for.

use aludel_agent::upstream::{AnswerFormat, FunctionTool, Sampling, ToolChoice};
use aludel_store::{ContainerId, ConversationId, FileId, ResponseId};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::containers::{ContainerChoice, MemoryLimit, no_container};
use crate::conversations::stored_item;
use crate::error::ApiError;
use crate::http::Fields;

/// Input items of one request; more is no conversation.
const MAX_ITEMS: usize = 10_000;
/// Tools of one request.
const MAX_TOOLS: usize = 256;
/// The name under which the model knows our own tool.
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

/// The code interpreter, as it was asked for.
#[derive(Debug, Clone)]
pub(super) enum Interpreter {
    /// This container.
    Explicit(ContainerId),
    /// The conversation's container, or a new one.
    Auto { file_ids: Vec<FileId>, memory_limit: Option<MemoryLimit> },
}

impl Interpreter {
    /// The container to open, given the one that the conversation used last.
    pub(super) fn choice(&self, used: Option<ContainerId>) -> ContainerChoice {
        match (self, used) {
            (Self::Explicit(id), _) => ContainerChoice::Explicit(id.clone()),
            (Self::Auto { .. }, Some(id)) => ContainerChoice::Reuse(id),
            (Self::Auto { file_ids, memory_limit }, None) => {
                ContainerChoice::Auto { file_ids: file_ids.clone(), memory_limit: *memory_limit }
            }
        }
    }
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
        let Tools { interpreter, mcp, mut functions } = Tools::read(&tools, host)?;
        let tool_choice = tool_choice(&choice, interpreter.is_some(), &mut functions)?;
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
                Some("code_interpreter") => read.interpreter = Some(interpreter(tool, &param)?),
                Some("mcp") => {
                    read.mcp = Some(mcp(tool, &param, host)?);
                    let auto = Interpreter::Auto { file_ids: Vec::new(), memory_limit: None };
                    read.interpreter.get_or_insert(auto);
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
    let plain = |character: char| character.is_ascii_alphanumeric() || character == '_' || character == '-';
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
        let message = format!("Invalid '{param}.name': letters, digits, '_' and '-', at most 64 of them.");
        return Err(ApiError::invalid(format!("{param}.name"), message));
    }
    Ok(FunctionTool {
        name: name.to_owned(),
        description: tool.get("description").and_then(Value::as_str).unwrap_or_default().to_owned(),
        parameters: match tool.get("parameters") {
            Some(parameters @ Value::Object(_)) => parameters.clone(),
            _ => json!({ "type": "object", "properties": {} }),
        },
    })
}

fn interpreter(tool: &Value, param: &str) -> Result<Interpreter, ApiError> {
    let param = format!("{param}.container");
    match tool.get("container") {
        Some(Value::String(id)) => {
            Ok(Interpreter::Explicit(ContainerId::parse(id).ok_or_else(|| no_container(id).param(param))?))
        }
        Some(Value::Object(container)) => auto(container, &param),
        None | Some(Value::Null) => Err(ApiError::missing(param)),
        Some(_) => {
            let message = format!("Invalid type for '{param}': expected a container's id or an object.");
            Err(ApiError::bad_request(message).param(param).code("invalid_type"))
        }
    }
}

fn auto(container: &Map<String, Value>, param: &str) -> Result<Interpreter, ApiError> {
    const KNOWN: [&str; 4] = ["type", "file_ids", "memory_limit", "network_policy"];
    if let Some(unknown) = container.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        let param = format!("{param}.{unknown}");
        return Err(ApiError::bad_request(format!("Unknown parameter: '{param}'."))
            .param(param)
            .code("unknown_parameter"));
    }
    match container.get("type").and_then(Value::as_str) {
        Some("auto") => {}
        Some(other) => {
            let message = format!("Invalid value: '{other}'. Supported values are: 'auto'.");
            return Err(ApiError::invalid(format!("{param}.type"), message));
        }
        None => return Err(ApiError::missing(format!("{param}.type"))),
    }
    let ids: Vec<String> = match container.get("file_ids") {
        None | Some(Value::Null) => Vec::new(),
        Some(ids) => serde_json::from_value(ids.clone()).map_err(|error| {
            ApiError::invalid(format!("{param}.file_ids"), format!("Invalid '{param}.file_ids': {error}."))
        })?,
    };
    let file =
        |id: &String| FileId::parse(id).ok_or_else(|| crate::files::no_file(id).param(format!("{param}.file_ids")));
    let memory_limit = match container.get("memory_limit") {
        None | Some(Value::Null) => None,
        Some(limit) => {
            let parsed = limit.as_str().and_then(MemoryLimit::parse);
            Some(parsed.ok_or_else(|| {
                let message = format!("Invalid value: {limit}. Supported values are: '1g', '4g', '16g', and '64g'.");
                ApiError::invalid(format!("{param}.memory_limit"), message)
            })?)
        }
    };
    if let Some(policy) = container.get("network_policy").filter(|policy| !policy.is_null())
        && policy.get("type").and_then(Value::as_str) != Some("disabled")
    {
        let message = "Containers here have no network; 'network_policy' can only be {\"type\": \"disabled\"}.";
        return Err(ApiError::invalid(format!("{param}.network_policy"), message));
    }
    Ok(Interpreter::Auto { file_ids: ids.iter().map(file).collect::<Result<_, _>>()?, memory_limit })
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
    has_interpreter: bool,
    functions: &mut Vec<FunctionTool>,
) -> Result<ToolChoice, ApiError> {
    let invalid = |message: String| Err(ApiError::invalid("tool_choice", message));
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
            Some("code_interpreter") if has_interpreter => Ok(ToolChoice::Named(PYTHON.to_owned())),
            Some("code_interpreter") => no_interpreter(),
            Some("mcp") if has_interpreter => Ok(ToolChoice::Named(PYTHON.to_owned())),
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
                let required = object.get("mode").is_some_and(|mode| mode == "required");
                Ok(if required { ToolChoice::Required } else { ToolChoice::Auto })
            }
            Some(other) => invalid(format!("Tool choice '{other}' is not available here.")),
            None => Err(ApiError::missing("tool_choice.type")),
        },
        _ => invalid("Invalid 'tool_choice': it must be a text or an object.".to_owned()),
    }
}
