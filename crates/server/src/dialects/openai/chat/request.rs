//! A request for a chat completion, understood.

use aludel_agent::CodeInterpreter;
use aludel_agent::upstream::{AnswerFormat, FunctionTool, Sampling, ToolChoice};
use aludel_engine::{KernelSpec, ProgramParts};
use axum::body::Bytes;
use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::dialects::forward::{self, ForwardRequest, ModelName};
use crate::dialects::openai::tools::{ContainerChoice, check_function_name};
use crate::dialects::stop_words::StopWords;
use crate::error::ApiError;
use crate::http::Fields;

/// Messages of one request.
const MAX_MESSAGES: usize = 10_000;
/// Tools of one request.
const MAX_TOOLS: usize = 256;
/// Answers to one request: each is a turn with its own container.
const MAX_CHOICES: u32 = 8;
/// Stop words of a request, OpenAI's limit.
const MAX_STOPS: usize = 4;
/// Bytes of a session's name, OpenAI's limit for values of `metadata`.
const MAX_SESSION: usize = 512;
/// Fields that only the model's server could honour, or that cannot be combined from several calls of the model.
const NOT_WITH_PROGRAMS: [&str; 6] = ["logprobs", "top_logprobs", "audio", "prediction", "functions", "function_call"];
/// Fields that go to the model's server as they are.
const FOR_THE_MODEL: [&str; 10] = [
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "service_tier",
    "verbosity",
    "metadata",
];

/// The fields of a request that decide who answers it.
#[derive(Debug, Deserialize)]
pub(super) struct Head<'a> {
    /// The model's name in the body.
    #[serde(borrow)]
    pub(super) model: Option<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
    /// Fields that no turn of ours can honour.
    #[serde(borrow)]
    logprobs: Option<&'a RawValue>,
    #[serde(borrow)]
    audio: Option<&'a RawValue>,
    #[serde(borrow)]
    prediction: Option<&'a RawValue>,
    #[serde(borrow)]
    functions: Option<&'a RawValue>,
}

impl Head<'_> {
    /// Returns true if the conversation has or had our tool.
    pub(super) fn is_ours(&self) -> bool {
        let asks = forward::has_tool(self.tools, |kind| kind == "code_interpreter");
        // Other servers refuse our fields in a message.
        asks || self.messages.is_some_and(|messages| messages.get().contains("\"code_interpreter_calls\""))
    }

    /// Returns true if it asks for something that only the model's own server can give.
    pub(super) fn is_for_the_model_alone(&self) -> bool {
        let is_given = |field: Option<&RawValue>| field.is_some_and(|value| value.get() != "null");
        let alone = [self.audio, self.prediction, self.functions].into_iter().any(is_given);
        alone || is_given(self.logprobs) && self.logprobs.is_some_and(|value| value.get() != "false")
    }

    /// The request to forward.
    pub(super) fn passing<'a>(&'a self, headers: &'a HeaderMap, body: &'a Bytes) -> ForwardRequest<'a> {
        ForwardRequest { headers, body, model: self.model.map(ModelName::Json) }
    }

    /// The model's name.
    pub(super) fn model_name(&self) -> Result<String, ApiError> {
        let model = self.model.ok_or_else(|| ApiError::missing("model"))?;
        serde_json::from_str(model.get())
            .map_err(|_| ApiError::invalid("model", "Invalid type for 'model': expected a string."))
    }
}

