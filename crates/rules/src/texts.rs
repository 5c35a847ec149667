//! Texts that a program puts together from constants, put together.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::meaning::{Meaning, Meanings, add, beginning, unknown};

/// Bytes of a text that is put together.
const MAX_TEXT: usize = 64 << 10;

/// Every sum of two things.
pub(crate) fn sums(left: &Meanings, right: &Meanings) -> Meanings {
    let mut sums = Meanings::new();
    for left in left {
        for right in right {
            add(&mut sums, Meanings::from([sum(left, right).unwrap_or(Meaning::Unknown)]));
        }
    }
    if sums.is_empty() { unknown() } else { sums }
}

fn sum(left: &Meaning, right: &Meaning) -> Option<Meaning> {
    match (left, right) {
        (Meaning::Text(left), Meaning::Text(right)) if left.len() + right.len() <= MAX_TEXT => {
            Some(Meaning::Text(format!("{left}{right}")))
        }
        (Meaning::Bytes(left), Meaning::Bytes(right)) if left.len() + right.len() <= MAX_TEXT => {
            Some(Meaning::Bytes([&left[..], right].concat()))
        }
        (Meaning::Number(left), Meaning::Number(right)) => left.checked_add(*right).map(Meaning::Number),
        (Meaning::Beginning(_), _) => Some(left.clone()),
        (Meaning::Text(known), _) => beginning(known),
        _ => None,
    }
}

/// A method of a text. Beyond ASCII Python has its own opinion of what is upper, lower and space.
pub(crate) fn method(of: &Meaning, name: &str, arguments: &[Meaning]) -> Option<Meaning> {
    let is_codec_known = || match arguments {
        [] => true,
        [Meaning::Text(codec)] => is_utf8(codec),
        _ => false,
    };
    let made = match (of, name, arguments) {
        (Meaning::Text(of), "lower", []) if of.is_ascii() => of.to_ascii_lowercase(),
        (Meaning::Text(of), "upper", []) if of.is_ascii() => of.to_ascii_uppercase(),
        (Meaning::Text(of), "strip", []) if of.is_ascii() => {
            of.trim_matches(|one| matches!(one, ' ' | '\t'..='\r' | '\u{1c}'..='\u{1f}')).to_owned()
        }
        (Meaning::Text(of), "replace", [Meaning::Text(from), Meaning::Text(to)]) => {
            let times = if from.is_empty() { of.len() + 1 } else { of.len() / from.len() };
            (of.len() + times * to.len() <= MAX_TEXT).then(|| of.replace(from, to))?
        }
        (Meaning::Text(of), "encode", _) if is_codec_known() => return Some(Meaning::Bytes(of.clone().into_bytes())),
        (Meaning::Bytes(of), "decode", _) if is_codec_known() => String::from_utf8(of.clone()).ok()?,
        // A text with fields: what stands before the first one is known.
        (Meaning::Text(of), "format" | "format_map", _) => return beginning(of.split('{').next().unwrap_or_default()),
        _ => return None,
    };
    Some(Meaning::Text(made))
}

fn is_utf8(codec: &str) -> bool {
    matches!(codec.to_ascii_lowercase().as_str(), "utf-8" | "utf8" | "utf_8")
}

/// A function of Python's own that makes a text of what is known.
pub(crate) fn function(name: &str, arguments: &[Meaning]) -> Option<Meaning> {
    let (first, rest) = arguments.split_first()?;
    let bytes = |meaning: &Meaning| match meaning {
        Meaning::Text(text) => Some(text.clone().into_bytes()),
        Meaning::Bytes(bytes) => Some(bytes.clone()),
        _ => None,
    };
    match (name, first, rest) {
        ("builtins.chr", Meaning::Number(code), []) => {
            char::from_u32(u32::try_from(*code).ok()?).map(|one| Meaning::Text(one.into()))
        }
        ("builtins.str", Meaning::Text(_), []) => Some(first.clone()),
        ("builtins.bytes.fromhex" | "binascii.unhexlify" | "binascii.a2b_hex", hex, []) => {
            let hex: Vec<u8> = bytes(hex)?.into_iter().filter(|byte| !byte.is_ascii_whitespace()).collect();
            let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
            hex.chunks(2).map(pair).collect::<Option<_>>().map(Meaning::Bytes)
        }
        ("base64.b64decode" | "base64.standard_b64decode" | "binascii.a2b_base64", encoded, []) => {
            BASE64_STANDARD.decode(bytes(encoded)?).ok().map(Meaning::Bytes)
        }
        ("codecs.decode", Meaning::Text(of), [Meaning::Text(code)]) if code.replace(['_', '-'], "") == "rot13" => {
            Some(Meaning::Text(of.chars().map(rot13).collect()))
        }
        // `compile` returns its text, for anybody who runs it.
        ("builtins.compile", Meaning::Text(_) | Meaning::Bytes(_), _) => Some(first.clone()),
        _ => None,
    }
}

fn rot13(one: char) -> char {
    let turn = |base: u8| char::from(base + (one as u8 - base + 13) % 26);
    match one {
        'a'..='z' => turn(b'a'),
        'A'..='Z' => turn(b'A'),
        other => other,
    }
}
