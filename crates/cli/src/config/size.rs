//! Sizes: `512m`, `1g`.

use std::fmt;
use std::str::FromStr;

/// A number of bytes. Units are powers of 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(u64);

const UNITS: [(&str, u64); 4] = [("t", 1 << 40), ("g", 1 << 30), ("m", 1 << 20), ("k", 1 << 10)];

impl Size {
    /// From a number of bytes.
    pub(crate) const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number of bytes.
    pub(crate) const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const EXAMPLES: &str = "a size is written like 512m or 2g";
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let number: u64 = match number {
            "" => return Err(format!("does not begin with a number; {EXAMPLES}")),
            number => number.parse().map_err(|_| "is more than any machine has".to_owned())?,
        };
        let unit = unit.trim().to_ascii_lowercase();
        let factor = match unit.trim_end_matches('b').trim_end_matches('i') {
            "" if unit == "b" => 1,
            "" => return Err(format!("has no unit; {EXAMPLES}")),
            letter => match UNITS.iter().find(|(name, _)| *name == letter) {
                Some((_, factor)) => *factor,
                None => return Err(format!("has an unknown unit; {EXAMPLES} (b, k, m, g, t)")),
            },
        };
        number.checked_mul(factor).map(Self).ok_or_else(|| "is more than any machine has".to_owned())
    }
}

impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor)) {
            Some((unit, factor)) => write!(formatter, "{}{unit}", self.0 / factor),
            None => write!(formatter, "{}b", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, bytes, shown) in [
            ("512m", 512 << 20, "512m"),
            ("1g", 1 << 30, "1g"),
            ("2 GiB", 2 << 30, "2g"),
            ("1024k", 1 << 20, "1m"),
            ("1500b", 1500, "1500b"),
            ("3TB", 3 << 40, "3t"),
        ] {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.bytes(), size.to_string().as_str()), (bytes, shown), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_size_is_said() {
        for (text, words) in [
            ("", "begin with a number"),
            ("big", "begin with a number"),
            ("-1g", "begin with a number"),
            ("512", "no unit"),
            ("5x", "unknown unit"),
            ("1.5g", "unknown unit"),
            ("99999999t", "more than any"),
            ("99999999999999999999999m", "more than any"),
        ] {
            let error = text.parse::<Size>().unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
