//! From the pieces of an answer to deltas.

use std::time::Duration;

use aludel_wire::chat::CallDelta;

use crate::flow::Sink;
use crate::upstream::{Delta, FinishReason, UpstreamError, Usage};

/// Bytes of one call's arguments.
const MAX_ARGUMENTS: usize = 1 << 20;
/// Calls in one answer.
const MAX_CALLS: usize = 64;

/// An answer as it comes.
pub(super) struct Answer {
    sink: Sink<Result<Delta, UpstreamError>>,
    /// Whether anything of it was passed on: then it cannot be asked for again.
    said: bool,
    /// The calls that have started: their number at the upstream, and the bytes of their arguments.
    calls: Vec<(u32, usize)>,
    finish: Option<FinishReason>,
}

impl Answer {
    /// Nothing has come yet.
    pub(super) fn new(sink: Sink<Result<Delta, UpstreamError>>) -> Self {
        Self { sink, said: false, calls: Vec::new(), finish: None }
    }

    /// Whether anything was passed on.
    pub(super) fn has_begun(&self) -> bool {
        self.said
    }

    /// Whether the upstream said that it is done.
    pub(super) fn is_finished(&self) -> bool {
        self.finish.is_some()
    }

    pub(super) async fn fail(&self, error: UpstreamError) {
        self.sink.send(Err(error)).await;
    }

    pub(super) async fn retrying(&self, wait: Duration, reason: String) {
        self.sink.send(Ok(Delta::Retrying { wait, reason })).await;
    }

    async fn tell(&mut self, delta: Delta) {
        self.said = true;
        self.sink.send(Ok(delta)).await;
    }

    pub(super) async fn text(&mut self, text: Option<String>) {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            self.tell(Delta::Text(text)).await;
        }
    }

    pub(super) async fn reasoning(&mut self, text: Option<String>) {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            self.tell(Delta::Reasoning(text)).await;
        }
    }

    pub(super) async fn refusal(&mut self, text: Option<String>) {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            self.tell(Delta::Refusal(text)).await;
        }
    }

    /// A piece of a call. Some upstreams number none of them; then a new id or name starts a new call.
    pub(super) async fn call(&mut self, delta: CallDelta) -> Result<(), (&'static str, u64)> {
        let names = delta.function.name.as_deref().is_some_and(|name| !name.is_empty());
        let known = match delta.index {
            Some(number) => self.calls.iter().position(|(known, _)| *known == number),
            None if names => None,
            None => self.calls.len().checked_sub(1),
        };
        let index = match known {
            Some(index) => index,
            None => {
                if self.calls.len() == MAX_CALLS {
                    return Err(("the list of its calls", MAX_CALLS as u64));
                }
                let number = delta.index.unwrap_or(self.calls.len() as u32);
                self.calls.push((number, 0));
                let started = Delta::CallStarted {
                    index: self.calls.len() - 1,
                    id: delta.id.unwrap_or_default(),
                    name: delta.function.name.unwrap_or_default(),
                };
                self.tell(started).await;
                self.calls.len() - 1
            }
        };
        if !delta.function.arguments.is_empty() {
            if let Some((_, size)) = self.calls.get_mut(index) {
                *size += delta.function.arguments.len();
                if *size > MAX_ARGUMENTS {
                    return Err(("the arguments of a call", MAX_ARGUMENTS as u64));
                }
            }
            self.tell(Delta::CallArguments { index, fragment: delta.function.arguments }).await;
        }
        Ok(())
    }

    pub(super) async fn usage(&mut self, usage: Option<aludel_wire::chat::Usage>) {
        let Some(usage) = usage.filter(|usage| usage.prompt_tokens > 0 || usage.completion_tokens > 0) else { return };
        let usage = Usage {
            input: usage.prompt_tokens,
            output: usage.completion_tokens,
            cached: usage.prompt_tokens_details.map(|details| details.cached_tokens).unwrap_or_default(),
            reasoning: usage.completion_tokens_details.map(|details| details.reasoning_tokens).unwrap_or_default(),
        };
        // Some send a running figure with every chunk; the loop takes the last.
        self.sink.send(Ok(Delta::Usage(usage))).await;
    }

    pub(super) fn finish(&mut self, reason: &str) {
        self.finish = Some(match reason {
            "length" => FinishReason::Length,
            "content_filter" => FinishReason::ContentFilter,
            _ => FinishReason::Stop,
        });
    }

    pub(super) async fn end(&mut self) {
        let finish = self.finish.unwrap_or(FinishReason::Stop);
        self.sink.send(Ok(Delta::Finished(finish))).await;
    }
}
