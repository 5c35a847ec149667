//! A request for a response, understood.

use super::include::Include;
use aludel_agent::CodeInterpreter;
use aludel_agent::upstream::{AnswerFormat, FunctionTool, Sampling, ToolChoice};
use aludel_engine::KernelSpec;
use aludel_store::{ConversationId, ResponseId};
use aludel_wire::openai::responses::{
    self, ConversationField, ConversationReference, Input, Item, ItemDocument, McpTool, Request, RequireApproval,
    Response, ResponseObject, Status, TextFormat, Tool, ToolDocument,
};
use aludel_wire::{Document, JsonText};
use serde_json::Value;

use crate::dialects::openai::conversations::stored_item;
use crate::dialects::openai::tools::{ContainerChoice, check_function_name};
use crate::error::ApiError;
use crate::http::Fields;

/// Input items of one request.
const MAX_ITEMS: usize = 10_000;
/// Tools of one request.
const MAX_TOOLS: usize = 256;
/// The name of our own tool when it appears as an MCP server's, in any language.
pub(super) const PYTHON: &str = "python";

/// A parsed request.
#[derive(Debug)]
pub(super) struct ParsedRequest {
    pub(super) model: String,
    /// New items, in their stored form.
    pub(super) input: Vec<ItemDocument>,
    pub(super) instructions: Option<String>,
    pub(super) previous: Option<ResponseId>,
    pub(super) conversation: Option<ConversationId>,
    pub(super) store: bool,
    pub(super) background: bool,
    pub(super) stream: bool,
    pub(super) interpreter: Option<ContainerChoice>,
    /// The MCP server of the request, if programs are its calls and wait for approval.
    pub(super) mcp: Option<Mcp>,
    pub(super) functions: Vec<FunctionTool>,
    pub(super) tool_choice: ToolChoice,
    pub(super) max_tool_calls: Option<u32>,
    pub(super) sampling: Sampling,
    /// True if the oldest part of a conversation may be left out when it is too long for the model.
    pub(super) truncate: bool,
    pub(super) include: Include,
    /// The response as far as the request determines it: without an id, a time, and an output.
    pub(super) answer: Response,
}

/// The interpreter in the form of an MCP server: the only kind of hosted tool that clients can approve.
#[derive(Debug, Clone)]
pub(super) struct Mcp {
    /// The client's name for it.
    pub(super) label: String,
    /// True if every program waits for approval.
    pub(super) asks: bool,
}

impl ParsedRequest {
    /// Reads the body of a request.
    pub(super) fn read(fields: Fields, host: &str, kernel: &KernelSpec) -> Result<Self, ApiError> {
        // Before the fields that it stands in for are missed.
        if fields.map.get("prompt").is_some_and(|prompt| !prompt.is_null()) {
            let message =
                "Prompts are not kept by this server: send 'model', 'instructions' and 'input' in place of 'prompt'.";
            return Err(ApiError::invalid("prompt", message));
        }
        Self::of(fields.read()?, host, kernel)
    }

    /// Checks a request. `host` is the client's name for this server.
    pub(super) fn of(request: Request, host: &str, kernel: &KernelSpec) -> Result<Self, ApiError> {
        if request.moderation.is_some() {
            return Err(ApiError::invalid("moderation", "This server checks nothing by 'moderation': leave it out."));
        }
        let input = items(request.input)?;
        let (previous, conversation) =
            predecessor(request.previous_response_id.as_deref(), request.conversation.as_ref())?;
        let mut tools = request.tools.unwrap_or_default();
        let choice = request.tool_choice.unwrap_or_else(|| Document::from(Value::from("auto")));
        let Tools { mut interpreter, mcp, mut functions } = Tools::read(&tools, host)?;
        let tool_choice = tool_choice(&choice, kernel, &mut interpreter, &mut functions)?;
        for (name, value, most) in [("temperature", request.temperature, 2.0), ("top_p", request.top_p, 1.0)] {
            if value.is_some_and(|value| !(0.0..=most).contains(&value)) {
                return Err(ApiError::invalid(name, format!("Invalid '{name}': it must be from 0 to {most}.")));
            }
        }
        let reasoning = request.reasoning.unwrap_or_default();
        let metadata = crate::dialects::openai::conversations::checked_metadata(request.metadata)?;
        let text = request.text.unwrap_or_default();
        let sampling = Sampling {
            temperature: request.temperature,
            top_p: request.top_p,
            max_output_tokens: request.max_output_tokens,
            reasoning_effort: reasoning.effort().map(str::to_owned),
            format: answer_format(text.format())?,
            parallel_calls: request.parallel_tool_calls,
            ..Sampling::default()
        };
        tools.iter_mut().for_each(ToolDocument::blank_secrets);
        let (store, background) = (request.store.unwrap_or(true), request.background.unwrap_or(false));
        let truncation = request.truncation.unwrap_or_else(|| "disabled".into());
        let truncate = truncation == "auto";
        let answer = Response {
            id: String::new(),
            object: ResponseObject::It,
            created_at: 0,
            status: Status::InProgress,
            completed_at: None,
            background,
            error: None,
            incomplete_details: None,
            instructions: request.instructions.clone(),
            max_output_tokens: request.max_output_tokens,
            max_tool_calls: request.max_tool_calls,
            model: request.model.clone(),
            output: Vec::new(),
            parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
            previous_response_id: request.previous_response_id,
            prompt_cache_key: request.prompt_cache_key.unwrap_or_default(),
            reasoning,
            safety_identifier: request.safety_identifier.unwrap_or_default(),
            service_tier: request.service_tier.filter(|tier| tier != "auto").unwrap_or_else(|| "default".into()),
            store,
            temperature: request.temperature.unwrap_or(1.0),
            text,
            tool_choice: choice,
            tools: tools.iter().map(|tool| JsonText::from(tool.json())).collect(),
            top_logprobs: request.top_logprobs.unwrap_or_else(|| 0.into()),
            top_p: request.top_p.unwrap_or(1.0),
            truncation,
            usage: None,
            user: request.user.unwrap_or_default(),
            metadata,
            conversation: conversation.as_ref().map(|id| ConversationReference { id: id.to_string() }),
        };
        Ok(Self {
            model: request.model,
            input,
            instructions: request.instructions,
            previous,
            conversation,
            store,
            background,
            stream: request.stream.unwrap_or(false),
            interpreter,
            mcp,
            functions,
            tool_choice,
            max_tool_calls: request.max_tool_calls,
            sampling,
            truncate,
            include: Include::of(request.include.iter().flatten().map(String::as_str)),
            answer,
        })
    }
}

