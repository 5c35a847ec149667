//! Spans of time: `30s`, `20m`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A span of time that is longer than nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DurationValue(Duration);

const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

impl DurationValue {
    /// From whole seconds.
    pub(crate) const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// As the standard library knows it.
    pub(crate) const fn duration(self) -> Duration {
        self.0
    }
}

impl FromStr for DurationValue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const EXAMPLES: &str = "a span of time is written like 30s or 20m";
        const LONGEST: u64 = 365 * 86_400_000;
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        if number.is_empty() {
            return Err(format!("does not begin with a number; {EXAMPLES}"));
        }
        let unit = unit.trim();
        if unit.is_empty() {
            return Err(format!("has no unit; {EXAMPLES}"));
        }
        let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
        let factor = factor.ok_or_else(|| format!("has an unknown unit; {EXAMPLES} (ms, s, m, h, d)"))?;
        match number.parse().ok().and_then(|number: u64| number.checked_mul(factor)) {
            Some(0) => Err("is no time at all".to_owned()),
            Some(milliseconds @ ..=LONGEST) => Ok(Self(Duration::from_millis(milliseconds))),
            _ => Err("is more than a year".to_owned()),
        }
    }
}

impl fmt::Display for DurationValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = self.0.as_millis();
        let unit = UNITS.iter().find(|(_, factor)| milliseconds.is_multiple_of(u128::from(*factor)));
        let (name, factor) = unit.unwrap_or(&("ms", 1));
        write!(formatter, "{}{name}", milliseconds / u128::from(*factor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_and_shown() {
        for (text, milliseconds, shown) in [
            ("30s", 30_000, "30s"),
            ("20m", 1_200_000, "20m"),
            ("90 s", 90_000, "90s"),
            ("120s", 120_000, "2m"),
            ("250ms", 250, "250ms"),
            ("48h", 172_800_000, "2d"),
        ] {
            let span: DurationValue = text.parse().unwrap();
            assert_eq!((span.duration().as_millis(), span.to_string().as_str()), (milliseconds, shown), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_span_is_said() {
        for (text, words) in [
            ("", "begin with a number"),
            ("soon", "begin with a number"),
            ("30", "no unit"),
            ("5 weeks", "unknown unit"),
            ("0s", "no time"),
            ("400d", "more than a year"),
            ("99999999999999999999s", "more than a year"),
        ] {
            let error = text.parse::<DurationValue>().unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
