//! Decoding of one string in a JSON object that is still being received.
//!
//! A model's call arrives as fragments of `{"code": "…"}`. To show the code while it is written, the string is decoded as far as it has
//! arrived. The program that runs is taken from the complete, parsed object instead.

use std::iter::Peekable;
use std::str::Chars;

/// Decodes the value of one key of the top-level object, fragment by fragment.
#[derive(Debug)]
pub(crate) struct StringField {
    key: &'static str,
    state: State,
    depth: usize,
    /// The current string if it is not the wanted one: a key, or another value.
    skipped: String,
    /// The received half of a surrogate pair, or the received digits of an escape.
    escape: String,
    high: Option<u16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Outside of strings.
    Between { expects_key: bool, wanted: bool },
    /// In a string; `wanted` for the value of the key, `key` for a field's name.
    InString { wanted: bool, key: bool },
    /// After a backslash, or in the digits of `\u`.
    InEscape { wanted: bool, key: bool },
    /// The string is complete.
    Done,
}

impl StringField {
    /// Will decode the value of `key`.
    pub(crate) fn new(key: &'static str) -> Self {
        Self {
            key,
            state: State::Between { expects_key: true, wanted: false },
            depth: 0,
            skipped: String::new(),
            escape: String::new(),
            high: None,
        }
    }

    /// Takes the next fragment and returns its part of the string.
    pub(crate) fn push(&mut self, fragment: &str) -> String {
        let mut decoded = String::new();
        let mut characters = fragment.chars().peekable();
        while characters.peek().is_some() {
            match self.state {
                State::Between { expects_key, wanted } => self.between(&mut characters, expects_key, wanted),
                State::InString { wanted, key } => self.string(&mut characters, wanted, key, &mut decoded),
                State::InEscape { wanted, key } => self.escape(&mut characters, wanted, key, &mut decoded),
                State::Done => break,
            }
        }
        decoded
    }

    fn between(&mut self, characters: &mut Peekable<Chars<'_>>, expects_key: bool, wanted: bool) {
        let next = |expects_key, wanted| State::Between { expects_key, wanted };
        match characters.next() {
            Some('"') => {
                self.skipped.clear();
                self.state = State::InString { wanted: wanted && self.depth == 1, key: expects_key && self.depth == 1 };
            }
            Some('{' | '[') => {
                self.depth += 1;
                self.state = next(self.depth == 1, false);
            }
            Some('}' | ']') => {
                self.depth = self.depth.saturating_sub(1);
                self.state = next(false, false);
            }
            Some(',') => self.state = next(self.depth == 1, false),
            Some(':') => self.state = next(false, wanted || self.skipped == self.key),
            _ => {}
        }
    }

    fn string(&mut self, characters: &mut Peekable<Chars<'_>>, wanted: bool, key: bool, decoded: &mut String) {
        match characters.next() {
            Some('"') if wanted => {
                self.flush_high(wanted, key, decoded);
                self.state = State::Done;
            }
            Some('"') => self.state = State::Between { expects_key: false, wanted: false },
            Some('\\') => {
                self.escape.clear();
                self.state = State::InEscape { wanted, key };
            }
            Some(character) => {
                self.flush_high(wanted, key, decoded);
                self.put(character, wanted, key, decoded);
            }
            None => {}
        }
    }

    fn escape(&mut self, characters: &mut Peekable<Chars<'_>>, wanted: bool, key: bool, decoded: &mut String) {
        let Some(character) = characters.next() else { return };
        if !self.escape.is_empty() || character == 'u' {
            self.escape.push(character);
            if self.escape.len() < 5 {
                return;
            }
            let unit = self.escape.get(1..).and_then(|digits| u16::from_str_radix(digits, 16).ok()).unwrap_or(0xfffd);
            self.unit(unit, wanted, key, decoded);
        } else {
            self.flush_high(wanted, key, decoded);
            let plain = match character {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                'b' => '\u{8}',
                'f' => '\u{c}',
                other => other,
            };
            self.put(plain, wanted, key, decoded);
        }
        self.state = State::InString { wanted, key };
    }

    fn unit(&mut self, unit: u16, wanted: bool, key: bool, decoded: &mut String) {
        match (self.high.take(), unit) {
            (Some(high), 0xdc00..=0xdfff) => {
                let pair = char::decode_utf16([high, unit]).next().and_then(Result::ok);
                self.put(pair.unwrap_or(char::REPLACEMENT_CHARACTER), wanted, key, decoded);
            }
            (pending, 0xd800..=0xdbff) => {
                if pending.is_some() {
                    self.put(char::REPLACEMENT_CHARACTER, wanted, key, decoded);
                }
                self.high = Some(unit);
            }
            (pending, unit) => {
                if pending.is_some() {
                    self.put(char::REPLACEMENT_CHARACTER, wanted, key, decoded);
                }
                self.put(char::from_u32(unit.into()).unwrap_or(char::REPLACEMENT_CHARACTER), wanted, key, decoded);
            }
        }
    }

    /// A first half without its second is no character.
    fn flush_high(&mut self, wanted: bool, key: bool, decoded: &mut String) {
        if self.high.take().is_some() {
            self.put(char::REPLACEMENT_CHARACTER, wanted, key, decoded);
        }
    }

    fn put(&mut self, character: char, wanted: bool, key: bool, decoded: &mut String) {
        if wanted {
            decoded.push(character);
        } else if key && self.skipped.len() <= self.key.len() {
            // It is longer than the wanted key, so another one.
            self.skipped.push(character);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_split_decodes_to_the_same() {
        let codes = ["print(1)", "a = \"x\\n\"\nb = 'ü😀'\t\r\n", "", "\\", "\u{8}\u{c}\"", "\u{1f600}\u{1f601}"];
        for code in codes {
            for json in [
                serde_json::json!({ "code": code }).to_string(),
                serde_json::json!({ "a": {"code": "no"}, "b": ["code", 1], "note": "code", "code": code, "z": 1 })
                    .to_string(),
                format!("{{ \"code\" : {} }}", escape_everything(code)),
            ] {
                for split in json.char_indices().map(|(at, _)| at).chain([json.len()]) {
                    let mut field = StringField::new("code");
                    let (left, right) = json.split_at(split);
                    assert_eq!(field.push(left) + &field.push(right), code, "{json} at {split}");
                }
                let mut field = StringField::new("code");
                let whole: String = json.chars().map(|c| field.push(&c.to_string())).collect();
                assert_eq!(whole, code);
            }
        }
    }

    fn escape_everything(text: &str) -> String {
        let units: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
        format!("\"{units}\"")
    }

    #[test]
    fn nonsense_yields_nothing() {
        for json in [
            "",
            "code",
            "[1,2",
            "{\"code\": 5}",
            "}}}}{",
            "\"code\"",
            "[\"code\", \"x\"]",
            "{\"a\": {\"code\": \"x\"}}",
        ] {
            let mut field = StringField::new("code");
            for character in json.chars() {
                assert_eq!(field.push(&character.to_string()), "", "{json} at {character}");
            }
        }
    }

    #[test]
    fn broken_escapes_are_replaced() {
        let mut field = StringField::new("code");
        let json = "{\"code\":\"\\ud800\\ud800x\\u12\\uZZZZ";
        let decoded: String = json.chars().map(|character| field.push(&character.to_string())).collect();
        assert_eq!(decoded, "\u{fffd}\u{fffd}x\u{fffd}ZZZZ");
    }
}