/// Returns the response or the conversation that a request continues; both is an error.
fn predecessor(
    previous: Option<&str>,
    conversation: Option<&ConversationField>,
) -> Result<(Option<ResponseId>, Option<ConversationId>), ApiError> {
    let previous = match previous {
        Some(id) => Some(ResponseId::parse(id).ok_or_else(|| no_previous(id))?),
        None => None,
    };
    let conversation = match conversation.map(ConversationField::id) {
        Some(id) => {
            Some(ConversationId::parse(id).ok_or_else(|| crate::dialects::openai::conversations::no_conversation(id))?)
        }
        None => None,
    };
    if previous.is_some() && conversation.is_some() {
        let message =
            "Mutually exclusive parameters: 'previous_response_id' and 'conversation' cannot be used together.";
        return Err(ApiError::bad_request(message).code("mutually_exclusive_parameters"));
    }
    Ok((previous, conversation))
}

/// The form of the answer, converted to that of Chat Completions.
fn answer_format(format: Option<TextFormat>) -> Result<Option<AnswerFormat>, ApiError> {
    match format {
        None | Some(TextFormat::Text {}) => Ok(None),
        Some(TextFormat::JsonObject {}) => Ok(Some(AnswerFormat::Json)),
        Some(TextFormat::JsonSchema(schema)) => {
            for name in ["name", "schema"] {
                if !schema.contains_key(name) {
                    return Err(ApiError::missing(format!("text.format.{name}")));
                }
            }
            Ok(Some(AnswerFormat::Schema(Value::Object(schema))))
        }
        Some(TextFormat::Other(_)) => {
            let message = "Invalid 'text.format.type': it must be 'text', 'json_object' or 'json_schema'.";
            Err(ApiError::invalid("text.format.type", message))
        }
    }
}

fn items(input: Option<Input>) -> Result<Vec<ItemDocument>, ApiError> {
    let items = match input {
        None => return Err(ApiError::missing("input")),
        Some(Input::Text(text)) => vec![Item::user(text).document()],
        Some(Input::Items(items)) => items,
    };
    if items.len() > MAX_ITEMS {
        return Err(ApiError::invalid("input", format!("Too many items in 'input': at most {MAX_ITEMS}.")));
    }
    let stored = items.into_iter().enumerate().map(|(index, item)| {
        // A reference has only the id of its item.
        Ok(stored_item(item, &format!("input[{index}]"))?.1)
    });
    stored.collect()
}

/// 400, for a response that does not exist or belongs to another tenant.
pub(super) fn no_previous(id: &str) -> ApiError {
    ApiError::bad_request(format!("Previous response with id '{id}' not found."))
        .param("previous_response_id")
        .code("previous_response_not_found")
}

/// The tools for the model.
#[derive(Default)]
struct Tools {
    interpreter: Option<ContainerChoice>,
    mcp: Option<Mcp>,
    functions: Vec<FunctionTool>,
}

impl Tools {
    fn read(tools: &[ToolDocument], host: &str) -> Result<Self, ApiError> {
        if tools.len() > MAX_TOOLS {
            return Err(ApiError::invalid("tools", format!("Too many 'tools': at most {MAX_TOOLS}.")));
        }
        let mut read = Self::default();
        for (index, sent) in tools.iter().enumerate() {
            let param = format!("tools[{index}]");
            match sent.tool() {
                Tool::CodeInterpreter(_) => read.interpreter = Some(ContainerChoice::read(sent.json(), &param)?),
                Tool::Mcp(tool) => {
                    read.mcp = Some(mcp(tool, &param, host)?);
                    read.interpreter.get_or_insert_with(|| ContainerChoice::auto(None));
                }
                Tool::Function(tool) => read.functions.push(function(tool, &param)?),
                Tool::Other(_) => return Err(unknown_tool(sent, &param)),
            }
        }
        Ok(read)
    }
}

