//! A request for an interaction, understood.

use aludel_agent::upstream::{AnswerFormat, FunctionTool, Sampling, ToolChoice};
use aludel_engine::Environment as Variables;
use aludel_store::{InteractionId, SessionId};
use aludel_wire::Document;
use aludel_wire::gemini::CallingMode;
use aludel_wire::gemini::interactions::{
    AllowedTools, Content, CreateInteraction, Environment, EnvironmentObject, GenerationConfig, Interaction,
    ResponseFormat, Source, Step, StepDocument, Tool, ToolChoice as Choice,
};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

use crate::dialects::gemini::MAX_FILES;
use crate::dialects::gemini::models::plain;
use crate::dialects::gemini::request::{MAX_FUNCTIONS, MAX_STOPS, check_most, check_name, choose};
use crate::dialects::openai::environment::environment;
use crate::dialects::stop_words::StopWords;
use crate::error::ApiError;
use crate::http::Fields;
use crate::workspace_path::within_workspace;

/// Steps of one request.
const MAX_STEPS: usize = 10_000;
/// The kind of all environments, and the word for a new one.
const REMOTE: &str = "remote";
/// Settings for kinds of answers that models here do not give.
const OTHER_ANSWERS: [&str; 4] = ["image_config", "speech_config", "video_config", "transcription_config"];

/// A parsed request.
#[derive(Debug)]
pub(super) struct ParsedRequest {
    pub(super) model: String,
    /// The input as steps, in their stored form.
    pub(super) input: Vec<StepDocument>,
    /// The input's steps, parsed.
    pub(super) steps: Vec<Step>,
    pub(super) instructions: String,
    pub(super) previous: Option<InteractionId>,
    /// The session of its programs; `None` for the conversation's or a new one.
    pub(super) environment: Option<SessionId>,
    /// Files that are put into it.
    pub(super) sources: Vec<SourceFile>,
    /// Environment variables of its programs.
    pub(super) variables: Variables,
    pub(super) store: bool,
    pub(super) background: bool,
    pub(super) stream: bool,
    pub(super) runs_code: bool,
    pub(super) functions: Vec<FunctionTool>,
    pub(super) tool_choice: ToolChoice,
    pub(super) sampling: Sampling,
    pub(super) stop: Vec<String>,
    pub(super) tells_thoughts: bool,
    /// The interaction as far as the request determines it: without an id, times, and steps.
    pub(super) answer: Interaction,
}

/// A file that is put into the environment of the programs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SourceFile {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

impl ParsedRequest {
    /// Reads the body of a request.
    pub(super) fn read(fields: Fields) -> Result<Self, ApiError> {
        let request: CreateInteraction = fields.read()?;
        refuse_others(&request)?;
        let model = plain(request.model.as_deref().ok_or_else(|| ApiError::missing("model"))?).to_owned();
        let input = steps_of(request.input.ok_or_else(|| ApiError::missing("input"))?)?;
        let steps = input.iter().enumerate().map(|(index, step)| read_step(step, index));
        let steps = steps.collect::<Result<_, _>>()?;
        let previous = match &request.previous_interaction_id {
            Some(id) => Some(InteractionId::parse(id).ok_or_else(|| no_previous(id))?),
            None => None,
        };
        let (runs_code, mut functions) = read_tools(request.tools.as_deref().unwrap_or_default())?;
        let config = request.generation_config.as_ref().map(read_config).transpose()?.unwrap_or_default();
        let tool_choice = tool_choice(config.tool_choice.clone(), &mut functions)?;
        let stop = config.stop_sequences.clone().unwrap_or_default();
        StopWords::check(&stop, MAX_STOPS, "stop_sequences")
            .map_err(|message| ApiError::invalid("generation_config.stop_sequences", message))?;
        let tells_thoughts = config.thinking_summaries.as_deref() == Some("auto");
        let format = answer_format(request.response_format.clone(), request.response_mime_type.as_deref())?;
        let sampling = sampling(config, format)?;
        let (environment, sources, variables) = read_environment(request.environment, runs_code)?;
        let (store, background) = (request.store.unwrap_or(true), request.background.unwrap_or(false));
        if background && !store {
            let message = "'background' needs 'store': nobody could ask what became of it.";
            return Err(ApiError::invalid("background", message));
        }
        let answer = Interaction {
            model: model.clone(),
            previous_interaction_id: request.previous_interaction_id,
            system_instruction: request.system_instruction.clone(),
            tools: request.tools,
            generation_config: request.generation_config,
            response_format: request.response_format,
            labels: request.labels,
            ..Interaction::default()
        };
        Ok(Self {
            model,
            input,
            steps,
            instructions: request.system_instruction.unwrap_or_default(),
            previous,
            environment,
            sources,
            variables,
            store,
            background,
            stream: request.stream.unwrap_or(false),
            runs_code,
            functions,
            tool_choice,
            sampling,
            stop,
            tells_thoughts,
            answer,
        })
    }
}

