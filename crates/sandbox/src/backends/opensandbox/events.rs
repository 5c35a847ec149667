//! The events of a command: JSON on lines, with or without the `data:` of server-sent events.

use aludel_wire::opensandbox::code::{EventKind, Failure};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use serde::Deserialize;
use tokio_util::bytes::{Bytes, BytesMut};

use crate::backends::remote::{reason, root};

/// The longest event, bytes. A line of a command has some 32 KiB.
const MAX_EVENT: usize = 4 << 20;

/// An event that says something of a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ExecdEvent {
    /// It has this id.
    Started(String),
    /// It printed something.
    Stdout(String),
    /// It printed something to its error output.
    Stderr(String),
    /// It ended well, or with this status.
    Ended(Result<(), String>),
}

/// Events as they arrive.
pub(super) struct ExecdEvents {
    pieces: BoxStream<'static, reqwest::Result<Bytes>>,
    buffer: BytesMut,
    /// Bytes at its beginning in which no line ends.
    searched: usize,
}

/// An answer in place of an event.
#[derive(Deserialize)]
struct Refusal {
    #[expect(dead_code, reason = "an event has none")]
    code: String,
    message: String,
}

impl ExecdEvents {
    pub(super) fn new(pieces: BoxStream<'static, reqwest::Result<Bytes>>) -> Self {
        Self { pieces, buffer: BytesMut::new(), searched: 0 }
    }

    /// Returns the next event; an error once there is none. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<ExecdEvent, String> {
        loop {
            let rest = self.buffer.get(self.searched..).unwrap_or_default();
            if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.searched + end + 1);
                self.searched = 0;
                if let Some(event) = event_of(&line)? {
                    return Ok(event);
                }
                continue;
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > MAX_EVENT {
                return Err("an event is too long".to_owned());
            }
            match self.pieces.next().await {
                Some(Ok(piece)) => self.buffer.extend_from_slice(&piece),
                Some(Err(error)) => return Err(root(&error)),
                None => return Err("the events of the command ended before it did".to_owned()),
            }
        }
    }
}

/// Parses a line. Lines without events and unknown events are `None`.
fn event_of(line: &[u8]) -> Result<Option<ExecdEvent>, String> {
    let line = line.strip_prefix(b"data:").unwrap_or(line).trim_ascii();
    if !line.starts_with(b"{") {
        return Ok(None);
    }
    Ok(match serde_json::from_slice::<EventKind>(line) {
        Ok(EventKind::Init { text }) => Some(ExecdEvent::Started(text)),
        Ok(EventKind::Stdout { text }) => Some(ExecdEvent::Stdout(text)),
        Ok(EventKind::Stderr { text }) => Some(ExecdEvent::Stderr(text)),
        Ok(EventKind::ExecutionComplete { .. }) => Some(ExecdEvent::Ended(Ok(()))),
        Ok(EventKind::Error { error: Failure { evalue, .. } }) => {
            Some(ExecdEvent::Ended(Err(reason(evalue.as_bytes()))))
        }
        Ok(EventKind::Result { .. } | EventKind::ExecutionCount { .. } | EventKind::Ping { .. }) => None,
        Err(_) => match serde_json::from_slice(line) {
            Ok(Refusal { message, .. }) => return Err(reason(message.as_bytes())),
            // An event of a newer protocol.
            Err(_) => None,
        },
    })
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt, stream};

    use super::{ExecdEvent, ExecdEvents};

    async fn read(pieces: &[&'static str]) -> Vec<Result<ExecdEvent, String>> {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok((*piece).into())).collect();
        let mut events = ExecdEvents::new(stream::iter(pieces).boxed());
        let mut read = Vec::new();
        while read.last().is_none_or(Result::is_ok) {
            read.push(events.next().await);
        }
        read
    }

    #[tokio::test]
    async fn events_are_read_bare_or_as_server_sent_ones() {
        let broken_off = || Err("the events of the command ended before it did".to_owned());
        let read_of = read(&[
            "{\"type\":\"init\",\"text\":\"cmd\",\"timest",
            "amp\":1}\n\n: a comment\nevent: stdout\ndata: {\"type\":\"stdout\",\"text\":\"a\\n\"}\n\n",
            "{\"type\":\"ping\",\"text\":\"pong\"}\n{\"type\":\"of tomorrow\"}\n{\"type\":\"execution_complete\",\"execution_time\":3}\n",
        ]);
        let expected = [
            Ok(ExecdEvent::Started("cmd".into())),
            Ok(ExecdEvent::Stdout("a\n".into())),
            Ok(ExecdEvent::Ended(Ok(()))),
            broken_off(),
        ];
        assert_eq!(read_of.await, expected);
        let failed = ["{\"type\":\"error\",\"error\":{\"ename\":\"E\",\"evalue\":\"127\",\"traceback\":[]}}\n"];
        assert_eq!(read(&failed).await, [Ok(ExecdEvent::Ended(Err("127".into()))), broken_off()]);
        let refused = ["{\"code\":\"RUNTIME_ERROR\",\"message\":\"no\\nshell\"}\n"];
        assert_eq!(read(&refused).await, [Err("no shell".into())]);
    }
}
