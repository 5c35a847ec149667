//! Server-sent events, cut out of bytes as they come.

use std::collections::VecDeque;

/// Bytes of one event; a call's arguments may come whole in one, escaped.
const EVENT_LIMIT: usize = 8 << 20;

/// Splits a stream of bytes into events. Lines end with LF, CR or CRLF, even if a CRLF is split.
#[derive(Debug, Default)]
pub(super) struct Parser {
    line: Vec<u8>,
    after_cr: bool,
    started: bool,
    data: Option<String>,
    ready: VecDeque<String>,
}

/// Reason for which bytes are not a stream of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SseError {
    /// The first line is not a field of an event.
    NotEvents,
    /// An event is larger than the bound.
    TooLong,
}

impl SseError {
    /// The bound on one event.
    pub(super) const LIMIT: u64 = EVENT_LIMIT as u64;
}

impl Parser {
    /// Takes the next bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), SseError> {
        for &byte in bytes {
            match byte {
                b'\n' if self.after_cr => self.after_cr = false,
                b'\n' | b'\r' => {
                    self.after_cr = byte == b'\r';
                    self.end_line()?;
                }
                _ => {
                    self.after_cr = false;
                    if self.line.len() == EVENT_LIMIT {
                        return Err(SseError::TooLong);
                    }
                    self.line.push(byte);
                }
            }
        }
        Ok(())
    }

    /// Handles the end of the bytes. A last event without its empty line counts: some servers end that way.
    pub(super) fn finish(&mut self) -> Result<(), SseError> {
        if !self.line.is_empty() {
            self.end_line()?;
        }
        self.ready.extend(self.data.take());
        Ok(())
    }

    /// The data of the next event. Names and ids of events have no meaning in these protocols.
    pub(super) fn next(&mut self) -> Option<String> {
        self.ready.pop_front()
    }

    fn end_line(&mut self) -> Result<(), SseError> {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        let line = if self.started { &*line } else { line.trim_start_matches('\u{feff}') };
        if line.is_empty() {
            self.ready.extend(self.data.take());
            return Ok(());
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        if !self.started && !matches!(field, "" | "data" | "event" | "id" | "retry") {
            return Err(SseError::NotEvents);
        }
        self.started = true;
        if field == "data" {
            self.add(value.strip_prefix(' ').unwrap_or(value))?;
        }
        Ok(())
    }

    fn add(&mut self, value: &str) -> Result<(), SseError> {
        match &mut self.data {
            None => self.data = Some(value.to_owned()),
            Some(data) if data.len() + value.len() >= EVENT_LIMIT => return Err(SseError::TooLong),
            Some(data) => {
                data.push('\n');
                data.push_str(value);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses the text in pieces cut at the given place and then byte by byte.
    fn parse(text: &str, cut: usize) -> Result<Vec<String>, SseError> {
        let mut parser = Parser::default();
        let (head, tail) = text.as_bytes().split_at(cut);
        parser.push(head)?;
        for byte in tail {
            parser.push(&[*byte])?;
        }
        parser.finish()?;
        Ok(std::iter::from_fn(|| parser.next()).collect())
    }

    #[test]
    fn events_are_found_at_every_cut() {
        for (text, expected) in [
            ("data: a\n\ndata: b\n\n", vec!["a", "b"]),
            ("data: a\r\n\r\ndata: b\r\n\r\n", vec!["a", "b"]),
            ("data: a\r\rdata: b\r\r", vec!["a", "b"]),
            ("\u{feff}data:a\n\n", vec!["a"]),
            (": keep-alive\n\ndata: a\ndata:  b\n\n", vec!["a\n b"]),
            ("event: x\nid: 1\ndata: é漢🎉\nretry: 5\nother: y\n\n", vec!["é漢🎉"]),
            ("data\n\n", vec![""]),
            ("data: [DONE]", vec!["[DONE]"]),
            ("\n\n\n", vec![]),
            ("", vec![]),
        ] {
            for cut in 0..=text.len() {
                assert_eq!(parse(text, cut).unwrap(), expected, "{text:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn what_is_no_event_stream_is_refused_at_its_first_line() {
        for text in ["<html>\n", "Bad gateway", "\n{\"a\": 1}\n", "upstream: down\n"] {
            assert_eq!(parse(text, 0), Err(SseError::NotEvents), "{text:?}");
        }
    }

    #[test]
    fn an_event_is_bounded_in_one_line_and_in_many() {
        let mut parser = Parser::default();
        let half = format!("data: {}\n", "x".repeat(EVENT_LIMIT / 2));
        parser.push(half.as_bytes()).unwrap();
        assert_eq!(parser.push(half.as_bytes()), Err(SseError::TooLong));
        let mut parser = Parser::default();
        assert_eq!(parser.push(&vec![b'x'; EVENT_LIMIT + 1]), Err(SseError::TooLong));
    }
}
