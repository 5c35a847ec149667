//! The log: events and notices. One for the process, as there is one stderr.

use serde_json::Value;

use super::Scope;
use super::log_line::{LogFormat, LogLevel, LogLine, plain};
use super::log_writer::write_line;

/// Writes an event, whose fields may come from outside.
pub(super) fn tell(level: tracing::Level, message: &str, fields: Vec<(&'static str, Value)>, scope: Option<&Scope>) {
    let format = LogFormat::current();
    if format == LogFormat::Off || (format == LogFormat::Text && level > tracing::Level::WARN) {
        return;
    }
    if format == LogFormat::Json {
        let line = LogLine::new(level.into(), message);
        let line = match scope {
            Some(scope) => scope.identify(line),
            None => line,
        };
        return write_line(&fields.into_iter().fold(line, |line, (name, value)| line.with(name, value)).render());
    }
    let subject = scope.map_or_else(String::new, |scope| format!("{}: ", scope.id()));
    write_line(&plain(&format!("{subject}{message}{}", listed(&fields))));
}

/// Fields as they follow the words of a line for people.
fn listed(fields: &[(&'static str, Value)]) -> String {
    let mut text = String::new();
    for (name, value) in fields {
        text.push_str(if text.is_empty() { " (" } else { ", " });
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        text.push_str(&format!("{name}: {value}"));
    }
    if !text.is_empty() {
        text.push(')');
    }
    text
}

/// Logs a message to the operator that concerns no request. Returns false if the log does not take it, so that the caller prints it.
pub fn notice(level: LogLevel, message: &str) -> bool {
    let is_taken = LogFormat::current() == LogFormat::Json;
    if is_taken {
        write_line(&LogLine::new(level, message).render());
    }
    is_taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_follow_the_words_for_people() {
        assert_eq!(listed(&[]), "");
        let fields = [("error", Value::from("no \"room\"")), ("attempt", 3.into())];
        assert_eq!(listed(&fields), " (error: no \"room\", attempt: 3)");
    }
}
