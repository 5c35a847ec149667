//! Sanitizing of text from a sandbox or a model for a terminal and its reader.

use std::io::{self, IsTerminal};

use crate::config::HostEnvironment;

/// The variable with the width of the terminal, for programs.
pub(crate) const COLUMNS: &str = "COLUMNS";

/// Removes control characters and escape sequences from a stream, even if a sequence is split over pieces. Newlines, tabs and carriage
/// returns stay: progress bars need them.
#[derive(Debug, Default)]
pub(crate) struct Sanitizer {
    state: State,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    /// After an escape character.
    Escape,
    /// In an escape sequence that is neither of the two below, before its final character.
    Intermediate,
    /// In a control sequence, until its final character.
    Control,
    /// In a title or similar, until its terminator or the end of the line: an unterminated one must not swallow all that follows.
    Title,
}

impl Sanitizer {
    /// The next piece, without what could control the terminal.
    pub(crate) fn clean(&mut self, piece: &str) -> String {
        piece.chars().filter(|character| self.keeps(*character)).collect()
    }

    fn keeps(&mut self, character: char) -> bool {
        let (state, keeps) = match (self.state, character) {
            (_, '\u{1b}') => (State::Escape, false),
            // A newline always starts anew.
            (_, '\n') => (State::Text, true),
            // The one-character forms of the sequences below.
            (State::Text, '\u{9b}') => (State::Control, false),
            (State::Text, '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}') => (State::Title, false),
            (State::Text, '\t' | '\r') => (State::Text, true),
            (State::Text, other) => (State::Text, !is_deceptive(other)),
            (State::Escape, '[') => (State::Control, false),
            (State::Escape, ']' | 'P' | '_' | '^' | 'X') => (State::Title, false),
            (State::Escape | State::Intermediate, '\u{20}'..='\u{2f}') => (State::Intermediate, false),
            (State::Escape | State::Intermediate, _) => (State::Text, false),
            (State::Control, '\u{40}'..='\u{7e}') => (State::Text, false),
            (State::Control, _) => (State::Control, false),
            (State::Title, '\u{7}' | '\u{9c}') => (State::Text, false),
            (State::Title, _) => (State::Title, false),
        };
        self.state = state;
        keeps
    }
}

/// Returns true for control characters, and those that disguise text by turning its direction.
fn is_deceptive(character: char) -> bool {
    character.is_control() || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns true if a character is allowed in the name of a file that we make.
pub(crate) fn is_harmless(character: char) -> bool {
    !is_deceptive(character) && !is_invisible(character)
}

/// Cleans a whole text at once.
pub(crate) fn clean(text: &str) -> String {
    Sanitizer::default().clean(text)
}

/// Columns of the terminal at stdout, or as many as are usual.
pub(crate) fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
    size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(80)
}

/// Columns and pixels of a line of the terminal at stdout, if it reports both.
pub(crate) fn pixels() -> Option<(u16, u16)> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some((size.ws_col, size.ws_xpixel)).filter(|(columns, pixels)| *columns > 0 && *pixels > 0)
}

/// Columns of the terminal at stdout, if there is one.
pub(crate) fn room() -> Option<usize> {
    io::stdout().is_terminal().then(width)
}

/// Columns for programs' output: those of the terminal at stdout, or the value of COLUMNS for it; `None` without a terminal.
pub(crate) fn columns(host: &HostEnvironment) -> Option<usize> {
    let columns = host.variable(COLUMNS).and_then(|columns| columns.parse().ok());
    room().map(|width| columns.filter(|columns| *columns > 0).unwrap_or(width))
}

/// A name, on one line.
pub(crate) fn name(text: &str) -> String {
    clean(text).replace(['\n', '\r', '\t'], " ")
}

/// Code for a person's decision: nothing is removed, and invisible characters are escaped.
pub(crate) fn reveal(code: &str) -> String {
    let mut text = String::with_capacity(code.len());
    for character in code.chars() {
        match character {
            '\n' | '\t' => text.push(character),
            hidden if is_deceptive(hidden) || is_invisible(hidden) => text.extend(hidden.escape_unicode()),
            other => text.push(other),
        }
    }
    text
}

/// The beginning of a text on one line, at most so many characters, with nothing hidden.
pub(crate) fn excerpt(text: &str, most: usize) -> String {
    let line = reveal(text).replace(['\n', '\t'], " ");
    match line.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

/// Returns true for characters without a width, which make different names look the same, and for those that end a line in some programs.
fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{2060}'..='\u{2065}'
            | '\u{206a}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_go_at_every_split() {
        let text = "a\u{1b}[31mred\u{1b}[0m\u{1b}]0;title\u{7}b\u{1b}]8;;http://x\u{1b}\\c\u{7}\u{8}\td\u{202e}e\u{9b}2Jf\u{9d}t\u{9c}g\u{1b}(0h\n";
        for split in text.char_indices().map(|(at, _)| at) {
            let (left, right) = text.split_at(split);
            let mut sanitizer = Sanitizer::default();
            assert_eq!(sanitizer.clean(left) + &sanitizer.clean(right), "aredbc\tdefgh\n", "split at {split}");
        }
    }

    #[test]
    fn an_unterminated_sequence_ends_with_the_line() {
        for start in ["\u{1b}]0;", "\u{1b}P", "\u{1b}[12", "\u{9d}", "\u{1b}"] {
            assert_eq!(clean(&format!("a{start}\nthe rest")), "a\nthe rest", "{start:?}");
        }
    }

    #[test]
    fn a_name_is_one_line() {
        assert_eq!(name("a\nb\u{1b}[2K\rc"), "a b c");
    }

    #[test]
    fn code_hides_nothing() {
        assert_eq!(
            reveal("x = 1\t# \u{202e}evil\r\n\u{1b}[2Ky\u{200b}\u{2028}\u{e0041}"),
            "x = 1\t# \\u{202e}evil\\u{d}\n\\u{1b}[2Ky\\u{200b}\\u{2028}\\u{e0041}"
        );
    }
}
