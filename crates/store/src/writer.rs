//! The writing connection, with group commit: writes of several threads at the same moment are committed together.
//!
//! A commit waits for the disk. A thread behind which others wait leaves the commit to them, and waits for it; the last in line commits for
//! all. A single thread commits at once. The next in line is one whose tenant has used the connection least of late ([`WriterQueue`]).

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aludel_ignore::Ignore;
use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, ffi};

use crate::checkpointer::Checkpointer;
use crate::writer_queue::WriterQueue;
use crate::{Error, Tenant};

/// The most writes that are committed together.
const MAX_BATCH: usize = 32;
/// The longest that a transaction takes more writes.
const MAX_BATCH_TIME: Duration = Duration::from_millis(2);

/// The connection that writes, for several threads.
#[derive(Debug)]
pub(crate) struct WriteConnection {
    line: WriterQueue,
    // Declared before the connection, which closes last and cleans up.
    checkpointer: Checkpointer,
    /// Taken with the head of the line alone.
    state: Mutex<WriterState>,
}

#[derive(Debug)]
struct WriterState {
    connection: Connection,
    open: Option<OpenTransaction>,
}

/// A transaction that has begun.
#[derive(Debug)]
struct OpenTransaction {
    batch: Arc<Batch>,
    writes: usize,
    since: Instant,
}

/// The result of a transaction, shared by all writes in it.
#[derive(Debug, Default)]
struct Batch {
    end: Mutex<Option<Result<(), CommitError>>>,
    ended: Condvar,
}

/// A commit's error, which several get.
type CommitError = (ffi::Error, Option<String>);

impl WriteConnection {
    /// A connection to this file.
    pub(crate) fn new(connection: Connection, path: &Path) -> Result<Self, Error> {
        let checkpointer = Checkpointer::start(&connection, path)?;
        let state = Mutex::new(WriterState { connection, open: None });
        Ok(Self { line: WriterQueue::default(), checkpointer, state })
    }

    /// Runs `work` in a transaction, and returns when it is committed. If `work` fails, its writes are undone; others in the same
    /// transaction are not affected. Without a tenant it is the server's own.
    pub(crate) fn write<T>(
        &self,
        tenant: Option<&Tenant>,
        work: impl FnOnce(&Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let head = self.line.enter(tenant);
        let mut state = self.state.lock();
        let WriterState { connection, open } = &mut *state;
        let transaction = match open {
            Some(transaction) => transaction,
            None => {
                // A transaction that reads first and then writes would fail, without waiting, if another process wrote in between.
                run(connection, "BEGIN IMMEDIATE")?;
                open.insert(OpenTransaction { batch: Arc::default(), writes: 0, since: Instant::now() })
            }
        };
        transaction.writes += 1;
        let (batch, writes, since) = (Arc::clone(&transaction.batch), transaction.writes, transaction.since);
        let done = catch_unwind(AssertUnwindSafe(|| apart(connection, work)));
        if connection.is_autocommit() {
            // A severe error has rolled back the whole transaction.
            let reason = match &done {
                Ok(Err(Error::Database(error))) => refusal(error),
                _ => (ffi::Error::new(ffi::SQLITE_ABORT), None),
            };
            *open = None;
            batch.end(Err(reason));
        } else if writes >= MAX_BATCH || since.elapsed() > MAX_BATCH_TIME || !head.has_others_behind() {
            let committed = run(connection, "COMMIT");
            if committed.is_err() {
                run(connection, "ROLLBACK").ignore("SQLite has rolled back by itself if this fails");
            }
            self.checkpointer.committed();
            *open = None;
            batch.end(committed.map_err(|error| refusal(&error)));
        }
        drop(state);
        drop(head);
        match done {
            Ok(Ok(value)) => batch.wait().map(|()| value),
            Ok(Err(error)) => Err(error),
            Err(panic) => resume_unwind(panic),
        }
    }
}

/// Runs `work` so that it can be undone alone.
fn apart<T>(connection: &Connection, work: impl FnOnce(&Connection) -> Result<T, Error>) -> Result<T, Error> {
    /// Undoes what a work did that did not come to its end.
    struct RollbackGuard<'c>(&'c Connection);
    impl Drop for RollbackGuard<'_> {
        fn drop(&mut self) {
            run(self.0, "ROLLBACK TO work")
                .and_then(|()| run(self.0, "RELEASE work"))
                .ignore("the whole transaction may have been rolled back");
        }
    }
    run(connection, "SAVEPOINT work")?;
    let unfinished = RollbackGuard(connection);
    let value = work(connection)?;
    std::mem::forget(unfinished);
    run(connection, "RELEASE work")?;
    Ok(value)
}

