//! Possible meanings of a name or an expression, as far as reading tells.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// Meanings of one thing; what has more is taken for unknown, too.
pub(crate) const MAX_MEANINGS: usize = 16;
/// Bytes of a text that is put together.
const MAX_TEXT: usize = 64 << 10;
/// Bytes of the beginning of a text of which the rest is unknown.
const MAX_BEGINNING: usize = 256;
/// Bytes of a dotted name: of a longer one only the first part and the end are kept, which is what names are compared by.
const MAX_PATH: usize = 200;

/// One of the things that something may mean.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Meaning {
    /// Something that a module holds, by its dotted name: `os.system`. What a call returns has brackets: `pathlib.Path()`. What
    /// something unknown holds begins with a question mark: `?.system`; what a name means only if everything of a module was imported over
    /// it, with a star: `*os.system`.
    Path(String),
    /// All names of a module or an object: `vars(os)`; of something unknown: `?`.
    Table(String),
    /// The program's own names: `globals()`.
    Names,
    /// A text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A text that begins so, and goes on unknown.
    Beginning(String),
    /// A number.
    Number(i64),
    /// `operator.attrgetter` and `operator.methodcaller` of an attribute.
    Getter(String),
    /// A function that the program defines.
    Function,
    /// Anything.
    Unknown,
}

/// All the things that something may mean. Nothing is known of one that is empty.
pub(crate) type Meanings = BTreeSet<Meaning>;

impl Meaning {
    /// Bytes that it takes.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Path(text) | Self::Table(text) | Self::Text(text) | Self::Beginning(text) | Self::Getter(text) => {
                text.len()
            }
            Self::Bytes(bytes) => bytes.len(),
            Self::Names | Self::Number(_) | Self::Function | Self::Unknown => 0,
        }
    }
}

/// The name of an attribute of something by its name.
pub(crate) fn attribute_of(path: &str, name: &str) -> Meaning {
    let path = format!("{path}.{name}");
    if path.len() <= MAX_PATH {
        return Meaning::Path(path);
    }
    let first = path.split('.').next().filter(|first| first.len() < MAX_PATH / 4).unwrap_or("?");
    let end = path.match_indices('.').find(|(at, _)| path.len() - at <= MAX_PATH - first.len());
    end.map_or(Meaning::Unknown, |(at, _)| Meaning::Path(format!("{first}{}", &path[at..])))
}

/// Returns the meaning of a call's result, by the function's name. Results of methods are taken for the same kind of thing.
pub(crate) fn result_of(path: &str) -> Meaning {
    match path.split_once("()") {
        _ if path.starts_with('?') => Meaning::Unknown,
        Some((first, _)) => Meaning::Path(format!("{first}()")),
        None => Meaning::Path(format!("{path}()")),
    }
}

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
        (Meaning::Beginning(_), _) => Some(left.clone()),
        (Meaning::Text(known), _) => beginning(known),
        _ => None,
    }
}

/// A text that begins with a known one.
pub(crate) fn beginning(known: &str) -> Option<Meaning> {
    let kept: String = known.chars().take(MAX_BEGINNING / 4).collect();
    (!kept.is_empty()).then_some(Meaning::Beginning(kept))
}

/// A method of a text, with arguments that are known.
pub(crate) fn method(of: &Meaning, name: &str, arguments: &[Meaning]) -> Option<Meaning> {
    let text = |meaning: &Meaning| match meaning {
        Meaning::Text(text) => Some(text.clone()),
        _ => None,
    };
    let ascii = |text: &str| text.is_ascii().then(|| text.to_owned());
    match (of, name, arguments) {
        // Beyond ASCII Python has its own opinion of what is upper, lower and space.
        (Meaning::Text(of), "lower" | "casefold", []) => Some(Meaning::Text(ascii(of)?.to_ascii_lowercase())),
        (Meaning::Text(of), "upper", []) => Some(Meaning::Text(ascii(of)?.to_ascii_uppercase())),
        (Meaning::Text(of), "strip", []) => {
            let is_space = |one: char| matches!(one, ' ' | '\t'..='\r' | '\u{1c}'..='\u{1f}');
            Some(Meaning::Text(ascii(of)?.trim_matches(is_space).to_owned()))
        }
        (Meaning::Text(of), "swapcase", []) => {
            let swap =
                |one: char| if one.is_ascii_uppercase() { one.to_ascii_lowercase() } else { one.to_ascii_uppercase() };
            Some(Meaning::Text(ascii(of)?.chars().map(swap).collect()))
        }
        (Meaning::Text(of), "replace", [from, to]) => {
            let (from, to) = (text(from)?, text(to)?);
            let times = if from.is_empty() { of.len() + 1 } else { of.len() / from.len() };
            (of.len() + times * to.len() <= MAX_TEXT).then(|| Meaning::Text(of.replace(&from, &to)))
        }
        (Meaning::Text(of), "encode", []) => Some(Meaning::Bytes(of.clone().into_bytes())),
        (Meaning::Text(of), "encode", [Meaning::Text(codec)]) if is_utf8(codec) => {
            Some(Meaning::Bytes(of.clone().into_bytes()))
        }
        (Meaning::Bytes(of), "decode", []) => String::from_utf8(of.clone()).ok().map(Meaning::Text),
        (Meaning::Bytes(of), "decode", [Meaning::Text(codec)]) if is_utf8(codec) => {
            String::from_utf8(of.clone()).ok().map(Meaning::Text)
        }
        (Meaning::Text(_), "__str__", []) => Some(of.clone()),
        // A text with fields: what stands before the first one is known.
        (Meaning::Text(of), "format" | "format_map", _) => beginning(of.split('{').next().unwrap_or_default()),
        _ => None,
    }
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
    match (name, first) {
        ("builtins.chr", Meaning::Number(code)) if rest.is_empty() => {
            char::from_u32(u32::try_from(*code).ok()?).map(|one| Meaning::Text(one.into()))
        }
        ("builtins.str", Meaning::Text(_)) if rest.is_empty() => Some(first.clone()),
        ("builtins.str", Meaning::Bytes(of)) if matches!(rest, [Meaning::Text(codec)] if is_utf8(codec)) => {
            String::from_utf8(of.clone()).ok().map(Meaning::Text)
        }
        ("builtins.bytes.fromhex" | "builtins.bytearray.fromhex" | "binascii.unhexlify" | "binascii.a2b_hex", hex)
            if rest.is_empty() =>
        {
            let hex: Vec<u8> = bytes(hex)?.into_iter().filter(|byte| !byte.is_ascii_whitespace()).collect();
            let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
            hex.chunks(2).map(pair).collect::<Option<_>>().map(Meaning::Bytes)
        }
        ("base64.b64decode" | "base64.standard_b64decode" | "binascii.a2b_base64", encoded) if rest.is_empty() => {
            BASE64_STANDARD.decode(bytes(encoded)?).ok().map(Meaning::Bytes)
        }
        ("codecs.decode", Meaning::Text(of)) if matches!(rest, [Meaning::Text(code)] if code.replace(['_', '-'], "") == "rot13") => {
            Some(Meaning::Text(of.chars().map(rot13).collect()))
        }
        // `compile` returns its text, for anybody who runs it.
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