/// Refuses what only the vendor has.
fn refuse_others(request: &CreateInteraction) -> Result<(), ApiError> {
    let CreateInteraction { agent, agent_config, cached_content, continuation_token, webhook_config, .. } = request;
    let others = [
        ("agent", agent.is_some()),
        ("agent_config", agent_config.is_some()),
        ("cached_content", cached_content.as_ref().is_some_and(|name| !name.is_empty())),
        ("continuation_token", continuation_token.as_ref().is_some_and(|token| !token.is_empty())),
        ("webhook_config", webhook_config.is_some()),
    ];
    if let Some((name, _)) = others.into_iter().find(|(_, is_there)| *is_there) {
        let message = format!("'{name}' is not available here; an interaction is a 'model' with an 'input'.");
        return Err(ApiError::invalid(name, message));
    }
    for modality in request.response_modalities.iter().flatten() {
        if !["text", "image"].iter().any(|known| modality.eq_ignore_ascii_case(known)) {
            let message = "'response_modalities' can only be 'text' and 'image' here.";
            return Err(ApiError::invalid("response_modalities", message));
        }
    }
    Ok(())
}

/// Returns an input as steps: consecutive contents are one step of the user's.
fn steps_of(input: Value) -> Result<Vec<StepDocument>, ApiError> {
    let given = match input {
        Value::String(text) => vec![json!({ "type": "text", "text": text })],
        Value::Array(list) => list,
        Value::Object(_) => vec![input],
        _ => {
            let message = "'input' must be a text, a content, or a list of contents or of steps.";
            return Err(ApiError::invalid("input", message));
        }
    };
    if given.is_empty() || given.len() > MAX_STEPS {
        let message = format!("There must be from 1 to {MAX_STEPS} steps in 'input'.");
        return Err(ApiError::invalid("input", message));
    }
    let is_content = |value: &Value| {
        let kind = value.get("type").and_then(Value::as_str);
        kind.is_some_and(|kind| Content::KINDS.contains(&kind))
    };
    let (mut steps, mut contents) = (Vec::new(), Vec::new());
    for value in given.into_iter().flat_map(without_results) {
        if is_content(&value) {
            contents.push(value);
            continue;
        }
        if !contents.is_empty() {
            steps.push(StepDocument::user_input(std::mem::take(&mut contents)));
        }
        steps.push(value.into());
    }
    if !contents.is_empty() {
        steps.push(StepDocument::user_input(contents));
    }
    Ok(steps)
}

/// Returns the contents of a step of the user's that has results of functions among them, which are steps of their own. Vercel's client
/// sends such steps.
fn without_results(mut step: Value) -> Vec<Value> {
    let is_result = |content: &Value| content["type"] == "function_result";
    match step.get_mut("content") {
        Some(Value::Array(contents)) if contents.iter().any(is_result) => std::mem::take(contents),
        _ => vec![step],
    }
}

