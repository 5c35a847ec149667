//! OpenAI's Responses API as an upstream: renders requests, and parses events.
//!
//! Our own tool is sent as an ordinary function, and nothing is stored there: the conversation is sent anew each time. Thoughts go back
//! encrypted, with the call that they led to.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use reqwest::header::AUTHORIZATION;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Protocol;
use crate::item::{ImageDetail, Item, Part, RemoteImage, text_of};
use crate::upstream::adapter::{Adapter, Exchange, HttpApi};
use crate::upstream::answer::{AnswerBuilder, CallPiece, Fault};
use crate::upstream::signatures::{Signatures, UnsentSignatures};
use crate::upstream::{AnswerFormat, FinishReason, ModelRequest, NO_THINKING, TokenUsage, ToolChoice, UpstreamError};

impl Protocol {
    /// OpenAI's Responses.
    pub const RESPONSES: Self =
        Self { word: "responses", title: "OpenAI's Responses", adapter: |_| Arc::new(Responses::default()) };
}

static API: HttpApi = HttpApi {
    name: "a Responses API",
    provider: "openai",
    base_path: "",
    query: None,
    key: (AUTHORIZATION, "Bearer "),
    version: None,
    has_openai_methods: true,
};

/// The thoughts of a model, for the next request.
const ENCRYPTED: &str = "reasoning.encrypted_content";

/// The protocol, with the thoughts and the quirks of one server's model.
#[derive(Debug, Default)]
struct Responses {
    thoughts: Signatures,
    quirks: Arc<ResponsesQuirks>,
}

/// Quirks of a model that does not think, learnt from refusals.
#[derive(Debug, Default)]
struct ResponsesQuirks {
    /// True if it cannot be asked for its thoughts.
    has_no_thoughts: AtomicBool,
    /// True if it takes no amount of thinking.
    takes_no_effort: AtomicBool,
}

impl Adapter for Responses {
    fn api(&self) -> &'static HttpApi {
        &API
    }

    fn path(&self, _model: &str) -> String {
        "/responses".to_owned()
    }

    fn exchange(&self) -> Box<dyn Exchange> {
        let (thoughts, quirks) = (self.thoughts.clone(), Arc::clone(&self.quirks));
        Box::new(Response { thoughts, quirks, ..Response::default() })
    }
}

/// The body of a request.
fn request(
    model: &str,
    request: &ModelRequest,
    vision: bool,
    mut thoughts: Option<UnsentSignatures<'_>>,
) -> Map<String, Value> {
    let sampling = &request.sampling;
    let mut body = Map::new();
    let mut set = |name: &str, value: Value| {
        if !value.is_null() {
            body.insert(name.to_owned(), value);
        }
    };
    set("model", json!(model));
    let input = request.items.iter().enumerate().flat_map(|(index, item)| {
        let before = thoughts.as_mut().map(|unsent| unsent.take_before(&request.items, index));
        before.unwrap_or_default().into_iter().chain(input(item, vision))
    });
    let input = input.collect();
    set("input", input);
    if thoughts.is_some() {
        set("include", json!([ENCRYPTED]));
    }
    set("stream", json!(true));
    set("store", json!(false));
    if !request.instructions.is_empty() {
        set("instructions", json!(request.instructions));
    }
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            json!({
                "type": "function", "name": tool.name, "description": tool.description,
                "parameters": tool.parameters, "strict": tool.strict.unwrap_or_default(),
            })
        });
        set("tools", tools.collect());
        set("parallel_tool_calls", json!(sampling.parallel_calls));
        match &request.tool_choice {
            ToolChoice::Auto => {}
            ToolChoice::None => set("tool_choice", json!("none")),
            ToolChoice::Required => set("tool_choice", json!("required")),
            ToolChoice::Named(name) => set("tool_choice", json!({ "type": "function", "name": name })),
        }
    }
    set("temperature", json!(sampling.temperature));
    set("top_p", json!(sampling.top_p));
    set("max_output_tokens", json!(sampling.max_output_tokens));
    if let Some(effort) = sampling.reasoning_effort.as_ref().filter(|effort| *effort != NO_THINKING) {
        set("reasoning", json!({ "effort": effort, "summary": "auto" }));
    }
    match &sampling.format {
        None => {}
        Some(AnswerFormat::Json) => set("text", json!({ "format": { "type": "json_object" } })),
        Some(AnswerFormat::Schema(schema)) => {
            let mut format = schema.as_object().cloned().unwrap_or_default();
            format.insert("type".into(), "json_schema".into());
            set("text", json!({ "format": format }));
        }
    }
    body
}

