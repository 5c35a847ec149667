//! The files of a session, served by a process that runs beside them. The other end is `kernel/workspace.py`.

use std::any::Any;
use std::fmt::{self, Debug};
use std::io::{self, Read};
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use futures_util::StreamExt;
use parking_lot::Mutex;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio_util::sync::CancellationToken;

use super::{OutputChunk, Stdio, WORKSPACE_PROGRAM, feed, framed};
use crate::workspace::{
    FULL, FileEntry, Fingerprint, MAX_PATH, Workspace, WorkspaceEntry, WorkspaceListing, WorkspaceUsage, copy,
    file_error, mime_of, relative,
};
use crate::{Error, Limits, guest_threads};

/// The longest that an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest answer, bytes.
const MAX_ANSWER: usize = 8 << 20;
/// Answers that wait until they are taken. The other end waits beyond: a program may write answers in its place.
const MAX_ANSWERS: usize = 4;
/// Entries of one answer.
const MAX_ENTRIES: usize = 500;
/// Directories of one answer that could not be read.
const MAX_UNSEEN: usize = 100;

/// The files of one session. Dropping it drops their home, which removes them.
#[derive(Debug)]
pub struct StdioWorkspace<H> {
    server: Arc<WorkspaceServer>,
    home: H,
    /// The instance of the backend that made it.
    instance: String,
    limits: [u64; 2],
}

/// The way to the program that serves the files.
#[derive(Debug)]
struct WorkspaceServer {
    end: CancellationToken,
    link: Mutex<ServerLink>,
}

#[derive(Debug)]
struct ServerLink {
    requests: tokio::sync::mpsc::UnboundedSender<Bytes>,
    answers: mpsc::Receiver<(RawAnswer, OwnedSemaphorePermit)>,
    end: CancellationToken,
}

#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Request<'a> {
    Walk { most: u64 },
    Open { path: &'a str },
    Read { handle: u64 },
    Close { handle: u64 },
    Create { path: &'a str },
    Write { handle: u64 },
    Remove { path: &'a str },
    Room,
}

/// A path, if it is text and short enough, and the figures of a [`Fingerprint`].
type Entry = (Option<String>, u64, u64, u64, u64, u64, u64);

/// An answer; each request fills what it is about.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Answer {
    failed: Option<String>,
    full: bool,
    link: bool,
    #[serde(deserialize_with = "at_most::<MAX_ENTRIES, _, _>")]
    entries: Vec<Entry>,
    more: bool,
    #[serde(deserialize_with = "at_most::<MAX_UNSEEN, _, _>")]
    unseen: Vec<String>,
    handle: u64,
    size: u64,
    used: u64,
    limit: u64,
    takes_files: bool,
}

/// An answer as it came: what it says in JSON, and the data.
struct RawAnswer {
    header: Bytes,
    data: Bytes,
}

/// Reads a list, and fails once it has more than so many values: each may take many times its text.
fn at_most<'de, const MOST: usize, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    struct Values<const MOST: usize, T>(PhantomData<T>);
    impl<'de, const MOST: usize, T: Deserialize<'de>> Visitor<'de> for Values<MOST, T> {
        type Value = Vec<T>;

        fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(to, "a list of at most {MOST} values")
        }

        fn visit_seq<S: SeqAccess<'de>>(self, mut values: S) -> Result<Vec<T>, S::Error> {
            let mut all = Vec::new();
            while let Some(value) = values.next_element()? {
                if all.len() == MOST {
                    return Err(S::Error::invalid_length(MOST + 1, &self));
                }
                all.push(value);
            }
            Ok(all)
        }
    }
    deserializer.deserialize_seq(Values::<MOST, T>(PhantomData))
}

