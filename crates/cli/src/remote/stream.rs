//! The stream of a command's events: frames of Connect.

use aludel_wire::e2b::process::{EventMessage, ProcessEvent};
use aludel_wire::e2b::{ConnectCode, EndStream};
use anyhow::{Context as _, anyhow, bail};
use reqwest::Response;
use serde::Serialize;

use crate::{exit, terminal};

/// Flag of a stream's last frame.
const END: u8 = 2;
/// Bytes of the longest frame.
const MAX_FRAME: usize = 16 << 20;

/// A message as a frame.
pub(super) fn frame(message: &impl Serialize) -> anyhow::Result<Vec<u8>> {
    let message = serde_json::to_vec(message)?;
    let mut frame = vec![0];
    frame.extend_from_slice(&u32::try_from(message.len())?.to_be_bytes());
    frame.extend_from_slice(&message);
    Ok(frame)
}

/// Events of a command as they come.
#[derive(Debug)]
pub(crate) struct CommandEvents {
    response: Response,
    frames: Frames,
}

impl CommandEvents {
    pub(super) fn new(response: Response) -> Self {
        Self { response, frames: Frames::default() }
    }

    /// The next event; an error when the stream ends without the command's end. Cancel-safe.
    pub(crate) async fn next(&mut self) -> anyhow::Result<ProcessEvent> {
        loop {
            if let Some((flags, frame)) = self.frames.next()? {
                if flags & END == 0 {
                    let message: EventMessage =
                        serde_json::from_slice(&frame).context("the server's stream is broken")?;
                    return Ok(message.event);
                }
                let end: EndStream = serde_json::from_slice(&frame).context("the server's stream is broken")?;
                let Some(error) = end.error else { bail!("the server does not tell how the command ended") };
                let reason = terminal::excerpt(&error.message, 500);
                return Err(match error.code {
                    ConnectCode::InvalidArgument => exit::not_started(reason),
                    _ => anyhow!(reason),
                });
            }
            match self.response.chunk().await.context("the connection to the server broke")? {
                Some(chunk) => self.frames.read.extend_from_slice(&chunk),
                None => bail!("the server ended, and the sandbox with it"),
            }
        }
    }
}

/// Bytes that were read, and the frames in them.
#[derive(Debug, Default)]
struct Frames {
    read: Vec<u8>,
}

impl Frames {
    fn next(&mut self) -> anyhow::Result<Option<(u8, Vec<u8>)>> {
        let Some(([flags, length @ ..], rest)) = self.read.split_first_chunk::<5>() else { return Ok(None) };
        let (flags, length) = (*flags, u32::from_be_bytes(*length) as usize);
        anyhow::ensure!(length <= MAX_FRAME, "a message of the server has {length} bytes, which is too long");
        let Some(frame) = rest.get(..length).map(<[u8]>::to_vec) else { return Ok(None) };
        self.read.drain(..5 + length);
        Ok(Some((flags, frame)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_the_same_however_they_are_cut() {
        let mut bytes = frame(&"a").unwrap();
        bytes.extend_from_slice(b"\x02\0\0\0\x02{}");
        for cut in 0..bytes.len() {
            let (mut frames, mut got) = (Frames::default(), Vec::new());
            for piece in [&bytes[..cut], &bytes[cut..]] {
                frames.read.extend_from_slice(piece);
                while let Some(frame) = frames.next().unwrap() {
                    got.push(frame);
                }
            }
            assert_eq!(got, [(0, b"\"a\"".to_vec()), (END, b"{}".to_vec())], "cut at {cut}");
        }
        let mut endless = Frames { read: vec![0, 0xff, 0xff, 0xff, 0xff] };
        assert!(endless.next().is_err());
    }
}