fn unknown_tool(tool: &ToolDocument, param: &str) -> ApiError {
    let param = format!("{param}.type");
    match tool.text("type") {
        Some(other) => {
            let message = format!(
                "Invalid value: '{other}'. Tools here are 'code_interpreter', 'function', and 'mcp' for this server itself."
            );
            ApiError::invalid(param, message)
        }
        None => ApiError::missing(param),
    }
}

fn mcp(tool: McpTool, param: &str, host: &str) -> Result<Mcp, ApiError> {
    let label = tool.server_label.ok_or_else(|| ApiError::missing(format!("{param}.server_label")))?;
    let url = tool.server_url.ok_or_else(|| ApiError::missing(format!("{param}.server_url")))?;
    let authority = url.split_once("://").map_or("", |(_, rest)| rest.split('/').next().unwrap_or_default());
    if authority != host {
        let message = format!(
            "MCP servers other than this one are not available here; with '{param}.server_url' on {host}, programs wait \
             for your approval."
        );
        return Err(ApiError::invalid(format!("{param}.server_url"), message));
    }
    let asks = match tool.require_approval {
        None => true,
        Some(RequireApproval::Word(word)) if word == "always" => true,
        Some(RequireApproval::Word(word)) if word == "never" => false,
        // By tool: ours is called python.
        Some(RequireApproval::Filter(filter)) => {
            !filter.never.unwrap_or_default().tool_names.iter().any(|name| name == PYTHON)
        }
        Some(RequireApproval::Word(_) | RequireApproval::Other(_)) => {
            let message = "Invalid 'require_approval': it must be 'always', 'never' or an object.";
            return Err(ApiError::invalid(format!("{param}.require_approval"), message));
        }
    };
    Ok(Mcp { label, asks })
}

fn function(tool: responses::FunctionTool, param: &str) -> Result<FunctionTool, ApiError> {
    let parameters = tool.parameters_or_any();
    let name = tool.name.ok_or_else(|| ApiError::missing(format!("{param}.name")))?;
    check_function_name(&name, param)?;
    Ok(FunctionTool { name, description: tool.description.unwrap_or_default(), parameters, strict: tool.strict })
}

fn tool_choice(
    choice: &Document<responses::ToolChoice>,
    kernel: &KernelSpec,
    interpreter: &mut Option<ContainerChoice>,
    functions: &mut Vec<FunctionTool>,
) -> Result<ToolChoice, ApiError> {
    let invalid = |message: String| Err(ApiError::invalid("tool_choice", message));
    let named = match choice.read() {
        Ok(responses::ToolChoice::Word(word)) => {
            return match word.as_str() {
                "auto" => Ok(ToolChoice::Auto),
                "none" => Ok(ToolChoice::None),
                "required" => Ok(ToolChoice::Required),
                other => {
                    invalid(format!("Invalid value: '{other}'. Supported values are: 'none', 'auto', and 'required'."))
                }
            };
        }
        Ok(responses::ToolChoice::Named(named)) => named,
        _ => return invalid("Invalid 'tool_choice': it must be a text or an object.".to_owned()),
    };
    let Some(kind) = named.kind.as_deref() else { return Err(ApiError::missing("tool_choice.type")) };
    let is_ours = match kind {
        "code_interpreter" | "mcp" => true,
        // Some gateways send this form.
        "hosted_tool" => named.name.as_deref() == Some("code_interpreter"),
        _ => false,
    };
    match (kind, named.name) {
        _ if is_ours && interpreter.is_some() => Ok(ToolChoice::Named(CodeInterpreter::name_beside(kernel, functions))),
        ("code_interpreter", _) => invalid("Tool choice 'code_interpreter' not found in 'tools' parameter.".to_owned()),
        ("function", Some(name)) if functions.iter().any(|tool| tool.name == name) => Ok(ToolChoice::Named(name)),
        ("function", Some(name)) => invalid(format!("Tool choice '{name}' not found in 'tools' parameter.")),
        ("function", None) => Err(ApiError::missing("tool_choice.name")),
        ("allowed_tools", _) => {
            let allowed = named.tools;
            functions.retain(|tool| allowed.iter().any(|entry| entry.name.as_deref() == Some(&*tool.name)));
            if !allowed.iter().any(|entry| matches!(entry.kind.as_deref(), Some("code_interpreter" | "mcp"))) {
                *interpreter = None;
            }
            let required = named.mode.as_deref() == Some("required");
            Ok(if required { ToolChoice::Required } else { ToolChoice::Auto })
        }
        (other, _) => invalid(format!("Tool choice '{other}' is not available here.")),
    }
}