fn run(connection: &Connection, statement: &str) -> Result<(), rusqlite::Error> {
    connection.prepare_cached(statement)?.execute([]).map(drop)
}

impl Batch {
    fn end(&self, result: Result<(), CommitError>) {
        *self.end.lock() = Some(result);
        self.ended.notify_all();
    }

    fn wait(&self) -> Result<(), Error> {
        let mut end = self.end.lock();
        self.ended.wait_while(&mut end, |end| end.is_none());
        match &*end {
            Some(Err((error, message))) => Err(rusqlite::Error::SqliteFailure(*error, message.clone()).into()),
            Some(Ok(())) | None => Ok(()),
        }
    }
}

fn refusal(error: &rusqlite::Error) -> CommitError {
    match error {
        rusqlite::Error::SqliteFailure(error, message) => (*error, message.clone()),
        other => (ffi::Error::new(ffi::SQLITE_ERROR), Some(other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn writer() -> (tempfile::TempDir, WriteConnection) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("db");
        let connection = Connection::open(&path).unwrap();
        connection.execute_batch("CREATE TABLE t (n INTEGER PRIMARY KEY)").unwrap();
        let writer = WriteConnection::new(connection, &path).unwrap();
        (directory, writer)
    }

    fn insert(connection: &Connection, number: i64) -> Result<(), Error> {
        connection.execute("INSERT INTO t VALUES (?1)", [number])?;
        Ok(())
    }

    fn rows(writer: &WriteConnection) -> i64 {
        writer
            .write(None, |connection| Ok(connection.query_one("SELECT count(*) FROM t", [], |row| row.get(0))?))
            .unwrap()
    }

    /// Writes of several threads that come while the connection is taken.
    fn together(
        writer: &WriteConnection,
        works: usize,
        work: impl Fn(&Connection, i64) -> Result<(), Error> + Sync,
    ) -> Vec<bool> {
        std::thread::scope(|scope| {
            let first = writer.line.enter(None);
            let threads: Vec<_> = (0..works)
                .map(|number| {
                    let work = &work;
                    scope.spawn(move || writer.write(None, |connection| work(connection, number as i64)).is_ok())
                })
                .collect();
            while writer.line.waiting() < works {
                std::thread::yield_now();
            }
            drop(first);
            threads.into_iter().map(|thread| thread.join().unwrap_or(false)).collect()
        })
    }

    #[test]
    fn writes_of_the_same_moment_are_committed_together() {
        let (_directory, writer) = writer();
        let commits = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&commits);
        writer.state.lock().connection.commit_hook(Some(move || {
            count.fetch_add(1, Ordering::SeqCst);
            false
        }));
        assert!(together(&writer, 20, insert).into_iter().all(|done| done));
        assert_eq!(rows(&writer), 20);
        // One commit, unless the threads were slow.
        assert!(commits.load(Ordering::SeqCst) < 15, "{commits:?}");
    }

    #[test]
    fn a_work_that_fails_or_panics_is_undone_alone() {
        let (_directory, writer) = writer();
        let done = together(&writer, 9, |connection, number| {
            insert(connection, number)?;
            match number % 3 {
                0 => Ok(()),
                1 => insert(connection, number),
                _ => panic!("as the test has it"),
            }
        });
        assert_eq!(done, [true, false, false].repeat(3));
        assert_eq!(rows(&writer), 3);
    }

    #[test]
    fn all_are_told_of_a_commit_that_fails() {
        let (_directory, writer) = writer();
        writer.state.lock().connection.commit_hook(Some(|| true));
        assert!(together(&writer, 5, insert).into_iter().all(|done| !done));
        writer.state.lock().connection.commit_hook(None::<fn() -> bool>);
        assert_eq!(rows(&writer), 0);
    }
}
