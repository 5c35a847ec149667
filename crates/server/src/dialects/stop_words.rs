//! The client's stop words. They end the answer; programs may contain them.

/// Most bytes of a stop word: each piece of an answer costs as much work as the words are long.
const MAX_STOP_WORD: usize = 1024;

/// Finds stop words in a text that comes in pieces.
#[derive(Debug, Clone)]
pub(crate) struct StopWords {
    words: Vec<String>,
    /// Text that may be the beginning of a stop word.
    pending: String,
}

/// The part of a piece that may be sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StopScan {
    /// This part; the text continues.
    Text(String),
    /// This part, which a stop word follows.
    Stopped { text: String, word: String },
}

impl StopScan {
    /// Returns the text, and false if a stop word came after it.
    pub(crate) fn into_text(self) -> (String, bool) {
        match self {
            Self::Text(text) => (text, true),
            Self::Stopped { text, .. } => (text, false),
        }
    }
}

impl StopWords {
    pub(crate) fn new(words: Vec<String>) -> Self {
        Self { words: words.into_iter().filter(|word| !word.is_empty()).collect(), pending: String::new() }
    }

    /// Checks that there are at most so many words, and that none is too long. Otherwise says so, as of the field of this name.
    pub(crate) fn check(words: &[String], most: usize, field: &str) -> Result<(), String> {
        if words.len() <= most && words.iter().all(|word| word.len() <= MAX_STOP_WORD) {
            return Ok(());
        }
        Err(format!("There can be at most {most} words of {MAX_STOP_WORD} bytes each in '{field}'."))
    }

    /// Scans the next piece.
    pub(crate) fn scan(&mut self, piece: &str) -> StopScan {
        let mut text = std::mem::take(&mut self.pending);
        text.push_str(piece);
        // The word that was complete first, as a model would have stopped; the cuts between pieces do not matter.
        let found = self.words.iter().filter_map(|word| text.find(word).map(|place| (place + word.len(), place, word)));
        if let Some((_, place, word)) = found.min() {
            text.truncate(place);
            return StopScan::Stopped { text, word: word.clone() };
        }
        let held = self.words.iter().map(|word| beginning_at_end(&text, word)).max().unwrap_or(0);
        self.pending = text.split_off(text.len() - held);
        StopScan::Text(text)
    }

    /// Ends the text. Returns the part that was held back, which is no stop word.
    pub(crate) fn end(&mut self) -> String {
        std::mem::take(&mut self.pending)
    }
}

/// Length of the longest end of a text with which a word begins.
fn beginning_at_end(text: &str, word: &str) -> usize {
    let beginnings = word.char_indices().map(|(byte, _)| byte).rev();
    beginnings.filter_map(|byte| word.get(..byte)).find(|beginning| text.ends_with(beginning)).map_or(0, str::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut stop = StopWords::new(words.iter().map(|word| (*word).to_owned()).collect());
        let mut shown = String::new();
        for piece in pieces {
            let (text, goes_on) = stop.scan(piece).into_text();
            shown.push_str(&text);
            if !goes_on {
                return (shown, true);
            }
        }
        (shown + &stop.end(), false)
    }

    #[test]
    fn the_word_that_is_complete_first_counts_however_the_text_is_cut() {
        for (words, text, shown) in
            [(["bcd", "c"], "abcd", "ab"), (["abc", "bc"], "abc", ""), (["bb", "abb"], "abb", "")]
        {
            for cut in 0..=text.len() {
                let (left, right) = text.split_at(cut);
                assert_eq!(read(&words, &[left, right]), (shown.into(), true), "{text} cut at {cut}");
            }
        }
    }

    #[test]
    fn a_stop_word_is_found_across_pieces_and_never_told() {
        assert_eq!(read(&["END"], &["a E", "N", "D b"]), ("a ".into(), true));
        assert_eq!(read(&["END"], &["a E", "N", "E"]), ("a ENE".into(), false));
        assert_eq!(read(&["\n\n", "ü!"], &["one\n", "two ü", "! three"]), ("one\ntwo ".into(), true));
        assert_eq!(read(&["bb", "abc"], &["aabcbb"]), ("a".into(), true));
        assert_eq!(read(&["aab"], &["aa", "ab"]), ("a".into(), true));
        assert_eq!(read(&["", "x"], &["abc"]), ("abc".into(), false));
        assert_eq!(read(&[], &["abc", ""]), ("abc".into(), false));
    }
}
