//! The end of a forwarded answer, which has its token counts if the model's server sends them.

use aludel_agent::upstream::TokenUsage;
use serde::Deserialize;

/// Bytes of the end that are kept: longer than any usage with what follows it.
const SIZE: usize = 8 << 10;
const USAGE: &[u8] = b"\"usage\":";

/// Tokens in the words of Chat Completions and of Messages.
#[derive(Deserialize)]
struct Tokens {
    #[serde(alias = "prompt_tokens", default)]
    input_tokens: Option<u64>,
    #[serde(alias = "completion_tokens", default)]
    output_tokens: Option<u64>,
}

/// The last bytes of an answer.
#[derive(Debug, Default)]
pub(super) struct Tail(Vec<u8>);

impl Tail {
    /// Adds the next bytes.
    pub(super) fn push(&mut self, piece: &[u8]) {
        let piece = piece.get(piece.len().saturating_sub(SIZE)..).unwrap_or_default();
        let surplus = (self.0.len() + piece.len()).saturating_sub(SIZE);
        self.0.drain(..surplus.min(self.0.len()));
        self.0.extend_from_slice(piece);
    }

    /// The last usage in it. `None` for compressed answers, and those without usage.
    pub(super) fn usage(&self) -> Option<TokenUsage> {
        let mut end = self.0.len();
        // Most events of a stream have a null usage.
        while let Some(at) = self.0.get(..end)?.windows(USAGE.len()).rposition(|bytes| bytes == USAGE) {
            let value = self.0.get(at + USAGE.len()..)?;
            if let Ok(Some(Tokens { input_tokens, output_tokens })) =
                Option::<Tokens>::deserialize(&mut serde_json::Deserializer::from_slice(value))
            {
                let (input, output) = (input_tokens.unwrap_or_default(), output_tokens.unwrap_or_default());
                if input > 0 || output > 0 {
                    return Some(TokenUsage { input, output, ..TokenUsage::default() });
                }
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
        let message = r#"{"type":"message_delta","usage":{"input_tokens":3,"output_tokens":4}}"#;
        assert_eq!(usage_of([message]), Some((3, 4)));
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
