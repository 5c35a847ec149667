//! A request for a message, understood.

use std::collections::HashSet;

use aludel_agent::CodeInterpreter;
use aludel_agent::upstream::{AnswerFormat, FunctionTool, Sampling, ToolChoice};
use aludel_engine::KernelSpec;
use aludel_store::SessionId;
use aludel_wire::anthropic::{
    ContainerField, Content, ContextEdit, Effort, MessageDocument, OutputConfig, OutputFormat, Request, Thinking,
    ThoughtDisplay, Tool, ToolDocument, ToolKind,
};
use serde_json::{Value, json};

use super::conversation::text_of;
use super::error::{THREAD_UNSUPPORTED, no_container};
use super::writer::ThoughtsShown;
use crate::dialects::stop_words::StopWords;
use crate::error::ApiError;
use crate::http::Fields;

/// Messages of one request.
const MAX_MESSAGES: usize = 10_000;
/// Tools of one request.
const MAX_TOOLS: usize = 256;
/// Characters of a tool's name.
const MAX_NAME: usize = 128;
/// Stop sequences of one request.
const MAX_STOPS: usize = 64;
/// Edits that make a conversation shorter and nothing else. They are not made, which the answer says. Claude Code asks for the second one
/// in every request.
const OPTIONAL_EDITS: [&str; 2] = ["clear_tool_uses_20250919", "clear_thinking_20251015"];
/// The name of our tool.
const CODE_EXECUTION: &str = "code_execution";
/// The language whose programs can call tools.
const CALLING_LANGUAGE: &str = "python";
/// The model, as a caller of a tool.
const DIRECT: &str = "direct";
/// Programs, as callers of a tool: any of these.
const PROGRAMS: [&str; 3] = [CALLER_2025, CALLER, "code_execution_20260521"];
const CALLER_2025: &str = "code_execution_20250825";
/// The newest word for programs that clients know in an answer.
const CALLER: &str = "code_execution_20260120";

/// A version of our tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CodeTool {
    /// The first one: Python.
    Python,
    /// The later versions of the tool: Python, a shell and an editor.
    Shell,
}

/// A parsed request.
#[derive(Debug)]
pub(super) struct ParsedRequest {
    pub(super) model: String,
    pub(super) messages: Vec<MessageDocument>,
    /// The system prompt.
    pub(super) instructions: String,
    /// The tool by which the model may run programs, if it may.
    pub(super) code: Option<CodeTool>,
    /// The container of its programs, if the request names one.
    pub(super) container: Option<SessionId>,
    pub(super) functions: Vec<FunctionTool>,
    /// Tools that programs call.
    pub(super) callable: Vec<FunctionTool>,
    /// The word for programs as callers.
    pub(super) caller: &'static str,
    pub(super) tool_choice: ToolChoice,
    pub(super) sampling: Sampling,
    pub(super) stop: Vec<String>,
    pub(super) thoughts: ThoughtsShown,
    pub(super) stream: bool,
    /// True if it asks for edits of the conversation.
    pub(super) has_edits: bool,
    /// True if the client wants no answer and only warms a cache.
    pub(super) is_empty: bool,
}

impl ParsedRequest {
    /// Reads the body of a request.
    pub(super) fn read(fields: Fields, kernel: &KernelSpec) -> Result<Self, ApiError> {
        let request: Request = fields.read()?;
        refuse_what_is_not_here(&request)?;
        if request.messages.is_empty() || request.messages.len() > MAX_MESSAGES {
            let message = format!("There must be from 1 to {MAX_MESSAGES} messages.");
            return Err(ApiError::invalid("messages", message));
        }
        for (name, value) in [("temperature", request.temperature), ("top_p", request.top_p)] {
            if value.is_some_and(|value| !(0.0..=1.0).contains(&value)) {
                return Err(ApiError::invalid(name, "It must be from 0 to 1."));
            }
        }
        let stop = request.stop_sequences.clone().unwrap_or_default();
        StopWords::check(&stop, MAX_STOPS, "stop_sequences")
            .map_err(|message| ApiError::invalid("stop_sequences", message))?;
        let Tools { code, caller, functions, callable } = read_tools(request.tools.as_deref().unwrap_or_default())?;
        if !callable.is_empty() && kernel.language != CALLING_LANGUAGE {
            let message = format!("Programs in {} cannot call tools.", kernel.title);
            return Err(ApiError::invalid("tools", message));
        }
        Ok(Self {
            instructions: request.system.as_ref().map(system).transpose()?.unwrap_or_default(),
            container: read_container(request.container.as_ref())?,
            tool_choice: tool_choice(&request, kernel, code.is_some(), &functions)?,
            sampling: sampling(&request),
            thoughts: thoughts_shown(request.thinking.as_ref()),
            has_edits: request.context_management.is_some(),
            is_empty: request.max_tokens == 0,
            stream: request.stream == Some(true),
            model: request.model,
            messages: request.messages,
            code,
            caller,
            functions,
            callable,
            stop,
        })
    }
}

