//! Differences between servers of the same protocol, learnt from their answers and refusals.

use std::sync::Arc;

use parking_lot::Mutex;
use reqwest::Url;

use super::request::{MaxTokens, Style};
use crate::upstream::UpstreamError;

/// Requirements of one server. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Quirks(Arc<Mutex<KnownQuirks>>);

#[derive(Debug)]
struct KnownQuirks {
    max_tokens: MaxTokens,
    stream_options: bool,
    /// True if it takes an amount of thinking.
    effort: bool,
    /// True if it requires its `reasoning_content` in requests; `None` if it has sent none.
    thoughts: Option<bool>,
}

impl Quirks {
    /// Returns the requirements of a server that was never asked.
    pub(super) fn of(base: &Url) -> Self {
        // OpenAI's own models refuse the field name that all other servers know.
        let max_tokens = if is_openai(base) { MaxTokens::OfCompletion } else { MaxTokens::Plain };
        Self(Arc::new(Mutex::new(KnownQuirks { max_tokens, stream_options: true, effort: true, thoughts: None })))
    }

    /// Returns the style of the next request.
    pub(super) fn style(&self) -> Style {
        let known = self.0.lock();
        Style {
            max_tokens: known.max_tokens,
            stream_options: known.stream_options,
            effort: known.effort,
            thoughts: known.thoughts.unwrap_or(false),
        }
    }

    /// Records that it sends thoughts in this field. Some servers then require them in later requests, and the others accept them.
    pub(super) fn saw_thoughts(&self) {
        self.0.lock().thoughts.get_or_insert(true);
    }

    /// Learns from a refusal of a request in this style. Returns true if the next request will be different.
    pub(super) fn learn(&self, style: Style, error: &UpstreamError) -> bool {
        let UpstreamError::Rejected { status: 400 | 422, detail, .. } = error else { return false };
        let mut known = self.0.lock();
        if style.stream_options && detail.contains("stream_options") {
            // It knows an older version of the protocol; usage is then estimated.
            known.stream_options = false;
            true
        } else if style.max_tokens == MaxTokens::Plain && detail.contains("max_completion_tokens") {
            // A model of OpenAI's at another address.
            known.max_tokens = MaxTokens::OfCompletion;
            true
        } else if style.effort && detail.contains("reasoning_effort") && is_of_the_field(detail) {
            // A model that does not think.
            known.effort = false;
            true
        } else if detail.contains("reasoning_content") {
            // It either requires its thoughts, or does not know the field.
            known.thoughts = Some(!style.thoughts);
            true
        } else {
            false
        }
    }
}

/// Returns true if a refusal is of a field, and not of the value that one client gave it.
fn is_of_the_field(detail: &str) -> bool {
    ["Unsupported parameter", "Unrecognized", "not permitted"].iter().any(|words| detail.contains(words))
}

/// Returns true for an API with OpenAI's own models.
fn is_openai(base: &Url) -> bool {
    let host = base.host_str().unwrap_or_default();
    host == "api.openai.com" || host.ends_with(".openai.azure.com")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_openai_wants_the_limit_under_its_own_name() {
        for (url, expected) in [
            ("https://api.openai.com/v1", MaxTokens::OfCompletion),
            ("https://mine.openai.azure.com/openai/v1", MaxTokens::OfCompletion),
            ("http://localhost:8000/v1", MaxTokens::Plain),
        ] {
            assert_eq!(Quirks::of(&url.parse().unwrap()).style().max_tokens, expected, "{url}");
        }
    }
}
