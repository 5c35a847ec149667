//! Anthropic's Messages API as an upstream: renders requests, and parses events.

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use parking_lot::Mutex;
use reqwest::header::HeaderName;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Protocol;
use crate::item::{Item, Part, RemoteImage};
use crate::upstream::adapter::{Adapter, Exchange, HttpApi};
use crate::upstream::answer::{AnswerBuilder, CallPiece, Fault};
use crate::upstream::signatures::{Signatures, UnsentSignatures};
use crate::upstream::{AnswerFormat, FinishReason, ModelRequest, TokenUsage, ToolChoice, UpstreamError};

impl Protocol {
    /// Anthropic's Messages.
    pub const ANTHROPIC: Self =
        Self { word: "anthropic", title: "Anthropic's Messages", adapter: |_| Arc::new(Messages::default()) };
}

static API: HttpApi = HttpApi {
    name: "Anthropic's Messages API",
    provider: "anthropic",
    base_path: "/v1",
    query: None,
    key: (HeaderName::from_static("x-api-key"), ""),
    version: Some((HeaderName::from_static("anthropic-version"), "2023-06-01")),
    has_openai_methods: false,
};
/// Token limit of an answer without another limit: the API requires one.
const MAX_TOKENS: u32 = 16_384;

/// The protocol, with the signatures and the quirks of one server.
#[derive(Debug, Default)]
struct Messages {
    signatures: Signatures,
    quirks: Arc<Mutex<MessagesQuirks>>,
}

/// Differences between models, learnt from refusals.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct MessagesQuirks {
    /// True if it decides itself how much it thinks, as models since Claude 4.7 do, which take no budget.
    is_adaptive: bool,
    /// True if it takes no `temperature` and no `top_p`.
    is_unsampled: bool,
}

impl Adapter for Messages {
    fn api(&self) -> &'static HttpApi {
        &API
    }

    fn path(&self, _model: &str) -> String {
        "/messages".to_owned()
    }

    fn exchange(&self) -> Box<dyn Exchange> {
        let (signatures, quirks) = (self.signatures.clone(), Arc::clone(&self.quirks));
        Box::new(Reply { signatures, quirks, ..Reply::default() })
    }
}

/// The body of a request.
fn request(
    model: &str,
    request: &ModelRequest,
    vision: bool,
    signatures: &Signatures,
    quirks: MessagesQuirks,
) -> Value {
    let sampling = &request.sampling;
    let max_tokens = sampling.max_output_tokens.unwrap_or(MAX_TOKENS);
    let mut body = Map::new();
    body.insert("model".into(), json!(model));
    body.insert("max_tokens".into(), json!(max_tokens));
    body.insert("stream".into(), json!(true));
    let whole = sampling.whole_output_tokens.unwrap_or(max_tokens);
    let thinks = match quirks.is_adaptive {
        true => thinks(request).then(|| json!({ "type": "adaptive" })),
        false => thinking_budget(request, whole, signatures)
            .filter(|budget| *budget < max_tokens)
            .map(|budget| json!({ "type": "enabled", "budget_tokens": budget })),
    };
    let sent = thinks.as_ref().map(|_| signatures.unsent(&request.owner));
    let mut messages = messages(&request.items, vision, sent);
    // Further rounds and turns begin in the same way.
    let is_repeated = !request.tools.is_empty();
    if is_repeated {
        cache_history(&mut messages);
    }
    body.insert("messages".into(), messages.into());
    let mut instructions = request.instructions.clone();
    if let Some(form) = form_of(sampling.format.as_ref()) {
        instructions.push_str(&form);
    }
    // The API caches no empty text.
    let instructions = instructions.trim();
    if !instructions.is_empty() {
        let mut system = json!(instructions);
        if is_repeated {
            system = json!([{ "type": "text", "text": system }]);
            cache(&mut system[0]);
        }
        body.insert("system".into(), system);
    }
    if !request.tools.is_empty() {
        let mut tools: Vec<Value> = Vec::new();
        tools.extend(request.tools.iter().map(|tool| {
            let mut sent =
                json!({ "name": tool.name, "description": tool.description, "input_schema": tool.parameters });
            if let Some(strict) = tool.strict {
                sent["strict"] = strict.into();
            }
            sent
        }));
        if let (None, Some(last)) = (body.get("system"), tools.last_mut()) {
            cache(last);
        }
        body.insert("tools".into(), tools.into());
        let mut choice = match &request.tool_choice {
            ToolChoice::Auto => json!({ "type": "auto" }),
            ToolChoice::None => json!({ "type": "none" }),
            ToolChoice::Required => json!({ "type": "any" }),
            ToolChoice::Named(name) => json!({ "type": "tool", "name": name }),
        };
        if sampling.parallel_calls == Some(false) && request.tool_choice != ToolChoice::None {
            choice["disable_parallel_tool_use"] = true.into();
        }
        body.insert("tool_choice".into(), choice);
    }
    match thinks {
        // A model that thinks accepts only its default temperature.
        Some(thinking) => {
            if quirks.is_adaptive {
                let effort = sampling.reasoning_effort.as_deref().unwrap_or_default();
                let effort = if effort == "minimal" { "low" } else { effort };
                body.insert("output_config".into(), json!({ "effort": effort }));
            }
            body.insert("thinking".into(), thinking);
        }
        None if quirks.is_unsampled => {}
        None => {
            if let Some(temperature) = sampling.temperature {
                body.insert("temperature".into(), json!(temperature.min(1.0)));
            }
            // Newer models accept only one of the two.
            if let Some(top_p) = sampling.top_p.filter(|_| sampling.temperature.is_none()) {
                body.insert("top_p".into(), json!(top_p));
            }
        }
    }
    Value::Object(body)
}