impl ParsedRequest {
    /// Returns true if the model has a shell and an editor, too.
    pub(super) fn has_shell(&self) -> bool {
        self.code == Some(CodeTool::Shell)
    }
}

fn refuse_what_is_not_here(request: &Request) -> Result<(), ApiError> {
    if request.thread.is_some() {
        let message = "Conversations are not kept by this server; send all messages without 'thread'.";
        return Err(ApiError::bad_request(message).param("thread").code(THREAD_UNSUPPORTED));
    }
    let has_servers = request.mcp_servers.as_ref().is_some_and(|servers| !servers.is_empty());
    for (name, is_there) in [
        ("mcp_servers", has_servers),
        ("compaction", request.compaction.is_some()),
        ("fallbacks", request.fallbacks.is_some()),
    ] {
        if is_there {
            return Err(ApiError::invalid(name, "Not supported by this server; leave it out."));
        }
    }
    let edits = request.context_management.iter().flat_map(|management| &management.edits);
    match edits.enumerate().find(|(_, edit)| !OPTIONAL_EDITS.contains(&edit.kind.as_str())) {
        None => Ok(()),
        Some((index, ContextEdit { kind })) => {
            let message = format!("Edits of the type '{kind:.64}' are not supported by this server.");
            Err(ApiError::invalid(format!("context_management.edits.{index}.type"), message))
        }
    }
}

fn system(content: &Content) -> Result<String, ApiError> {
    match content {
        Content::Text(text) => Ok(text.clone()),
        Content::Blocks(blocks) => text_of(blocks, "system"),
    }
}

fn read_container(container: Option<&ContainerField>) -> Result<Option<SessionId>, ApiError> {
    let id = match container {
        None => None,
        Some(ContainerField::Id(id)) => Some(id),
        Some(ContainerField::Object { skills: Some(skills), .. }) if !skills.is_empty() => {
            return Err(ApiError::invalid("container.skills", "Not supported by this server."));
        }
        Some(ContainerField::Object { id, .. }) => id.as_ref(),
    };
    id.map(|id| SessionId::parse(id).ok_or_else(|| no_container(id))).transpose()
}

/// The tools of a request.
struct Tools {
    code: Option<CodeTool>,
    caller: &'static str,
    /// Tools of the client's that the model calls.
    functions: Vec<FunctionTool>,
    /// Those that programs call.
    callable: Vec<FunctionTool>,
}

