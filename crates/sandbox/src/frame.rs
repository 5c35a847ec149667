//! The kernel channel: length-prefixed JSON frames. What comes in was written by untrusted code.

use std::io;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures_util::{SinkExt, StreamExt};
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio_util::bytes::Bytes;
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use crate::execution::{MimeBundle, MimeData, ProgramError};

/// The longest frame that is taken from a kernel, bytes. The kernel program stays below it; whatever does not is not the kernel program.
const MAX_FRAME: usize = 32 << 20;
/// The longest name of an exception, bytes.
const MAX_NAME: usize = 200;
/// The longest message or traceback, bytes. The kernel program stays below it.
const MAX_ERROR: usize = 64 << 10;
/// The most representations that one bundle may have.
const MAX_REPRESENTATIONS: usize = 32;

/// What the host tells a kernel.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ToKernel<'a> {
    /// Figures that the zygote could not know.
    Start {
        memory: u64,
        threads: u32,
        /// Whether the kernel's own limit is all there is, and must not be raised again.
        hard: bool,
    },
    /// Rehearse the first cell.
    Touch,
    /// Run a cell.
    Execute { code: &'a str },
    /// The display of this number has arrived, and what was printed before it.
    Shown { number: u64 },
}

/// What a kernel, or whoever writes to its socket, tells the host.
#[derive(Debug, PartialEq)]
pub(crate) enum FromKernel {
    Ready,
    Touched,
    /// With the number to answer.
    Display(MimeBundle, u64),
    Result(MimeBundle),
    Error(ProgramError),
    Done,
    Failed(String),
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum RawFrame {
    Ready,
    Touched,
    Display { data: serde_json::Map<String, serde_json::Value>, number: u64 },
    Result { data: serde_json::Map<String, serde_json::Value> },
    Error { name: String, value: String, traceback: String },
    Done,
    Failed { reason: String },
}

/// The host's end of the channel. Receiving is cancel-safe.
pub(crate) struct Channel(Framed<UnixStream, LengthDelimitedCodec>);

impl Channel {
    pub(crate) fn new(stream: std::os::unix::net::UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let codec = LengthDelimitedCodec::builder().max_frame_length(MAX_FRAME).new_codec();
        Ok(Self(Framed::new(UnixStream::from_std(stream)?, codec)))
    }

    pub(crate) async fn send(&mut self, frame: &ToKernel<'_>) -> io::Result<()> {
        self.0.send(Bytes::from(serde_json::to_vec(frame)?)).await
    }

    /// The next frame; `None` when the other end is closed.
    pub(crate) async fn receive(&mut self) -> io::Result<Option<FromKernel>> {
        match self.0.next().await {
            None => Ok(None),
            Some(bytes) => parse(&bytes?).map(Some),
        }
    }
}

/// Reads a frame. Anything that is not one is an error, never a panic.
pub(crate) fn parse(bytes: &[u8]) -> io::Result<FromKernel> {
    let frame: RawFrame = serde_json::from_slice(bytes)?;
    Ok(match frame {
        RawFrame::Ready => FromKernel::Ready,
        RawFrame::Touched => FromKernel::Touched,
        RawFrame::Display { data, number } => FromKernel::Display(bundle(data), number),
        RawFrame::Result { data } => FromKernel::Result(bundle(data)),
        RawFrame::Error { name, value, traceback } => FromKernel::Error(ProgramError {
            name: shortened(name, MAX_NAME),
            value: shortened(value, MAX_ERROR),
            traceback: shortened(traceback, MAX_ERROR),
        }),
        RawFrame::Done => FromKernel::Done,
        RawFrame::Failed { reason } => FromKernel::Failed(reason),
    })
}

fn shortened(mut text: String, limit: usize) -> String {
    text.truncate(text.floor_char_boundary(limit));
    text
}

fn bundle(data: serde_json::Map<String, serde_json::Value>) -> MimeBundle {
    let representation = |(mime, value): (String, serde_json::Value)| {
        let serde_json::Value::String(text) = value else { return None };
        if !is_mime(&mime) {
            return None;
        }
        let data = if is_binary(&mime) {
            // Python's base64 may come with line breaks.
            let compact: String = text.split_ascii_whitespace().collect();
            MimeData::Binary(BASE64_STANDARD.decode(compact).ok()?)
        } else {
            MimeData::Text(text)
        };
        Some((mime, data))
    };
    MimeBundle(data.into_iter().take(MAX_REPRESENTATIONS).filter_map(representation).collect())
}

/// A MIME type as it may appear in file names, headers and pages: `type/subtype` of harmless characters.
fn is_mime(text: &str) -> bool {
    let harmless = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte))
    };
    text.len() <= 127 && text.split_once('/').is_some_and(|(kind, subtype)| harmless(kind) && harmless(subtype))
}

fn is_binary(mime: &str) -> bool {
    mime == "application/pdf" || mime.starts_with("image/") && mime != "image/svg+xml" || mime.starts_with("audio/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_display_frame_is_read() {
        let frame =
            br#"{"type":"display","number":7,"data":{"text/plain":"x","image/png":"aGk=\n","bad mime!":"y","n/a":3}}"#;
        let FromKernel::Display(bundle, 7) = parse(frame).unwrap() else { panic!("not a display") };
        assert_eq!(bundle.text(), Some("x"));
        assert_eq!(bundle.image(), Some(("image/png", b"hi".as_slice())));
        assert_eq!(bundle.0.len(), 2);
    }

    #[test]
    fn nonsense_is_an_error() {
        for bytes in [b"".as_slice(), b"{}", b"null", br#"{"type":"reboot"}"#, b"\xff\xfe", br#"{"type":"error"}"#] {
            assert!(parse(bytes).is_err(), "{bytes:?}");
        }
        let deep = "[".repeat(100_000);
        assert!(parse(format!(r#"{{"type":"display","data":{deep}"#).as_bytes()).is_err());
    }
}
