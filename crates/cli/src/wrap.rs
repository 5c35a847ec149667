//! Lines that end between words.

use unicode_width::UnicodeWidthChar as _;

/// A line of text that is being written, in so many columns.
#[derive(Debug)]
pub(super) struct Wrap {
    width: usize,
    column: usize,
    /// Blanks before the word.
    blanks: usize,
    /// The word that is being written, with its paint.
    word: String,
    word_width: usize,
    /// Blanks at the beginning of lines that go on.
    indent: usize,
}

impl Wrap {
    pub(super) fn new(width: usize) -> Self {
        Self { width, column: 0, blanks: 0, word: String::new(), word_width: 0, indent: 0 }
    }

    /// Takes the next character.
    pub(super) fn push(&mut self, character: char, out: &mut String) {
        if character == ' ' {
            self.end_word(out);
            self.blanks += 1;
        } else {
            self.word.push(character);
            self.word_width += character.width().unwrap_or_default();
        }
    }

    /// Takes paint, which has no width.
    pub(super) fn paint(&mut self, paint: &str) {
        self.word.push_str(paint);
    }

    /// Sets the blanks at the beginning of lines that go on.
    pub(super) fn hang(&mut self, indent: usize) {
        self.indent = indent.min(self.width / 2);
    }

    /// Shows the word that is being written.
    pub(super) fn end_word(&mut self, out: &mut String) {
        if self.word_width > 0 {
            let blanks = std::mem::take(&mut self.blanks);
            if self.column > self.indent && self.column + blanks + self.word_width > self.width {
                out.push('\n');
                out.push_str(&" ".repeat(self.indent));
                self.column = self.indent;
            } else {
                out.push_str(&" ".repeat(blanks));
                self.column += blanks;
            }
            // A word that is longer than a line goes on in the next one.
            self.column = (self.column + self.word_width) % self.width.max(1);
        }
        out.push_str(&std::mem::take(&mut self.word));
        self.word_width = 0;
    }

    /// Ends the line.
    pub(super) fn end_line(&mut self, out: &mut String) {
        self.end_word(out);
        (self.column, self.blanks, self.indent) = (0, 0, 0);
    }
}
