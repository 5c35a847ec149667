//! A request for an answer, understood.

use aludel_agent::upstream::{AnswerFormat, FunctionTool, NO_THINKING, Sampling, ToolChoice};
use aludel_wire::gemini::{
    CallingMode, Content, FunctionDeclaration, GenerateContentRequest, GenerationConfig, ThinkingConfig, Tool,
};
use serde_json::{Value, json};

use crate::dialects::stop_words::StopWords;
use crate::error::ApiError;
use crate::http::Fields;

/// Messages of one request.
const MAX_CONTENTS: usize = 10_000;
/// Functions of one request.
pub(super) const MAX_FUNCTIONS: usize = 256;
/// Stop words of a request, the vendor's limit.
pub(super) const MAX_STOPS: usize = 5;
/// The longest name of a function, the vendor's limit.
const MAX_NAME: usize = 64;

/// A parsed request.
#[derive(Debug)]
pub(super) struct ParsedRequest {
    pub(super) contents: Vec<Content>,
    pub(super) instructions: String,
    pub(super) runs_code: bool,
    pub(super) functions: Vec<FunctionTool>,
    pub(super) tool_choice: ToolChoice,
    pub(super) sampling: Sampling,
    pub(super) stop: Vec<String>,
    pub(super) tells_thoughts: bool,
}

impl ParsedRequest {
    /// Reads the body of a request.
    pub(super) fn read(fields: Fields) -> Result<Self, ApiError> {
        let request: GenerateContentRequest = fields.read()?;
        let GenerateContentRequest {
            contents,
            system_instruction,
            tools,
            tool_config,
            generation_config,
            cached_content,
        } = request;
        if contents.is_empty() || contents.len() > MAX_CONTENTS {
            let message = format!("There must be from 1 to {MAX_CONTENTS} messages in 'contents'.");
            return Err(ApiError::invalid("contents", message));
        }
        if cached_content.is_some_and(|name| !name.is_empty()) {
            return Err(ApiError::invalid("cachedContent", "'cachedContent' is not kept by this server."));
        }
        let (runs_code, mut functions) = read_tools(tools)?;
        let calling = tool_config.unwrap_or_default().function_calling_config.unwrap_or_default();
        let tool_choice = choose(calling.mode, &calling.allowed_function_names, &mut functions);
        let config = generation_config.unwrap_or_default();
        let tells_thoughts =
            config.thinking_config.as_ref().is_some_and(|thinking| thinking.include_thoughts == Some(true));
        let stop = config.stop_sequences.clone().unwrap_or_default();
        StopWords::check(&stop, MAX_STOPS, "stopSequences")
            .map_err(|message| ApiError::invalid("generationConfig.stopSequences", message))?;
        let instructions = system_instruction.map(|content| text_of(&content)).unwrap_or_default();
        let sampling = sampling(config)?;
        Ok(Self { contents, instructions, runs_code, functions, tool_choice, sampling, stop, tells_thoughts })
    }
}

fn text_of(content: &Content) -> String {
    let texts: Vec<&str> = content.parts.iter().filter_map(|part| part.text.as_deref()).collect();
    texts.join("\n")
}

fn read_tools(tools: Vec<Tool>) -> Result<(bool, Vec<FunctionTool>), ApiError> {
    let (mut runs_code, mut functions) = (false, Vec::new());
    for (index, tool) in tools.into_iter().enumerate() {
        let param = format!("tools[{index}]");
        if let Some((name, _)) = tool.others.iter().find(|(_, value)| !value.is_null()) {
            let message =
                format!("'{param}.{name}' is not available here; tools are codeExecution and functionDeclarations.");
            return Err(ApiError::invalid(format!("{param}.{name}"), message));
        }
        runs_code |= tool.code_execution.is_some();
        for (place, declaration) in tool.function_declarations.unwrap_or_default().into_iter().enumerate() {
            functions.push(function(declaration, &format!("{param}.functionDeclarations[{place}]"))?);
        }
    }
    if functions.len() > MAX_FUNCTIONS {
        return Err(ApiError::invalid("tools", format!("There can be at most {MAX_FUNCTIONS} functions in 'tools'.")));
    }
    Ok((runs_code, functions))
}