/// Has the server cache a request up to this block.
fn cache(block: &mut Value) {
    block["cache_control"] = json!({ "type": "ephemeral" });
}

/// Has the server cache the conversation: up to its end, for the next round, and up to the user's last question, for the next turn, which
/// repeats the programs since then in another form.
fn cache_history(messages: &mut [Value]) {
    let is_answer = |block: &Value| block["type"] == "tool_result";
    let asks = |message: &Value| {
        message["role"] == "user" && !message["content"].as_array().is_some_and(|blocks| blocks.iter().all(is_answer))
    };
    let asked = messages.iter().rposition(asks).and_then(|index| index.checked_sub(1));
    for index in asked.into_iter().chain(messages.len().checked_sub(1)) {
        let blocks = messages.get_mut(index).and_then(|message| message["content"].as_array_mut());
        if let Some(last) = blocks.and_then(|blocks| blocks.last_mut()) {
            cache(last);
        }
    }
}

/// Returns true if the model is to think, and may: one that must call a tool may not.
fn thinks(request: &ModelRequest) -> bool {
    let is_forced = matches!(request.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
    !is_forced && request.sampling.reasoning_effort.as_deref().and_then(share_of).is_some()
}

/// The part of an answer's tokens for thinking, as a divisor; `None` for words that are no effort.
fn share_of(effort: &str) -> Option<u32> {
    match effort {
        "minimal" | "low" => Some(8),
        "medium" => Some(4),
        "high" | "xhigh" | "max" => Some(2),
        _ => None,
    }
}

/// Returns the token budget for thinking: `None` if the model does not think, or if thoughts that it requires are lost.
fn thinking_budget(request: &ModelRequest, max_tokens: u32, signatures: &Signatures) -> Option<u32> {
    let share = request.sampling.reasoning_effort.as_deref().and_then(share_of)?;
    // The API requires the thoughts of calls since the user's last message.
    let last_user = request.items.iter().rposition(|item| matches!(item, Item::User(_))).unwrap_or(0);
    let since = request.items.get(last_user..).unwrap_or_default();
    let is_lost = since.iter().enumerate().any(|(index, item)| match item {
        Item::Call(call) => {
            let is_first = index
                .checked_sub(1)
                .and_then(|before| since.get(before))
                .is_none_or(|item| !matches!(item, Item::Call(_)));
            is_first && !signatures.has(&request.owner, &call.id)
        }
        _ => false,
    });
    let budget = (max_tokens / share).max(1024);
    (thinks(request) && !is_lost && budget < max_tokens).then_some(budget)
}

/// The form of the answer, as an instruction.
fn form_of(format: Option<&AnswerFormat>) -> Option<String> {
    Some(match format? {
        AnswerFormat::Json => "\n\nAnswer with one JSON object and nothing else.".to_owned(),
        AnswerFormat::Schema(schema) => {
            let schema = schema.get("schema").unwrap_or(schema);
            format!("\n\nAnswer with JSON that this schema describes, and nothing else, not even a fence: {schema}")
        }
    })
}

/// Messages alternate between user and assistant; consecutive items of one role are one message.
fn messages(items: &[Item], vision: bool, mut signatures: Option<UnsentSignatures<'_>>) -> Vec<Value> {
    let mut messages: Vec<(&str, Vec<Value>)> = Vec::new();
    let mut add = |role: &'static str, blocks: Vec<Value>| match messages.last_mut() {
        Some((last, content)) if *last == role => content.extend(blocks),
        _ => messages.push((role, blocks)),
    };
    for (index, item) in items.iter().enumerate() {
        // With their signature, before all else of the call that they led to.
        let sealed = signatures.as_mut().map(|unsent| unsent.take_before(items, index)).unwrap_or_default();
        if !sealed.is_empty() {
            add("assistant", sealed);
        }
        match item {
            Item::User(parts) => add("user", blocks(parts, vision)),
            Item::Reasoning(_) => {}
            Item::Assistant(text) if text.trim().is_empty() => {}
            Item::Assistant(text) => add("assistant", vec![json!({ "type": "text", "text": text.trim_end() })]),
            Item::Call(call) => {
                let input: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
                let input = if input.is_object() { input } else { json!({ "arguments": input }) };
                add(
                    "assistant",
                    vec![json!({ "type": "tool_use", "id": id_of(&call.id), "name": call.name, "input": input })],
                );
            }
            Item::Output(output) => {
                let content = blocks(&output.parts, vision);
                add(
                    "user",
                    vec![json!({ "type": "tool_result", "tool_use_id": id_of(&output.call_id), "content": content })],
                );
            }
        }
    }
    messages.into_iter().map(|(role, content)| json!({ "role": role, "content": content })).collect()
}

