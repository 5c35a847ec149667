//! Prompts, programs and outputs for the spans of operators who ask for them, cut to a size that is fit for a log.

use aludel_sandbox::ExecutionEvent;
use serde_json::{Value, json};
use tracing::{Level, enabled};

use crate::item::{Item, text_of};

/// Target that a subscriber of `tracing` enables if spans may have contents.
const TARGET: &str = "aludel::contents";

/// Bytes of one text.
const MAX_TEXT: usize = 16 << 10;
/// Messages of one conversation, the latest ones.
const MAX_MESSAGES: usize = 20;

/// Returns true if a subscriber wants the prompts, programs and outputs of the current span.
pub(crate) fn are_wanted() -> bool {
    enabled!(target: TARGET, Level::INFO)
}

/// A text that grows, of which the beginning is kept.
#[derive(Debug, Default)]
pub(crate) struct Excerpt(String);

impl Excerpt {
    pub(crate) fn push(&mut self, text: &str) {
        let room = MAX_TEXT.saturating_sub(self.0.len());
        self.0.push_str(&text[..text.floor_char_boundary(room)]);
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Excerpt {
    fn from(text: &str) -> Self {
        let mut excerpt = Self::default();
        excerpt.push(text);
        excerpt
    }
}

/// A conversation in OpenTelemetry's words.
pub(crate) fn messages(items: &[Item]) -> Value {
    items.iter().skip(items.len().saturating_sub(MAX_MESSAGES)).map(message).collect()
}

fn message(item: &Item) -> Value {
    let cut = |text: &str| Excerpt::from(text).0;
    match item {
        Item::User(parts) => json!({ "role": "user", "parts": [{ "type": "text", "content": cut(&text_of(parts)) }] }),
        Item::Assistant(text) => {
            json!({ "role": "assistant", "parts": [{ "type": "text", "content": cut(text) }] })
        }
        Item::Reasoning(text) => {
            json!({ "role": "assistant", "parts": [{ "type": "reasoning", "content": cut(text) }] })
        }
        Item::Call(call) => json!({
            "role": "assistant",
            "parts": [{ "type": "tool_call", "id": call.id, "name": call.name, "arguments": cut(&call.arguments) }],
        }),
        Item::Output(output) => json!({
            "role": "tool",
            "parts": [{ "type": "tool_call_response", "id": output.call_id, "response": cut(&text_of(&output.parts)) }],
        }),
    }
}

/// Returns the words that a program put out; pictures have none.
pub(crate) fn output_of(event: &ExecutionEvent) -> &str {
    match event {
        ExecutionEvent::Stdout(text) | ExecutionEvent::Stderr(text) => text,
        ExecutionEvent::Display(bundle) | ExecutionEvent::Result(bundle) => bundle.text().unwrap_or_default(),
        ExecutionEvent::Error(error) => &error.traceback,
        ExecutionEvent::Calls(_) | ExecutionEvent::Finished(_) => "",
    }
}
