//! Lines of the log, on standard error.

use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use aludel_ignore::Ignore;
use serde::Serializer as _;
use serde_json::Value;

/// The form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum LogFormat {
    /// Failures, each a line for people.
    #[default]
    Text,
    /// Failures and requests, each an object on a line of its own.
    Json,
    /// Nothing.
    Off,
}

/// The format of the process's log.
static FORMAT: AtomicU8 = AtomicU8::new(LogFormat::Text as u8);

impl LogFormat {
    const ALL: [Self; 3] = [Self::Text, Self::Json, Self::Off];

    /// Returns true if the log has lines about successful work.
    pub(super) fn is_json() -> bool {
        Self::current() == Self::Json
    }

    /// Returns the format of the log of this process.
    pub(super) fn current() -> Self {
        let format = FORMAT.load(Ordering::Relaxed);
        Self::ALL.into_iter().find(|one| *one as u8 == format).unwrap_or_default()
    }
}

impl std::fmt::Display for LogFormat {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
            Self::Off => "off",
        })
    }
}

impl FromStr for LogFormat {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|format| format.to_string() == text).ok_or("is none of: text, json, off")
    }
}

/// Sets the format of the log of this process.
pub(super) fn set_format(format: LogFormat) {
    FORMAT.store(format as u8, Ordering::Relaxed);
}

/// The level of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Normal operation.
    Info,
    /// A condition that the operator should check.
    Warning,
    /// A failure.
    Error,
}

impl From<tracing::Level> for LogLevel {
    fn from(level: tracing::Level) -> Self {
        match level {
            tracing::Level::ERROR => Self::Error,
            tracing::Level::WARN => Self::Warning,
            _ => Self::Info,
        }
    }
}

/// A line for programs that read logs: a few words and named values.
pub(crate) struct LogLine(Vec<(&'static str, Value)>);

impl LogLine {
    pub(crate) fn new(level: LogLevel, message: &str) -> Self {
        let level = match level {
            LogLevel::Info => "info",
            LogLevel::Warning => "warning",
            LogLevel::Error => "error",
        };
        Self(Vec::new()).with("time", timestamp(SystemTime::now())).with("level", level).with("message", message)
    }

    /// Adds a value, unless it is null.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        let value = match value.into() {
            Value::Null => return self,
            Value::String(text) => plain(&text).into(),
            value => value,
        };
        self.0.push((name, value));
        self
    }

    /// Returns its text.
    pub(super) fn render(self) -> String {
        // In an order that is convenient for people.
        let mut line = Vec::new();
        let mut serializer = serde_json::Serializer::new(&mut line);
        serializer.collect_map(self.0).ignore("texts and numbers can always be written");
        String::from_utf8(line).unwrap_or_default()
    }
}

/// Escapes control characters: paths and names are untrusted and must not move a terminal's cursor.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}

/// The time as RFC 3339 has it, in UTC.
fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Years that begin in March end with the leap day; 400 of them are 146097 days, and 719468 days lie between March of the year 0 and
    // 1970.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next;
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.250Z"),
            (951_782_399, "2000-02-28T23:59:59.250Z"),
            (951_782_400, "2000-02-29T00:00:00.250Z"),
            (951_868_800, "2000-03-01T00:00:00.250Z"),
            (1_735_689_599, "2024-12-31T23:59:59.250Z"),
            (1_735_689_600, "2025-01-01T00:00:00.250Z"),
            (4_107_542_400, "2100-03-01T00:00:00.250Z"),
        ] {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_millis(250)), text);
        }
    }

    #[test]
    fn nothing_in_a_line_moves_a_cursor() {
        let line =
            LogLine::new(LogLevel::Error, "a\u{1b}[2J\u{9b}31m\n{").with("none", None::<u64>).with("name", "\u{7f}b");
        let text = line.render();
        assert!(!text.chars().any(char::is_control), "{text:?}");
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["message"], "a [2J 31m {");
        assert_eq!(value["name"], " b");
        assert!(value.get("none").is_none());
    }
}
