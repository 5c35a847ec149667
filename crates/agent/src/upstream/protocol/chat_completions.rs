//! Chat Completions, the protocol of nearly all servers, as an upstream.

mod quirks;
mod request;

use std::sync::Arc;

use aludel_wire::chat::{CallDelta, CalledFunctionDelta, Chunk, Delta, ErrorEnvelope, Response, Usage as Tokens};
use reqwest::header::AUTHORIZATION;

use super::Protocol;
use crate::upstream::adapter::{Adapter, Exchange, HttpApi};
use crate::upstream::answer::{AnswerBuilder, CallPiece, Fault};
use crate::upstream::{FinishReason, ModelRequest, TokenUsage, UpstreamError};
use quirks::Quirks;
use request::Style;

impl Protocol {
    /// OpenAI's Chat Completions.
    pub const CHAT_COMPLETIONS: Self = Self {
        word: "chat",
        title: "OpenAI's Chat Completions",
        adapter: |base| Arc::new(ChatCompletions(Quirks::of(base))),
    };
}

static API: HttpApi = HttpApi {
    name: "a Chat Completions API",
    provider: "openai",
    base_path: "",
    query: None,
    key: (AUTHORIZATION, "Bearer "),
    version: None,
    has_openai_methods: true,
};

/// The protocol, with the quirks of one server.
#[derive(Debug)]
struct ChatCompletions(Quirks);

impl Adapter for ChatCompletions {
    fn api(&self) -> &'static HttpApi {
        &API
    }

    fn path(&self, _model: &str) -> String {
        "/chat/completions".to_owned()
    }

    fn exchange(&self) -> Box<dyn Exchange> {
        Box::new(Completion { quirks: self.0.clone(), style: self.0.style() })
    }
}

struct Completion {
    quirks: Quirks,
    style: Style,
}

impl Exchange for Completion {
    fn request(&mut self, model: &str, request: &ModelRequest, vision: bool) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&request::request(model, request, vision, self.style))
    }

    fn event(&mut self, data: &str, answer: &mut AnswerBuilder) -> Result<(), Fault> {
        if let Ok(envelope) = serde_json::from_str::<ErrorEnvelope>(data) {
            return Err(Fault::Failed(envelope.error.message));
        }
        let chunk: Chunk = serde_json::from_str(data)
            .map_err(|error| Fault::NotUnderstood(format!("an event is no completion chunk ({error})")))?;
        count(chunk.usage, answer);
        // Only the first choice is used.
        for choice in chunk.choices.into_iter().filter(|choice| choice.index == 0) {
            self.piece(choice.delta, choice.finish_reason.as_deref(), answer)?;
        }
        Ok(())
    }

    fn body(&mut self, body: &str, answer: &mut AnswerBuilder) -> Result<(), Fault> {
        let response: Response = serde_json::from_str(body)
            .map_err(|error| Fault::NotUnderstood(format!("its JSON is no completion ({error})")))?;
        let choice = response.choices.into_iter().next();
        let choice = choice.ok_or_else(|| Fault::NotUnderstood("it has no choices".to_owned()))?;
        let message = choice.message;
        let calls = message.tool_calls.into_iter().flatten().enumerate().map(|(index, call)| CallDelta {
            index: u32::try_from(index).ok(),
            id: Some(call.id),
            kind: None,
            function: CalledFunctionDelta { name: Some(call.function.name), arguments: call.function.arguments },
        });
        let delta = Delta {
            role: None,
            content: message.content,
            tool_calls: Some(calls.collect()),
            refusal: message.refusal,
            reasoning_content: message.reasoning_content,
            reasoning: message.reasoning,
        };
        count(response.usage, answer);
        self.piece(delta, choice.finish_reason.as_deref().or(Some("stop")), answer)
    }

    fn learn(&mut self, error: &UpstreamError) -> bool {
        self.quirks.learn(self.style, error)
    }
}

impl Completion {
    fn piece(&mut self, delta: Delta, finish: Option<&str>, answer: &mut AnswerBuilder) -> Result<(), Fault> {
        if delta.reasoning_content.as_ref().is_some_and(|text| !text.is_empty()) {
            self.quirks.saw_thoughts();
        }
        answer.reasoning(delta.reasoning_content.or(delta.reasoning));
        answer.text(delta.content);
        answer.refusal(delta.refusal);
        for CallDelta { index, id, function, .. } in delta.tool_calls.into_iter().flatten() {
            answer.call(CallPiece { number: index, id, name: function.name, arguments: function.arguments })?;
        }
        match finish.map(str::to_ascii_lowercase).as_deref() {
            // LocalAI and others send an empty one in every chunk but the last.
            None | Some("") => {}
            Some("error") => return Err(Fault::Failed("it stopped with the finish_reason `error`".to_owned())),
            Some("length" | "max_tokens") => answer.finish(FinishReason::Length),
            Some("content_filter" | "safety") => answer.finish(FinishReason::ContentFilter),
            Some(_) => answer.finish(FinishReason::Stop),
        }
        Ok(())
    }
}

fn count(tokens: Option<Tokens>, answer: &mut AnswerBuilder) {
    let Some(tokens) = tokens.filter(|tokens| tokens.prompt_tokens > 0 || tokens.completion_tokens > 0) else { return };
    answer.usage(TokenUsage {
        input: tokens.prompt_tokens,
        output: tokens.completion_tokens,
        cached: tokens.prompt_tokens_details.map(|details| details.cached_tokens).unwrap_or_default(),
        reasoning: tokens.completion_tokens_details.map(|details| details.reasoning_tokens).unwrap_or_default(),
    });
}
