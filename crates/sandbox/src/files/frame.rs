//! Frames between the host and the program that serves files: a length, the length of a JSON header, the header, and bytes.

use std::collections::BTreeMap;
use std::io;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::bytes::{Bytes, BytesMut};

use super::{Change, PathInfo, Problem};

/// The longest accepted frame, bytes. The program stays below it.
const MAX_FRAME: usize = 8 << 20;

/// A request with its bytes.
#[derive(Debug)]
pub(super) struct FilesRequest {
    pub(super) id: u64,
    pub(super) operation: FilesOperation,
    pub(super) data: Bytes,
}

/// An operation of the program.
#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum FilesOperation {
    Stat { path: String },
    List { path: String, depth: u32 },
    Make { path: String },
    Move { source: String, destination: String },
    Remove { path: String },
    Open { path: String, offset: u64 },
    Read { handle: u64, count: usize },
    Create { path: String, metadata: BTreeMap<String, String> },
    Write { handle: u64 },
    Close { handle: u64 },
    Watch { path: String, recursive: bool, entries: bool },
    Events { handle: u64 },
    Wait { handle: u64 },
    Chmod { path: String, mode: u32 },
    Search { path: String, pattern: String },
    Replace { path: String, old: String, new: String },
    Listen { port: u16 },
}

impl FilesOperation {
    /// Returns true if its answer is the handle of something that is to be closed.
    pub(super) fn opens(&self) -> bool {
        matches!(self, Self::Open { .. } | Self::Create { .. } | Self::Watch { .. })
    }
}

#[derive(Serialize)]
struct Header<'a> {
    id: u64,
    #[serde(flatten)]
    operation: &'a FilesOperation,
}

/// An answer: flat, with the fields of its operation.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct FilesAnswer {
    pub(super) id: u64,
    pub(super) problem: Option<Problem>,
    pub(super) message: String,
    pub(super) entry: Option<PathInfo>,
    pub(super) entries: Vec<PathInfo>,
    pub(super) handle: Option<u64>,
    pub(super) size: u64,
    pub(super) modified: i64,
    pub(super) events: Vec<Change>,
    pub(super) dropped: u64,
    pub(super) count: u64,
}

pub(super) async fn write_request(to: &mut (impl AsyncWrite + Unpin), request: &FilesRequest) -> io::Result<()> {
    let header = serde_json::to_vec(&Header { id: request.id, operation: &request.operation })?;
    let length = |bytes: usize| u32::try_from(bytes).map_err(io::Error::other);
    let mut frame = BytesMut::with_capacity(8 + header.len() + request.data.len());
    frame.extend_from_slice(&length(4 + header.len() + request.data.len())?.to_be_bytes());
    frame.extend_from_slice(&length(header.len())?.to_be_bytes());
    frame.extend_from_slice(&header);
    frame.extend_from_slice(&request.data);
    to.write_all(&frame).await
}

/// Reads the next answer. Invalid input is an error, never a panic.
pub(super) async fn read_answer(from: &mut (impl AsyncRead + Unpin)) -> io::Result<(FilesAnswer, Bytes)> {
    let (total, length) = (from.read_u32().await? as usize, from.read_u32().await? as usize);
    let size = total.checked_sub(4).filter(|size| *size <= MAX_FRAME && length <= *size);
    let size = size.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a frame of a senseless length"))?;
    // The buffer grows as data comes: a length alone takes no memory.
    let mut frame = BytesMut::new();
    let mut from = from.take(size as u64);
    while frame.len() < size {
        frame.reserve((size - frame.len()).min(64 << 10));
        if from.read_buf(&mut frame).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let mut frame = frame.freeze();
    let header = frame.split_to(length);
    Ok((serde_json::from_slice(&header)?, frame))
}