impl<H: Debug + Send + Sync + 'static> StdioWorkspace<H> {
    /// Wraps the streams of the process that serves the files, and waits until it is ready. `end` is the token that ends the files' host.
    pub(in crate::backends) async fn start(
        home: H,
        end: CancellationToken,
        stdio: Stdio,
        instance: String,
        limits: &Limits,
    ) -> Result<Self, Error> {
        let (requests, messages) = tokio::sync::mpsc::unbounded_channel();
        let (sender, answers) = mpsc::channel();
        let waiting = Arc::new(Semaphore::new(MAX_ANSWERS));
        let Stdio { mut output, input } = stdio;
        tokio::spawn(feed(input, vec![framed(WORKSPACE_PROGRAM.as_bytes())], messages));
        let ending = end.clone();
        tokio::spawn(async move {
            let mut buffer = BytesMut::new();
            while let Some(Ok(output)) = tokio::select! {
                output = output.next() => output,
                () = ending.cancelled() => None,
            } {
                let OutputChunk::Out(message) = output else { continue };
                buffer.extend_from_slice(&message);
                while let Some(answer) = next_answer(&mut buffer) {
                    let Ok(answer) = answer else {
                        ending.cancel();
                        return;
                    };
                    let Some(Ok(permit)) = ending.run_until_cancelled(Arc::clone(&waiting).acquire_owned()).await
                    else {
                        return;
                    };
                    if sender.send((answer, permit)).is_err() {
                        return;
                    }
                }
            }
            // Without its server the workspace is lost.
            ending.cancel();
        });
        let link = ServerLink { requests, answers, end: end.clone() };
        let server = Arc::new(WorkspaceServer { end, link: Mutex::new(link) });
        let waiting = Arc::clone(&server);
        let ready = tokio::task::spawn_blocking(move || waiting.link.lock().answer().map(drop)).await;
        let failed = |error: io::Error| Error::Setup(format!("the workspace: {error}"));
        ready.map_err(|error| Error::Setup(error.to_string()))?.map_err(failed)?;
        Ok(Self { server, home, instance, limits: [limits.disk, limits.files] })
    }

    /// The workspace, if this instance of the backend made it.
    pub(super) fn of<'a>(workspace: &'a Arc<dyn Workspace>, instance: &str) -> Option<&'a Self> {
        let found: &Self = (&**workspace as &dyn Any).downcast_ref()?;
        (found.instance == instance).then_some(found)
    }

    /// The place of the files.
    pub(super) fn home(&self) -> &H {
        &self.home
    }

    /// Returns true if its files are gone.
    pub(super) fn is_lost(&self) -> bool {
        self.server.end.is_cancelled()
    }
}

impl ServerLink {
    fn call(&self, request: &Request<'_>, data: &[u8]) -> io::Result<(Answer, Bytes)> {
        self.send(request, data)?;
        self.answer()
    }

    fn send(&self, request: &Request<'_>, data: &[u8]) -> io::Result<()> {
        let header = serde_json::to_vec(request)?;
        let mut message = BytesMut::with_capacity(8 + header.len() + data.len());
        message.put_u32((4 + header.len() + data.len()) as u32);
        message.put_u32(header.len() as u32);
        message.put_slice(&header);
        message.put_slice(data);
        self.requests.send(message.freeze()).map_err(|_| lost())
    }

    fn answer(&self) -> io::Result<(Answer, Bytes)> {
        let Ok((RawAnswer { header, data }, _permit)) = self.answers.recv_timeout(ANSWER_TIMEOUT) else {
            // A late answer would be taken for that of the next request.
            return Err(self.give_up());
        };
        match serde_json::from_slice(&header).map_err(|_| self.give_up())? {
            Answer { full: true, .. } => Err(io::Error::new(io::ErrorKind::StorageFull, FULL)),
            Answer { link: true, .. } => Err(io::Error::other("a symbolic link, which is not followed")),
            Answer { failed: Some(reason), .. } => Err(io::Error::other(reason)),
            answer => Ok((answer, data)),
        }
    }

    /// Ends the files' host, which does not answer as it should.
    fn give_up(&self) -> io::Error {
        self.end.cancel();
        lost()
    }
}