fn input(item: &Item, vision: bool) -> Option<Value> {
    Some(match item {
        Item::User(content) => json!({ "type": "message", "role": "user", "content": parts(content, vision) }),
        Item::Assistant(text) => {
            let content = [json!({ "type": "output_text", "text": text, "annotations": [] })];
            json!({ "type": "message", "role": "assistant", "content": content })
        }
        // Thoughts can only be sent back in that server's encrypted form.
        Item::Reasoning(_) => return None,
        Item::Call(call) => json!({
            "type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments,
        }),
        Item::Output(output) => {
            let has_images = vision && output.parts.iter().any(|part| !matches!(part, Part::Text(_)));
            let content = if has_images { parts(&output.parts, vision) } else { json!(text_of(&output.parts)) };
            json!({ "type": "function_call_output", "call_id": output.call_id, "output": content })
        }
    })
}

fn parts(parts: &[Part], vision: bool) -> Value {
    let image = |url: String, detail: &Option<ImageDetail>| {
        let detail = detail.map_or("auto", ImageDetail::word);
        json!({ "type": "input_image", "image_url": url, "detail": detail })
    };
    let render = |part: &Part| match part {
        Part::Text(text) => Some(json!({ "type": "input_text", "text": text })),
        Part::Image { mime, data, detail } if vision => {
            Some(image(format!("data:{mime};base64,{}", BASE64_STANDARD.encode(data)), detail))
        }
        Part::ImageUrl(RemoteImage { url, detail }) if vision => Some(image(url.clone(), detail)),
        Part::Image { .. } | Part::ImageUrl(_) => None,
    };
    parts.iter().filter_map(render).collect()
}

/// The used fields of all events. Others are skipped, as are unknown events.
#[derive(Deserialize)]
struct StreamEvent {
    #[serde(rename = "type", default)]
    kind: String,
    delta: Option<Value>,
    output_index: Option<u32>,
    arguments: Option<String>,
    item: Option<OutputItem>,
    response: Option<Object>,
    message: Option<String>,
}

#[derive(Deserialize)]
struct OutputItem {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    call_id: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    arguments: String,
    content: Option<Vec<ContentPart>>,
    summary: Option<Value>,
    encrypted_content: Option<String>,
}

#[derive(Deserialize)]
struct ContentPart {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    text: String,
    #[serde(default)]
    refusal: String,
}

/// A response as it ended.
#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    output: Vec<OutputItem>,
    usage: Option<Tokens>,
    status: Option<String>,
    incomplete_details: Option<Details>,
    error: Option<ReportedError>,
}

#[derive(Deserialize)]
struct Details {
    #[serde(default)]
    reason: String,
}

#[derive(Deserialize)]
struct ReportedError {
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
struct Tokens {
    #[serde(default)]
    input_tokens: u64,
    #[serde(default)]
    output_tokens: u64,
    input_tokens_details: Option<Map<String, Value>>,
    output_tokens_details: Option<Map<String, Value>>,
}

impl Tokens {
    fn usage(&self) -> TokenUsage {
        let figure = |details: &Option<Map<String, Value>>, name: &str| {
            details.as_ref().and_then(|details| details.get(name)?.as_u64()).unwrap_or_default()
        };
        TokenUsage {
            input: self.input_tokens,
            cached: figure(&self.input_tokens_details, "cached_tokens"),
            output: self.output_tokens,
            reasoning: figure(&self.output_tokens_details, "reasoning_tokens"),
        }
    }
}

/// One response.
#[derive(Default)]
struct Response {
    thoughts: Signatures,
    quirks: Arc<ResponsesQuirks>,
    /// The owner of the conversation.
    owner: String,
    /// True if the request asks for thoughts.
    asks: bool,
    /// True if it says how much to think.
    says_effort: bool,
    /// Thoughts before a call, in the form in which they are sent back.
    sealed: Vec<Value>,
    /// Calls whose arguments came in pieces; the arguments of others come at their end.
    in_pieces: HashSet<u32>,
}

impl Exchange for Response {
    fn request(&mut self, model: &str, request: &ModelRequest, vision: bool) -> serde_json::Result<Vec<u8>> {
        self.owner.clone_from(&request.owner);
        // Without tools no further round has a use for them.
        self.asks = !request.tools.is_empty() && !self.quirks.has_no_thoughts.load(Ordering::Relaxed);
        let thoughts = self.asks.then(|| self.thoughts.unsent(&request.owner));
        let mut body = self::request(model, request, vision, thoughts);
        if self.quirks.takes_no_effort.load(Ordering::Relaxed) {
            body.remove("reasoning");
        }
        self.says_effort = body.contains_key("reasoning");
        serde_json::to_vec(&body)
    }