/// An id of a call in the characters that the API accepts: the conversation may have begun with another model.
fn id_of(id: &str) -> String {
    let is_taken = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
    id.chars().map(|character| if is_taken(character) { character } else { '_' }).collect()
}

fn blocks(parts: &[Part], vision: bool) -> Vec<Value> {
    let image = |source: Value| json!({ "type": "image", "source": source });
    let base64 = |mime: &str, data: &str| image(json!({ "type": "base64", "media_type": mime, "data": data }));
    let mut blocks: Vec<Value> = parts
        .iter()
        .filter_map(|part| match part {
            Part::Text(text) if text.trim().is_empty() => None,
            Part::Text(text) => Some(json!({ "type": "text", "text": text })),
            Part::Image { mime, data, .. } if vision => Some(base64(mime, &BASE64_STANDARD.encode(data))),
            Part::ImageUrl(RemoteImage { url, .. }) if vision => {
                let inline = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
                Some(match inline {
                    Some((mime, data)) => base64(mime, data),
                    None => image(json!({ "type": "url", "url": url })),
                })
            }
            Part::Image { .. } | Part::ImageUrl(_) => None,
        })
        .collect();
    if blocks.is_empty() {
        // The API refuses empty content.
        blocks.push(json!({ "type": "text", "text": "(nothing)" }));
    }
    blocks
}

#[derive(Deserialize)]
struct StreamEvent {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    index: u32,
    message: Option<Message>,
    content_block: Option<Block>,
    delta: Option<BlockDelta>,
    usage: Option<Tokens>,
    error: Option<ErrorBody>,
}

/// A message whole, or as it begins.
#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    content: Vec<Block>,
    stop_reason: Option<String>,
    usage: Option<Tokens>,
}