/// The failure of something that was asked about a path.
fn failed(path: &Path, error: &io::Error) -> Error {
    if error.kind() == io::ErrorKind::BrokenPipe { Error::WorkspaceLost } else { file_error(path, &error.to_string()) }
}

fn lost() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the process that serves the workspace is gone")
}

/// Takes the next answer, if it is complete.
fn next_answer(buffer: &mut BytesMut) -> Option<io::Result<RawAnswer>> {
    let mut header = buffer.get(..8)?;
    let (total, length) = (header.get_u32() as usize, header.get_u32() as usize);
    if total > MAX_ANSWER || length + 4 > total {
        return Some(Err(io::Error::other("an answer is too long")));
    }
    if buffer.len() < 4 + total {
        return None;
    }
    buffer.advance(8);
    let header = buffer.split_to(length).freeze();
    let data = buffer.split_to(total - 4 - length).freeze();
    Some(Ok(RawAnswer { header, data }))
}

/// A file that is read.
struct FileReader {
    server: Arc<WorkspaceServer>,
    handle: u64,
    piece: Bytes,
}

impl Read for FileReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.piece.is_empty() {
            self.piece = self.server.link.lock().call(&Request::Read { handle: self.handle }, &[])?.1;
        }
        let count = self.piece.len().min(into.len());
        self.piece.copy_to_slice(into.get_mut(..count).unwrap_or_default());
        Ok(count)
    }
}

impl Drop for FileReader {
    fn drop(&mut self) {
        // Without the server there is nothing to close. In a thread, because it may wait for the answer.
        let (server, handle) = (Arc::clone(&self.server), self.handle);
        guest_threads::spawn(move || drop(server.link.lock().call(&Request::Close { handle }, &[])));
    }
}

/// A file that is written.
struct Writer<'a> {
    link: &'a ServerLink,
    handle: u64,
}