fn read_step(step: &StepDocument, index: usize) -> Result<Step, ApiError> {
    let param = format!("input[{index}]");
    if !step.is_object() {
        return Err(ApiError::invalid(&param, format!("'{param}' must be a content or a step.")));
    }
    if step.lacks("type") {
        return Err(ApiError::missing(format!("{param}.type")));
    }
    step.read().map_err(|error| ApiError::invalid(&param, format!("Invalid value for '{param}': {error}.")))
}

/// 404, for an interaction that does not exist or belongs to another tenant.
pub(super) fn no_previous(id: &str) -> ApiError {
    let message = format!("The interaction of 'previous_interaction_id', '{id}', was not found.");
    ApiError::not_found(message).param("previous_interaction_id")
}

fn read_tools(tools: &[Document<Tool>]) -> Result<(bool, Vec<FunctionTool>), ApiError> {
    let (mut runs_code, mut functions) = (false, Vec::new());
    if tools.len() > MAX_FUNCTIONS {
        return Err(ApiError::invalid("tools", format!("There can be at most {MAX_FUNCTIONS} 'tools'.")));
    }
    for (index, tool) in tools.iter().enumerate() {
        let param = format!("tools[{index}]");
        match tool.text("type") {
            Some("code_execution" | "function") => {}
            Some(other) => {
                let message =
                    format!("'{param}.type' cannot be '{other}' here; tools are 'code_execution' and 'function'.");
                return Err(ApiError::invalid(format!("{param}.type"), message));
            }
            None => return Err(ApiError::missing(format!("{param}.type"))),
        }
        let wrong = |error| ApiError::invalid(&param, format!("Invalid value for '{param}': {error}."));
        match tool.read().map_err(wrong)? {
            Tool::CodeExecution {} => runs_code = true,
            Tool::Function { name, description, parameters } => {
                check_name(&name, &param)?;
                let parameters = parameters.filter(Value::is_object);
                functions.push(FunctionTool {
                    name,
                    description: description.unwrap_or_default(),
                    parameters: parameters.unwrap_or_else(|| json!({ "type": "object", "properties": {} })).into(),
                    strict: None,
                });
            }
        }
    }
    Ok((runs_code, functions))
}

fn read_config(config: &Document<GenerationConfig>) -> Result<GenerationConfig, ApiError> {
    let invalid = |message: String| ApiError::invalid("generation_config", message);
    if !config.is_object() {
        return Err(invalid("'generation_config' must be an object.".to_owned()));
    }
    let config = config.read().map_err(|error| invalid(format!("Invalid value for 'generation_config': {error}.")))?;
    if let Some(name) = OTHER_ANSWERS.iter().find(|name| config.others.get(**name).is_some_and(|it| !it.is_null())) {
        let param = format!("generation_config.{name}");
        let message = format!("'{param}' is not available here: models answer with text.");
        return Err(ApiError::invalid(param, message));
    }
    Ok(config)
}

fn tool_choice(choice: Option<Choice>, functions: &mut Vec<FunctionTool>) -> Result<ToolChoice, ApiError> {
    let (mode, allowed) = match choice {
        None => (None, None),
        Some(Choice::Mode(mode)) => (Some(mode), None),
        Some(Choice::Allowed { allowed_tools: AllowedTools { mode, tools } }) => (mode, tools),
    };
    let mode = match mode.as_deref() {
        None | Some("auto" | "validated") => CallingMode::Auto,
        Some("any") => CallingMode::Any,
        Some("none") => CallingMode::None,
        Some(other) => {
            let message = format!("'tool_choice' cannot be '{other}'; it is 'auto', 'any', 'none' or 'validated'.");
            return Err(ApiError::invalid("generation_config.tool_choice", message));
        }
    };
    Ok(choose(mode, &allowed.unwrap_or_default(), functions))
}

