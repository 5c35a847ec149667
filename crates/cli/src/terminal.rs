//! Making text that came from a sandbox or a model harmless for a terminal.

use std::io::IsTerminal;

/// Takes control characters and escape sequences out of a stream, also when a sequence is split over pieces. Newlines, tabs and carriage
/// returns stay.
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
    /// In a control sequence, until its final byte.
    Control,
    /// In a title or the like, until its terminator.
    Title,
}

impl Sanitizer {
    /// The next piece, without what could control the terminal.
    pub(crate) fn clean(&mut self, piece: &str) -> String {
        piece.chars().filter(|character| self.keeps(*character)).collect()
    }

    fn keeps(&mut self, character: char) -> bool {
        match self.state {
            State::Text => match character {
                '\u{1b}' => {
                    self.state = State::Escape;
                    false
                }
                '\n' | '\t' | '\r' => true,
                // Right-to-left overrides make code look like other code.
                '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => false,
                other => !other.is_control(),
            },
            State::Escape => {
                self.state = match character {
                    '[' => State::Control,
                    ']' | 'P' | '_' | '^' | 'X' => State::Title,
                    _ => State::Text,
                };
                false
            }
            State::Control => {
                if ('\u{40}'..='\u{7e}').contains(&character) {
                    self.state = State::Text;
                }
                false
            }
            State::Title => {
                match character {
                    '\u{7}' => self.state = State::Text,
                    '\u{1b}' => self.state = State::Escape,
                    '\n' => self.state = State::Text,
                    _ => {}
                }
                false
            }
        }
    }
}

/// Cleans a whole text at once.
pub(crate) fn clean(text: &str) -> String {
    Sanitizer::default().clean(text)
}

/// A name on one line.
pub(crate) fn name(text: &str) -> String {
    clean(text).replace(['\n', '\r', '\t'], " ")
}

/// Whether a person looks at our standard output.
pub(crate) fn is_interactive() -> bool {
    std::io::stdout().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_go_at_every_split() {
        let text = "a\u{1b}[31mred\u{1b}[0m\u{1b}]0;title\u{7}b\u{1b}]8;;http://x\u{1b}\\c\u{7}\u{8}\td\u{202e}e\n";
        for split in text.char_indices().map(|(at, _)| at) {
            let (left, right) = text.split_at(split);
            let mut sanitizer = Sanitizer::default();
            assert_eq!(sanitizer.clean(left) + &sanitizer.clean(right), "aredbc\tde\n", "split at {split}");
        }
    }
}