    fn event(&mut self, data: &str, answer: &mut AnswerBuilder) -> Result<(), Fault> {
        let event: StreamEvent = serde_json::from_str(data)
            .map_err(|error| Fault::NotUnderstood(format!("an event is not of the Responses API ({error})")))?;
        let delta = event.delta.and_then(|delta| delta.as_str().map(str::to_owned));
        let number = event.output_index;
        match event.kind.as_str() {
            "response.output_text.delta" => answer.text(delta),
            "response.refusal.delta" => answer.refusal(delta),
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => answer.reasoning(delta),
            "response.output_item.added" => {
                if let Some(item) = event.item.filter(|item| item.kind == "function_call") {
                    self.keep(&item.call_id);
                    let (id, name) = (Some(item.call_id), Some(item.name));
                    answer.call(CallPiece { number, id, name, ..CallPiece::default() })?;
                }
            }
            "response.output_item.done" => self.seal(event.item),
            "response.function_call_arguments.delta" => {
                self.in_pieces.extend(number);
                let arguments = delta.unwrap_or_default();
                answer.call(CallPiece { number, arguments, ..CallPiece::default() })?;
            }
            "response.function_call_arguments.done" => {
                let sent = number.is_some_and(|number| self.in_pieces.contains(&number));
                if !sent && let Some(arguments) = event.arguments {
                    answer.call(CallPiece { number, arguments, ..CallPiece::default() })?;
                }
            }
            "response.completed" | "response.incomplete" | "response.failed" => {
                if let Some(object) = event.response {
                    end(&object, answer)?;
                }
            }
            "error" => return Err(Fault::Failed(event.message.unwrap_or_default())),
            _ => {}
        }
        Ok(())
    }

    fn body(&mut self, body: &str, answer: &mut AnswerBuilder) -> Result<(), Fault> {
        let mut object: Object = serde_json::from_str(body)
            .map_err(|error| Fault::NotUnderstood(format!("its JSON is no response ({error})")))?;
        for (index, item) in std::mem::take(&mut object.output).into_iter().enumerate() {
            match item.kind.as_str() {
                "function_call" => {
                    self.keep(&item.call_id);
                    answer.call(CallPiece {
                        number: u32::try_from(index).ok(),
                        id: Some(item.call_id),
                        name: Some(item.name),
                        arguments: item.arguments,
                    })?;
                }
                "reasoning" => self.seal(Some(item)),
                "message" => {
                    for part in item.content.into_iter().flatten() {
                        match part.kind.as_str() {
                            "refusal" => answer.refusal(Some(part.refusal)),
                            _ => answer.text(Some(part.text)),
                        }
                    }
                }
                _ => {}
            }
        }
        end(&object, answer)
    }

    fn learn(&mut self, error: &UpstreamError) -> bool {
        let UpstreamError::Rejected { status: 400 | 422, detail, .. } = error else { return false };
        let names = |words: &[&str]| words.iter().any(|word| detail.contains(word));
        let learnt = if self.asks && names(&["ncrypted content", "encrypted_content", "'include'"]) {
            &self.quirks.has_no_thoughts
        } else if self.says_effort && detail.contains("reasoning") && names(&["Unsupported parameter", "Unrecognized"])
        {
            &self.quirks.takes_no_effort
        } else {
            return false;
        };
        learnt.store(true, Ordering::Relaxed);
        true
    }
}

impl Response {
    /// Keeps thoughts that are complete until their call comes.
    fn seal(&mut self, item: Option<OutputItem>) {
        let Some(item) = item.filter(|item| item.kind == "reasoning") else { return };
        if let Some(encrypted) = item.encrypted_content.filter(|encrypted| !encrypted.is_empty()) {
            let summary = item.summary.unwrap_or_else(|| json!([]));
            self.sealed.push(json!({ "type": "reasoning", "summary": summary, "encrypted_content": encrypted }));
        }
    }

    /// Keeps the thoughts that led to a call.
    fn keep(&mut self, call_id: &str) {
        let sealed = std::mem::take(&mut self.sealed);
        if !sealed.is_empty() {
            self.thoughts.insert(&self.owner, call_id, &Value::Array(sealed));
        }
    }
}

fn end(object: &Object, answer: &mut AnswerBuilder) -> Result<(), Fault> {
    if let Some(tokens) = &object.usage {
        answer.usage(tokens.usage());
    }
    if let Some(error) = &object.error {
        return Err(Fault::Failed(error.message.clone()));
    }
    if matches!(object.status.as_deref(), Some("failed" | "cancelled")) {
        return Err(Fault::Failed(String::new()));
    }
    answer.finish(match object.incomplete_details.as_ref().map(|details| details.reason.as_str()) {
        Some("max_output_tokens") => FinishReason::Length,
        Some("content_filter") => FinishReason::ContentFilter,
        _ => FinishReason::Stop,
    });
    Ok(())
}