/// A parsed request.
#[derive(Debug)]
pub(super) struct ParsedRequest {
    pub(super) model: String,
    pub(super) messages: Vec<Value>,
    pub(super) interpreter: Option<ContainerChoice>,
    pub(super) functions: Vec<FunctionTool>,
    pub(super) tool_choice: ToolChoice,
    pub(super) sampling: Sampling,
    /// The number of answers.
    pub(super) choices: u32,
    pub(super) stop: Vec<String>,
    pub(super) stream: bool,
    /// True if the stream has the usage.
    pub(super) include_usage: bool,
    /// The client's name for the session.
    session: Option<String>,
    /// The parts of programs in the text, for a client that did not ask for the tool.
    pub(super) shown: Option<ProgramParts>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum StopField {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

impl ParsedRequest {
    /// Reads the body of a request.
    pub(super) fn read(mut fields: Fields, kernel: &KernelSpec) -> Result<Self, ApiError> {
        refuse_unavailable(&mut fields)?;
        let model: String = fields.required("model")?;
        let messages: Vec<Value> = fields.required("messages")?;
        if messages.is_empty() || messages.len() > MAX_MESSAGES {
            let message = format!("Invalid 'messages': there must be from 1 to {MAX_MESSAGES}.");
            return Err(ApiError::invalid("messages", message));
        }
        let tools: Vec<Value> = fields.optional("tools")?.unwrap_or_default();
        let (mut interpreter, mut functions) = read_tools(&tools)?;
        let choice: Value = fields.optional("tool_choice")?.unwrap_or_else(|| "auto".into());
        let tool_choice = tool_choice(&choice, kernel, &mut interpreter, &mut functions)?;
        let temperature: Option<f64> = fields.optional("temperature")?;
        let top_p: Option<f64> = fields.optional("top_p")?;
        for (name, value, most) in [("temperature", temperature, 2.0), ("top_p", top_p, 1.0)] {
            if value.is_some_and(|value| !(0.0..=most).contains(&value)) {
                return Err(ApiError::invalid(name, format!("Invalid '{name}': it must be from 0 to {most}.")));
            }
        }
        let max_tokens: Option<u32> = fields.optional("max_tokens")?;
        let max_completion_tokens: Option<u32> = fields.optional("max_completion_tokens")?;
        let choices = fields.optional("n")?.unwrap_or(1);
        if choices == 0 || choices > MAX_CHOICES {
            let message = format!("Invalid 'n': with the tool 'code_interpreter' it must be from 1 to {MAX_CHOICES}.");
            return Err(ApiError::invalid("n", message));
        }
        let stop = match fields.optional("stop")? {
            None => Vec::new(),
            Some(StopField::One(word)) => vec![word],
            Some(StopField::Many(words)) => words,
        };
        StopWords::check(&stop, MAX_STOPS, "stop").map_err(|message| ApiError::invalid("stop", message))?;
        let stream_options: Option<StreamOptions> = fields.optional("stream_options")?;
        let format: Option<Value> = fields.optional("response_format")?;
        let mut chat_fields = Map::new();
        for name in FOR_THE_MODEL {
            if let Some(value) = fields.optional(name)? {
                chat_fields.insert(name.to_owned(), value);
            }
        }
        let others: Option<Value> = fields.optional("litellm_metadata")?;
        let named = session_of(chat_fields.get("metadata")).or_else(|| session_of(others.as_ref()));
        let session = named.filter(|_| choices == 1);
        if let Some(ContainerChoice::Auto { session: shared, .. }) = &mut interpreter {
            shared.clone_from(&session);
        }
        Ok(Self {
            model,
            messages,
            interpreter,
            functions,
            tool_choice,
            sampling: Sampling {
                temperature,
                top_p,
                max_output_tokens: max_completion_tokens.or(max_tokens),
                whole_output_tokens: None,
                reasoning_effort: fields.optional("reasoning_effort")?,
                format: read_format(format.as_ref())?,
                parallel_calls: fields.optional("parallel_tool_calls")?,
                chat_fields,
            },
            choices,
            stop,
            stream: fields.optional("stream")?.unwrap_or(false),
            include_usage: stream_options.is_some_and(|options| options.include_usage),
            session,
            shown: None,
        })
    }

    /// Adds the interpreter for a client that did not ask for it. The client's name for the chat names the container.
    pub(super) fn with_interpreter(mut self, shown: ProgramParts, chat: Option<&str>) -> Self {
        if self.interpreter.is_none() && self.tool_choice != ToolChoice::None {
            let chat = chat.filter(|_| self.choices == 1).and_then(session_name);
            let session = self.session.take().or(chat);
            self.interpreter = Some(ContainerChoice::auto(session));
        }
        // An answer with a format has no place for anything else.
        self.shown = Some(shown).filter(|_| self.sampling.format.is_none());
        self
    }
}

/// Refuses parameters that cannot be combined with programs.
fn refuse_unavailable(fields: &mut Fields) -> Result<(), ApiError> {
    for name in NOT_WITH_PROGRAMS {
        let value: Option<Value> = fields.optional(name)?;
        if value.is_some_and(|value| value != Value::Bool(false) && value != json!(0)) {
            let message = format!("'{name}' is not available together with the tool 'code_interpreter'.");
            return Err(ApiError::bad_request(message).param(name).code("unsupported_parameter"));
        }
    }
    let modalities: Option<Vec<String>> = fields.optional("modalities")?;
    if modalities.is_some_and(|kinds| kinds.iter().any(|kind| kind != "text")) {
        let message = "With the tool 'code_interpreter', 'modalities' can only be [\"text\"].";
        return Err(ApiError::invalid("modalities", message));
    }
    Ok(())
}

/// The field in which LiteLLM's clients name their session. With several answers to one request each has a container, so there is no
/// session.
fn session_of(metadata: Option<&Value>) -> Option<String> {
    session_name(metadata?.get("session_id")?.as_str()?)
}

fn session_name(name: &str) -> Option<String> {
    (!name.is_empty() && name.len() <= MAX_SESSION).then(|| name.to_owned())
}

fn read_format(format: Option<&Value>) -> Result<Option<AnswerFormat>, ApiError> {
    let Some(format) = format else { return Ok(None) };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(AnswerFormat::Json)),
        Some("json_schema") => match format.get("json_schema") {
            Some(schema @ Value::Object(_)) => Ok(Some(AnswerFormat::Schema(schema.clone()))),
            _ => Err(ApiError::missing("response_format.json_schema")),
        },
        _ => {
            let message = "Invalid 'response_format.type': it must be 'text', 'json_object' or 'json_schema'.";
            Err(ApiError::invalid("response_format.type", message))
        }
    }
}