/// Reads the tools: ours, if it is among them, and the client's.
fn read_tools(tools: &[ToolDocument]) -> Result<Tools, ApiError> {
    if tools.len() > MAX_TOOLS {
        return Err(ApiError::invalid("tools", format!("There can be {MAX_TOOLS} tools.")));
    }
    let mut read = Tools { code: None, caller: CALLER, functions: Vec::new(), callable: Vec::new() };
    let (mut names, mut first_callable) = (HashSet::new(), None);
    for (index, tool) in tools.iter().enumerate() {
        let param = format!("tools.{index}");
        let tool = tool.read().map_err(|error| ApiError::invalid(&param, format!("{error}.")))?;
        let callers = Callers::read(&tool, &param)?;
        match &tool.kind {
            Some(ToolKind::Other(kind)) => {
                let message = format!("Tools of the type '{kind}' are not supported by this server.");
                return Err(ApiError::invalid(format!("{param}.type"), message));
            }
            None | Some(ToolKind::Custom) => {
                let function = function(&tool, &param)?;
                if callers.programs {
                    first_callable.get_or_insert_with(|| param.clone());
                    read.callable.push(function.clone());
                }
                if callers.direct {
                    read.functions.push(function);
                }
            }
            Some(_) if tool.name != CODE_EXECUTION => {
                return Err(ApiError::invalid(format!("{param}.name"), format!("It must be '{CODE_EXECUTION}'.")));
            }
            Some(_) if callers.programs => {
                return Err(ApiError::invalid(format!("{param}.allowed_callers"), "It can only be 'direct'."));
            }
            Some(kind) => {
                read.code = Some(match kind {
                    ToolKind::CodeExecution20250522 => CodeTool::Python,
                    _ => CodeTool::Shell,
                });
                if matches!(kind, ToolKind::CodeExecution20250825) {
                    read.caller = CALLER_2025;
                }
            }
        }
        if !names.insert(tool.name) {
            return Err(ApiError::invalid(format!("{param}.name"), "Tool names must be unique."));
        }
    }
    match first_callable {
        Some(param) if read.code != Some(CodeTool::Shell) => {
            let message =
                format!("Programs can call it only beside the tool '{CALLER_2025}' or a later version of it.");
            Err(ApiError::invalid(format!("{param}.allowed_callers"), message))
        }
        _ => Ok(read),
    }
}

/// The callers of a tool.
struct Callers {
    direct: bool,
    programs: bool,
}

impl Callers {
    fn read(tool: &Tool, param: &str) -> Result<Self, ApiError> {
        let Some(callers) = &tool.allowed_callers else { return Ok(Self { direct: true, programs: false }) };
        let is_program = |caller: &&String| PROGRAMS.contains(&caller.as_str());
        match callers.iter().find(|caller| *caller != DIRECT && !is_program(caller)) {
            None if callers.is_empty() => {
                Err(ApiError::invalid(format!("{param}.allowed_callers"), "There must be at least one."))
            }
            None => Ok(Self {
                direct: callers.iter().any(|caller| caller == DIRECT),
                programs: callers.iter().any(|caller| is_program(&caller)),
            }),
            Some(caller) => {
                let message = format!(
                    "Calls by '{caller}' are not supported by this server; callers are '{DIRECT}', '{}'.",
                    PROGRAMS.join("', '")
                );
                Err(ApiError::invalid(format!("{param}.allowed_callers"), message))
            }
        }
    }
}

fn function(tool: &Tool, param: &str) -> Result<FunctionTool, ApiError> {
    let plain = |character: char| character.is_ascii_alphanumeric() || character == '_' || character == '-';
    if tool.name.is_empty() || tool.name.len() > MAX_NAME || !tool.name.chars().all(plain) {
        let message = format!("A name has letters, digits, '_' and '-', at most {MAX_NAME} of them.");
        return Err(ApiError::invalid(format!("{param}.name"), message));
    }
    let parameters = match &tool.input_schema {
        Some(schema @ Value::Object(_)) => schema.into(),
        None => return Err(ApiError::missing(format!("{param}.input_schema"))),
        Some(_) => return Err(ApiError::invalid(format!("{param}.input_schema"), "It must be an object.")),
    };
    let description = tool.description.clone().unwrap_or_default();
    Ok(FunctionTool { name: tool.name.clone(), description, parameters, strict: tool.strict })
}

fn tool_choice(
    request: &Request,
    kernel: &KernelSpec,
    runs_code: bool,
    functions: &[FunctionTool],
) -> Result<ToolChoice, ApiError> {
    use aludel_wire::anthropic::ToolChoice as Asked;
    match &request.tool_choice {
        None | Some(Asked::Auto { .. }) => Ok(ToolChoice::Auto),
        Some(Asked::None {}) => Ok(ToolChoice::None),
        Some(Asked::Any { .. }) if runs_code || !functions.is_empty() => Ok(ToolChoice::Required),
        Some(Asked::Any { .. }) => Err(ApiError::invalid("tool_choice", "It is 'any', and there are no tools.")),
        Some(Asked::Tool { name, .. }) if functions.iter().any(|tool| tool.name == *name) => {
            Ok(ToolChoice::Named(name.clone()))
        }
        Some(Asked::Tool { name, .. }) if runs_code && name == CODE_EXECUTION => {
            Ok(ToolChoice::Named(CodeInterpreter::name_beside(kernel, functions)))
        }
        Some(Asked::Tool { name, .. }) => {
            Err(ApiError::invalid("tool_choice.name", format!("There is no tool '{name}' in 'tools'.")))
        }
    }
}

