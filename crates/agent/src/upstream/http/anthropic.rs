//! Anthropic's Messages API as an upstream: requests into it, its events out of it.

use aludel_wire::chat::{CallDelta, CalledFunctionDelta};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::HttpUpstream;
use super::answer::Answer;
use super::signatures::Signatures;
use crate::item::{Item, Part};
use crate::upstream::{AnswerFormat, Request, ToolChoice, UpstreamError, Usage};

/// The version of the API that is spoken.
pub(super) const VERSION: &str = "2023-06-01";
/// Tokens of one answer when nobody says how many: the API wants a figure.
const MAX_TOKENS: u32 = 16_384;

/// The body of a request.
pub(super) fn request(model: &str, request: &Request, vision: bool, signatures: &Signatures) -> Value {
    let sampling = &request.sampling;
    let max_tokens = sampling.max_output_tokens.unwrap_or(MAX_TOKENS);
    let mut body = Map::new();
    body.insert("model".into(), json!(model));
    body.insert("max_tokens".into(), json!(max_tokens));
    body.insert("stream".into(), json!(true));
    let budget = thinking_budget(request, max_tokens, signatures);
    body.insert("messages".into(), messages(&request.items, vision, budget.is_some().then_some(signatures)).into());
    let mut instructions = request.instructions.clone();
    if let Some(form) = form_of(sampling.format.as_ref()) {
        instructions.push_str(&form);
    }
    if !instructions.is_empty() {
        body.insert("system".into(), json!(instructions.trim()));
    }
    if !request.tools.is_empty() {
        let tools = request
            .tools
            .iter()
            .map(|tool| json!({ "name": tool.name, "description": tool.description, "input_schema": tool.parameters }));
        body.insert("tools".into(), tools.collect());
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
    match budget {
        // A model that thinks takes no other temperature than its own.
        Some(budget) => {
            body.insert("thinking".into(), json!({ "type": "enabled", "budget_tokens": budget }));
        }
        None => {
            if let Some(temperature) = sampling.temperature {
                body.insert("temperature".into(), json!(temperature.min(1.0)));
            }
            // Newer models take one of the two.
            if let Some(top_p) = sampling.top_p.filter(|_| sampling.temperature.is_none()) {
                body.insert("top_p".into(), json!(top_p));
            }
        }
    }
    Value::Object(body)
}

/// Returns the tokens that the model may think: `None` when it must call a tool, or when thoughts that it wants back are lost.
fn thinking_budget(request: &Request, max_tokens: u32, signatures: &Signatures) -> Option<u32> {
    let share = match request.sampling.reasoning_effort.as_deref()? {
        "minimal" | "low" => 8,
        "medium" => 4,
        "high" | "xhigh" | "max" => 2,
        _ => return None,
    };
    let is_forced = matches!(request.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
    // Calls since the user's last message are the ones whose thoughts are asked for.
    let last_user = request.items.iter().rposition(|item| matches!(item, Item::User(_))).unwrap_or(0);
    let since = request.items.get(last_user..).unwrap_or_default();
    let is_lost = since.iter().enumerate().any(|(index, item)| match item {
        Item::Call(call) => {
            let is_first = index
                .checked_sub(1)
                .and_then(|before| since.get(before))
                .is_none_or(|item| !matches!(item, Item::Call(_)));
            is_first && signatures.of(&call.id).is_none()
        }
        _ => false,
    });
    let budget = (max_tokens / share).max(1024);
    (!is_forced && !is_lost && budget < max_tokens).then_some(budget)
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

/// Messages alternate between user and assistant; what follows in one role is one message.
fn messages(items: &[Item], vision: bool, signatures: Option<&Signatures>) -> Vec<Value> {
    let mut messages: Vec<(&str, Vec<Value>)> = Vec::new();
    let mut add = |role: &'static str, blocks: Vec<Value>| match messages.last_mut() {
        Some((last, content)) if *last == role => content.extend(blocks),
        _ => messages.push((role, blocks)),
    };
    for (index, item) in items.iter().enumerate() {
        match item {
            Item::User(parts) => add("user", blocks(parts, vision)),
            Item::Assistant(text) if text.trim().is_empty() => {}
            Item::Assistant(text) => add("assistant", vec![json!({ "type": "text", "text": text.trim_end() })]),
            // Thoughts go back sealed, before the call that they led to.
            Item::Reasoning(_) => {
                let call = items.get(index + 1..).into_iter().flatten().find_map(|item| match item {
                    Item::Call(call) => Some(Some(call)),
                    Item::Assistant(_) => None,
                    _ => Some(None),
                });
                let sealed = signatures.zip(call.flatten()).and_then(|(signatures, call)| signatures.of(&call.id));
                if let Some(Value::Array(sealed)) = sealed {
                    add("assistant", sealed);
                }
            }
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

/// An id of a call in the letters that the API takes: a conversation may have begun with another model.
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
            Part::Image { mime, data } if vision => Some(base64(mime, &BASE64_STANDARD.encode(data))),
            Part::ImageUrl(url) if vision => {
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
        // Nothing is no content there.
        blocks.push(json!({ "type": "text", "text": "(nothing)" }));
    }
    blocks
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    index: u32,
    message: Option<Message>,
    content_block: Option<Block>,
    delta: Option<Delta>,
    usage: Option<Tokens>,
    error: Option<Failure>,
}

/// A message whole, or as it begins.
#[derive(Deserialize)]
pub(super) struct Message {
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
struct Delta {
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
struct Failure {
    #[serde(default)]
    message: String,
}

/// One answer so far.
#[derive(Default)]
pub(super) struct Events {
    /// Thoughts that come before a call, as they have to be given back.
    sealed: Vec<Value>,
    /// The thoughts that are being written.
    thoughts: Block,
    /// The call that is being written and has no arguments yet.
    open: Option<u32>,
    usage: Tokens,
}

impl Events {
    async fn count(&mut self, tokens: Option<Tokens>, answer: &mut Answer) {
        let Some(tokens) = tokens else { return };
        let usage = &mut self.usage;
        usage.input_tokens = usage.input_tokens.max(tokens.input_tokens);
        usage.output_tokens = usage.output_tokens.max(tokens.output_tokens);
        usage.cache_read_input_tokens = usage.cache_read_input_tokens.max(tokens.cache_read_input_tokens);
        usage.cache_creation_input_tokens = usage.cache_creation_input_tokens.max(tokens.cache_creation_input_tokens);
        let cached = usage.cache_read_input_tokens;
        let input = usage.input_tokens + cached + usage.cache_creation_input_tokens;
        answer.used(Usage { input, cached, output: usage.output_tokens, reasoning: 0 }).await;
    }

    /// Keeps the thoughts that led to a call. Those that nobody saw have no place in the conversation, so they count as lost.
    fn keep(&mut self, signatures: &Signatures, call_id: &str) {
        let sealed = std::mem::take(&mut self.sealed);
        if sealed.iter().any(|block| block.get("thinking").is_some_and(|text| text != "")) {
            signatures.keep(call_id, Value::Array(sealed));
        }
    }

    fn seal(&mut self, block: &Block) {
        match block.kind.as_str() {
            "thinking" => self
                .sealed
                .push(json!({ "type": "thinking", "thinking": block.thinking, "signature": block.signature })),
            "redacted_thinking" => self.sealed.push(json!({ "type": "redacted_thinking", "data": block.data })),
            _ => {}
        }
    }
}

impl HttpUpstream {
    /// Takes one event of the stream.
    pub(super) async fn anthropic_event(
        &self,
        data: &str,
        events: &mut Events,
        answer: &mut Answer,
    ) -> Result<(), UpstreamError> {
        let event: Event = serde_json::from_str(data)
            .map_err(|error| self.not_understood(format!("an event is not of the Messages API ({error})"), data))?;
        match event.kind.as_str() {
            "message_start" => events.count(event.message.and_then(|message| message.usage), answer).await,
            "content_block_start" => {
                let block = event.content_block.unwrap_or_default();
                answer.text(Some(block.text.clone())).await;
                match block.kind.as_str() {
                    "tool_use" => {
                        events.keep(&self.signatures, &block.id);
                        events.open = Some(event.index);
                        let call = piece(event.index, Some(block.id), Some(block.name), String::new());
                        answer.call(call).await.map_err(|what| self.too_large(what))?;
                    }
                    "thinking" => events.thoughts = block,
                    _ => events.seal(&block),
                }
            }
            "content_block_delta" => {
                let delta = event.delta.unwrap_or_default();
                answer.text(delta.text).await;
                if let Some(fragment) = delta.partial_json.filter(|fragment| !fragment.is_empty()) {
                    events.open = None;
                    let call = piece(event.index, None, None, fragment);
                    answer.call(call).await.map_err(|what| self.too_large(what))?;
                }
                if let Some(thinking) = delta.thinking {
                    events.thoughts.thinking.push_str(&thinking);
                    answer.reasoning(Some(thinking)).await;
                }
                events.thoughts.signature.push_str(&delta.signature.unwrap_or_default());
            }
            "content_block_stop" => {
                let thoughts = std::mem::take(&mut events.thoughts);
                events.seal(&thoughts);
                if let Some(index) = events.open.take() {
                    // A call without arguments.
                    let call = piece(index, None, None, "{}".to_owned());
                    answer.call(call).await.map_err(|what| self.too_large(what))?;
                }
            }
            "message_delta" => {
                events.count(event.usage, answer).await;
                if let Some(reason) = event.delta.and_then(|delta| delta.stop_reason) {
                    answer.finish(reason_of(&reason));
                }
            }
            "error" => return Err(self.failed(&event.error.map(|error| error.message).unwrap_or_default(), data)),
            _ => {}
        }
        Ok(())
    }

    /// Takes a message that came whole.
    pub(super) async fn anthropic_whole(&self, message: Message, answer: &mut Answer) -> Result<(), UpstreamError> {
        let mut events = Events::default();
        for (index, block) in message.content.into_iter().enumerate() {
            answer.text(Some(block.text.clone())).await;
            answer.reasoning(Some(block.thinking.clone())).await;
            events.seal(&block);
            if block.kind == "tool_use" {
                events.keep(&self.signatures, &block.id);
                let arguments = block.input.unwrap_or_else(|| json!({})).to_string();
                let index = u32::try_from(index).unwrap_or(u32::MAX);
                let call = piece(index, Some(block.id), Some(block.name), arguments);
                answer.call(call).await.map_err(|what| self.too_large(what))?;
            }
        }
        events.count(message.usage, answer).await;
        answer.finish(reason_of(message.stop_reason.as_deref().unwrap_or("end_turn")));
        Ok(())
    }
}

/// The reason in the words of the protocol that [`Answer`] knows.
fn reason_of(reason: &str) -> &str {
    match reason {
        "max_tokens" | "model_context_window_exceeded" => "length",
        "refusal" => "content_filter",
        _ => "stop",
    }
}

fn piece(index: u32, id: Option<String>, name: Option<String>, arguments: String) -> CallDelta {
    CallDelta { index: Some(index), id, kind: None, function: CalledFunctionDelta { name, arguments } }
}
