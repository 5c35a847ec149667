//! The end of an answer that is handed on: there stands what it cost, if the model's server says so.

use aludel_agent::upstream::Usage;
use aludel_wire::chat;
use serde::Deserialize;

/// Bytes of the end that are kept: more than any usage takes, and than what comes after it.
const SIZE: usize = 8 << 10;
const USAGE: &[u8] = b"\"usage\":";

/// The last bytes of an answer.
#[derive(Debug, Default)]
pub(super) struct Tail(Vec<u8>);

impl Tail {
    /// Takes the next bytes.
    pub(super) fn push(&mut self, piece: &[u8]) {
        let piece = piece.get(piece.len().saturating_sub(SIZE)..).unwrap_or_default();
        let surplus = (self.0.len() + piece.len()).saturating_sub(SIZE);
        self.0.drain(..surplus.min(self.0.len()));
        self.0.extend_from_slice(piece);
    }

    /// The last usage that is told. None of packed answers, and none of those that leave it out.
    pub(super) fn usage(&self) -> Option<Usage> {
        let mut end = self.0.len();
        // Most events of a stream say that there is none yet.
        while let Some(at) = self.0.get(..end)?.windows(USAGE.len()).rposition(|bytes| bytes == USAGE) {
            let value = self.0.get(at + USAGE.len()..)?;
            if let Ok(Some(usage)) =
                Option::<chat::Usage>::deserialize(&mut serde_json::Deserializer::from_slice(value))
                && (usage.prompt_tokens > 0 || usage.completion_tokens > 0)
            {
                let (input, output) = (usage.prompt_tokens, usage.completion_tokens);
                return Some(Usage { input, output, ..Usage::default() });
            }
            end = at;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage_of<'p>(pieces: impl IntoIterator<Item = &'p str>) -> Option<(u64, u64)> {
        let mut tail = Tail::default();
        pieces.into_iter().for_each(|piece| tail.push(piece.as_bytes()));
        tail.usage().map(|usage| (usage.input, usage.output))
    }

    #[test]
    fn the_last_usage_counts_however_it_is_cut() {
        let whole =
            r#"{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "other": {"x": [1]}}, "z": 1}"#;
        assert_eq!(usage_of([whole]), Some((3, 4)));
        let bytes: Vec<String> = whole.chars().map(String::from).collect();
        assert_eq!(usage_of(bytes.iter().map(String::as_str)), Some((3, 4)));
        let stream = ["data: {\"usage\":{\"prompt_tokens\":1}}\n\n", "data: {\"usage\":null}\n\ndata: [DONE]\n\n"];
        assert_eq!(usage_of(stream), Some((1, 0)));
        assert_eq!(usage_of(["data: {}\n\n"; 5000].into_iter().chain([whole])), Some((3, 4)));
        for none in ["", "{}", "{\"usage\":", "{\"usage\":null}", "\"usage\":\"usage\":{", "\u{1f}\u{8b}"] {
            assert_eq!(usage_of([none]), None, "{none}");
        }
    }
}
