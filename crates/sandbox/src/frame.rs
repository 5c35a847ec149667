//! The kernel channel: length-prefixed JSON frames over two pipes. Frames from a kernel are of untrusted code, which could send descriptors
//! over a socket: whoever receives one closes its last copy, and that of a watching `inotify` takes 6 ms, and that of a pipe as long as a
//! program likes.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;
use tokio_util::bytes::{Buf, BytesMut};

use crate::CommandLine;
use crate::guest_pipe::{GuestReader, GuestWriter, Touched};
use crate::outcome::{ClientAnswer, ClientCall, MimeBundle, MimeData, ProgramError};
use crate::process::Command;

/// Bytes from which a frame is long: it is announced before it is read, and parsed where no other task waits behind it.
pub(crate) const LONG_FRAME: usize = 512 << 10;
/// Bytes of the length before each frame.
const HEADER: usize = 4;
/// Bytes at the end of a frame that have its number, which the kernel program writes last.
const LAST_BYTES: usize = 40;
/// The longest accepted frame of a kernel, bytes. The kernel program stays below it; a longer one is from other code.
pub(crate) const MAX_FRAME: usize = 25 << 20;
/// The longest name of an exception, bytes.
const MAX_NAME: usize = 200;
/// The longest reason or traceback, bytes. The kernel program stays below it.
const MAX_ERROR: usize = 64 << 10;
/// The longest message of an exception, bytes. The kernel program stays below it.
const MAX_VALUE: usize = 4 << 20;
/// The longest plain text of a display, bytes. The kernel program stays below it.
const MAX_PLAIN: usize = 4 << 20;
/// The most representations that one bundle may have.
const MAX_REPRESENTATIONS: usize = 32;

/// Calls of the client's tools that a program makes at once. The kernel program puts no more into one frame.
pub(crate) const MAX_CALLS_AT_ONCE: usize = 128;
/// Bytes of the arguments of all calls in one frame. The kernel program stays below it.
const MAX_ARGUMENTS: usize = 2 << 20;

