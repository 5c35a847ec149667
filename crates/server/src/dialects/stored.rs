//! Conversations that are combined from stored requests, in the form for a model.

use aludel_agent::Item;

use crate::error::{ApiError, CONTEXT_EXCEEDED};

/// Longest chain of requests that continue each other.
const MAX_CHAIN: usize = 1000;
/// Bytes of JSON in one conversation.
pub(crate) const MAX_CONTEXT: u64 = 64 << 20;

/// The size of a conversation.
#[derive(Debug, Default)]
pub(crate) struct Length {
    requests: usize,
    bytes: u64,
}

impl Length {
    /// Adds a request of this size; fails if it makes the conversation too long.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.requests += 1;
        self.bytes += bytes as u64;
        if self.requests > MAX_CHAIN || self.bytes > MAX_CONTEXT { Err(too_long()) } else { Ok(()) }
    }
}

/// The refusal of a conversation that is too long.
pub(crate) fn too_long() -> ApiError {
    let message = format!("The conversation is longer than {} MB; begin a new one.", MAX_CONTEXT >> 20);
    ApiError::bad_request(message).code(CONTEXT_EXCEEDED)
}

/// Adds a placeholder answer to each unanswered call: models expect none without an answer.
pub(crate) fn answered(items: Vec<Item>, is_open: impl Fn(&str) -> bool) -> Vec<Item> {
    let mut finished = Vec::with_capacity(items.len());
    for item in items {
        let unanswered = match &item {
            Item::Call(call) if is_open(&call.id) => Some(call.id.clone()),
            _ => None,
        };
        finished.push(item);
        finished.extend(unanswered.map(|id| Item::output(id, "(the call was not answered)")));
    }
    finished
}