fn sampling(request: &Request) -> Sampling {
    let config = request.output_config.as_ref();
    Sampling {
        temperature: request.temperature,
        top_p: request.top_p,
        max_output_tokens: Some(request.max_tokens),
        reasoning_effort: effort(request, config).map(|effort| effort.word().to_owned()),
        format: config.and_then(|config| config.format.as_ref()).map(|OutputFormat::JsonSchema { schema }| {
            AnswerFormat::Schema(json!({ "name": "answer", "schema": schema }))
        }),
        parallel_calls: request.tool_choice.as_ref().filter(|choice| choice.disables_parallel_use()).map(|_| false),
        ..Sampling::default()
    }
}

/// Thoughts are for clients that ask for them: others take the first block for the answer's text.
fn thoughts_shown(thinking: Option<&Thinking>) -> ThoughtsShown {
    match thinking {
        None | Some(Thinking::Disabled {}) => ThoughtsShown::None,
        Some(Thinking::Enabled { display, .. } | Thinking::Adaptive { display }) => match display {
            Some(ThoughtDisplay::Omitted) => ThoughtsShown::Omitted,
            Some(ThoughtDisplay::Summarized) | None => ThoughtsShown::Whole,
        },
    }
}

/// The requested effort: a word, or a number of tokens for thinking.
fn effort(request: &Request, config: Option<&OutputConfig>) -> Option<Effort> {
    let said = config.and_then(|config| config.effort);
    match request.thinking.as_ref()? {
        Thinking::Disabled {} => None,
        Thinking::Adaptive { .. } => said.or(Some(Effort::Medium)),
        Thinking::Enabled { budget_tokens, .. } => Some(said.unwrap_or(match budget_tokens {
            ..4096 => Effort::Low,
            4096..16_384 => Effort::Medium,
            _ => Effort::High,
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Value) -> Result<ParsedRequest, ApiError> {
        let mut fields = json!({ "model": "m", "max_tokens": 9, "messages": [{ "role": "user", "content": "hi" }] });
        for (name, value) in body.as_object().unwrap() {
            fields[name] = value.clone();
        }
        ParsedRequest::read(fields.as_object().unwrap().clone().into(), &KernelSpec::python(""))
    }

    fn code_execution() -> Value {
        json!({ "type": "code_execution_20260120", "name": "code_execution" })
    }

    #[test]
    fn every_version_of_the_tool_is_understood() {
        for version in ["20250522", "20250825", "20260120", "20260521"] {
            let tool = json!({ "type": format!("code_execution_{version}"), "name": "code_execution" });
            let expected = if version == "20250522" { CodeTool::Python } else { CodeTool::Shell };
            assert_eq!(read(&json!({ "tools": [tool] })).unwrap().code, Some(expected), "{version}");
        }
        let python = json!({ "name": "python", "input_schema": { "type": "object" } });
        let choice = json!({ "type": "tool", "name": "code_execution", "disable_parallel_tool_use": true });
        let request = read(&json!({ "tools": [python, code_execution()], "tool_choice": choice })).unwrap();
        assert_eq!(request.tool_choice, ToolChoice::Named("python_sandbox".into()));
        assert_eq!(request.sampling.parallel_calls, Some(false));
    }

    #[test]
    fn a_tool_is_the_models_the_programs_or_both() {
        let tool =
            |name: &str, callers: &[&str]| json!({ "name": name, "input_schema": {}, "allowed_callers": callers });
        let names = |tools: &[FunctionTool]| tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>();
        for (version, caller) in [
            ("20250825", "code_execution_20250825"),
            ("20260120", "code_execution_20260120"),
            ("20260521", "code_execution_20260120"),
        ] {
            let code = json!({ "type": format!("code_execution_{version}"), "name": "code_execution" });
            let asked = format!("code_execution_{version}");
            let tools = [tool("a", &["direct"]), tool("b", &[&asked]), tool("c", &[&asked, "direct"]), code];
            let request = read(&json!({ "tools": tools })).unwrap();
            assert_eq!(
                (names(&request.functions), names(&request.callable)),
                (vec!["a".into(), "c".into()], vec!["b".into(), "c".into()])
            );
            assert_eq!(request.caller, caller, "clients know no others");
        }
    }

    #[test]
    fn what_cannot_be_had_is_refused_by_name() {
        let function = |name: &str| json!({ "name": name, "input_schema": {} });
        let called_by = |callers: &[&str]| json!({ "name": "f", "input_schema": {}, "allowed_callers": callers });
        let programs = called_by(&["code_execution_20260120"]);
        let first = json!({ "type": "code_execution_20250522", "name": "code_execution" });
        let itself = json!({ "type": "code_execution_20260120", "name": "code_execution", "allowed_callers": ["code_execution_20260120"] });
        for (body, param) in [
            (json!({ "tools": [code_execution(), code_execution()] }), "tools.1.name"),
            (json!({ "tools": [code_execution(), function("code_execution")] }), "tools.1.name"),
            (json!({ "tools": [function("f"), function("f")] }), "tools.1.name"),
            (json!({ "tools": [function("a b")] }), "tools.0.name"),
            (json!({ "tools": [{ "name": "f" }] }), "tools.0.input_schema"),
            (json!({ "tools": [5] }), "tools.0"),
            (json!({ "tools": [{ "type": "code_execution_20260120", "name": "x" }] }), "tools.0.name"),
            (json!({ "tools": [{ "type": "code_execution_20990101", "name": "code_execution" }] }), "tools.0.type"),
            (json!({ "tools": [{ "type": "web_search_20250305", "name": "web_search" }] }), "tools.0.type"),
            (json!({ "tools": [programs] }), "tools.0.allowed_callers"),
            (json!({ "tools": [first, programs] }), "tools.1.allowed_callers"),
            (json!({ "tools": [itself] }), "tools.0.allowed_callers"),
            (
                json!({ "tools": [code_execution(), called_by(&["code_execution_20250522"])] }),
                "tools.1.allowed_callers",
            ),
            (json!({ "tools": [code_execution(), called_by(&[])] }), "tools.1.allowed_callers"),
            (
                json!({ "tools": [code_execution(), programs], "tool_choice": { "type": "tool", "name": "f" } }),
                "tool_choice.name",
            ),
            (json!({ "tool_choice": { "type": "any" } }), "tool_choice"),
            (json!({ "tool_choice": { "type": "tool", "name": "f" } }), "tool_choice.name"),
            (json!({ "container": { "skills": [{ "type": "anthropic", "skill_id": "pdf" }] } }), "container.skills"),
            (json!({ "thread": { "type": "create" } }), "thread"),
            (json!({ "mcp_servers": [{}] }), "mcp_servers"),
            (
                json!({ "context_management": { "edits": [{ "type": "compact_20260112" }] } }),
                "context_management.edits.0.type",
            ),
            (json!({ "messages": [] }), "messages"),
            (json!({ "temperature": 1.5 }), "temperature"),
            (json!({ "stop_sequences": vec!["x"; 65] }), "stop_sequences"),
            (json!({ "stop_sequences": ["x".repeat(1025)] }), "stop_sequences"),
            (json!({ "max_tokens": -1 }), "max_tokens"),
            (json!({ "max_tokens": null }), "max_tokens"),
            (json!({ "system": [{ "type": "image" }] }), "system.0"),
        ] {
            assert_eq!(read(&body).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
        assert!(read(&json!({ "mcp_servers": [], "thread": null, "metadata": { "user_id": "u" } })).is_ok());
    }

    #[test]
    fn thoughts_are_asked_for_by_tokens_and_by_word() {
        let effort = |body: Value| read(&body).unwrap().sampling.reasoning_effort;
        assert_eq!(effort(json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 } })).as_deref(), Some("low"));
        assert_eq!(
            effort(json!({ "thinking": { "type": "enabled", "budget_tokens": 32_000 } })).as_deref(),
            Some("high")
        );
        let said = json!({ "thinking": { "type": "adaptive" }, "output_config": { "effort": "max" } });
        assert_eq!(effort(said).as_deref(), Some("max"));
        assert_eq!(effort(json!({ "thinking": { "type": "disabled" } })), None);
        assert_eq!(effort(json!({ "output_config": { "effort": "low" } })), None);
    }
}
