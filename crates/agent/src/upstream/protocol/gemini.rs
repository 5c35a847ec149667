//! Google's Gemini API as an upstream: renders requests, and parses events.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use reqwest::header::HeaderName;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Protocol;
use crate::item::{Item, Part, RemoteImage, text_of};
use crate::random;
use crate::upstream::adapter::{Adapter, Exchange, HttpApi};
use crate::upstream::answer::{AnswerBuilder, CallPiece, Fault};
use crate::upstream::signatures::{Signatures, UnsentSignatures};
use crate::upstream::{AnswerFormat, FinishReason, ModelRequest, NO_THINKING, TokenUsage, ToolChoice};

impl Protocol {
    /// Google's Gemini.
    pub const GEMINI: Self =
        Self { word: "gemini", title: "Google's Gemini", adapter: |_| Arc::new(Gemini::default()) };
}

static API: HttpApi = HttpApi {
    name: "the Gemini API",
    provider: "gcp.gemini",
    base_path: "/v1beta",
    query: Some(("alt", "sse")),
    key: (HeaderName::from_static("x-goog-api-key"), ""),
    version: None,
    has_openai_methods: false,
};

/// Stand-in for a lost signature, which Google's documentation names for conversations that began elsewhere.
const NO_SIGNATURE: &str = "skip_thought_signature_validator";

/// The protocol, with the signatures of one server.
#[derive(Debug, Default)]
struct Gemini(Signatures);

impl Adapter for Gemini {
    fn api(&self) -> &'static HttpApi {
        &API
    }

    fn path(&self, model: &str) -> String {
        format!("/models/{}:streamGenerateContent", model.strip_prefix("models/").unwrap_or(model))
    }

    fn exchange(&self) -> Box<dyn Exchange> {
        Box::new(Generation { signatures: self.0.clone(), owner: String::new(), calls: 0 })
    }
}

/// The body of a request.
fn request(model: &str, request: &ModelRequest, vision: bool, signatures: &Signatures) -> Value {
    let sampling = &request.sampling;
    let mut body = Map::new();
    body.insert("contents".into(), contents(&request.items, vision, signatures.unsent(&request.owner)).into());
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
    // This API does not allow an answer format together with functions.
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

/// Returns the fields for an amount of thinking: a word since Gemini 3, tokens before that. Empty for unknown words.
fn thinking(model: &str, effort: &str) -> Value {
    let takes_tokens = ["gemini-2", "gemini-flash", "gemini-pro"].iter().any(|name| model.contains(name));
    let (level, tokens) = match effort {
        // It cannot be switched off in this one.
        "none" | NO_THINKING if model.contains("2.5-pro") => return json!({ "thinkingBudget": 128 }),
        "none" | NO_THINKING => {
            return if takes_tokens { json!({ "thinkingBudget": 0 }) } else { json!({ "thinkingLevel": "low" }) };
        }
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

fn contents(items: &[Item], vision: bool, mut signatures: UnsentSignatures<'_>) -> Vec<Value> {
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
            // Thoughts are sent back as the signature of the call that they led to.
            Item::Reasoning(_) => {}
            Item::Call(call) => {
                names.insert(&call.id, &call.name);
                let args: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
                let args = if args.is_object() { args } else { json!({ "arguments": args }) };
                let mut part = json!({ "functionCall": { "name": call.name, "args": args } });
                match signatures.take(&call.id) {
                    Some(signature) => part["thoughtSignature"] = signature,
                    // Of parallel calls only the first has a signature.
                    None if is_first_call => part["thoughtSignature"] = NO_SIGNATURE.into(),
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
            Part::Image { mime, data, .. } if vision => Some(inline(mime, &BASE64_STANDARD.encode(data))),
            Part::ImageUrl(RemoteImage { url, .. }) if vision => {
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
struct Piece {
    candidates: Vec<Candidate>,
    usage_metadata: Option<Tokens>,
    prompt_feedback: Option<Feedback>,
    error: Option<ErrorBody>,
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
struct ErrorBody {
    message: String,
}

/// One request and its answer.
struct Generation {
    signatures: Signatures,
    /// The owner of the conversation.
    owner: String,
    /// Calls of the answer so far.
    calls: u32,
}

impl Exchange for Generation {
    fn request(&mut self, model: &str, request: &ModelRequest, vision: bool) -> serde_json::Result<Vec<u8>> {
        self.owner.clone_from(&request.owner);
        serde_json::to_vec(&self::request(model, request, vision, &self.signatures))
    }

    fn event(&mut self, data: &str, answer: &mut AnswerBuilder) -> Result<(), Fault> {
        let piece: Piece = serde_json::from_str(data)
            .map_err(|error| Fault::NotUnderstood(format!("an event is not of the Gemini API ({error})")))?;
        if let Some(error) = piece.error {
            return Err(Fault::Failed(error.message));
        }
        if let Some(tokens) = &piece.usage_metadata {
            answer.usage(TokenUsage {
                input: tokens.prompt_token_count.saturating_add(tokens.tool_use_prompt_token_count),
                cached: tokens.cached_content_token_count,
                output: tokens.candidates_token_count.saturating_add(tokens.thoughts_token_count),
                reasoning: tokens.thoughts_token_count,
            });
        }
        if piece.prompt_feedback.is_some_and(|feedback| feedback.block_reason.is_some()) {
            answer.finish(FinishReason::ContentFilter);
        }
        let Some(candidate) = piece.candidates.into_iter().next() else { return Ok(()) };
        for part in candidate.content.parts {
            self.part(part, answer)?;
        }
        if let Some(reason) = candidate.finish_reason {
            answer.finish(match reason.as_str() {
                "MAX_TOKENS" => FinishReason::Length,
                "SAFETY" | "RECITATION" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII" | "IMAGE_SAFETY" => {
                    FinishReason::ContentFilter
                }
                "MALFORMED_FUNCTION_CALL" | "UNEXPECTED_TOOL_CALL" => {
                    let words = "the model called a function in a way that its server could not read";
                    return Err(Fault::Passing(words.to_owned()));
                }
                _ => FinishReason::Stop,
            });
        }
        Ok(())
    }

    /// A whole answer is one piece.
    fn body(&mut self, body: &str, answer: &mut AnswerBuilder) -> Result<(), Fault> {
        self.event(body, answer)
    }
}

impl Generation {
    fn part(&mut self, part: ContentPart, answer: &mut AnswerBuilder) -> Result<(), Fault> {
        if part.thought {
            answer.reasoning(part.text);
            return Ok(());
        }
        answer.text(part.text);
        let Some(call) = part.function_call else { return Ok(()) };
        // This API identifies calls only by name.
        let id = format!("call_{}{}", random::word(), random::word());
        if let Some(signature) = part.thought_signature {
            self.signatures.insert(&self.owner, &id, &signature.into());
        }
        let arguments = call.args.unwrap_or_else(|| json!({})).to_string();
        answer.call(CallPiece { number: Some(self.calls), id: Some(id), name: Some(call.name), arguments })?;
        self.calls += 1;
        Ok(())
    }
}