fn sampling(config: GenerationConfig, format: Option<AnswerFormat>) -> Result<Sampling, ApiError> {
    check_most("generation_config.temperature", config.temperature, 2.0)?;
    check_most("generation_config.top_p", config.top_p, 1.0)?;
    let seed = config.others.get("seed").filter(|seed| seed.is_i64());
    Ok(Sampling {
        chat_fields: seed.map(|seed| ("seed".to_owned(), seed.clone())).into_iter().collect(),
        temperature: config.temperature,
        top_p: config.top_p,
        max_output_tokens: config.max_output_tokens,
        reasoning_effort: config.thinking_level.map(|level| level.to_lowercase()),
        format,
        ..Sampling::default()
    })
}

/// The form of the answer: only text has one.
fn answer_format(format: Option<Value>, mime: Option<&str>) -> Result<Option<AnswerFormat>, ApiError> {
    let formats = match format {
        None => Vec::new(),
        Some(Value::Array(formats)) => formats,
        Some(format) => vec![format],
    };
    let is_json = |mime: Option<&str>| mime == Some("application/json");
    let schema = |schema: Value| AnswerFormat::Schema(json!({ "name": "answer", "schema": schema }));
    let mut chosen = is_json(mime).then_some(AnswerFormat::Json);
    for format in formats {
        let invalid = |message: String| ApiError::invalid("response_format", message);
        match format.get("type").and_then(Value::as_str) {
            Some("text") => {
                let format: ResponseFormat = serde_json::from_value(format)
                    .map_err(|error| invalid(format!("Invalid value for 'response_format': {error}.")))?;
                chosen = match format.schema.filter(Value::is_object) {
                    Some(given) => Some(schema(given)),
                    None => is_json(format.mime_type.as_deref()).then_some(AnswerFormat::Json),
                };
            }
            Some(kind @ ("image" | "audio" | "video")) => {
                return Err(invalid(format!("'response_format' cannot be '{kind}' here: models answer with text.")));
            }
            // Just a schema, as older clients send it.
            _ if format.is_object() => chosen = Some(schema(format)),
            _ => return Err(invalid("'response_format' must be an object, or a list of them.".to_owned())),
        }
    }
    Ok(chosen)
}

/// Parses the environment of the programs: the session, its files and its variables.
fn read_environment(
    environment: Option<Environment>,
    runs_code: bool,
) -> Result<(Option<SessionId>, Vec<SourceFile>, Variables), ApiError> {
    let object = match environment {
        None => return Ok((None, Vec::new(), Variables::default())),
        Some(Environment::Id(word)) if word == REMOTE => EnvironmentObject::default(),
        Some(Environment::Id(id)) => EnvironmentObject { environment_id: Some(id), ..EnvironmentObject::default() },
        Some(Environment::Object(object)) => object,
    };
    let invalid = |param: &str, message: &str| Err(ApiError::invalid(param, message));
    if !runs_code {
        return invalid("environment", "'environment' needs the tool 'code_execution', whose programs run there.");
    }
    let EnvironmentObject { kind, mode, environment_id, sources, network, env } = object;
    if kind.is_some_and(|kind| kind != REMOTE) {
        return invalid("environment.type", "'environment.type' can only be 'remote'.");
    }
    if mode.is_some_and(|mode| mode != "on_demand") {
        return invalid("environment.mode", "'environment.mode' can only be 'on_demand': programs run at this server.");
    }
    let is_empty = |list: Option<&Value>| list.is_none_or(|list| list.is_null() || *list == json!([]));
    let has_network = match &network {
        None => false,
        Some(Value::String(word)) => word != "disabled",
        Some(Value::Object(network)) => !is_empty(network.get("allowlist")),
        Some(_) => true,
    };
    if has_network {
        let message = "Programs here have no network; 'environment.network' can only be 'disabled'.";
        return invalid("environment.network", message);
    }
    let id = match environment_id {
        Some(id) => Some(SessionId::parse(&id).ok_or_else(|| {
            let message = format!("The environment '{id}' of 'environment.environment_id' does not exist.");
            ApiError::not_found(message).param("environment.environment_id")
        })?),
        None => None,
    };
    let sources = sources.unwrap_or_default();
    if sources.len() > MAX_FILES {
        let message = format!("There can be at most {MAX_FILES} 'environment.sources'.");
        return Err(ApiError::invalid("environment.sources", message));
    }
    let sources = sources.into_iter().enumerate().map(|(index, source)| source_file(source, index));
    Ok((id, sources.collect::<Result<_, _>>()?, read_variables(env.unwrap_or_default())?))
}

