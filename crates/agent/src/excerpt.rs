//! Short and harmless forms of text that came from outside.

use std::borrow::Cow;

/// Bytes of a path that is shown whole.
const MAX_PATH: usize = 400;

/// Removes control characters, terminal escapes and invisible direction marks from a text; newlines and tabs stay.
///
/// A carriage return removes its line, as on a terminal: only the last state of a progress bar is kept.
pub fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut line_start = 0;
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\n' => {
                out.push('\n');
                line_start = out.len();
            }
            '\r' => {
                if !matches!(characters.peek(), Some('\n' | '\r') | None) {
                    out.truncate(line_start);
                }
            }
            '\u{1b}' => skip_escape(&mut characters),
            _ if is_hidden(character) => {}
            _ => out.push(character),
        }
    }
    out
}

/// At most `limit` characters of the text on one line, for an error message.
pub fn line(text: &str, limit: usize) -> String {
    let text = plain(text);
    let mut words = text.split_whitespace();
    let mut out = words.next().unwrap_or("nothing").to_owned();
    for word in words {
        if out.len() > limit {
            break;
        }
        out.push(' ');
        out.push_str(word);
    }
    match out.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", &out[..end]),
        None => out,
    }
}

/// A path on one line, as programs and calls take it: quoted if it has characters that would not be shown as they are, and shortened if it
/// is very long.
pub fn path(path: &str) -> Cow<'_, str> {
    if path.len() > MAX_PATH {
        return Cow::Owned(line(path, MAX_PATH / 2));
    }
    let is_plain = !path.contains('\n') && plain(path) == path;
    if is_plain { Cow::Borrowed(path) } else { Cow::Owned(format!("{path:?}")) }
}

/// The text, or its head and tail with a note about the missing part. The result has about `limit` bytes.
pub fn head_and_tail(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let head = &text[..text.floor_char_boundary(limit / 2)];
    let tail = &text[text.ceil_char_boundary(text.len() - limit / 2)..];
    let dropped = text.len() - head.len() - tail.len();
    format!("{head}\n[... {dropped} bytes left out ...]\n{tail}")
}

/// A Markdown block whose fence is longer than any in the text, so that the text cannot end the block.
pub fn fenced(language: &str, text: &str) -> String {
    let longest = text.split(|character| character != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}{language}\n{}\n{fence}", text.trim_end())
}

/// Skips the rest of an escape: a control sequence up to its final byte, a title up to its terminator, or one character.
fn skip_escape(characters: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    match characters.next() {
        Some('[') => {
            characters.find(|c| ('\u{40}'..='\u{7e}').contains(c));
        }
        Some(']') => {
            // A title ends with a bell, or with an escape and a backslash.
            let end = characters.find(|c| matches!(c, '\u{7}' | '\u{1b}' | '\n'));
            if end == Some('\u{1b}') {
                characters.next_if_eq(&'\\');
            }
        }
        _ => {}
    }
}

fn is_hidden(character: char) -> bool {
    (character.is_control() && character != '\t')
        || matches!(character, '\u{200b}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_go_and_text_stays() {
        for (given, expected) in [
            ("a\tb\nc", "a\tb\nc"),
            ("\u{1b}[31mred\u{1b}[0m", "red"),
            ("\u{1b}]0;title\u{7}text", "text"),
            ("\u{1b}]8;;http://a\u{1b}\\link\u{1b}]8;;\u{1b}\\", "link"),
            ("\u{1b}[2J\u{1b}", ""),
            ("10%\r50%\r100%\nnext", "100%\nnext"),
            ("dos\r\nlines\r\n", "dos\nlines\n"),
            ("kept\r", "kept"),
            ("a\u{202e}b\u{0}c\u{e0041}", "abc"),
            ("naïve 漢字 🎉", "naïve 漢字 🎉"),
            // Joiners are letters' own.
            ("می\u{200c}خواهم 👩\u{200d}💻", "می\u{200c}خواهم 👩\u{200d}💻"),
        ] {
            assert_eq!(plain(given), expected, "{given:?}");
        }
    }

    #[test]
    fn an_excerpt_is_one_short_line() {
        assert_eq!(line("<html>\n <body>\u{7} no", 100), "<html> <body> no");
        assert_eq!(line("ééééé", 3), "ééé…");
        assert_eq!(line(" \n", 20), "nothing");
    }

    #[test]
    fn a_path_stays_what_it_is() {
        for (given, shown) in [("a  b.csv", "a  b.csv"), ("می\u{200c}خ", "می\u{200c}خ"), ("a\nb", r#""a\nb""#)] {
            assert_eq!(path(given), shown);
        }
    }

    #[test]
    fn head_and_tail_are_kept_at_any_limit() {
        let text: String = "é漢".repeat(100);
        for limit in 0..text.len() + 2 {
            let cut = head_and_tail(&text, limit);
            assert!(cut.len() <= limit + 60, "{limit}: {}", cut.len());
            assert_eq!(cut == text, limit >= text.len());
        }
    }
}
