//! Conversations that are put together from stored requests, as a model gets them.

use aludel_agent::Item;

use crate::error::ApiError;

/// Longest chain of requests, each built on the one before.
const MAX_CHAIN: usize = 1000;
/// Bytes of JSON that make up one conversation.
pub(crate) const MAX_CONTEXT: u64 = 64 << 20;

/// The size of a conversation.
#[derive(Debug, Default)]
pub(crate) struct Length {
    requests: usize,
    bytes: u64,
}

impl Length {
    /// Adds a request of so many bytes; an error if it makes the conversation too long.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.requests += 1;
        self.bytes += bytes as u64;
        if self.requests > MAX_CHAIN || self.bytes > MAX_CONTEXT { Err(too_long()) } else { Ok(()) }
    }
}

/// The refusal of a conversation that is too long.
pub(crate) fn too_long() -> ApiError {
    let message = format!("The conversation is longer than {} MB; begin a new one.", MAX_CONTEXT >> 20);
    ApiError::bad_request(message).code("context_length_exceeded")
}

/// Answers calls that were never answered with words that say so: models see no call without an answer.
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
