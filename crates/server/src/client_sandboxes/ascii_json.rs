//! Lines of JSON in ASCII: one SDK also splits lines at Unicode's separators, the other decodes each chunk separately.

use std::io;

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// A message as a line.
pub(crate) fn line(message: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128);
    // Plain data can always be written.
    let written = message.serialize(&mut Serializer::with_formatter(&mut bytes, Ascii));
    debug_assert!(written.is_ok(), "{written:?}");
    bytes.push(b'\n');
    bytes
}

/// JSON with an escape for everything beyond ASCII.
struct Ascii;

impl Formatter for Ascii {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        write_ascii(writer, fragment)
    }

    /// Raw JSON of a program, where characters beyond ASCII can only be in strings.
    fn write_raw_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        write_ascii(writer, fragment)
    }
}

fn write_ascii<W: ?Sized + io::Write>(writer: &mut W, fragment: &str) -> io::Result<()> {
    let mut rest = fragment;
    while let Some(start) = rest.find(|character: char| !character.is_ascii()) {
        let (plain, from) = rest.split_at(start);
        writer.write_all(plain.as_bytes())?;
        let mut characters = from.chars();
        for unit in characters.next().unwrap_or_default().encode_utf16(&mut [0; 2]) {
            write!(writer, "\\u{unit:04x}")?;
        }
        rest = characters.as_str();
    }
    writer.write_all(rest.as_bytes())
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn everything_beyond_ascii_is_escaped() {
        let text = "a\u{2028}\u{85}é😀\u{7f}\n\"";
        let written = line(&json!({ "text": text }));
        assert!(written.is_ascii());
        assert_eq!(written.iter().filter(|byte| **byte == b'\n').count(), 1);
        assert_eq!(serde_json::from_slice::<Value>(&written).unwrap(), json!({ "text": text }));
        let raw = RawValue::from_string("{\"é\":\"😀\"}".to_owned()).unwrap();
        assert_eq!(line(&raw), b"{\"\\u00e9\":\"\\ud83d\\ude00\"}\n");
    }
}
