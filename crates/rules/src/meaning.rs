//! What a name or an expression may mean, as far as reading tells.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// Meanings of one thing; what has more is taken for unknown, too.
const MAX_MEANINGS: usize = 16;
/// Bytes of a text that is put together.
const MAX_TEXT: usize = 64 << 10;

/// One of the things that something may mean.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Meaning {
    /// Something that a module holds, by its dotted name: `os.system`. What a call returns has brackets: `pathlib.Path()`.
    Path(String),
    /// All names of a module or an object: `vars(os)`.
    Table(String),
    /// The program's own names: `globals()`.
    Names,
    /// A text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A number.
    Number(i64),
    /// `operator.attrgetter` and `operator.methodcaller` of an attribute.
    Getter(String),
    /// Anything.
    Unknown,
}

/// All the things that something may mean. Nothing is known of one that is empty.
pub(crate) type Meanings = BTreeSet<Meaning>;

pub(crate) fn unknown() -> Meanings {
    Meanings::from([Meaning::Unknown])
}

pub(crate) fn path(name: impl Into<String>) -> Meanings {
    Meanings::from([Meaning::Path(name.into())])
}

/// Adds meanings. Returns whether there was a new one.
pub(crate) fn add(to: &mut Meanings, more: Meanings) -> bool {
    let before = to.len();
    for meaning in more {
        if to.len() < MAX_MEANINGS || to.contains(&meaning) {
            to.insert(meaning);
        } else {
            to.insert(Meaning::Unknown);
        }
    }
    to.len() != before
}

/// The texts that something may be, and whether it can be nothing else.
pub(crate) fn texts(meanings: &Meanings) -> (Vec<String>, bool) {
    let texts: Vec<String> = meanings
        .iter()
        .filter_map(|meaning| match meaning {
            Meaning::Text(text) => Some(text.clone()),
            Meaning::Bytes(bytes) => String::from_utf8(bytes.clone()).ok(),
            _ => None,
        })
        .collect();
    let is_all = !texts.is_empty() && texts.len() == meanings.len();
    (texts, is_all)
}

/// Every pair of two things put together by a function; unknown where it knows nothing.
pub(crate) fn combine(
    left: &Meanings,
    right: &Meanings,
    join: impl Fn(&Meaning, &Meaning) -> Option<Meaning>,
) -> Meanings {
    let mut joined = Meanings::new();
    for left in left {
        for right in right {
            add(&mut joined, Meanings::from([join(left, right).unwrap_or(Meaning::Unknown)]));
        }
    }
    if joined.is_empty() { unknown() } else { joined }
}

/// `left + right`.
pub(crate) fn sum(left: &Meaning, right: &Meaning) -> Option<Meaning> {
    match (left, right) {
        (Meaning::Text(left), Meaning::Text(right)) if left.len() + right.len() <= MAX_TEXT => {
            Some(Meaning::Text(format!("{left}{right}")))
        }
        (Meaning::Bytes(left), Meaning::Bytes(right)) if left.len() + right.len() <= MAX_TEXT => {
            Some(Meaning::Bytes([&left[..], right].concat()))
        }
        (Meaning::Number(left), Meaning::Number(right)) => left.checked_add(*right).map(Meaning::Number),
        _ => None,
    }
}

/// A method of a text, with arguments that are known.
pub(crate) fn method(of: &Meaning, name: &str, arguments: &[Meaning]) -> Option<Meaning> {
    let text = |meaning: &Meaning| match meaning {
        Meaning::Text(text) => Some(text.clone()),
        _ => None,
    };
    match (of, name, arguments) {
        (Meaning::Text(of), "lower" | "casefold", []) => Some(Meaning::Text(of.to_lowercase())),
        (Meaning::Text(of), "upper", []) => Some(Meaning::Text(of.to_uppercase())),
        (Meaning::Text(of), "strip", []) => Some(Meaning::Text(of.trim().to_owned())),
        (Meaning::Text(of), "swapcase", []) => Some(Meaning::Text(
            of.chars()
                .map(|one| if one.is_uppercase() { one.to_ascii_lowercase() } else { one.to_ascii_uppercase() })
                .collect(),
        )),
        (Meaning::Text(of), "replace", [from, to]) => {
            let replaced = of.replace(&text(from)?, &text(to)?);
            (replaced.len() <= MAX_TEXT).then_some(Meaning::Text(replaced))
        }
        (Meaning::Text(of), "encode", _) => Some(Meaning::Bytes(of.clone().into_bytes())),
        (Meaning::Bytes(of), "decode", _) => String::from_utf8(of.clone()).ok().map(Meaning::Text),
        (Meaning::Bytes(_) | Meaning::Text(_), "__str__", []) => Some(of.clone()),
        _ => None,
    }
}

/// A function of Python's own that makes a text of what is known.
pub(crate) fn function(name: &str, arguments: &[Meaning]) -> Option<Meaning> {
    let (first, rest) = arguments.split_first()?;
    let bytes = |meaning: &Meaning| match meaning {
        Meaning::Text(text) => Some(text.clone().into_bytes()),
        Meaning::Bytes(bytes) => Some(bytes.clone()),
        _ => None,
    };
    match (name, first) {
        ("builtins.chr", Meaning::Number(code)) => {
            char::from_u32(u32::try_from(*code).ok()?).map(|one| Meaning::Text(one.into()))
        }
        ("builtins.str", Meaning::Text(_)) => Some(first.clone()),
        ("builtins.str", Meaning::Bytes(of)) if !rest.is_empty() => {
            String::from_utf8(of.clone()).ok().map(Meaning::Text)
        }
        ("builtins.bytes.fromhex" | "builtins.bytearray.fromhex" | "binascii.unhexlify" | "binascii.a2b_hex", hex) => {
            let hex: Vec<u8> = bytes(hex)?.into_iter().filter(|byte| !byte.is_ascii_whitespace()).collect();
            let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
            hex.chunks(2).map(pair).collect::<Option<_>>().map(Meaning::Bytes)
        }
        ("base64.b64decode" | "base64.standard_b64decode" | "binascii.a2b_base64", encoded) => {
            BASE64_STANDARD.decode(bytes(encoded)?).ok().map(Meaning::Bytes)
        }
        ("codecs.decode", Meaning::Text(of)) if matches!(rest, [Meaning::Text(code)] if code.replace(['_', '-'], "") == "rot13") => {
            Some(Meaning::Text(of.chars().map(rot13).collect()))
        }
        // What is compiled is the text, for whoever runs it.
        ("builtins.compile", Meaning::Text(_) | Meaning::Bytes(_)) => Some(first.clone()),
        ("sys.intern", Meaning::Text(_)) => Some(first.clone()),
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
