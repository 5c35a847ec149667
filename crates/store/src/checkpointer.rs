//! Checkpoints of the write-ahead log, by a thread beside the writer: SQLite copies the log's pages to the file within a commit, with which
//! all other writers wait.

use std::cell::Cell;
use std::ffi::c_int;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use aludel_ignore::Ignore;
use rusqlite::Connection;
use rusqlite::hooks::Wal;

use crate::Error;

/// Pages of the log from which they are copied to the file. SQLite's own default.
const PAGES: c_int = 1000;
/// Pages of the log, of 4 KiB, from which a commit copies them itself, because the thread does not keep up.
const MAX_PAGES: c_int = 4096;
/// Pause after a checkpoint, in which more pages come together: it waits for the disk, as commits do.
const PAUSE: Duration = Duration::from_millis(20);

thread_local! {
    /// Pages of the log after the last commit on this thread.
    static LOG_PAGES: Cell<c_int> = const { Cell::new(0) };
}

/// The thread that copies the log's pages. Dropping it waits for a checkpoint under way.
#[derive(Debug)]
pub(crate) struct Checkpointer {
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    /// Starts the thread for a connection that writes to this file, in place of the connection's own checkpoints.
    pub(crate) fn start(writer: &Connection, path: &Path) -> Result<Self, Error> {
        let (wake, woken) = sync_channel(1);
        let thread = std::thread::Builder::new().name("aludel-log".into());
        let file = path.to_path_buf();
        let thread = thread.spawn(move || run(&file, &woken));
        let thread = thread.map_err(|source| Error::Io { path: path.to_path_buf(), source })?;
        writer.wal_hook(Some(after_commit));
        Ok(Self { wake: Some(wake), thread: Some(thread) })
    }

    /// Has the log copied if it is long, after a commit on this thread.
    pub(crate) fn committed(&self) {
        if LOG_PAGES.get() >= PAGES
            && let Some(wake) = &self.wake
        {
            wake.try_send(()).ignore("it is awake then");
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ignore("a checkpoint that panicked leaves the log as it is");
        }
    }
}

fn after_commit(log: &Wal, pages: c_int) -> rusqlite::Result<()> {
    LOG_PAGES.set(pages);
    if pages >= MAX_PAGES {
        log.checkpoint().ignore("what is committed stays in the log");
    }
    Ok(())
}

fn run(path: &Path, woken: &Receiver<()>) {
    let mut connection = None;
    while woken.recv().is_ok() {
        checkpoint(&mut connection, path).ignore("what is committed stays in the log");
        std::thread::sleep(PAUSE);
    }
}

/// Copies the log's pages that no reader needs there, without waiting for anybody.
fn checkpoint(connection: &mut Option<Connection>, path: &Path) -> rusqlite::Result<()> {
    let connection = match connection {
        Some(connection) => connection,
        none => none.insert(Connection::open(path)?),
    };
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use crate::database::Database;

    #[test]
    fn a_long_log_is_copied_beside_the_writer_and_used_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("aludel.db");
        let database = Database::open(&path).unwrap();
        let bytes = |name: &str| std::fs::metadata(directory.path().join(name)).unwrap().len();
        let write = |id: u32| {
            let insert = "INSERT INTO interactions (id, tenant, created_at, object, input) VALUES (?1, 't', 0, ?2, '')";
            let row = (id.to_string(), "x".repeat(5 << 20));
            database.write(|database| Ok(database.execute(insert, row)?)).unwrap();
        };
        write(0);
        // The commit itself copies nothing at this length.
        let end = Instant::now() + std::time::Duration::from_secs(20);
        while bytes("aludel.db") < 5 << 20 {
            assert!(Instant::now() < end, "the log was not copied");
            std::thread::yield_now();
        }
        (1..10).for_each(write);
        assert!(bytes("aludel.db-wal") < 32 << 20, "{}", bytes("aludel.db-wal"));
        drop(database);
        assert!(!directory.path().join("aludel.db-wal").exists(), "the last connection cleans up");
    }
}