fn function(declaration: FunctionDeclaration, param: &str) -> Result<FunctionTool, ApiError> {
    let FunctionDeclaration { name, description, parameters, parameters_json_schema } = declaration;
    check_name(&name, param)?;
    let parameters = parameters_json_schema.or(parameters.map(json_schema));
    let parameters = parameters.filter(Value::is_object);
    Ok(FunctionTool {
        name,
        description: description.unwrap_or_default(),
        parameters: parameters.unwrap_or_else(|| json!({ "type": "object", "properties": {} })).into(),
        strict: None,
    })
}

/// Keeps the functions that may be called, all of them if none is named, and returns which the model must call. The protocol's modes
/// concern only functions.
pub(super) fn choose(mode: CallingMode, allowed: &[String], functions: &mut Vec<FunctionTool>) -> ToolChoice {
    if !allowed.is_empty() {
        functions.retain(|tool| allowed.contains(&tool.name));
    }
    match mode {
        CallingMode::Any if !functions.is_empty() => match functions.as_slice() {
            [only] => ToolChoice::Named(only.name.clone()),
            _ => ToolChoice::Required,
        },
        CallingMode::None => {
            functions.clear();
            ToolChoice::Auto
        }
        CallingMode::Any | CallingMode::Auto => ToolChoice::Auto,
    }
}

/// Checks the name of a function.
pub(super) fn check_name(name: &str, param: &str) -> Result<(), ApiError> {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "_-.:".contains(character);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_plain) {
        let message = format!("'{param}.name' must have from 1 to {MAX_NAME} letters, digits, '_', '-', '.' and ':'.");
        return Err(ApiError::invalid(format!("{param}.name"), message));
    }
    Ok(())
}

/// Converts a schema of the vendor's dialect, with types in upper case, into a JSON Schema. A body's depth is bounded.
fn json_schema(schema: Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(name, _)| !matches!(name.as_str(), "nullable" | "format"));
            let fields = fields.map(|(name, value)| match value {
                Value::String(kind) if name == "type" => (name, kind.to_lowercase().into()),
                value => (name, json_schema(value)),
            });
            Value::Object(fields.collect())
        }
        Value::Array(values) => values.into_iter().map(json_schema).collect(),
        other => other,
    }
}

/// Checks that a number is between 0 and `most`.
pub(super) fn check_most(param: &str, value: Option<f64>, most: f64) -> Result<(), ApiError> {
    if value.is_some_and(|value| !(0.0..=most).contains(&value)) {
        return Err(ApiError::invalid(param, format!("'{param}' must be from 0 to {most}.")));
    }
    Ok(())
}

fn sampling(config: GenerationConfig) -> Result<Sampling, ApiError> {
    if config.candidate_count.is_some_and(|count| count != 1) {
        let message = "'candidateCount' can only be 1 here.";
        return Err(ApiError::invalid("generationConfig.candidateCount", message));
    }
    check_most("generationConfig.temperature", config.temperature, 2.0)?;
    check_most("generationConfig.topP", config.top_p, 1.0)?;
    let schema = config.response_json_schema.or(config.response_schema.map(json_schema));
    let format = match (schema, config.response_mime_type.as_deref()) {
        (Some(schema), _) => Some(AnswerFormat::Schema(json!({ "name": "answer", "schema": schema }))),
        (None, Some("application/json")) => Some(AnswerFormat::Json),
        (None, _) => None,
    };
    // As Chat Completions call them.
    let more = [
        ("seed", config.seed.map(Value::from)),
        ("presence_penalty", config.presence_penalty.map(Value::from)),
        ("frequency_penalty", config.frequency_penalty.map(Value::from)),
    ];
    let more = more.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Ok(Sampling {
        chat_fields: more.collect(),
        temperature: config.temperature,
        top_p: config.top_p,
        max_output_tokens: config.max_output_tokens,
        reasoning_effort: config.thinking_config.and_then(effort),
        format,
        ..Sampling::default()
    })
}