/// Frames from the host to a kernel.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ToKernel<'a> {
    /// Figures that the zygote could not know.
    Start {
        memory: u64,
        threads: u32,
        /// True to set the hard limit too, because nothing else limits its memory.
        hard: bool,
        /// True if the kernel keeps a checkpoint.
        checkpoints: bool,
    },
    /// Set the working directory and variables for the cells to come.
    Configure {
        #[serde(skip_serializing_if = "Option::is_none")]
        directory: Option<&'a str>,
        environment: &'a [(String, String)],
        /// True if tables and charts are shown as data, too.
        forms: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        command_line: Option<&'a CommandLine>,
        /// Another language for all cells to come.
        #[serde(skip_serializing_if = "Option::is_none")]
        language: Option<&'a str>,
    },
    /// Do what the first cell needs once.
    WarmUp,
    /// Become a program other than a kernel.
    Run { command: &'a Command },
    /// Run a cell, with these environment variables set during it.
    Execute {
        code: &'a str,
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        environment: &'a [(String, String)],
        /// Names of the client's tools that it can call.
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        tools: &'a [String],
    },
    /// The answers to the calls with this number, in order. Calls beyond them get no answer.
    Answers { number: u64, answers: &'a [ClientAnswer] },
    /// The display with this number has arrived, and all output before it.
    Shown { number: u64 },
}

/// Frames to the host from a kernel, or from other code that writes to its pipe.
#[derive(Debug, PartialEq)]
pub(crate) enum FromKernel {
    Ready,
    WarmedUp,
    Configured,
    /// A program that is no kernel begins; its number inside.
    Started(u64),
    /// The checkpoint is the kernel now.
    Restored,
    /// A displayed value, with the number to acknowledge.
    Display(MimeBundle, u64),
    Result(MimeBundle),
    /// The program switches to its other output stream. A displayed value, with the number to acknowledge.
    Flushed(u64),
    /// The program calls tools of the client's, and waits. A displayed value, with the number to acknowledge.
    Calls(Vec<ClientCall>, u64),
    Error(ProgramError),
    /// A `MemoryError` or a subclass of it.
    MemoryError(ProgramError),
    Done,
    Failed(String),
}

/// A frame before validation. Flat; its bundle keeps only short lists of strings. All other content is skipped during parsing, and takes no
/// memory.
#[derive(Deserialize)]
struct RawFrame {
    #[serde(rename = "type")]
    kind: String,
    data: Option<RawBundle>,
    calls: Option<RawCalls>,
    number: Option<u64>,
    name: Option<String>,
    value: Option<String>,
    traceback: Option<String>,
    reason: Option<String>,
}

/// The strings of an object, by key.
struct RawBundle(Vec<(String, String)>);

impl<'de> Deserialize<'de> for RawBundle {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawBundle;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawBundle, A::Error> {
                let mut entries = Vec::new();
                while let Some(key) = map.next_key::<String>()? {
                    if entries.len() == MAX_REPRESENTATIONS {
                        return Err(serde::de::Error::custom("too many representations"));
                    }
                    // A value other than a string is an error: the kernel program sends none.
                    entries.push((key, map.next_value::<String>()?));
                }
                Ok(RawBundle(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// Calls, no more than a frame may have.
struct RawCalls(Vec<ClientCall>);

impl<'de> Deserialize<'de> for RawCalls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawCalls;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list of calls")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut calls: A) -> Result<RawCalls, A::Error> {
                let (mut entries, mut bytes) = (Vec::new(), 0);
                while let Some(call) = calls.next_element::<ClientCall>()? {
                    bytes += call.name.len() + call.arguments.len();
                    if entries.len() == MAX_CALLS_AT_ONCE || bytes > MAX_ARGUMENTS {
                        return Err(serde::de::Error::custom("too many calls"));
                    }
                    entries.push(call);
                }
                Ok(RawCalls(entries))
            }
        }
        deserializer.deserialize_seq(Entries)
    }
}

/// A frame on its way from a kernel.
#[derive(Debug, PartialEq)]
pub(crate) enum ArrivingFrame {
    /// The beginning of a long frame, and its length in bytes. It is skipped unless it is accepted before more is received.
    Long(usize),
    /// The end of a frame that was skipped, with the number to acknowledge if there is one.
    Skipped(Option<u64>),
    /// A frame, and its length.
    Whole(FromKernel, usize),
}

/// Bytes of a channel from which frames are taken.
#[derive(Debug, Default)]
pub(crate) struct FrameBuffer {
    bytes: BytesMut,
    /// True if the frame at the beginning was announced.
    is_announced: bool,
    /// Bytes of it that are still to be skipped.
    skips: usize,
}

impl FrameBuffer {
    /// The next frame that is announced or whole; `None` if more bytes are needed.
    pub(crate) fn next(&mut self) -> io::Result<Option<ArrivingFrame>> {
        if self.skips > 0 {
            // Its last bytes are looked at together.
            let skipped = self.bytes.len().min(self.skips.saturating_sub(LAST_BYTES));
            self.bytes.advance(skipped);
            self.skips -= skipped;
            if self.bytes.len() < self.skips {
                return Ok(None);
            }
            let last = self.bytes.split_to(std::mem::take(&mut self.skips));
            self.is_announced = false;
            return Ok(Some(ArrivingFrame::Skipped(last_number(&last))));
        }
        let Some(mut header) = self.bytes.get(..HEADER) else { return Ok(None) };
        let length = header.get_u32() as usize;
        if length > MAX_FRAME {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame is too long"));
        }
        if length > LONG_FRAME && !self.is_announced {
            (self.is_announced, self.skips) = (true, HEADER + length);
            return Ok(Some(ArrivingFrame::Long(length)));
        }
        if self.bytes.len() < HEADER + length {
            return Ok(None);
        }
        self.bytes.advance(HEADER);
        let bytes = self.bytes.split_to(length);
        if std::mem::take(&mut self.is_announced) {
            // The rest is in the same memory, which would be kept.
            self.bytes = BytesMut::from(&*self.bytes);
        }
        // Others need not wait for it, where there is another thread for them.
        let frame = match length > LONG_FRAME && Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread {
            true => block_in_place(|| parse(&bytes)),
            false => parse(&bytes),
        };
        Ok(Some(ArrivingFrame::Whole(frame?, length)))
    }

    /// Accepts the long frame that was announced last.
    pub(crate) fn accept(&mut self) {
        self.skips = 0;
    }

    /// Adds bytes.
    #[cfg(any(test, feature = "docker", feature = "remote"))]
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Forgets the beginning of a frame.
    #[cfg(any(test, feature = "docker", feature = "remote"))]
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The host's end of the channel. Receiving is cancel-safe.
pub(crate) struct Channel {
    receiver: GuestReader,
    sender: GuestWriter,
    incoming: FrameBuffer,
}

impl Channel {
    /// Makes a channel. The other ends: the pipes from and to the host.
    pub(crate) fn pair(touched: Touched) -> io::Result<(Self, [OwnedFd; 2])> {
        let (from_host, ours) = io::pipe()?;
        let sender = GuestWriter::new(ours.into(), touched.clone())?;
        let (ours, to_host) = io::pipe()?;
        let receiver = GuestReader::new(ours.into(), touched)?;
        Ok((Self { receiver, sender, incoming: FrameBuffer::default() }, [from_host.into(), to_host.into()]))
    }

    /// Sends a frame. Dropping the future may leave half of it sent.
    pub(crate) async fn send(&mut self, frame: &ToKernel<'_>) -> io::Result<()> {
        self.sender.write_all(&encode(frame)?).await
    }

    /// The next frame, announced or whole; `None` when the other end is closed.
    pub(crate) async fn receive(&mut self) -> io::Result<Option<ArrivingFrame>> {
        loop {
            if let Some(incoming) = self.incoming.next()? {
                return Ok(Some(incoming));
            }
            let read = self.receiver.read().await?;
            let bytes = &mut self.incoming.bytes;
            if read.is_empty() {
                return if bytes.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
            bytes.extend_from_slice(&read);
        }
    }

    /// Accepts the long frame that was announced last.
    pub(crate) fn accept(&mut self) {
        self.incoming.accept();
    }

    /// The next frame that is not long; `None` when the other end is closed.
    pub(crate) async fn receive_short(&mut self) -> io::Result<Option<FromKernel>> {
        loop {
            match self.receive().await? {
                None => return Ok(None),
                Some(ArrivingFrame::Long(_) | ArrivingFrame::Skipped(_)) => {}
                Some(ArrivingFrame::Whole(frame, _)) => return Ok(Some(frame)),
            }
        }
    }
}

/// The number at the end of a frame.
fn last_number(bytes: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (_, number) = text.strip_suffix('}')?.rsplit_once("\"number\": ")?;
    number.parse().ok()
}

/// A frame with its length before it.
pub(crate) fn encode(frame: &ToKernel<'_>) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; HEADER];
    serde_json::to_writer(&mut bytes, frame)?;
    let length = u32::try_from(bytes.len() - HEADER).map_err(io::Error::other)?;
    bytes.splice(..HEADER, length.to_be_bytes());
    Ok(bytes)
}

/// Parses a frame. Invalid input is an error, never a panic.
pub(crate) fn parse(bytes: &[u8]) -> io::Result<FromKernel> {
    let frame: RawFrame = serde_json::from_slice(bytes)?;
    let missing = || {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("an incomplete frame of type {:?}", shortened(frame.kind.clone(), MAX_NAME)),
        )
    };
    Ok(match frame.kind.as_str() {
        "ready" => FromKernel::Ready,
        "warmed_up" => FromKernel::WarmedUp,
        "configured" => FromKernel::Configured,
        "started" => FromKernel::Started(frame.number.ok_or_else(missing)?),
        "flushed" => FromKernel::Flushed(frame.number.ok_or_else(missing)?),
        "restored" => FromKernel::Restored,
        "done" => FromKernel::Done,
        "display" => FromKernel::Display(bundle(frame.data.ok_or_else(missing)?), frame.number.ok_or_else(missing)?),
        "result" => FromKernel::Result(bundle(frame.data.ok_or_else(missing)?)),
        "calls" => FromKernel::Calls(frame.calls.ok_or_else(missing)?.0, frame.number.ok_or_else(missing)?),
        kind @ ("error" | "memory_error") => {
            let error = ProgramError {
                name: shortened(frame.name.ok_or_else(missing)?, MAX_NAME),
                value: shortened(frame.value.ok_or_else(missing)?, MAX_VALUE),
                traceback: shortened(frame.traceback.ok_or_else(missing)?, MAX_ERROR),
            };
            if kind == "error" { FromKernel::Error(error) } else { FromKernel::MemoryError(error) }
        }
        "failed" => FromKernel::Failed(shortened(frame.reason.ok_or_else(missing)?, MAX_ERROR)),
        _ => return Err(missing()),
    })
}

fn shortened(mut text: String, limit: usize) -> String {
    text.truncate(text.floor_char_boundary(limit));
    text
}

fn bundle(data: RawBundle) -> MimeBundle {
    let representation = |(mime, text): (String, String)| {
        if !is_mime(&mime) {
            return None;
        }
        let data = if is_binary(&mime) {
            // Python's base64 may contain line breaks.
            let compact: String = text.split_ascii_whitespace().collect();
            MimeData::Binary(BASE64_STANDARD.decode(compact).ok()?)
        } else if mime == "text/plain" {
            MimeData::Text(shortened(text, MAX_PLAIN))
        } else {
            MimeData::Text(text)
        };
        Some((mime, data))
    };
    MimeBundle(data.0.into_iter().filter_map(representation).collect())
}

/// Returns true for a MIME type that is safe in file names, headers and pages: `type/subtype` of harmless characters.
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
        let frame = br#"{"type":"display","number":7,"data":{"text/plain":"x","image/png":"aGk=\n","bad mime!":"y"}}"#;
        let FromKernel::Display(bundle, 7) = parse(frame).unwrap() else { panic!("not a display") };
        assert_eq!(bundle.text(), Some("x"));
        assert_eq!(bundle.image(), Some(("image/png", b"hi".as_slice())));
        assert_eq!(bundle.0.len(), 2);
    }

    #[test]
    fn calls_are_read_up_to_a_number_and_a_size() {
        let call = r#"{"name":"f","arguments":"{\"a\":1}"}"#;
        let frame = |calls: &[&str]| format!(r#"{{"type":"calls","number":3,"calls":[{}]}}"#, calls.join(","));
        let FromKernel::Calls(calls, 3) = parse(frame(&[call]).as_bytes()).unwrap() else { panic!("not calls") };
        assert_eq!(calls, [ClientCall { name: "f".into(), arguments: "{\"a\":1}".into() }]);
        assert!(parse(frame(&[call; MAX_CALLS_AT_ONCE]).as_bytes()).is_ok());
        assert!(parse(frame(&[call; MAX_CALLS_AT_ONCE + 1]).as_bytes()).is_err());
        let large = format!(r#"{{"name":"f","arguments":"{}"}}"#, "x".repeat(MAX_ARGUMENTS));
        assert!(parse(frame(&[&large]).as_bytes()).is_err());
        for calls in ["3", "[3]", "[{}]", r#"[{"name":3,"arguments":""}]"#] {
            assert!(parse(format!(r#"{{"type":"calls","number":1,"calls":{calls}}}"#).as_bytes()).is_err(), "{calls}");
        }
    }

    #[tokio::test]
    async fn a_long_frame_is_announced_and_read_only_if_it_is_accepted() {
        let frame = |text: usize| {
            format!(r#"{{"type": "display", "data": {{"text/plain": "{}"}}, "number": 7}}"#, "é".repeat(text))
        };
        let (long, short) = (frame(LONG_FRAME), frame(1));
        let mut buffer = FrameBuffer::default();
        let is_short = |incoming| matches!(incoming, Some(ArrivingFrame::Whole(_, length)) if length == short.len());
        for is_accepted in [true, false] {
            buffer.extend(&(long.len() as u32).to_be_bytes());
            assert_eq!(buffer.next().unwrap(), Some(ArrivingFrame::Long(long.len())));
            if is_accepted {
                buffer.accept();
            }
            assert_eq!(buffer.next().unwrap(), None);
            for part in long.as_bytes().chunks(LONG_FRAME) {
                assert_eq!(buffer.next().unwrap(), None);
                buffer.extend(part);
            }
            buffer.extend(&(short.len() as u32).to_be_bytes());
            buffer.extend(short.as_bytes());
            if is_accepted {
                let whole = buffer.next().unwrap();
                assert!(matches!(whole, Some(ArrivingFrame::Whole(_, length)) if length == long.len()));
                assert!(buffer.bytes.capacity() < LONG_FRAME, "its memory is given back");
            } else {
                assert_eq!(buffer.next().unwrap(), Some(ArrivingFrame::Skipped(Some(7))));
            }
            assert!(is_short(buffer.next().unwrap()));
            assert_eq!(buffer.next().unwrap(), None);
        }
        buffer.extend(&u32::MAX.to_be_bytes());
        assert!(buffer.next().is_err());
    }

    #[test]
    fn nonsense_is_an_error() {
        for bytes in [b"".as_slice(), b"{}", b"null", br#"{"type":"reboot"}"#, b"\xff\xfe", br#"{"type":"error"}"#] {
            assert!(parse(bytes).is_err(), "{bytes:?}");
        }
        for data in ["[0,0]", "{\"a/b\": [0,0]}", "{\"a/b\": 3}", "null"] {
            assert!(parse(format!(r#"{{"type":"display","number":1,"data":{data}}}"#).as_bytes()).is_err(), "{data}");
        }
        let deep = "[".repeat(100_000);
        assert!(parse(format!(r#"{{"type":"display","data":{deep}"#).as_bytes()).is_err());
    }
}