#[derive(Deserialize, Default)]
struct Block {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    id: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    text: String,
    #[serde(default)]
    thinking: String,
    #[serde(default)]
    signature: String,
    #[serde(default)]
    data: String,
    input: Option<Value>,
}

#[derive(Deserialize, Default)]
struct BlockDelta {
    text: Option<String>,
    partial_json: Option<String>,
    thinking: Option<String>,
    signature: Option<String>,
    stop_reason: Option<String>,
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(default)]
struct Tokens {
    input_tokens: u64,
    output_tokens: u64,
    cache_read_input_tokens: u64,
    cache_creation_input_tokens: u64,
}

#[derive(Deserialize)]
struct ErrorBody {
    #[serde(default)]
    message: String,
}

/// One request and the answer so far.
#[derive(Default)]
struct Reply {
    signatures: Signatures,
    quirks: Arc<Mutex<MessagesQuirks>>,
    /// The quirks that the request was written for.
    written_for: MessagesQuirks,
    /// True if it asks the model to think.
    thinks: bool,
    /// The owner of the conversation.
    owner: String,
    /// Thoughts before a call, in the form in which they have to be sent back.
    sealed: Vec<Value>,
    /// The thoughts that are being written.
    thoughts: Block,
    /// The call that is being written and has no arguments yet.
    open: Option<u32>,
    usage: Tokens,
}

impl Reply {
    fn count(&mut self, tokens: Option<Tokens>, answer: &mut AnswerBuilder) {
        let Some(tokens) = tokens else { return };
        let usage = &mut self.usage;
        usage.input_tokens = usage.input_tokens.max(tokens.input_tokens);
        usage.output_tokens = usage.output_tokens.max(tokens.output_tokens);
        usage.cache_read_input_tokens = usage.cache_read_input_tokens.max(tokens.cache_read_input_tokens);
        usage.cache_creation_input_tokens = usage.cache_creation_input_tokens.max(tokens.cache_creation_input_tokens);
        let cached = usage.cache_read_input_tokens;
        let input = usage.input_tokens.saturating_add(cached).saturating_add(usage.cache_creation_input_tokens);
        answer.usage(TokenUsage { input, cached, output: usage.output_tokens, reasoning: 0 });
    }

    /// Keeps the thoughts that led to a call.
    fn keep(&mut self, call_id: &str) {
        let sealed = std::mem::take(&mut self.sealed);
        if !sealed.is_empty() {
            self.signatures.insert(&self.owner, call_id, &Value::Array(sealed));
        }
    }

    fn keep_signature(&mut self, block: &Block) {
        match block.kind.as_str() {
            "thinking" => self
                .sealed
                .push(json!({ "type": "thinking", "thinking": block.thinking, "signature": block.signature })),
            "redacted_thinking" => self.sealed.push(json!({ "type": "redacted_thinking", "data": block.data })),
            _ => {}
        }
    }
}

impl Exchange for Reply {
    fn request(&mut self, model: &str, request: &ModelRequest, vision: bool) -> serde_json::Result<Vec<u8>> {
        self.owner.clone_from(&request.owner);
        self.written_for = *self.quirks.lock();
        let body = self::request(model, request, vision, &self.signatures, self.written_for);
        self.thinks = body.get("thinking").is_some();
        serde_json::to_vec(&body)
    }

