//! Google's Gemini API as an upstream: requests into it, its events out of it.

use std::collections::HashMap;

use aludel_wire::chat::{CallDelta, CalledFunctionDelta};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::HttpUpstream;
use super::answer::Answer;
use super::signatures::Signatures;
use crate::item::{Item, Part, text_of};
use crate::random;
use crate::upstream::{AnswerFormat, Request, ToolChoice, UpstreamError, Usage};

/// Stand-in for a lost seal; Google's documentation names it for conversations that began elsewhere.
const NO_SEAL: &str = "skip_thought_signature_validator";

/// The body of a request.
pub(super) fn request(model: &str, request: &Request, vision: bool, signatures: &Signatures) -> Value {
    let sampling = &request.sampling;
    let mut body = Map::new();
    body.insert("contents".into(), contents(&request.items, vision, signatures).into());
    if !request.instructions.is_empty() {
        body.insert("systemInstruction".into(), json!({ "parts": [{ "text": request.instructions }] }));
    }
    if !request.tools.is_empty() {
        let declarations: Vec<Value> = request
            .tools
            .iter()
            .map(|tool| json!({ "name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters }))
            .collect();
        body.insert("tools".into(), json!([{ "functionDeclarations": declarations }]));
        let calling = match &request.tool_choice {
            ToolChoice::Auto => json!({ "mode": "AUTO" }),
            ToolChoice::None => json!({ "mode": "NONE" }),
            ToolChoice::Required => json!({ "mode": "ANY" }),
            ToolChoice::Named(name) => json!({ "mode": "ANY", "allowedFunctionNames": [name] }),
        };
        body.insert("toolConfig".into(), json!({ "functionCallingConfig": calling }));
    }
    let mut generation = Map::new();
    let mut set = |name: &str, value: Value| {
        if !value.is_null() {
            generation.insert(name.to_owned(), value);
        }
    };
    set("temperature", json!(sampling.temperature));
    set("topP", json!(sampling.top_p));
    set("maxOutputTokens", json!(sampling.max_output_tokens));
    if let Some(effort) = sampling.reasoning_effort.as_deref() {
        set("thinkingConfig", thinking(model, effort));
    }
    // A form of the answer and functions exclude each other there.
    if let Some(format) = sampling.format.as_ref().filter(|_| request.tools.is_empty()) {
        set("responseMimeType", json!("application/json"));
        if let AnswerFormat::Schema(schema) = format {
            set("responseJsonSchema", schema.get("schema").unwrap_or(schema).clone());
        }
    }
    if !generation.is_empty() {
        body.insert("generationConfig".into(), generation.into());
    }
    Value::Object(body)
}

/// Returns the fields for an amount of thinking: since Gemini 3 a word, before that tokens. None for unknown words.
fn thinking(model: &str, effort: &str) -> Value {
    let takes_tokens = ["gemini-2", "gemini-flash", "gemini-pro"].iter().any(|name| model.contains(name));
    let (level, tokens) = match effort {
        "none" => return if takes_tokens { json!({ "thinkingBudget": 0 }) } else { json!({ "thinkingLevel": "low" }) },
        "minimal" | "low" => ("low", 1024),
        "medium" => ("medium", 8192),
        "high" | "xhigh" | "max" => ("high", 24_576),
        _ => return Value::Null,
    };
    if takes_tokens {
        json!({ "includeThoughts": true, "thinkingBudget": tokens })
    } else {
        json!({ "includeThoughts": true, "thinkingLevel": level })
    }
}

fn contents(items: &[Item], vision: bool, signatures: &Signatures) -> Vec<Value> {
    let mut contents: Vec<(&str, Vec<Value>)> = Vec::new();
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut add = |role: &'static str, parts: Vec<Value>| match contents.last_mut() {
        Some((last, before)) if *last == role => before.extend(parts),
        _ => contents.push((role, parts)),
    };
    let mut in_calls = false;
    for item in items {
        let is_first_call = !std::mem::replace(&mut in_calls, matches!(item, Item::Call(_)));
        match item {
            Item::User(parts) => add("user", self::parts(parts, vision)),
            Item::Assistant(text) if text.is_empty() => {}
            Item::Assistant(text) => add("model", vec![json!({ "text": text })]),
            // Thoughts go back as the seal of the call that they led to.
            Item::Reasoning(_) => {}
            Item::Call(call) => {
                names.insert(&call.id, &call.name);
                let args: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
                let args = if args.is_object() { args } else { json!({ "arguments": args }) };
                let mut part = json!({ "functionCall": { "name": call.name, "args": args } });
                match signatures.of(&call.id) {
                    Some(seal) => part["thoughtSignature"] = seal,
                    // Of calls at once only the first one is sealed.
                    None if is_first_call => part["thoughtSignature"] = NO_SEAL.into(),
                    None => {}
                }
                add("model", vec![part]);
            }
            Item::Output(output) => {
                let name = names.get(output.call_id.as_str()).copied().unwrap_or_default();
                let response = json!({ "name": name, "response": { "output": text_of(&output.parts) } });
                add("user", vec![json!({ "functionResponse": response })]);
                let images: Vec<Part> =
                    output.parts.iter().filter(|part| !matches!(part, Part::Text(_))).cloned().collect();
                if vision && !images.is_empty() {
                    add("user", self::parts(&images, vision));
                }
            }
        }
    }
    contents.into_iter().map(|(role, parts)| json!({ "role": role, "parts": parts })).collect()
}

fn parts(parts: &[Part], vision: bool) -> Vec<Value> {
    let inline = |mime: &str, data: &str| json!({ "inlineData": { "mimeType": mime, "data": data } });
    let mut rendered: Vec<Value> = parts
        .iter()
        .filter_map(|part| match part {
            Part::Text(text) if text.is_empty() => None,
            Part::Text(text) => Some(json!({ "text": text })),
            Part::Image { mime, data } if vision => Some(inline(mime, &BASE64_STANDARD.encode(data))),
            Part::ImageUrl(url) if vision => {
                let data = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
                Some(match data {
                    Some((mime, data)) => inline(mime, data),
                    None => json!({ "fileData": { "fileUri": url } }),
                })
            }
            Part::Image { .. } | Part::ImageUrl(_) => None,
        })
        .collect();
    if rendered.is_empty() {
        rendered.push(json!({ "text": "(nothing)" }));
    }
    rendered
}

/// A piece of an answer, or a whole one.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
pub(super) struct Piece {
    candidates: Vec<Candidate>,
    usage_metadata: Option<Tokens>,
    prompt_feedback: Option<Feedback>,
    error: Option<Failure>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Candidate {
    content: Content,
    finish_reason: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Content {
    parts: Vec<ContentPart>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ContentPart {
    text: Option<String>,
    thought: bool,
    thought_signature: Option<String>,
    function_call: Option<FunctionCall>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct FunctionCall {
    name: String,
    args: Option<Value>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Tokens {
    prompt_token_count: u64,
    candidates_token_count: u64,
    thoughts_token_count: u64,
    cached_content_token_count: u64,
    tool_use_prompt_token_count: u64,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Feedback {
    block_reason: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Failure {
    message: String,
}

impl HttpUpstream {
    /// Takes one event of the stream. `calls` counts the calls of the answer.
    pub(super) async fn gemini_event(
        &self,
        data: &str,
        calls: &mut u32,
        answer: &mut Answer,
    ) -> Result<(), UpstreamError> {
        let piece: Piece = serde_json::from_str(data)
            .map_err(|error| self.not_understood(format!("an event is not of the Gemini API ({error})"), data))?;
        self.gemini_piece(piece, calls, data, answer).await
    }

    /// Takes a piece of an answer.
    pub(super) async fn gemini_piece(
        &self,
        piece: Piece,
        calls: &mut u32,
        sent: &str,
        answer: &mut Answer,
    ) -> Result<(), UpstreamError> {
        if let Some(error) = &piece.error {
            return Err(self.failed(&error.message, sent));
        }
        if let Some(tokens) = &piece.usage_metadata {
            let usage = Usage {
                input: tokens.prompt_token_count + tokens.tool_use_prompt_token_count,
                cached: tokens.cached_content_token_count,
                output: tokens.candidates_token_count + tokens.thoughts_token_count,
                reasoning: tokens.thoughts_token_count,
            };
            answer.used(usage).await;
        }
        if piece.prompt_feedback.is_some_and(|feedback| feedback.block_reason.is_some()) {
            answer.finish("content_filter");
        }
        let Some(candidate) = piece.candidates.into_iter().next() else { return Ok(()) };
        for part in candidate.content.parts {
            if part.thought {
                answer.reasoning(part.text).await;
                continue;
            }
            answer.text(part.text).await;
            let Some(call) = part.function_call else { continue };
            // This API knows calls by their names alone.
            let id = format!("call_{}{}", random::word(), random::word());
            if let Some(seal) = part.thought_signature {
                self.signatures.keep(&id, seal.into());
            }
            let arguments = call.args.unwrap_or_else(|| json!({})).to_string();
            let function = CalledFunctionDelta { name: Some(call.name), arguments };
            let delta = CallDelta { index: Some(*calls), id: Some(id), kind: None, function };
            *calls += 1;
            answer.call(delta).await.map_err(|what| self.too_large(what))?;
        }
        if let Some(reason) = candidate.finish_reason {
            answer.finish(match reason.as_str() {
                "MAX_TOKENS" => "length",
                "SAFETY" | "RECITATION" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII" | "IMAGE_SAFETY" => {
                    "content_filter"
                }
                "MALFORMED_FUNCTION_CALL" | "UNEXPECTED_TOOL_CALL" => {
                    return Err(
                        self.failed("the model called a function in a way that its server could not read", sent)
                    );
                }
                _ => "stop",
            });
        }
        Ok(())
    }
}
