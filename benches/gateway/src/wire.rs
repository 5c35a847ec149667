//! As much of HTTP/1.1 as both sides need, on connections that stay open.

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The largest message, bytes.
const MAX_MESSAGE: usize = 8 << 20;

/// A connection, and what was read of it and not used yet.
pub(crate) struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
}

/// A message: its first lines and its body.
pub(crate) struct Message {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream) -> anyhow::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: Vec::with_capacity(16 << 10) })
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.stream.write_all(bytes).await?)
    }

    /// Reads more. Returns whether there was any.
    async fn more(&mut self) -> anyhow::Result<bool> {
        if self.read.len() > MAX_MESSAGE {
            bail!("a message is too long");
        }
        Ok(self.stream.read_buf(&mut self.read).await? > 0)
    }

    fn position(&self, of: &[u8], from: usize) -> Option<usize> {
        self.read.get(from..)?.windows(of.len()).position(|window| window == of).map(|at| from + at)
    }

    /// The next message; `None` when the other side is done.
    pub(crate) async fn receive(&mut self) -> anyhow::Result<Option<Message>> {
        let end = loop {
            match self.position(b"\r\n\r\n", 0) {
                Some(end) => break end + 4,
                None if self.more().await? => {}
                None => return Ok(None),
            }
        };
        let head = String::from_utf8_lossy(&self.read[..end]).to_lowercase();
        let header = |name: &str| {
            head.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .map(|value| value.trim().to_owned())
        };
        let whole = if header("transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
            loop {
                // The last chunk; bodies here hold no such line themselves.
                match self.position(b"0\r\n\r\n", end.saturating_sub(2)) {
                    Some(at) => break at + 5,
                    None if self.more().await? => {}
                    None => bail!("a body broke off"),
                }
            }
        } else {
            let length: usize = header("content-length").unwrap_or_default().parse().unwrap_or(0);
            while self.read.len() < end + length {
                if !self.more().await? {
                    bail!("a body broke off");
                }
            }
            end + length
        };
        let rest = self.read.split_off(whole);
        let body = self.read.get(end..).context("a message without an end")?.to_vec();
        self.read = rest;
        Ok(Some(Message { head, body }))
    }
}