impl io::Write for Writer<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.link.call(&Request::Write { handle: self.handle }, data)?;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<H: Debug + Send + Sync + 'static> Workspace for StdioWorkspace<H> {
    fn listing(&self) -> Result<WorkspaceListing, Error> {
        WorkspaceListing::of(self, self.limits[1].saturating_add(1))
    }

    fn open(&self, path: &str) -> Result<(Box<dyn Read + Send>, u64), Error> {
        relative(path)?;
        let opened = self.server.link.lock().call(&Request::Open { path }, &[]);
        let (answer, _) = opened.map_err(|error| failed(Path::new(path), &error))?;
        let reader = FileReader { server: Arc::clone(&self.server), handle: answer.handle, piece: Bytes::new() };
        Ok((Box::new(reader), answer.size))
    }

    fn write(&self, name: &str, source: &mut dyn Read, limit: u64) -> Result<FileEntry, Error> {
        let path = relative(name)?;
        let failed = |error: io::Error| failed(&path, &error);
        // Locked for the whole write: readers wait meanwhile. `source` is never a file of this workspace.
        let link = self.server.link.lock();
        let handle = link.call(&Request::Create { path: name }, &[]).map_err(failed)?.0.handle;
        let copied = copy(source, &mut Writer { link: &link, handle }, limit);
        link.call(&Request::Close { handle }, &[]).map_err(failed)?;
        if copied.is_err() {
            // A partial file is removed.
            link.call(&Request::Remove { path: name }, &[]).map_err(failed)?;
        }
        let size = copied.map_err(failed)?;
        Ok(FileEntry { mime: mime_of(name), size, path: name.to_owned() })
    }

    fn remove(&self, name: &str) -> Result<(), Error> {
        let path = relative(name)?;
        let removed = self.server.link.lock().call(&Request::Remove { path: name }, &[]);
        removed.map(drop).map_err(|error| failed(&path, &error))
    }

    fn usage(&self) -> Result<WorkspaceUsage, Error> {
        let asked = self.server.link.lock().call(&Request::Room, &[]);
        let (answer, _) = asked.map_err(|error| failed(Path::new("."), &error))?;
        let Answer { used, limit, takes_files, .. } = answer;
        Ok(WorkspaceUsage { used, limit: limit.min(self.limits[0]), takes_files })
    }

    fn walk(&self, most: u64, visit: &mut dyn FnMut(WorkspaceEntry)) -> Result<(), Error> {
        let failed = |error: io::Error| failed(Path::new("."), &error);
        let link = self.server.link.lock();
        link.send(&Request::Walk { most }, &[]).map_err(failed)?;
        let mut left = most;
        loop {
            let (answer, _) = link.answer().map_err(failed)?;
            let count = answer.entries.len() as u64;
            if count > left || (answer.more && count == 0) {
                return Err(failed(link.give_up()));
            }
            left -= count;
            for (path, inode, size, modified, modified_ns, changed, changed_ns) in answer.entries {
                let print: Fingerprint = [inode, size, modified, modified_ns, changed, changed_ns];
                let path = path.filter(|path| path.len() <= MAX_PATH && relative(path).is_ok());
                visit(match path {
                    Some(path) => WorkspaceEntry::File(FileEntry { mime: mime_of(&path), size, path }, print),
                    None => WorkspaceEntry::Unreportable(print),
                });
            }
            if !answer.more {
                answer.unseen.into_iter().map(WorkspaceEntry::Unseen).for_each(visit);
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::stream;

    use super::*;

    /// A workspace whose server answers this without end, asked or not, and the number of answers that were taken from it.
    async fn flooded(answer: &'static str) -> (StdioWorkspace<()>, Arc<AtomicUsize>) {
        let taken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&taken);
        let output = stream::repeat_with(move || {
            let header = if count.fetch_add(1, Ordering::SeqCst) == 0 { "{}" } else { answer };
            let lengths = [4 + header.len(), header.len()].map(|length| (length as u32).to_be_bytes());
            Ok(OutputChunk::Out([&lengths.concat(), header.as_bytes()].concat().into()))
        });
        let stdio = Stdio { output: output.boxed(), input: Box::pin(tokio::io::sink()) };
        let (end, limits) = (CancellationToken::new(), Limits::default());
        let workspace = StdioWorkspace::start((), end, stdio, String::new(), &limits).await.unwrap();
        (workspace, taken)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn answers_that_nobody_asked_for_are_left_at_the_other_end() {
        let (workspace, taken) = flooded(r#"{"size": 1}"#).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(taken.load(Ordering::SeqCst) <= MAX_ANSWERS + 2, "{taken:?}");
        assert!(workspace.usage().is_ok());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_walk_without_end_ends_its_workspace() {
        for answer in [
            r#"{"entries": [], "more": true}"#,
            r#"{"entries": [["a", 1, 1, 1, 1, 1, 1], ["b", 1, 1, 1, 1, 1, 1]], "more": true}"#,
        ] {
            let (workspace, _taken) = flooded(answer).await;
            let mut seen = 0;
            let walked = workspace.walk(100, &mut |_| seen += 1);
            assert!(matches!(walked, Err(Error::WorkspaceLost)) && seen <= 100, "{walked:?}");
            assert!(workspace.is_lost());
        }
    }
    #[tokio::test(flavor = "multi_thread")]
    async fn a_list_that_is_too_long_is_not_read_and_ends_its_workspace() {
        let unseen = |count| format!(r#"{{"unseen": ["a"{}]}}"#, ",\"\"".repeat(count - 1)).leak();
        let (workspace, _taken) = flooded(unseen(MAX_UNSEEN)).await;
        let mut seen = 0;
        workspace.walk(100, &mut |_| seen += 1).unwrap();
        assert_eq!(seen, MAX_UNSEEN);
        let (workspace, _taken) = flooded(unseen(MAX_UNSEEN + 1)).await;
        assert!(matches!(workspace.walk(100, &mut |_| ()), Err(Error::WorkspaceLost)));
        assert!(workspace.is_lost());
    }
}
