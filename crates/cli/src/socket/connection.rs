//! One client of the socket, on the server's side.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aludel_engine::executions::TemporarySession;
use aludel_engine::executions::{self, ClientProgram, DirectEnd, DirectEvent, DirectExecution};
use aludel_engine::sessions::SessionSandbox;
use aludel_engine::{Engine, Error};
use aludel_sandbox::{FileEntry, Finished, Limits, Outcome};
use aludel_server::LocalUserService;
use aludel_store::{Tenant, fresh_id};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::frames::{self, FrameReader, MAX_ASK};
use super::message::{ClientMessage, OutputMessage, PeerIdentity, ProgramRequest, ServerMessage};
use crate::exit::words;

/// Time in which a client has to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Messages of a client that wait to be taken.
const MAX_WAITING: usize = 4;
/// Bytes of a file that are sent at once.
const PIECE: usize = 1 << 20;
/// The sender of these programs, for people who decide about them.
const SENDER: &str = "aludel run";

/// The server behind the socket.
pub(super) struct SocketServer {
    pub(super) engine: Arc<Engine>,
    /// Answers clients that speak HTTP.
    pub(super) local_user: LocalUserService,
    /// This process, as clients see it.
    pub(super) peer: PeerIdentity,
    /// The most that a client's program may use.
    pub(super) limits: Limits,
}

impl SocketServer {
    /// Returns the reason for which the client has to make its own sandbox, if there is one.
    fn refusal(&self, request: &ProgramRequest) -> Option<String> {
        if let Some(difference) = self.peer.difference(&request.peer) {
            return Some(difference);
        }
        request.limits.exceeds(&self.limits).map(|limit| format!("it allows less {limit}"))
    }
}

/// Serves a client until it disconnects or breaks the protocol. Its sandbox ends then, whatever runs in it.
pub(super) async fn serve_connection(host: &SocketServer, mut stream: UnixStream) {
    let Ok(Ok(first)) = timeout(REQUEST_TIMEOUT, frames::first_byte(&stream)).await else { return };
    if first.is_ascii_uppercase() {
        return host.local_user.serve(stream).await;
    }
    let request = timeout(REQUEST_TIMEOUT, frames::receive_with::<ProgramRequest>(&mut stream));
    let Ok(Ok((request, files))) = request.await else { return };
    let (reader, writer) = stream.into_split();
    let (asks, asked) = mpsc::channel(MAX_WAITING);
    let opened = OnceLock::new();
    let served = ClientConnection { host, opened: &opened, writer, asked };
    tokio::select! {
        () = listen(reader, asks) => {}
        // A client that does not read its answers is gone.
        _answered = host.local_user.counted(served.answer(request, files)) => {}
    }
    if let Some(session) = opened.get() {
        session.sandbox().close().await;
    }
}

/// Takes messages of a client until it goes away.
async fn listen(reader: OwnedReadHalf, asks: mpsc::Sender<ClientMessage>) {
    let mut frames = FrameReader::new(reader, MAX_ASK);
    while let Ok(Some(ask)) = frames.next().await {
        if asks.send(ask).await.is_err() {
            return;
        }
    }
}

/// A client that is served.
struct ClientConnection<'a> {
    host: &'a SocketServer,
    /// Its session, once there is one.
    opened: &'a OnceLock<TemporarySession>,
    writer: OwnedWriteHalf,
    asked: mpsc::Receiver<ClientMessage>,
}

