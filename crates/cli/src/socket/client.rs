//! The client's end: `aludel run` by a server that runs.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::time::Duration;

use aludel_engine::executions::MAX_CODE;
use aludel_ignore::Ignore;
use aludel_sandbox::{ExecutionEvent, FileEntry, Finished, Limits};
use anyhow::{Context as _, bail};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::frames::{self, FrameReader, MAX_ANSWER};
use super::listener::is_of;
use super::message::{ClientMessage, MAX_FILES, PeerIdentity, ProgramRequest, ServerMessage};
use crate::context::CommandContext;
use crate::exit::usage;
use crate::output_directory::OutputFiles;
use crate::program::LoadedProgram;

/// The longest wait for a server to accept the program.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(2);

/// A way to run a program.
pub(crate) enum ServerLookup {
    /// A server runs it.
    Server(ServerProgram),
    /// No server will run it; the reason, if one could have.
    Nobody(Option<String>),
}

/// A program that a server runs. Dropping it ends the program and its sandbox.
pub(crate) struct ServerProgram {
    frames: FrameReader<UnixStream>,
}

/// An update of a program, from a server.
pub(crate) enum ProgramUpdate {
    /// It will not run there.
    Declined(String),
    /// It waits for a decision about this request for approval.
    AwaitsApproval(String),
    /// An event.
    Event(ExecutionEvent),
    /// It ended, and these of its files are there.
    Ended(Finished, Vec<FileEntry>),
    /// It was not allowed to run.
    Refused(String),
    /// It was interrupted before it ran.
    Cancelled,
}

/// Asks the server on this data directory to run a program, if there is one.
pub(crate) async fn reach(context: &CommandContext, program: &LoadedProgram) -> anyhow::Result<ServerLookup> {
    let LoadedProgram { cells, inputs, options, .. } = program;
    if cells.iter().map(String::len).sum::<usize>() > MAX_CODE || inputs.len() > MAX_FILES {
        return Ok(ServerLookup::Nobody(Some("the program is too long or has too many files for a server".to_owned())));
    }
    let Ok(path) = super::path(&context.config.server.data) else { return Ok(ServerLookup::Nobody(None)) };
    let Ok(mut stream) = UnixStream::connect(&path).await else { return Ok(ServerLookup::Nobody(None)) };
    if !is_of(&stream, rustix::process::geteuid().as_raw()) {
        return Ok(ServerLookup::Nobody(Some("the server is another user's".to_owned())));
    }
    let mut files = Vec::new();
    for input in inputs {
        let opened = File::open(input.path());
        files.push(opened.map_err(|error| usage(format!("--file {}: {error}", input.path().display())))?);
    }
    let request = ProgramRequest {
        peer: PeerIdentity::of_this_process(context)?,
        limits: context.config.sandbox.limits(),
        cells: cells.clone(),
        options: options.clone(),
        files: inputs.iter().map(|input| input.name().to_owned()).collect(),
    };
    let asking = async {
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        frames::send_with(&mut stream, &request, &files).await?;
        let mut frames = FrameReader::new(stream, MAX_ANSWER);
        let answer = frames.next().await?;
        Ok::<_, io::Error>((frames, answer))
    };
    Ok(match timeout(ACCEPT_TIMEOUT, asking).await {
        Ok(Ok((frames, Some(ServerMessage::Welcome)))) => ServerLookup::Server(ServerProgram { frames }),
        Ok(Ok((_, Some(ServerMessage::Declined(reason))))) => ServerLookup::Nobody(Some(reason)),
        Ok(Ok(_)) => ServerLookup::Nobody(Some("the server is busy".to_owned())),
        Ok(Err(error)) => ServerLookup::Nobody(Some(format!("the server does not answer: {error}"))),
        Err(_) => ServerLookup::Nobody(Some("the server does not answer".to_owned())),
    })
}

impl ServerProgram {
    /// The next update from the server. Cancel-safe.
    pub(crate) async fn next(&mut self) -> anyhow::Result<ProgramUpdate> {
        let answer = self.frames.next().await.context("the connection to the server broke")?;
        Ok(match answer.context("the server ended, and the program with it")? {
            ServerMessage::Declined(reason) => ProgramUpdate::Declined(reason),
            ServerMessage::Held { id } => ProgramUpdate::AwaitsApproval(id),
            ServerMessage::Output(output) => {
                ProgramUpdate::Event(output.into_event().context("the server sent no base64")?)
            }
            ServerMessage::CellEnded(finished) => ProgramUpdate::Event(ExecutionEvent::Finished(finished)),
            ServerMessage::Ended { finished, files } => ProgramUpdate::Ended(finished, files),
            ServerMessage::Refused(reason) => ProgramUpdate::Refused(reason),
            ServerMessage::Cancelled => ProgramUpdate::Cancelled,
            ServerMessage::Failed(message) => bail!("the server could not run the program: {message}"),
            ServerMessage::Welcome | ServerMessage::Opened { .. } | ServerMessage::Unreadable(_) => {
                bail!("the server answers out of turn")
            }
        })
    }

    /// Interrupts the program.
    pub(crate) async fn interrupt(&mut self) {
        frames::send(self.frames.stream(), &ClientMessage::Interrupt)
            .await
            .ignore("the next read notices a server that is gone");
    }

    /// The files of its program, which has ended, and left these.
    pub(crate) fn into_files(self, files: Vec<FileEntry>, limits: Limits) -> anyhow::Result<ServerFiles> {
        let stream = self.frames.into_inner().context("the server answers out of turn")?.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(ServerFiles { stream, files, limits })
    }
}

/// Files at a server.
pub(crate) struct ServerFiles {
    stream: std::os::unix::net::UnixStream,
    files: Vec<FileEntry>,
    limits: Limits,
}

impl OutputFiles for ServerFiles {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    async fn files(&mut self) -> anyhow::Result<Vec<FileEntry>> {
        Ok(self.files.clone())
    }

    /// Blocks, but for a moment.
    async fn open(&mut self, path: &str, limit: u64) -> anyhow::Result<impl Read + Send + 'static> {
        self.stream.write_all(&frames::frame(&ClientMessage::Open { path: path.to_owned(), limit })?)?;
        let bytes = match serde_json::from_slice(&frames::read_frame(&mut self.stream, MAX_ANSWER)?)? {
            ServerMessage::Opened { bytes } if bytes <= limit => bytes,
            ServerMessage::Unreadable(reason) => bail!(reason),
            _ => bail!("the server answers out of turn"),
        };
        let content = Content { stream: self.stream.try_clone()?, piece: io::Cursor::new(Vec::new()), ended: false };
        Ok(content.take(bytes))
    }
}

/// The content of one file. Unread bytes are skipped.
struct Content {
    stream: std::os::unix::net::UnixStream,
    piece: io::Cursor<Vec<u8>>,
    ended: bool,
}

impl Read for Content {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.piece.read(buffer)?;
        if read > 0 || self.ended || buffer.is_empty() {
            return Ok(read);
        }
        self.piece = io::Cursor::new(frames::read_frame(&mut self.stream, MAX_ANSWER)?);
        self.ended = self.piece.get_ref().is_empty();
        self.piece.read(buffer)
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        if io::copy(self, &mut io::sink()).is_err() {
            // The next frame would be misread.
            self.stream.shutdown(Shutdown::Both).ignore("the connection may be closed already");
        }
    }
}