    fn event(&mut self, data: &str, answer: &mut AnswerBuilder) -> Result<(), Fault> {
        let event: StreamEvent = serde_json::from_str(data)
            .map_err(|error| Fault::NotUnderstood(format!("an event is not of the Messages API ({error})")))?;
        let number = Some(event.index);
        match event.kind.as_str() {
            "message_start" => self.count(event.message.and_then(|message| message.usage), answer),
            "content_block_start" => {
                let mut block = event.content_block.unwrap_or_default();
                answer.text(Some(std::mem::take(&mut block.text)));
                match block.kind.as_str() {
                    "tool_use" => {
                        self.keep(&block.id);
                        self.open = number;
                        let (id, name) = (Some(block.id), Some(block.name));
                        answer.call(CallPiece { number, id, name, ..CallPiece::default() })?;
                    }
                    "thinking" => self.thoughts = block,
                    _ => self.keep_signature(&block),
                }
            }
            "content_block_delta" => {
                let delta = event.delta.unwrap_or_default();
                answer.text(delta.text);
                if let Some(arguments) = delta.partial_json.filter(|fragment| !fragment.is_empty()) {
                    self.open = None;
                    answer.call(CallPiece { number, arguments, ..CallPiece::default() })?;
                }
                if let Some(thinking) = delta.thinking {
                    self.thoughts.thinking.push_str(&thinking);
                    answer.reasoning(Some(thinking));
                }
                self.thoughts.signature.push_str(&delta.signature.unwrap_or_default());
            }
            "content_block_stop" => {
                let thoughts = std::mem::take(&mut self.thoughts);
                self.keep_signature(&thoughts);
                if let number @ Some(_) = self.open.take() {
                    // A call without arguments.
                    answer.call(CallPiece { number, arguments: "{}".to_owned(), ..CallPiece::default() })?;
                }
            }
            "message_delta" => {
                self.count(event.usage, answer);
                if let Some(reason) = event.delta.and_then(|delta| delta.stop_reason) {
                    answer.finish(finish(&reason));
                }
            }
            "error" => return Err(Fault::Failed(event.error.map(|error| error.message).unwrap_or_default())),
            _ => {}
        }
        Ok(())
    }

    fn learn(&mut self, error: &UpstreamError) -> bool {
        let UpstreamError::Rejected { status: 400, detail, .. } = error else { return false };
        let names = |words: &[&str]| words.iter().any(|word| detail.contains(word));
        // One field alone: another request may have learnt of another meanwhile.
        let mut known = self.quirks.lock();
        if self.thinks && names(&["thinking.type", "budget_tokens", "adaptive"]) {
            known.is_adaptive = !self.written_for.is_adaptive;
            true
        } else if !self.written_for.is_unsampled
            && names(&["temperature", "top_p"])
            && names(&["deprecated", "upported", "not permitted"])
        {
            // Not of a value that one client chose.
            known.is_unsampled = true;
            true
        } else {
            false
        }
    }

    fn body(&mut self, body: &str, answer: &mut AnswerBuilder) -> Result<(), Fault> {
        let message: Message = serde_json::from_str(body)
            .map_err(|error| Fault::NotUnderstood(format!("its JSON is no message ({error})")))?;
        for (index, block) in message.content.into_iter().enumerate() {
            self.keep_signature(&block);
            answer.text(Some(block.text));
            answer.reasoning(Some(block.thinking));
            if block.kind == "tool_use" {
                self.keep(&block.id);
                answer.call(CallPiece {
                    number: u32::try_from(index).ok(),
                    id: Some(block.id),
                    name: Some(block.name),
                    arguments: block.input.unwrap_or_else(|| json!({})).to_string(),
                })?;
            }
        }
        self.count(message.usage, answer);
        answer.finish(finish(message.stop_reason.as_deref().unwrap_or("end_turn")));
        Ok(())
    }
}

fn finish(reason: &str) -> FinishReason {
    match reason {
        "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
        "refusal" => FinishReason::ContentFilter,
        _ => FinishReason::Stop,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_cached_up_to_its_end_and_to_the_last_question() {
        let says = |role: &str, kind: &str| json!({ "role": role, "content": [{ "type": kind }, { "type": kind }] });
        let round = [says("assistant", "tool_use"), says("user", "tool_result")];
        let mut messages = vec![says("user", "text")];
        messages.extend(round.clone());
        messages.extend([says("assistant", "text"), says("user", "text")]);
        messages.extend(round);
        cache_history(&mut messages);
        let cached = |message: &Value| {
            let marks = [0, 1].map(|block| message["content"][block].get("cache_control").is_some());
            marks == [false, true]
        };
        assert_eq!(messages.iter().map(cached).collect::<Vec<_>>(), [false, false, false, true, false, false, true]);
        cache_history(&mut []);
    }
}
