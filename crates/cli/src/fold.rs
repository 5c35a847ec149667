//! Long output, folded to its first and last lines as it comes.

use std::collections::VecDeque;

/// Lines that are shown at the beginning.
const FIRST: usize = 20;
/// Lines that are shown at the end.
const LAST: usize = 5;
/// Bytes that are kept of each of the last lines.
const MAX_LINE: usize = 4 << 10;

/// Output that is folded.
#[derive(Debug, Default)]
pub(crate) struct Fold {
    /// Lines that were shown.
    shown: usize,
    /// Number of hidden lines, not counting the last ones.
    hidden: usize,
    /// The last lines, of which the very last may go on.
    last: VecDeque<String>,
    is_open: bool,
}

impl Fold {
    /// Takes the next piece, and returns what of it is shown at once.
    pub(crate) fn push<'a>(&mut self, text: &'a str) -> &'a str {
        let mut end = 0;
        for line in text.split_inclusive('\n') {
            if self.shown < FIRST {
                self.shown += usize::from(line.ends_with('\n'));
                end += line.len();
            } else {
                self.keep(line);
            }
        }
        text.get(..end).unwrap_or_default()
    }

    /// Ends the output: returns the number of hidden lines, and the last lines.
    pub(crate) fn end(&mut self) -> (usize, String) {
        let Self { hidden, last, .. } = std::mem::take(self);
        (hidden, last.into_iter().collect())
    }

    fn keep(&mut self, piece: &str) {
        if !self.is_open {
            if self.last.len() == LAST {
                self.last.pop_front();
                self.hidden += 1;
            }
            self.last.push_back(String::new());
        }
        self.is_open = !piece.ends_with('\n');
        if let Some(line) = self.last.back_mut() {
            let room = MAX_LINE.saturating_sub(line.len());
            line.push_str(piece.get(..piece.floor_char_boundary(room)).unwrap_or_default());
            if !self.is_open && !line.ends_with('\n') {
                line.push_str("…\n");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_left_out_however_the_text_is_cut() {
        let line = |number: usize| format!("line {number}\n");
        for (lines, hidden) in [(0, 0), (3, 0), (20, 0), (25, 0), (26, 1), (1000, 975)] {
            let text: String = (0..lines).map(line).collect();
            for piece in [1, 7, 1 << 20] {
                let mut fold = Fold::default();
                let mut shown = String::new();
                for piece in text.as_bytes().chunks(piece) {
                    shown.push_str(fold.push(std::str::from_utf8(piece).unwrap()));
                }
                assert_eq!(shown, (0..lines.min(FIRST)).map(line).collect::<String>());
                let last: String = (lines.saturating_sub(LAST).max(FIRST)..lines).map(line).collect();
                assert_eq!(fold.end(), (hidden, last), "{lines} lines");
            }
        }
        let mut fold = Fold::default();
        fold.push(&"\n".repeat(FIRST));
        assert_eq!(fold.push(&"x".repeat(1 << 20)), "");
        fold.push("y\nz");
        assert_eq!(fold.end(), (0, format!("{}…\nz", "x".repeat(MAX_LINE))));
    }
}
