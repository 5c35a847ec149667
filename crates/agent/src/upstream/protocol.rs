//! Protocols of models' servers. Each has a file in this directory with an [`Adapter`], and an arm in [`Protocol::adapter`].

mod anthropic;
mod chat_completions;
mod gemini;
mod responses;

use std::sync::Arc;

use reqwest::Url;

use super::adapter::Adapter;
use anthropic::Messages;
use chat_completions::ChatCompletions;
use gemini::Gemini;
use responses::Responses;

/// The protocol of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Chat Completions.
    ChatCompletions,
    /// Responses.
    Responses,
    /// Anthropic's Messages.
    Anthropic,
    /// Google's Gemini.
    Gemini,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::ChatCompletions, Self::Responses, Self::Anthropic, Self::Gemini];

    /// Makes the adapter for one server of this protocol.
    pub(super) fn adapter(self, base: &Url) -> Arc<dyn Adapter> {
        match self {
            Self::ChatCompletions => Arc::new(ChatCompletions::of(base)),
            Self::Responses => Arc::new(Responses),
            Self::Anthropic => Arc::new(Messages::default()),
            Self::Gemini => Arc::new(Gemini::default()),
        }
    }
}