/// The amount of thinking: a word, or a number of tokens.
fn effort(thinking: ThinkingConfig) -> Option<String> {
    if let Some(level) = thinking.thinking_level {
        return Some(level.to_lowercase());
    }
    let word = match thinking.thinking_budget? {
        ..0 => return None,
        0 => NO_THINKING,
        1..4096 => "low",
        4096..16_384 => "medium",
        _ => "high",
    };
    Some(word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Value) -> Result<ParsedRequest, ApiError> {
        let mut fields = json!({ "contents": [{ "parts": [{ "text": "hi" }] }] });
        for (name, value) in body.as_object().unwrap() {
            fields[name] = value.clone();
        }
        ParsedRequest::read(fields.as_object().unwrap().clone().into())
    }

    #[test]
    fn thinking_is_a_word_or_a_number_of_tokens() {
        for (thinking, effort) in [
            (json!({ "thinkingLevel": "HIGH" }), Some("high")),
            (json!({ "thinkingBudget": 0 }), Some(NO_THINKING)),
            (json!({ "thinking_budget": 1024, "includeThoughts": true }), Some("low")),
            (json!({ "thinkingBudget": 8192 }), Some("medium")),
            (json!({ "thinkingBudget": 24576 }), Some("high")),
            (json!({ "thinkingBudget": -1 }), None),
            (json!({ "includeThoughts": true }), None),
        ] {
            let request = read(&json!({ "generationConfig": { "thinkingConfig": thinking } })).unwrap();
            assert_eq!(request.sampling.reasoning_effort.as_deref(), effort, "{thinking}");
        }
    }

    #[test]
    fn one_stands_for_a_list_of_one() {
        let contents = json!({ "parts": { "text": "sum of the first 50 primes?" } });
        let request = read(&json!({ "tools": { "code_execution": {} }, "contents": contents })).unwrap();
        assert!(request.runs_code);
        assert_eq!(request.contents[0].parts[0].text.as_deref(), Some("sum of the first 50 primes?"));
        assert!(!read(&json!({ "tools": null })).unwrap().runs_code);
        let error = read(&json!({ "contents": "hi" })).unwrap_err();
        assert!(format!("{error:?}").contains("a list or an object"), "{error:?}");
    }

    #[test]
    fn what_chat_completions_know_too_is_passed_on() {
        let config = json!({ "seed": 7, "presencePenalty": 0.5, "frequency_penalty": -1, "topK": 3 });
        let request = read(&json!({ "generationConfig": config })).unwrap();
        let expected = json!({ "seed": 7, "presence_penalty": 0.5, "frequency_penalty": -1.0 });
        assert_eq!(Value::Object(request.sampling.chat_fields), expected);
    }

    #[test]
    fn both_spellings_are_understood() {
        for body in [
            json!({ "tools": [{ "codeExecution": {} }], "systemInstruction": { "parts": [{ "text": "short" }] },
                "generationConfig": { "maxOutputTokens": 5, "responseMimeType": "application/json" } }),
            json!({ "tools": [{ "code_execution": {} }], "system_instruction": { "parts": { "text": "short" } },
                "generation_config": { "max_output_tokens": 5, "response_mime_type": "application/json" } }),
        ] {
            let request = read(&body).unwrap();
            assert!(request.runs_code && request.instructions == "short", "{request:?}");
            assert_eq!(
                (request.sampling.max_output_tokens, request.sampling.format),
                (Some(5), Some(AnswerFormat::Json))
            );
        }
    }

    #[test]
    fn functions_come_with_schemas_that_others_read() {
        let parameters = json!({ "type": "OBJECT", "properties": { "type": { "type": "STRING", "nullable": true } } });
        let tools = json!([{ "functionDeclarations": [{ "name": "f", "parameters": parameters }, { "name": "g" }] }]);
        let calling = json!({ "functionCallingConfig": { "mode": "ANY", "allowedFunctionNames": ["f"] } });
        let request = read(&json!({ "tools": tools, "toolConfig": calling })).unwrap();
        assert_eq!(request.tool_choice, ToolChoice::Named("f".into()));
        let expected = json!({ "type": "object", "properties": { "type": { "type": "string" } } });
        assert_eq!(request.functions[0].parameters.value(), expected);
    }

    #[test]
    fn refusals_name_the_field() {
        for (body, param) in [
            (json!({ "contents": [] }), "contents"),
            (json!({ "contents": 7 }), "contents"),
            (json!({ "tools": [{ "googleSearch": {} }] }), "tools[0].googleSearch"),
            (
                json!({ "tools": [{ "functionDeclarations": [{ "name": "a b" }] }] }),
                "tools[0].functionDeclarations[0].name",
            ),
            (json!({ "generationConfig": { "candidateCount": 2 } }), "generationConfig.candidateCount"),
            (json!({ "generationConfig": { "temperature": 3 } }), "generationConfig.temperature"),
            (json!({ "cachedContent": "cachedContents/1" }), "cachedContent"),
        ] {
            assert_eq!(read(&body).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }
}