impl ClientConnection<'_> {
    async fn answer(mut self, request: ProgramRequest, files: Vec<OwnedFd>) -> io::Result<()> {
        if let Some(reason) = self.host.refusal(&request) {
            return self.send(&ServerMessage::Declined(reason)).await;
        }
        self.send(&ServerMessage::Welcome).await?;
        let ProgramRequest { peer: _, limits, cells, options, files: names } = request;
        let (engine, tenant) = (&self.host.engine, Tenant::terminal());
        let session = match engine.sessions.open_temporary(&tenant, &fresh_id("run_"), limits).await {
            Ok(session) => self.opened.get_or_init(|| session),
            Err(error) => return self.send(&ServerMessage::Declined(words(&error.into()))).await,
        };
        for (name, file) in names.iter().zip(files) {
            if let Err(error) = add(session.sandbox(), name, file.into()).await {
                let message = format!("cannot hand over {name}: {}", words(&error));
                return self.send(&ServerMessage::Failed(message)).await;
            }
        }
        if let Err(error) = session.sandbox().configure(&options).await {
            return self.send(&failed(error)).await;
        }
        let last = self.run(cells, session).await?;
        self.send(&last).await?;
        while let Some(ask) = self.asked.recv().await {
            match ask {
                ClientMessage::Open { path, limit } => self.send_file(session.sandbox(), &path, limit).await?,
                // The program has ended meanwhile.
                ClientMessage::Interrupt => {}
            }
        }
        Ok(())
    }

    /// Runs the pieces of a program, each of which passes the gate. Returns the answer about the end.
    async fn run(&mut self, cells: Vec<String>, session: &TemporarySession) -> io::Result<ServerMessage> {
        let (engine, mut made) = (Arc::clone(&self.host.engine), Vec::new());
        let mut cells = cells.into_iter().enumerate().peekable();
        while let Some((index, code)) = cells.next() {
            let (id, tenant, target) = (fresh_id("run_"), Tenant::terminal(), session.target());
            let program = ClientProgram { id, tenant, sender: SENDER.to_owned(), target, code, timeout: None };
            let execution = match executions::start(&engine, program) {
                Ok(execution) => execution,
                Err(error) if index == 0 => return Ok(ServerMessage::Declined(words(&error.into()))),
                Err(error) => return Ok(failed(error)),
            };
            let mut finished = match self.follow(execution).await? {
                Ok(finished) => finished,
                Err(answer) => return Ok(answer),
            };
            if finished.outcome == Outcome::Completed && cells.peek().is_some() {
                made.extend_from_slice(&finished.files);
                self.send(&ServerMessage::CellEnded(finished)).await?;
                continue;
            }
            finished.add_files(made);
            let files = still_there(session.sandbox(), &finished).await;
            return Ok(files.map_or_else(failed, |files| ServerMessage::Ended { finished, files }));
        }
        Ok(ServerMessage::Failed("there is no program".to_owned()))
    }

    /// Sends the events of a program. Returns its end, or the answer if it was not run to its end.
    async fn follow(&mut self, mut execution: DirectExecution) -> io::Result<Result<Finished, ServerMessage>> {
        let canceller = execution.canceller();
        let mut was_interrupted = false;
        loop {
            let event = tokio::select! {
                event = execution.next() => event,
                Some(ask) = self.asked.recv() => {
                    if matches!(ask, ClientMessage::Interrupt) {
                        was_interrupted = true;
                        canceller.cancel();
                    }
                    continue;
                }
            };
            match event {
                Some(DirectEvent::ApprovalRequested(record)) => {
                    self.send(&ServerMessage::Held { id: record.id.to_string() }).await?
                }
                Some(DirectEvent::Started) => {}
                Some(DirectEvent::Output(output)) => {
                    self.send(&ServerMessage::Output(OutputMessage::of(output))).await?
                }
                Some(DirectEvent::Ended(DirectEnd::Ran(outcome))) => {
                    let Some(finished) = outcome.finished else { break };
                    if finished.outcome == Outcome::Interrupted && !was_interrupted {
                        return Ok(Err(ServerMessage::Failed(
                            "the server ended, and interrupted the program".to_owned(),
                        )));
                    }
                    return Ok(Ok(finished));
                }
                Some(DirectEvent::Ended(DirectEnd::Denied { reason })) => {
                    return Ok(Err(ServerMessage::Refused(reason)));
                }
                Some(DirectEvent::Ended(DirectEnd::Cancelled)) => return Ok(Err(ServerMessage::Cancelled)),
                Some(DirectEvent::Ended(DirectEnd::Failed(error))) => return Ok(Err(failed(error))),
                None => break,
            }
        }
        Ok(Err(ServerMessage::Failed("the program's outcome is not known".to_owned())))
    }

    async fn send_file(&mut self, session: &SessionSandbox, path: &str, limit: u64) -> io::Result<()> {
        let (file, bytes) = match session.open_file(path, limit).await {
            Ok(opened) => opened,
            Err(error) => return self.send(&ServerMessage::Unreadable(words(&error.into()))).await,
        };
        self.send(&ServerMessage::Opened { bytes }).await?;
        let mut file: Box<dyn Read + Send> = Box::new(file);
        let mut piece = vec![0; PIECE];
        loop {
            let read = tokio::task::spawn_blocking(move || {
                let read = file.read(&mut piece)?;
                Ok::<_, io::Error>((file, piece, read))
            });
            let (next_file, next_piece, read) = read.await.map_err(io::Error::other)??;
            (file, piece) = (next_file, next_piece);
            frames::send_bytes(&mut self.writer, piece.get(..read).unwrap_or_default()).await?;
            if read == 0 {
                return Ok(());
            }
        }
    }

    async fn send(&mut self, answer: &ServerMessage) -> io::Result<()> {
        frames::send(&mut self.writer, answer).await
    }
}

/// Copies a file that a client opened into the workspace.
async fn add(session: &SessionSandbox, name: &str, file: File) -> anyhow::Result<()> {
    let metadata = file.metadata()?;
    // Reading anything else may never end.
    anyhow::ensure!(metadata.is_file(), "it is not a regular file");
    session.add_file(name, metadata.len(), file).await?;
    Ok(())
}

/// Returns the files of an outcome that still exist, in their present state.
async fn still_there(session: &SessionSandbox, finished: &Finished) -> Result<Vec<FileEntry>, Error> {
    if finished.files.is_empty() {
        return Ok(Vec::new());
    }
    let mut files = session.files().await?;
    let made: std::collections::HashSet<&str> = finished.files.iter().map(|file| file.path.as_str()).collect();
    files.retain(|file| made.contains(file.path.as_str()));
    Ok(files)
}

fn failed(error: Error) -> ServerMessage {
    ServerMessage::Failed(words(&error.into()))
}
