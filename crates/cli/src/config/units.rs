//! Sizes and durations as people write them.

use std::time::Duration;

/// Bytes: `512m`, `1g`, `1.5gb`, `65536`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size; write for example 512m or 2g");
    let (number, unit) = split(text);
    let factor: f64 = match unit {
        "" | "b" => 1.0,
        "k" | "kb" | "kib" => 1024.0,
        "m" | "mb" | "mib" => 1024.0 * 1024.0,
        "g" | "gb" | "gib" => 1024.0 * 1024.0 * 1024.0,
        _ => return Err(wrong()),
    };
    let bytes = number.parse::<f64>().map_err(|_| wrong())? * factor;
    if (1.0..2_f64.powi(53)).contains(&bytes) {
        Ok(bytes as u64)
    } else {
        Err(format!("{text:?} is out of range for a size"))
    }
}

/// A time: `500ms`, `30s`, `20m`, `1h`; a bare number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration; write for example 30s or 20m");
    let (number, unit) = split(text);
    let factor = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let seconds = number.parse::<f64>().map_err(|_| wrong())? * factor;
    if (0.001..=7.0 * 86_400.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(format!("{text:?} is out of range: a duration is between 1ms and 7 days"))
    }
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_are_read() {
        assert_eq!(
            (bytes("512m"), bytes("1g"), bytes("1.5 kb"), bytes("7")),
            (Ok(512 << 20), Ok(1 << 30), Ok(1536), Ok(7))
        );
        let seconds = |text| duration(text).map(|time| time.as_secs_f64());
        assert_eq!(
            (seconds("500ms"), seconds("30s"), seconds("20m"), seconds("2")),
            (Ok(0.5), Ok(30.0), Ok(1200.0), Ok(2.0))
        );
        for text in ["", "m", "-1g", "1x", "0", "1e9g", "99999999999g", "nan"] {
            assert!(bytes(text).is_err() && duration(text).is_err(), "{text}");
        }
    }
}
