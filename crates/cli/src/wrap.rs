//! Lines that end between words.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::terminal;

/// A line of text that is being written, in so many columns.
#[derive(Debug)]
pub(crate) struct Wrap {
    width: usize,
    column: usize,
    /// Blanks before the word.
    blanks: usize,
    /// The word that is being written, with its paint.
    word: String,
    word_width: usize,
    /// The beginning of lines that go on, and its columns.
    start: String,
    indent: usize,
}

impl Wrap {
    pub(crate) fn new(width: usize) -> Self {
        Self { width, column: 0, blanks: 0, word: String::new(), word_width: 0, start: String::new(), indent: 0 }
    }

    /// Takes the next character.
    pub(crate) fn push(&mut self, character: char, out: &mut String) {
        if character == ' ' {
            self.end_word(out);
            self.blanks += 1;
        } else {
            self.word.push(character);
            self.word_width += character.width().unwrap_or_default();
        }
    }

    /// Takes paint, which has no width.
    pub(crate) fn paint(&mut self, paint: &str) {
        self.word.push_str(paint);
    }

    /// Sets the indentation of continued lines, if it leaves room for words.
    pub(crate) fn hang(&mut self, start: &str) {
        self.indent = start.width();
        self.start = start.to_owned();
        if self.indent > self.width / 2 {
            self.start = " ".repeat(self.width / 2);
            self.indent = self.width / 2;
        }
    }

    /// Shows the word that is being written.
    pub(crate) fn end_word(&mut self, out: &mut String) {
        if self.word_width > 0 {
            let blanks = std::mem::take(&mut self.blanks);
            if self.column > self.indent && self.column + blanks + self.word_width > self.width {
                out.push('\n');
                out.push_str(&self.start);
                self.column = self.indent;
            } else {
                out.push_str(&" ".repeat(blanks));
                self.column += blanks;
            }
            self.column += self.word_width;
            // A word that is longer than a line continues in the next one.
            if self.column > self.width {
                self.column = (self.column - 1) % self.width.max(1) + 1;
            }
        }
        out.push_str(&std::mem::take(&mut self.word));
        self.word_width = 0;
    }

    /// Ends the line.
    pub(crate) fn end_line(&mut self, out: &mut String) {
        self.end_word(out);
        (self.column, self.blanks, self.indent) = (0, 0, 0);
        self.start.clear();
    }
}

/// A line for the terminal at stdout, whose continued lines begin at this column, or near the margin if there is no room. Elsewhere it
/// stays one line.
pub(crate) fn hanging(line: &str, column: usize) -> String {
    match terminal::room() {
        Some(width) => wrapped(line, if column > width / 2 { 2 } else { column }, width),
        None => line.to_owned(),
    }
}

/// A line wrapped at this width, with all lines but the first indented.
fn wrapped(line: &str, indent: usize, width: usize) -> String {
    let (mut wrap, mut out) = (Wrap::new(width), String::new());
    wrap.hang(&" ".repeat(indent));
    let mut rest = line;
    while let Some(character) = rest.chars().next() {
        // Our styles end with the letter m.
        let length = match rest.find('m').filter(|_| character == '\u{1b}') {
            Some(end) => {
                wrap.paint(&rest[..=end]);
                end + 1
            }
            None => {
                wrap.push(character, &mut out);
                character.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    wrap.end_word(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_on_below_its_column() {
        assert_eq!(wrapped("a  bc de", 3, 6), "a  bc\n   de");
        assert_eq!(wrapped("\u{1b}[2mab\u{1b}[0m cd", 0, 4), "\u{1b}[2mab\u{1b}[0m\ncd");
        assert_eq!(wrapped("abcd ef", 0, 4), "abcd\nef", "a word that ends with the line");
        assert_eq!(wrapped("abcdefgh ij kl", 0, 4), "abcdefgh\nij\nkl", "a word of two lines");
        assert_eq!(wrapped("abcdef g hi", 0, 4), "abcdef g\nhi", "a word that goes on in the next line");
    }
}
