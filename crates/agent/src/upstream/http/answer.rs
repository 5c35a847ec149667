//! An answer as it comes: the protocol's pieces in, deltas out.

use aludel_wire::chat::{self, CallDelta};

use crate::flow::Sink;
use crate::upstream::{Delta, FinishReason, UpstreamError, Usage};

/// Bytes of one call's arguments.
const MAX_ARGUMENTS: usize = 1 << 20;
/// Calls in one answer.
const MAX_CALLS: usize = 64;

/// An answer that is being passed on.
pub(super) struct Answer {
    sink: Sink<Result<Delta, UpstreamError>>,
    begun: bool,
    calls: Vec<Started>,
    finish: Option<FinishReason>,
}

/// A call that has started: what it is known by at the upstream, and the bytes of its arguments so far.
struct Started {
    number: Option<u32>,
    id: String,
    size: usize,
}

impl Answer {
    pub(super) fn new(sink: Sink<Result<Delta, UpstreamError>>) -> Self {
        Self { sink, begun: false, calls: Vec::new(), finish: None }
    }

    /// Returns true once anything of it was passed on: then it cannot be asked for again.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Returns true once all of it has come, but for the usage.
    pub(super) fn is_whole(&self) -> bool {
        self.finish.is_some()
    }

    /// Passes on what is no part of the answer itself.
    pub(super) async fn tell(&mut self, delta: Delta) {
        self.sink.send(Ok(delta)).await;
    }

    pub(super) async fn fail(&mut self, error: UpstreamError) {
        self.sink.send(Err(error)).await;
    }

    async fn say(&mut self, delta: Delta) {
        self.begun = true;
        self.tell(delta).await;
    }

    pub(super) async fn text(&mut self, text: Option<String>) {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            self.say(Delta::Text(text)).await;
        }
    }

    pub(super) async fn reasoning(&mut self, text: Option<String>) {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            self.say(Delta::Reasoning(text)).await;
        }
    }

    pub(super) async fn refusal(&mut self, text: Option<String>) {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            self.say(Delta::Refusal(text)).await;
        }
    }

    /// A piece of a call. The error names the bound that it exceeds.
    pub(super) async fn call(&mut self, delta: CallDelta) -> Result<(), (&'static str, u64)> {
        let index = match self.find(&delta) {
            Some(index) => index,
            None => {
                if self.calls.len() == MAX_CALLS {
                    return Err(("the list of its calls", MAX_CALLS as u64));
                }
                let index = self.calls.len();
                let id = delta.id.unwrap_or_default();
                self.calls.push(Started { number: delta.index, id: id.clone(), size: 0 });
                let name = delta.function.name.unwrap_or_default();
                self.say(Delta::CallStarted { index, id, name }).await;
                index
            }
        };
        let fragment = delta.function.arguments;
        if !fragment.is_empty() {
            let call = &mut self.calls[index];
            call.size += fragment.len();
            if call.size > MAX_ARGUMENTS {
                return Err(("the arguments of a call", MAX_ARGUMENTS as u64));
            }
            self.say(Delta::CallArguments { index, fragment }).await;
        }
        Ok(())
    }

    /// The call that the piece belongs to, unless it starts a new one. Servers differ in what they tell calls apart by.
    fn find(&self, delta: &CallDelta) -> Option<usize> {
        let id = delta.id.as_deref().filter(|id| !id.is_empty());
        match (delta.index, id) {
            // Some number every call 0; then only the id tells.
            (Some(number), id) => self
                .calls
                .iter()
                .rposition(|call| call.number == Some(number))
                .filter(|at| id.is_none_or(|id| self.calls[*at].id.is_empty() || self.calls[*at].id == id)),
            (None, Some(id)) => self.calls.iter().position(|call| call.id == id),
            (None, None) if delta.function.name.as_deref().is_some_and(|name| !name.is_empty()) => None,
            (None, None) => self.calls.len().checked_sub(1),
        }
    }

    /// Some send a running figure with every chunk; the reader takes the last.
    pub(super) async fn usage(&mut self, usage: Option<chat::Usage>) {
        let Some(usage) = usage.filter(|usage| usage.prompt_tokens > 0 || usage.completion_tokens > 0) else { return };
        let usage = Usage {
            input: usage.prompt_tokens,
            output: usage.completion_tokens,
            cached: usage.prompt_tokens_details.map(|details| details.cached_tokens).unwrap_or_default(),
            reasoning: usage.completion_tokens_details.map(|details| details.reasoning_tokens).unwrap_or_default(),
        };
        self.used(usage).await;
    }

    pub(super) async fn used(&mut self, usage: Usage) {
        self.tell(Delta::Usage(usage)).await;
    }

    pub(super) fn finish(&mut self, reason: &str) {
        self.finish = Some(match reason.to_ascii_lowercase().as_str() {
            "length" | "max_tokens" => FinishReason::Length,
            "content_filter" | "safety" => FinishReason::ContentFilter,
            _ => FinishReason::Stop,
        });
    }

    pub(super) async fn end(&mut self) {
        let finish = self.finish.unwrap_or(FinishReason::Stop);
        self.tell(Delta::Finished(finish)).await;
    }
}
