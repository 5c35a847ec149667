//! Language models behind an API: one call in, a stream of deltas out.
//!
//! An upstream knows nothing of sandboxes, budgets or rounds. It renders a [`ModelRequest`] in its own protocol, and parses the answer into
//! [`Delta`]s, bounded and checked.

pub mod demo;
pub mod http;

use std::sync::Arc;
use std::time::Duration;

use aludel_wire::JsonText;
use futures_util::stream::BoxStream;
use reqwest::header::HeaderMap;
use serde::{Deserialize, Serialize};

use crate::item::Item;

pub use call::{CallResult, ModelCall};
pub use error::{Unreachable, UpstreamError};
pub use fallback::{Fallback, NamedModel};

mod adapter;
mod answer;
pub(crate) mod call;
mod error;
mod fallback;
mod protocol;
mod signatures;

/// A language model that can be called.
pub trait Upstream: Send + Sync {
    /// The model's name, as it is shown to people.
    fn name(&self) -> &str;

    /// Vendor of the protocol, in the terms of OpenTelemetry's `gen_ai.provider.name`; the actual server may be another's.
    fn provider(&self) -> &'static str {
        "openai"
    }

    /// Returns the model's capabilities, which do not change during the upstream's life.
    fn capabilities(&self) -> ModelCapabilities;

    /// Calls the model once.
    ///
    /// The stream ends after [`Delta::Finished`], or after the first error. Nothing happens before it is polled, and dropping it ends the
    /// request. The upstream itself limits time and size; the caller limits the number of calls.
    fn call(&self, request: ModelRequest) -> BoxStream<'static, Result<Delta, UpstreamError>>;
}

impl<U: Upstream + ?Sized> Upstream for std::sync::Arc<U> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn provider(&self) -> &'static str {
        (**self).provider()
    }

    fn capabilities(&self) -> ModelCapabilities {
        (**self).capabilities()
    }

    fn call(&self, request: ModelRequest) -> BoxStream<'static, Result<Delta, UpstreamError>> {
        (**self).call(request)
    }
}

/// Abilities of a model beyond text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelCapabilities {
    /// It can call functions. Otherwise the loop asks for code in a fenced block, and the upstream gets only text.
    pub function_calling: bool,
    /// It takes images.
    pub vision: bool,
}

/// One call of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRequest {
    /// The owner of the conversation. Nothing that is kept of an answer for later requests is sent for another owner.
    pub owner: String,
    /// The system prompt. May be empty.
    pub instructions: String,
    /// The conversation so far, oldest first. Its last item is a user's message or a tool's output.
    pub items: Vec<Item>,
    /// The tools that may be called.
    pub tools: Vec<FunctionTool>,
    /// Tools that the model must or must not call.
    pub tool_choice: ToolChoice,
    /// Sampling parameters.
    pub sampling: Sampling,
    /// Additional headers, for a trace that the model's server takes part in.
    pub headers: HeaderMap,
}

/// A function that a model can call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionTool {
    /// Its name.
    pub name: String,
    /// Its purpose, for the model.
    pub description: String,
    /// A JSON Schema of its one argument, an object.
    pub parameters: JsonText,
    /// True if the arguments must match the schema exactly, where the client says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// Returns this name, or a longer one if one of these tools has it.
pub(crate) fn free_name(name: &str, taken: &[FunctionTool]) -> String {
    let mut name = name.to_owned();
    while taken.iter().any(|tool| tool.name == name) {
        name.push_str("_sandbox");
    }
    name
}

/// Tools that the model must or must not call.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// No tool: the model answers.
    None,
    /// Some tool.
    Required,
    /// The tool of this name.
    Named(String),
}

/// An amount of thinking: none, of models that can be told so. To others it is not sent.
pub const NO_THINKING: &str = "off";

/// Sampling parameters. For `None` the upstream's default applies.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// Randomness.
    pub temperature: Option<f64>,
    /// Nucleus sampling.
    pub top_p: Option<f64>,
    /// The most tokens of one answer; of all rounds of a turn, where an agent asks.
    pub max_output_tokens: Option<u32>,
    /// The most tokens of an answer before any of its rounds, if they are fewer now: for what has to be the same in all rounds.
    pub whole_output_tokens: Option<u32>,
    /// Amount of thinking of a reasoning model, in the upstream's terms.
    pub reasoning_effort: Option<String>,
    /// The form of the answer, where it is not free.
    pub format: Option<AnswerFormat>,
    /// The model may call several tools at once.
    pub parallel_calls: Option<bool>,
    /// Further fields of a Chat Completions request, as its client sent them. Upstreams of other protocols ignore them.
    pub chat_fields: serde_json::Map<String, serde_json::Value>,
}

/// The form that an answer must have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum AnswerFormat {
    /// Some JSON object.
    Json,
    /// JSON with a schema: an object with `name`, `schema` and optionally `strict` and `description`.
    Schema(serde_json::Value),
}

/// A piece of the model's answer.
///
/// Calls are numbered from 0 in the order in which they start; a call's arguments come after its start, in one fragment or in many.
#[derive(Debug, Clone, PartialEq)]
pub enum Delta {
    /// There is no answer yet and the call is repeated after a wait, because the upstream is busy or broken.
    Retrying {
        /// Time until the next attempt.
        wait: Duration,
        /// The failure, in words.
        reason: String,
    },
    /// The model failed before its answer began, and another one is asked instead.
    FellBack {
        /// The failure.
        error: UpstreamError,
        /// Name of the next model in the configuration.
        model: Arc<str>,
        /// Provider of the next model.
        provider: &'static str,
    },
    /// Text of the answer.
    Text(String),
    /// Thoughts that precede the answer.
    Reasoning(String),
    /// The model declines to answer, and says so in this text.
    Refusal(String),
    /// A call of a tool starts.
    CallStarted {
        /// Index of the call.
        index: usize,
        /// The upstream's id of it; empty if it gave none.
        id: String,
        /// The name of the tool, as the model wrote it.
        name: String,
    },
    /// A fragment of a call's arguments; all fragments together are JSON text.
    CallArguments {
        /// Index of the call.
        index: usize,
        /// The next characters.
        fragment: String,
    },
    /// Usage of the call so far; the last one counts.
    Usage(TokenUsage),
    /// The end of the answer; nothing comes after it.
    Finished(FinishReason),
}

/// Tokens that were used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenUsage {
    /// Tokens that the model read.
    pub input: u64,
    /// Of these, tokens that the upstream had cached.
    pub cached: u64,
    /// Tokens that the model wrote, thoughts included.
    pub output: u64,
    /// Of these, tokens of thoughts.
    pub reasoning: u64,
}

impl TokenUsage {
    /// Tokens read and written.
    pub fn total(&self) -> u64 {
        self.input.saturating_add(self.output)
    }
}

impl std::ops::AddAssign for TokenUsage {
    fn add_assign(&mut self, other: Self) {
        self.input = self.input.saturating_add(other.input);
        self.cached = self.cached.saturating_add(other.cached);
        self.output = self.output.saturating_add(other.output);
        self.reasoning = self.reasoning.saturating_add(other.reasoning);
    }
}

/// Reason for the end of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// It was done, or waits for the answers of the tools it called.
    Stop,
    /// Its token limit for one answer.
    Length,
    /// The upstream's filter withheld the rest.
    ContentFilter,
}