fn read_tools(tools: &[Value]) -> Result<(Option<ContainerChoice>, Vec<FunctionTool>), ApiError> {
    if tools.len() > MAX_TOOLS {
        return Err(ApiError::invalid("tools", format!("Too many 'tools': at most {MAX_TOOLS}.")));
    }
    let (mut interpreter, mut functions) = (None, Vec::new());
    for (index, tool) in tools.iter().enumerate() {
        let param = format!("tools[{index}]");
        match tool.get("type").and_then(Value::as_str) {
            Some("code_interpreter") if interpreter.is_some() => {
                let message = "There can be only one tool of the type 'code_interpreter'.";
                return Err(ApiError::invalid(format!("{param}.type"), message));
            }
            // The protocol does not define the container, so a client may leave it out.
            Some("code_interpreter") if tool.get("container").is_none_or(Value::is_null) => {
                interpreter = Some(ContainerChoice::auto(None));
            }
            Some("code_interpreter") => interpreter = Some(ContainerChoice::read(tool, &param)?),
            Some("function") => functions.push(function(tool.get("function"), &format!("{param}.function"))?),
            Some(other) => {
                let message = format!("Invalid value: '{other}'. Tools here are 'code_interpreter' and 'function'.");
                return Err(ApiError::invalid(format!("{param}.type"), message));
            }
            None => return Err(ApiError::missing(format!("{param}.type"))),
        }
    }
    Ok((interpreter, functions))
}

fn function(function: Option<&Value>, param: &str) -> Result<FunctionTool, ApiError> {
    let function = function.ok_or_else(|| ApiError::missing(param))?;
    let name = function.get("name").and_then(Value::as_str);
    let name = name.ok_or_else(|| ApiError::missing(format!("{param}.name")))?;
    check_function_name(name, param)?;
    Ok(FunctionTool {
        name: name.to_owned(),
        description: function.get("description").and_then(Value::as_str).unwrap_or_default().to_owned(),
        parameters: match function.get("parameters") {
            Some(parameters @ Value::Object(_)) => parameters.into(),
            _ => json!({ "type": "object", "properties": {} }).into(),
        },
        strict: function.get("strict").and_then(Value::as_bool),
    })
}