/// Parses environment variables: texts, or objects with a text.
fn read_variables(sent: Map<String, Value>) -> Result<Variables, ApiError> {
    let variables = sent.into_iter().map(|(name, variable)| {
        let param = format!("environment.env.{name}");
        if variable.get("credential").is_some_and(|credential| !credential.is_null()) {
            let message = format!("'{param}.credential' is not available here; give its 'value'.");
            return Err(ApiError::invalid(format!("{param}.credential"), message));
        }
        let value = variable.get("value").unwrap_or(&variable).clone();
        Ok((name, value))
    });
    environment(Some(&Value::Object(variables.collect::<Result<_, _>>()?)), "environment.env")
}

fn source_file(source: Source, index: usize) -> Result<SourceFile, ApiError> {
    let param = format!("environment.sources[{index}]");
    let Source { kind, content, encoding, target } = source;
    if let Some(kind) = kind.filter(|kind| kind != "inline") {
        let message = format!("'{param}.type' cannot be '{kind}' here; files come as 'inline'.");
        return Err(ApiError::invalid(format!("{param}.type"), message));
    }
    let content = content.ok_or_else(|| ApiError::missing(format!("{param}.content")))?;
    let target = target.ok_or_else(|| ApiError::missing(format!("{param}.target")))?;
    let bytes = match encoding.as_deref() {
        Some("base64") => BASE64_STANDARD.decode(content).map_err(|_| {
            let param = format!("{param}.content");
            ApiError::invalid(&param, format!("'{param}' is not base64."))
        })?,
        _ => content.into_bytes(),
    };
    Ok(SourceFile { name: within_workspace(&target).to_owned(), bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Value) -> Result<ParsedRequest, ApiError> {
        let mut fields = json!({ "model": "models/m", "input": "hi" });
        for (name, value) in body.as_object().unwrap() {
            fields[name] = value.clone();
        }
        ParsedRequest::read(fields.as_object().unwrap().clone().into())
    }

    #[test]
    fn every_form_of_an_input_is_steps() {
        let text = |text: &str| Step::UserInput { content: vec![Content::text(text)] };
        let content = json!({ "type": "text", "text": "a" });
        let image = json!({ "type": "image", "data": "AA==", "mime_type": "image/png" });
        let step = json!({ "type": "user_input", "content": "b" });
        assert_eq!(read(&json!({ "input": "a" })).unwrap().steps, [text("a")]);
        assert_eq!(read(&json!({ "input": content })).unwrap().steps, [text("a")]);
        assert_eq!(
            read(&json!({ "input": [content, step, content] })).unwrap().steps,
            [text("a"), text("b"), text("a")]
        );
        let result = json!({ "type": "function_result", "call_id": "f1", "result": "1" });
        let results = json!({ "type": "user_input", "content": [result, content, result] });
        let read_result: Step = serde_json::from_value(result.clone()).unwrap();
        assert_eq!(read(&json!({ "input": [results] })).unwrap().steps, [read_result.clone(), text("a"), read_result]);
        let both = read(&json!({ "input": [content, image] })).unwrap();
        assert_eq!(both.input[0].json(), &json!({ "type": "user_input", "content": [content, image] }));
        assert_eq!(both.model, "m");
    }

    #[test]
    fn settings_mean_what_they_do_for_generate_content() {
        let asked = read(&json!({
            "tools": [{ "type": "code_execution" }, { "type": "function", "name": "f" }, { "type": "function", "name": "g" }],
            "generation_config": { "max_output_tokens": 5, "thinking_level": "HIGH", "thinking_summaries": "auto",
                "tool_choice": { "allowed_tools": { "mode": "any", "tools": ["f"] } } },
            "response_format": { "type": "text", "mime_type": "application/json", "schema": { "type": "object" } },
            "environment": { "type": "remote", "network": { "allowlist": [] },
                "env": { "A": { "value": "1" }, "B": "2" },
                "sources": [{ "type": "inline", "content": "YQ==", "encoding": "base64", "target": "/mnt/data/a/b.txt" }] },
        }));
        let asked = asked.unwrap();
        assert!(asked.runs_code && asked.tells_thoughts && asked.store && !asked.background && !asked.stream);
        assert_eq!(asked.tool_choice, ToolChoice::Named("f".into()));
        assert_eq!(asked.sampling.reasoning_effort.as_deref(), Some("high"));
        let schema = AnswerFormat::Schema(json!({ "name": "answer", "schema": { "type": "object" } }));
        assert_eq!((asked.sampling.max_output_tokens, asked.sampling.format), (Some(5), Some(schema)));
        assert_eq!(asked.sources, [SourceFile { name: "a/b.txt".into(), bytes: b"a".to_vec() }]);
        let variables = [("A", "1"), ("B", "2")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(asked.variables, Variables::new(variables.into()).unwrap());
        let older = read(&json!({ "response_format": { "type": "object" }, "response_mime_type": "application/json" }));
        assert_eq!(older.unwrap().sampling.format, Some(schema_of_object()));
    }

    fn schema_of_object() -> AnswerFormat {
        AnswerFormat::Schema(json!({ "name": "answer", "schema": { "type": "object" } }))
    }

    #[test]
    fn refusals_name_the_field() {
        let code = json!([{ "type": "code_execution" }]);
        let with = |environment: Value| json!({ "tools": code, "environment": environment });
        for (body, param) in [
            (json!({ "model": null }), "model"),
            (json!({ "input": null }), "input"),
            (json!({ "input": [] }), "input"),
            (json!({ "input": 7 }), "input"),
            (json!({ "input": [7] }), "input[0]"),
            (json!({ "input": [{ "text": "?" }] }), "input[0].type"),
            (json!({ "input": [{ "type": "google_search_call", "id": "1" }] }), "input[0]"),
            (json!({ "agent": "deep-research" }), "agent"),
            (json!({ "cached_content": "cachedContents/1" }), "cached_content"),
            (json!({ "continuation_token": "t" }), "continuation_token"),
            (json!({ "webhook_config": { "uris": ["https://a.example"] } }), "webhook_config"),
            (json!({ "response_modalities": ["audio"] }), "response_modalities"),
            (json!({ "previous_interaction_id": "resp_1" }), "previous_interaction_id"),
            (json!({ "tools": [{ "type": "google_search" }] }), "tools[0].type"),
            (json!({ "tools": [{ "type": "function", "name": "a b" }] }), "tools[0].name"),
            (json!({ "generation_config": { "temperature": 3 } }), "generation_config.temperature"),
            (json!({ "generation_config": { "image_config": {} } }), "generation_config.image_config"),
            (json!({ "generation_config": { "tool_choice": "some" } }), "generation_config.tool_choice"),
            (json!({ "response_format": { "type": "image" } }), "response_format"),
            (json!({ "background": true, "store": false }), "background"),
            (json!({ "environment": "cntr_1" }), "environment"),
            (with(json!("env")), "environment.environment_id"),
            (with(json!({ "type": "local" })), "environment.type"),
            (with(json!({ "type": "remote", "mode": "self_hosted" })), "environment.mode"),
            (with(json!({ "env": { "A": { "credential": "c" } } })), "environment.env.A.credential"),
            (with(json!({ "env": { "A": 1 } })), "environment.env"),
            (with(json!({ "env": { "A=B": "1" } })), "environment.env"),
            (with(json!({ "network": { "allowlist": [{ "domain": "a.example" }] } })), "environment.network"),
            (with(json!({ "sources": [{ "type": "gcs", "source": "gs://a" }] })), "environment.sources[0].type"),
        ] {
            assert_eq!(read(&body).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }
}
