//! Events of a stream. The set is closed: the official clients fail on an unknown one.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Annotation, ContentPart, Item, ReasoningText, Response};

/// One event, with its place in the stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StreamEvent {
    /// The event.
    #[serde(flatten)]
    pub event: Event,
    /// Its number, counted from zero.
    pub sequence_number: u64,
}

impl StreamEvent {
    /// The name of an event that was written as JSON.
    pub fn kind_of(json: &str) -> Option<String> {
        #[derive(Deserialize)]
        struct Head<'a> {
            #[serde(borrow, rename = "type")]
            kind: Cow<'a, str>,
        }
        serde_json::from_str::<Head>(json).ok().map(|head| head.kind.into_owned())
    }

    /// The event as JSON on one line.
    pub fn json(&self) -> String {
        // Plain data with texts for keys can always be written.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Writes the enum of all events, and the name of each.
macro_rules! events {
    ($($(#[$about:meta])* $variant:ident = $kind:literal { $($(#[$what:meta])* $field:ident: $type:ty,)* })*) => {
        /// One event.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(tag = "type")]
        pub enum Event {
            $($(#[$about])* #[serde(rename = $kind)] $variant { $($(#[$what])* $field: $type,)* },)*
        }

        impl Event {
            /// The names of all events.
            pub const KINDS: &[&str] = &[$($kind),*];

            /// The event's name.
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => $kind,)*
                }
            }
        }
    };
}

events! {
    /// The response exists.
    Created = "response.created" {
        /// The response.
        response: Box<Response>,
    }
    /// The response waits for its turn.
    Queued = "response.queued" {
        /// The response.
        response: Box<Response>,
    }
    /// The response is being written.
    InProgress = "response.in_progress" {
        /// The response.
        response: Box<Response>,
    }
    /// The response is complete. Nothing comes after it.
    Completed = "response.completed" {
        /// The response.
        response: Box<Response>,
    }
    /// The response failed. Nothing comes after it.
    Failed = "response.failed" {
        /// The response.
        response: Box<Response>,
    }
    /// The response was cut off. Nothing comes after it.
    Incomplete = "response.incomplete" {
        /// The response.
        response: Box<Response>,
    }
    /// An item begins.
    OutputItemAdded = "response.output_item.added" {
        /// Index of the item in the output.
        output_index: usize,
        /// The item, as it is.
        item: Box<Item>,
    }
    /// An item is done.
    OutputItemDone = "response.output_item.done" {
        /// Index of the item in the output.
        output_index: usize,
        /// The whole item.
        item: Box<Item>,
    }
    /// A part of a message begins.
    ContentPartAdded = "response.content_part.added" {
        /// The message's id.
        item_id: String,
        /// Index of the message in the output.
        output_index: usize,
        /// Index of the part in the message.
        content_index: usize,
        /// The part, as it is.
        part: ContentPart,
    }
    /// A part of a message is done.
    ContentPartDone = "response.content_part.done" {
        /// The message's id.
        item_id: String,
        /// Index of the message in the output.
        output_index: usize,
        /// Index of the part in the message.
        content_index: usize,
        /// The whole part.
        part: ContentPart,
    }
    /// A message's text goes on.
    OutputTextDelta = "response.output_text.delta" {
        /// The message's id.
        item_id: String,
        /// Index of the message in the output.
        output_index: usize,
        /// Index of the part in the message.
        content_index: usize,
        /// The next piece of text.
        delta: String,
        /// Probabilities of tokens.
        #[serde(default)]
        logprobs: Vec<Value>,
    }
    /// A message's text is done.
    OutputTextDone = "response.output_text.done" {
        /// The message's id.
        item_id: String,
        /// Index of the message in the output.
        output_index: usize,
        /// Index of the part in the message.
        content_index: usize,
        /// The whole text.
        text: String,
        /// Probabilities of tokens.
        #[serde(default)]
        logprobs: Vec<Value>,
    }
    /// A text has one more annotation.
    OutputTextAnnotationAdded = "response.output_text.annotation.added" {
        /// The message's id.
        item_id: String,
        /// Index of the message in the output.
        output_index: usize,
        /// Index of the part in the message.
        content_index: usize,
        /// Index of the annotation in the part.
        annotation_index: usize,
        /// The annotation.
        annotation: Annotation,
    }
    /// A refusal goes on.
    RefusalDelta = "response.refusal.delta" {
        /// The message's id.
        item_id: String,
        /// Index of the message in the output.
        output_index: usize,
        /// Index of the part in the message.
        content_index: usize,
        /// The next piece of text.
        delta: String,
    }
    /// A refusal is done.
    RefusalDone = "response.refusal.done" {
        /// The message's id.
        item_id: String,
        /// Index of the message in the output.
        output_index: usize,
        /// Index of the part in the message.
        content_index: usize,
        /// The whole text.
        refusal: String,
    }
    /// Thoughts go on.
    ReasoningTextDelta = "response.reasoning_text.delta" {
        /// The item's id.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
        /// Index of the part in the item.
        content_index: usize,
        /// The next piece of text.
        delta: String,
    }
    /// Thoughts are done.
    ReasoningTextDone = "response.reasoning_text.done" {
        /// The item's id.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
        /// Index of the part in the item.
        content_index: usize,
        /// The whole text.
        text: String,
    }
    /// A part of a summary of thoughts begins.
    ReasoningSummaryPartAdded = "response.reasoning_summary_part.added" {
        /// The item's id.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
        /// Index of the part in the summary.
        summary_index: usize,
        /// The part, as it is.
        part: ReasoningText,
    }
    /// A part of a summary of thoughts is done.
    ReasoningSummaryPartDone = "response.reasoning_summary_part.done" {
        /// The item's id.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
        /// Index of the part in the summary.
        summary_index: usize,
        /// The whole part.
        part: ReasoningText,
    }
    /// A summary of thoughts goes on.
    ReasoningSummaryTextDelta = "response.reasoning_summary_text.delta" {
        /// The item's id.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
        /// Index of the part in the summary.
        summary_index: usize,
        /// The next piece of text.
        delta: String,
    }
    /// A summary of thoughts is done.
    ReasoningSummaryTextDone = "response.reasoning_summary_text.done" {
        /// The item's id.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
        /// Index of the part in the summary.
        summary_index: usize,
        /// The whole text.
        text: String,
    }
    /// A program begins.
    CodeInterpreterCallInProgress = "response.code_interpreter_call.in_progress" {
        /// The item's id.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
    }
    /// A program runs.
    CodeInterpreterCallInterpreting = "response.code_interpreter_call.interpreting" {
        /// The item's id.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
    }
    /// A program ended.
    CodeInterpreterCallCompleted = "response.code_interpreter_call.completed" {
        /// The item's id.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
    }
    /// A program's code goes on.
    CodeInterpreterCallCodeDelta = "response.code_interpreter_call_code.delta" {
        /// The item's id.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
        /// The next piece of code.
        delta: String,
    }
    /// A program's code is complete.
    CodeInterpreterCallCodeDone = "response.code_interpreter_call_code.done" {
        /// The item's id.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
        /// The whole code.
        code: String,
    }
    /// The arguments of a call of the client's function go on.
    FunctionCallArgumentsDelta = "response.function_call_arguments.delta" {
        /// The item's id.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
        /// The next piece of JSON.
        delta: String,
    }
    /// The arguments of a call of the client's function are complete.
    FunctionCallArgumentsDone = "response.function_call_arguments.done" {
        /// The item's id.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
        /// The function's name.
        #[serde(default)]
        name: String,
        /// The whole JSON.
        arguments: String,
    }
    /// A call of a tool of an MCP server begins.
    McpCallInProgress = "response.mcp_call.in_progress" {
        /// The item's id.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
    }
    /// A call of a tool of an MCP server was answered.
    McpCallCompleted = "response.mcp_call.completed" {
        /// The item's id.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
    }
    /// A call of a tool of an MCP server failed.
    McpCallFailed = "response.mcp_call.failed" {
        /// The item's id.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
    }
    /// The arguments of a call of a tool of an MCP server go on.
    McpCallArgumentsDelta = "response.mcp_call_arguments.delta" {
        /// The item's id.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
        /// The next piece of JSON.
        delta: String,
    }
    /// The arguments of a call of a tool of an MCP server are complete.
    McpCallArgumentsDone = "response.mcp_call_arguments.done" {
        /// The item's id.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
        /// The whole JSON.
        arguments: String,
    }
    /// The stream broke off. Nothing comes after it.
    Error = "error" {
        /// The kind of error.
        #[serde(default)]
        code: Option<String>,
        /// In words.
        message: String,
        /// The parameter that is wrong.
        #[serde(default)]
        param: Option<String>,
    }
}