fn tool_choice(
    choice: &Value,
    kernel: &KernelSpec,
    interpreter: &mut Option<ContainerChoice>,
    functions: &mut Vec<FunctionTool>,
) -> Result<ToolChoice, ApiError> {
    let invalid = |message: String| Err(ApiError::invalid("tool_choice", message));
    let has_interpreter = interpreter.is_some();
    let named = |name: &str, functions: &[FunctionTool]| {
        if functions.iter().any(|tool| tool.name == name) {
            Ok(ToolChoice::Named(name.to_owned()))
        } else if name == "code_interpreter" && has_interpreter {
            Ok(ToolChoice::Named(CodeInterpreter::name_beside(kernel, functions)))
        } else {
            invalid(format!("Tool choice '{name}' not found in 'tools' parameter."))
        }
    };
    if let Some(word) = choice.as_str() {
        return match word {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" if has_interpreter || !functions.is_empty() => Ok(ToolChoice::Required),
            "required" => invalid("'tool_choice' is 'required', and there are no 'tools'.".to_owned()),
            other => {
                invalid(format!("Invalid value: '{other}'. Supported values are: 'none', 'auto', and 'required'."))
            }
        };
    }
    match choice.get("type").and_then(Value::as_str) {
        Some("code_interpreter") => named("code_interpreter", functions),
        // Some gateways send this form.
        Some("hosted_tool") if choice.get("name").is_some_and(|name| name == "code_interpreter") => {
            named("code_interpreter", functions)
        }
        Some("function") => match choice.pointer("/function/name").and_then(Value::as_str) {
            Some(name) => named(name, functions),
            None => Err(ApiError::missing("tool_choice.function.name")),
        },
        Some("allowed_tools") => {
            let allowed = choice.pointer("/allowed_tools/tools").and_then(Value::as_array);
            let allowed = allowed.map(Vec::as_slice).unwrap_or_default();
            functions.retain(|tool| {
                allowed.iter().any(|entry| entry.pointer("/function/name").is_some_and(|name| *name == tool.name))
            });
            if !allowed.iter().any(|entry| entry.get("type").is_some_and(|kind| kind == "code_interpreter")) {
                *interpreter = None;
            }
            let required = choice.pointer("/allowed_tools/mode").is_some_and(|mode| mode == "required");
            Ok(if required { ToolChoice::Required } else { ToolChoice::Auto })
        }
        Some(other) => invalid(format!("Tool choice '{other}' is not available here.")),
        None => invalid("Invalid 'tool_choice': it must be a text or an object.".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Value) -> Result<ParsedRequest, ApiError> {
        let mut fields = json!({ "model": "m", "messages": [{ "role": "user", "content": "hi" }] });
        for (name, value) in body.as_object().unwrap() {
            fields[name] = value.clone();
        }
        ParsedRequest::read(fields.as_object().unwrap().clone().into(), &KernelSpec::python(""))
    }

    #[test]
    fn every_way_to_choose_the_interpreter_is_understood() {
        let tools = json!([{ "type": "code_interpreter" }, { "type": "function", "function": { "name": "python" } }]);
        for choice in [
            json!({ "type": "code_interpreter" }),
            json!({ "type": "function", "function": { "name": "code_interpreter" } }),
            json!({ "type": "hosted_tool", "name": "code_interpreter" }),
        ] {
            let request = read(&json!({ "tools": tools, "tool_choice": choice })).unwrap();
            assert_eq!(request.tool_choice, ToolChoice::Named("python_sandbox".into()));
        }
        let choice = json!({ "type": "function", "function": { "name": "python" } });
        assert_eq!(
            read(&json!({ "tools": tools, "tool_choice": choice })).unwrap().tool_choice,
            ToolChoice::Named("python".into())
        );
        let choice = json!({ "type": "allowed_tools", "allowed_tools": { "mode": "required", "tools": [{ "type": "code_interpreter" }] } });
        let request = read(&json!({ "tools": tools, "tool_choice": choice })).unwrap();
        assert!(request.functions.is_empty() && request.tool_choice == ToolChoice::Required);
    }

    #[test]
    fn what_cannot_be_had_is_refused_by_name() {
        for (body, param) in [
            (json!({ "tools": [{ "type": "code_interpreter" }, { "type": "code_interpreter" }] }), "tools[1].type"),
            (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type"),
            (json!({ "n": 9 }), "n"),
            (json!({ "n": 0 }), "n"),
            (json!({ "logprobs": true }), "logprobs"),
            (json!({ "stop": ["1", "2", "3", "4", "5"] }), "stop"),
            (json!({ "stop": "x".repeat(1025) }), "stop"),
            (json!({ "tool_choice": "required" }), "tool_choice"),
            (json!({ "tool_choice": { "type": "function", "function": { "name": "f" } } }), "tool_choice"),
            (json!({ "messages": [] }), "messages"),
            (json!({ "response_format": { "type": "xml" } }), "response_format.type"),
            (json!({ "modalities": ["text", "audio"] }), "modalities"),
        ] {
            assert_eq!(read(&body).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
        assert!(read(&json!({ "logprobs": false, "modalities": ["text"], "n": null })).is_ok());
    }

    #[test]
    fn only_our_tool_makes_a_request_ours() {
        let is_ours = |body: &str| serde_json::from_str::<Head>(body).unwrap().is_ours();
        assert!(is_ours(r#"{"tools": [{"type": "function"}, {"type": "code_interpreter"}]}"#));
        assert!(is_ours(r#"{"tools": [{"type": "code\u005finterpreter"}]}"#));
        assert!(is_ours(r#"{"messages": [{"role": "assistant", "code_interpreter_calls": []}]}"#));
        for other in [
            r#"{"tools": [{"type": "function", "function": {"name": "code_interpreter"}}]}"#,
            r#"{"tools": "code_interpreter"}"#,
            r#"{"tools": null}"#,
            r#"{"messages": [{"content": "code_interpreter"}]}"#,
            "{}",
        ] {
            assert!(!is_ours(other), "{other}");
        }
    }
}
