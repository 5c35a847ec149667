//! Names for what differs from run to run: ids by kind and order of appearance, times, addresses.

use std::collections::HashMap;

use serde_json::Value;

/// Digits from which on a word is an id and no plain text.
const ID_DIGITS: usize = 16;
/// Digits of a SHA-256.
const DIGEST_DIGITS: usize = 64;
/// Seconds since 1970 that are taken for a time.
const TIMES: std::ops::Range<u64> = 1_700_000_000..4_000_000_000;

/// The names of one case. Equal ids have equal names.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Names by what they stand for, and the other way round.
    known: HashMap<String, String>,
    meant: HashMap<String, String>,
    count: HashMap<String, usize>,
}

impl Names {
    /// Gives a text a fixed name, such as an address.
    pub(super) fn fix(&mut self, text: &str, name: &str) {
        self.meant.retain(|_, known| known != name);
        self.meant.insert(text.to_owned(), format!("<{name}>"));
        self.known.insert(format!("<{name}>"), text.to_owned());
    }

    /// A text with names in place of ids.
    pub(super) fn hide(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        let fixed: Vec<(String, String)> = self.meant.clone().into_iter().collect();
        for (meant, name) in fixed {
            text = text.replace(&meant, &name);
        }
        let is_word = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
        let (mut hidden, mut rest) = (String::new(), text.as_str());
        while let Some(start) = rest.find(is_word) {
            hidden.push_str(&rest[..start]);
            let word = &rest[start..];
            let end = word.find(|character| !is_word(character)).unwrap_or(word.len());
            match self.kind(&word[..end], &hidden) {
                Some(kind) => hidden.push_str(&self.name(&kind, &word[..end])),
                None => hidden.push_str(&word[..end]),
            }
            rest = &word[end..];
        }
        hidden.push_str(rest);
        without_times(&without_sizes(&hidden))
    }

    /// The kind of an id; `before` is the text before it.
    fn kind(&self, word: &str, before: &str) -> Option<String> {
        let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if word.len() == DIGEST_DIGITS && is_hex(word) {
            return Some("sha256".to_owned());
        }
        // The marks around the output of a program that a model gets.
        if word.len() == 16 && is_hex(word) && before.ends_with("output ") {
            return Some("word".to_owned());
        }
        let (kind, digits) = word.rsplit_once(['_', '-'])?;
        (digits.len() >= ID_DIGITS && is_hex(digits)).then(|| kind.to_owned())
    }

    fn name(&mut self, kind: &str, id: &str) -> String {
        if let Some(name) = self.meant.get(id) {
            return name.clone();
        }
        let count = self.count.entry(kind.to_owned()).or_default();
        *count += 1;
        let name = format!("<{kind} {count}>");
        self.meant.insert(id.to_owned(), name.clone());
        self.known.insert(name.clone(), id.to_owned());
        name
    }

    /// A text with ids in place of their names.
    pub(super) fn reveal(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, meant) in &self.known {
            text = text.replace(name, meant);
        }
        text
    }

    /// The same for all texts of a JSON value.
    pub(super) fn reveal_value(&self, value: &Value) -> Value {
        map(value, &mut |text| self.reveal(text).into(), &mut |number| number.clone())
    }

    /// A JSON value with names in place of ids and times.
    pub(super) fn hide_value(&mut self, value: &Value) -> Value {
        map(value, &mut |text| self.hide(text).into(), &mut |number| match number.as_u64() {
            Some(time) if TIMES.contains(&time) => "<time>".into(),
            _ => number.clone(),
        })
    }
}

fn map(value: &Value, text: &mut dyn FnMut(&str) -> Value, number: &mut dyn FnMut(&Value) -> Value) -> Value {
    match value {
        Value::String(string) => text(string),
        Value::Number(_) => number(value),
        Value::Array(values) => values.iter().map(|value| map(value, text, number)).collect(),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(name, value)| (name.clone(), map(value, text, number))).collect())
        }
        Value::Null | Value::Bool(_) => value.clone(),
    }
}

/// A text without times as RFC 3339 has them.
fn without_times(text: &str) -> String {
    const FORM: &str = "0000-00-00T00:00:00Z";
    let is_time = |at: usize| {
        let like = |(byte, form): (u8, u8)| if form == b'0' { byte.is_ascii_digit() } else { byte == form };
        text.get(at..at + FORM.len()).is_some_and(|time| time.bytes().zip(FORM.bytes()).all(like))
    };
    match (0..text.len()).find(|at| is_time(*at)) {
        Some(at) => format!("{}<time>{}", &text[..at], without_times(&text[at + FORM.len()..])),
        None => text.to_owned(),
    }
}

/// A text without the amounts of memory that programs happened to use.
fn without_sizes(text: &str) -> String {
    const USED: &str = "Out of memory: used ";
    let Some((before, after)) = text.split_once(USED) else { return text.to_owned() };
    let Some((_, after)) = after.split_once(" of ") else { return text.to_owned() };
    format!("{before}{USED}<size> of {after}")
}
