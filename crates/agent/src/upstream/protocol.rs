//! Protocols of models' servers. Each has a file in the directory of this one, with an [`Adapter`] and its constant of [`Protocol`], and a
//! place in [`Protocol::ALL`].

mod anthropic;
mod chat_completions;
mod gemini;
mod responses;

use std::sync::Arc;

use reqwest::Url;

use super::adapter::Adapter;

/// The protocol of a models' server.
#[derive(Debug, Clone, Copy)]
pub struct Protocol {
    /// Its word in a configuration.
    pub word: &'static str,
    /// Its name in text, with its vendor.
    pub title: &'static str,
    /// Makes the adapter for one server.
    adapter: fn(&Url) -> Arc<dyn Adapter>,
}

impl Protocol {
    /// All of them.
    pub const ALL: &[Self] = &[Self::CHAT_COMPLETIONS, Self::RESPONSES, Self::ANTHROPIC, Self::GEMINI];

    /// Makes the adapter for one server of this protocol.
    pub(super) fn adapter(self, base: &Url) -> Arc<dyn Adapter> {
        (self.adapter)(base)
    }
}

impl PartialEq for Protocol {
    fn eq(&self, other: &Self) -> bool {
        self.word == other.word
    }
}

impl Eq for Protocol {}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_protocol_has_a_word_of_its_own() {
        let words: HashSet<&str> = Protocol::ALL.iter().map(|protocol| protocol.word).collect();
        assert_eq!(words.len(), Protocol::ALL.len());
    }
}
