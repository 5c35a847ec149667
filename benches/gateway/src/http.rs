//! As much of HTTP/1.1 as kept connections between programs of one machine need.

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Bytes of one message; nothing here is near it.
const MAX_MESSAGE: usize = 4 << 20;

/// A request or an answer.
pub(crate) struct Message {
    /// The request line or the status line.
    pub(crate) first: String,
    /// The body, whole.
    pub(crate) body: Vec<u8>,
}

/// Framing of a body.
enum Length {
    Bytes(usize),
    Chunks,
}

/// One connection, and what was read of the next message.
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream) -> anyhow::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(16 << 10) })
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.stream.write_all(bytes).await?)
    }

    /// The next message, or `None` where the other side closed between two.
    pub(crate) async fn receive(&mut self) -> anyhow::Result<Option<Message>> {
        let end = loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                break end;
            }
            if !self.more().await? {
                ensure!(self.buffer.is_empty(), "the connection broke within a head");
                return Ok(None);
            }
        };
        let head = std::str::from_utf8(self.buffer.get(..end).unwrap_or_default()).context("a head that is no text")?;
        let (first, fields) = head.split_once("\r\n").unwrap_or((head, ""));
        let (first, length) = (first.to_owned(), length(fields)?);
        self.buffer.drain(..end + 4);
        let body = match length {
            Length::Bytes(count) => self.take(count).await?,
            Length::Chunks => self.chunks().await?,
        };
        Ok(Some(Message { first, body }))
    }

    async fn chunks(&mut self) -> anyhow::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let end = loop {
                if let Some(end) = find(&self.buffer, b"\r\n") {
                    break end;
                }
                ensure!(self.more().await?, "the connection broke within a body");
            };
            let line = self.take(end + 2).await?;
            let size = std::str::from_utf8(&line)?.trim_end();
            let size = usize::from_str_radix(size, 16).with_context(|| format!("a chunk of {size:?} bytes"))?;
            ensure!(size < MAX_MESSAGE, "a chunk that is too long");
            let piece = self.take(size + 2).await?;
            if size == 0 {
                return Ok(body);
            }
            body.extend(piece.get(..size).unwrap_or_default());
            ensure!(body.len() < MAX_MESSAGE, "a message that is too long");
        }
    }

    async fn take(&mut self, count: usize) -> anyhow::Result<Vec<u8>> {
        while self.buffer.len() < count {
            ensure!(self.more().await?, "the connection broke within a body");
        }
        Ok(self.buffer.drain(..count).collect())
    }

    async fn more(&mut self) -> anyhow::Result<bool> {
        ensure!(self.buffer.len() < MAX_MESSAGE, "a message that is too long");
        Ok(self.stream.read_buf(&mut self.buffer).await? > 0)
    }
}

fn length(fields: &str) -> anyhow::Result<Length> {
    let mut length = Length::Bytes(0);
    for (name, value) in fields.lines().filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            length = Length::Bytes(value.trim().parse().context("a length that is no number")?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            if !value.trim().eq_ignore_ascii_case("chunked") {
                bail!("a transfer encoding other than chunked:{value}");
            }
            return Ok(Length::Chunks);
        }
    }
    Ok(length)
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}
