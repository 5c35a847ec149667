//! The database file: its writer and its readers.

mod formats;

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aludel_ignore::Ignore;
use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Params, Row, ToSql};
use rustix::fs::{Access, access};
use tracing::info;

pub use self::formats::UpgradeLoss;
use self::formats::{is_older, upgrade};
use crate::disk_reserve::DiskReserve;
use crate::writer::WriteConnection;
use crate::{Error, Tenant};

/// Longest wait of a statement for another process that is writing.
const BUSY: Duration = Duration::from_secs(10);

/// Most connections that read at once. Each has a page cache of 2 MB.
const READERS: usize = 8;

/// Most connections that read for one tenant at once, so that others always find one.
const READERS_OF_TENANT: usize = READERS / 2;

/// The pragma that has deleted rows overwritten.
const OVERWRITES: &str = "secure_delete";

/// Rows that are deleted in one transaction.
const PIECE: usize = 500;

/// Time in which pages are given back to the file system by one transaction, with which other writers wait. SQLite searches the list of
/// unused pages for each of them.
const SHRINK_TIME: Duration = Duration::from_millis(5);

/// Pause between two such transactions, so that those of other processes get their turn.
const SHRINK_PAUSE: Duration = Duration::from_millis(25);

/// Such transactions in one pass.
const MAX_SHRINKS: usize = 40;

/// Least number of unused pages for which a file is written anew when a server starts, if they are more than half of it.
const MANY_UNUSED: u64 = 16 << 10;

/// Least number of unused pages that the file keeps, for rows to come.
const LEAST_UNUSED: u64 = 1024;

/// Bytes to which the log shrinks once its pages are in the file.
const LOG_BYTES: i64 = 16 << 20;

/// These parameters of a query and, as the last, the number of rows of one piece.
pub(crate) fn piece_of<'p>(parameters: &[&'p (dyn ToSql + Sync)], rows: &'p usize) -> Vec<&'p dyn ToSql> {
    parameters.iter().map(|parameter| *parameter as &dyn ToSql).chain([rows as &dyn ToSql]).collect()
}

/// One connection that writes, and several that read beside it and beside each other.
///
/// A reader sees everything that was committed before it began, so a client that knows of a write finds it. Both kinds block: call them on
/// a thread that may wait.
#[derive(Debug)]
pub(crate) struct Database {
    path: PathBuf,
    // Declared before the writer, so that the writer closes last and cleans up.
    readers: Mutex<Readers>,
    returned: Condvar,
    writer: WriteConnection,
    reserve: DiskReserve,
    dropped: UpgradeLoss,
}

/// A log that was copied to the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Log {
    /// Its room is used again.
    Kept,
    /// Its room is given back.
    Cut,
}

/// The reading connections: the free ones, and the tenants of the taken ones.
#[derive(Debug, Default)]
struct Readers {
    free: Vec<Connection>,
    taken: Vec<Option<Tenant>>,
}

/// A connection that reads. Dropping it gives it back.
struct ReadConnection<'d> {
    database: &'d Database,
    tenant: Option<&'d Tenant>,
    connection: Option<Connection>,
}

impl Database {
    /// Opens the file, or makes it, and upgrades it to the newest format.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        Self::open_or_fail(path).map_err(|error| explained(error, path))
    }

    fn open_or_fail(path: &Path) -> Result<Self, Error> {
        let reserve = DiskReserve::new(path.with_file_name("reserve"));
        reserve.release_if_full();
        let mut writer = Connection::open(path)?;
        writer.busy_timeout(BUSY)?;
        // Of effect on a new file. One that has it is not written to: the disk may be full.
        if writer.pragma_query_value(None, "auto_vacuum", |row| row.get::<_, i64>(0))? == 0 {
            writer.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        }
        keep_a_log(&writer)?;
        writer.pragma_update(None, "journal_size_limit", LOG_BYTES)?;
        // So that a write that a client knows of survives a power cut.
        writer.pragma_update(None, "synchronous", "FULL")?;
        writer.pragma_update(None, "foreign_keys", true)?;
        // Deleted rows are overwritten, and cannot be read from the file.
        writer.pragma_update(None, OVERWRITES, true)?;
        writer.set_prepared_statement_cache_capacity(128);
        let dropped = upgrade(&mut writer)?;
        Ok(Self {
            dropped,
            path: path.to_path_buf(),
            readers: Mutex::default(),
            returned: Condvar::new(),
            writer: WriteConnection::new(writer, path)?,
            reserve,
        })
    }

    /// Returns true if there is a file of an older format, which opening it upgrades.
    pub(crate) fn is_older(path: &Path) -> Result<bool, Error> {
        if !path.exists() {
            return Ok(false);
        }
        let looked = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).and_then(|connection| {
            connection.busy_timeout(BUSY)?;
            is_older(&connection)
        });
        looked.map_err(|error| explained(error.into(), path))
    }

    /// Runs `work` in a transaction, which is committed if it succeeds. Prepare texts before and remove files after it, because other
    /// writers wait meanwhile. The caller must hold no lock that another `work` needs.
    pub(crate) fn write<T>(&self, work: impl FnOnce(&Connection) -> Result<T, Error>) -> Result<T, Error> {
        self.writer.write(None, work)
    }

    /// The same for a tenant, which shares the connection fairly with others.
    pub(crate) fn write_for<T>(
        &self,
        tenant: &Tenant,
        work: impl FnOnce(&Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.writer.write(Some(tenant), work)
    }

    /// Runs `work`, which deletes, for a tenant or, with `None`, for the server. On a full disk it is tried again in the room that is kept
    /// for it.
    pub(crate) fn delete<T>(
        &self,
        tenant: Option<&Tenant>,
        work: impl Fn(&Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        match self.writer.write(tenant, &work) {
            Err(error) if error.is_disk_full() => {
                self.reserve.release();
                self.empty_log(Log::Kept);
                // To overwrite takes as much room in the log as is deleted.
                self.writer.write(tenant, |database| {
                    database.pragma_update(None, OVERWRITES, false)?;
                    let done = work(database);
                    database.pragma_update(None, OVERWRITES, true)?;
                    done
                })
            }
            done => done,
        }
    }

    /// Copies the log's pages to the file, without waiting for others, so that the log's room is used again: on a full disk SQLite could
    /// not do so by itself, as the file had to grow for it.
    fn empty_log(&self, then: Log) {
        let emptied = Connection::open(&self.path).and_then(|connection| {
            // Without waiting: others cannot write while a log is cut.
            connection.busy_timeout(Duration::ZERO)?;
            let run = |query| connection.query_row(query, [], |row| row.get::<_, i64>(0));
            // Most of it is copied while others write. They wait for the rest of a log that is cut.
            let copied = run("PRAGMA wal_checkpoint(PASSIVE)")?;
            if then == Log::Cut { run("PRAGMA wal_checkpoint(TRUNCATE)") } else { Ok(copied) }
        });
        emptied.ignore("it is emptied another time, and a deletion for which there is no room fails");
    }

    /// Deletes rows for a tenant or, with `None`, for the server, so many at once that other writers need not wait for long. The query's
    /// last parameter is the number of rows of one piece.
    pub(crate) fn delete_in_pieces(
        &self,
        tenant: Option<&Tenant>,
        query: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<(), Error> {
        let delete = |database: &Connection, rows| {
            Ok((database.prepare_cached(query)?.execute(&*piece_of(parameters, &rows))?, ()))
        };
        self.in_pieces(tenant, delete, |()| ())
    }

    /// Has `delete` delete at most so many rows, until it deletes fewer. It returns their number, and more for `deleted`. On a full disk
    /// they are fewer: each row may change several pages, which must fit into the room that is kept.
    pub(crate) fn in_pieces<T>(
        &self,
        tenant: Option<&Tenant>,
        delete: impl Fn(&Connection, usize) -> Result<(usize, T), Error>,
        deleted: impl Fn(T),
    ) -> Result<(), Error> {
        self.in_pieces_of(PIECE, tenant, delete, deleted)
    }

    /// The same with this many rows at first.
    pub(crate) fn in_pieces_of<T>(
        &self,
        most: usize,
        tenant: Option<&Tenant>,
        delete: impl Fn(&Connection, usize) -> Result<(usize, T), Error>,
        deleted: impl Fn(T),
    ) -> Result<(), Error> {
        let mut rows = most;
        loop {
            match self.delete(tenant, |database| delete(database, rows)) {
                Ok((count, told)) => {
                    deleted(told);
                    if count < rows {
                        return Ok(());
                    }
                }
                Err(error) if error.is_disk_full() && rows > 1 => rows = (rows / 10).max(1),
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives unused pages back to the file system, except an eighth of the file: in pieces, and not all at once if they are many. Then it
    /// empties the log, in which deleted rows can still be read.
    pub(crate) fn shrink(&self) -> Result<(), Error> {
        for _ in 0..MAX_SHRINKS {
            let is_done = self.write(|database| {
                let begun = Instant::now();
                let mut unused = unused_pages(database)?;
                while unused > kept_pages(database)? && begun.elapsed() < SHRINK_TIME {
                    // Each row that it returns is a page.
                    let mut pages = database.prepare_cached("PRAGMA incremental_vacuum(1)")?;
                    let mut pages = pages.query([])?;
                    while pages.next()?.is_some() {}
                    let left = unused_pages(database)?;
                    if left == unused {
                        // A file of an older version, which cannot shrink.
                        return Ok(true);
                    }
                    unused = left;
                }
                Ok(unused <= kept_pages(database)?)
            })?;
            if is_done {
                break;
            }
            std::thread::sleep(SHRINK_PAUSE);
        }
        self.empty_log(Log::Cut);
        Ok(())
    }

    /// Writes the file anew if most of it is unused, or if it is of an older version, so that it can shrink from then on.
    pub(crate) fn compact(&self) -> Result<(), Error> {
        let connection = Connection::open(&self.path)?;
        let count = |name| connection.pragma_query_value(None, name, |row| row.get::<_, u64>(0));
        let (pages, unused) = (count("page_count")?, unused_pages(&connection)?);
        if count("auto_vacuum")? > 0 && (unused < MANY_UNUSED || unused < pages / 2) {
            return Ok(());
        }
        let megabytes = (pages * count("page_size")?) >> 20;
        info!(megabytes, "the database is written anew, so that it is smaller or can shrink");
        connection.busy_timeout(BUSY)?;
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        connection.execute_batch("VACUUM; PRAGMA wal_checkpoint(TRUNCATE)")?;
        Ok(())
    }

    /// Keeps room for deletions on a full disk.
    pub(crate) fn fill_reserve(&self) {
        self.reserve.fill();
    }

    /// Runs queries on one consistent state, for a tenant or, with `None`, for the server.
    pub(crate) fn read<T>(
        &self,
        tenant: Option<&Tenant>,
        work: impl FnOnce(&Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut reader = self.reader(tenant)?;
        let connection = match &mut reader.connection {
            Some(connection) => connection,
            none => none.insert(self.connect()?),
        };
        let transaction = connection.transaction()?;
        work(&transaction)
    }

    /// Copies a consistent state of the file to one that must not exist.
    pub(crate) fn copy_to(&self, path: &Path) -> Result<(), Error> {
        let path = path.to_str().ok_or_else(|| Error::Io {
            path: path.to_path_buf(),
            source: std::io::Error::new(std::io::ErrorKind::InvalidInput, "the path is no text"),
        })?;
        self.connect()?.execute("VACUUM INTO ?1", [path])?;
        Ok(())
    }

    pub(crate) fn dropped(&self) -> UpgradeLoss {
        self.dropped
    }

    /// Waits for a reader.
    fn reader<'d>(&'d self, tenant: Option<&'d Tenant>) -> Result<ReadConnection<'d>, Error> {
        let full = |readers: &mut Readers| {
            let mine = readers.taken.iter().filter(|taken| taken.is_some() && taken.as_ref() == tenant).count();
            // Keys are looked up for all tenants, so one reader is never taken for a tenant.
            readers.taken.len() >= READERS - usize::from(tenant.is_some()) || mine >= READERS_OF_TENANT
        };
        let mut readers = self.readers.lock();
        self.returned.wait_while(&mut readers, full);
        readers.taken.push(tenant.cloned());
        Ok(ReadConnection { database: self, tenant, connection: readers.free.pop() })
    }

    fn connect(&self) -> Result<Connection, Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(BUSY)?;
        connection.set_prepared_statement_cache_capacity(128);
        Ok(connection)
    }
}

impl Drop for ReadConnection<'_> {
    fn drop(&mut self) {
        let mut readers = self.database.readers.lock();
        if let Some(mine) = readers.taken.iter().position(|taken| taken.as_ref() == self.tenant) {
            readers.taken.swap_remove(mine);
        }
        readers.free.extend(self.connection.take());
        // All of them, because the woken thread may be limited by its tenant's share.
        self.database.returned.notify_all();
    }
}

/// The error of a file that cannot be opened, with the file system's reason. Reading it makes files beside it.
fn explained(error: Error, path: &Path) -> Error {
    let directory = path.parent().unwrap_or(path);
    match (error, access(directory, Access::WRITE_OK)) {
        (error, _) if error.is_disk_full() => {
            Error::Io { path: path.to_path_buf(), source: io::ErrorKind::StorageFull.into() }
        }
        (Error::Database(_), Err(source)) => {
            Error::NotWritable { path: directory.to_path_buf(), source: source.into() }
        }
        (error, _) => error,
    }
}

/// Pages of the file that hold nothing.
fn unused_pages(connection: &Connection) -> Result<u64, Error> {
    Ok(connection.pragma_query_value(None, "freelist_count", |row| row.get(0))?)
}

/// Unused pages that stay in the file.
fn kept_pages(connection: &Connection) -> Result<u64, Error> {
    let pages: u64 = connection.pragma_query_value(None, "page_count", |row| row.get(0))?;
    Ok((pages / 8).max(LEAST_UNUSED))
}

/// Switches to a write-ahead log, so that readers need not wait for the writer.
///
/// SQLite reads the file before this change, and does not wait to upgrade a read lock: `BUSY` comes at once if another process makes the
/// same new file.
fn keep_a_log(connection: &Connection) -> Result<(), Error> {
    let end = Instant::now() + BUSY;
    loop {
        match connection.pragma_update(None, "journal_mode", "WAL") {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(5));
            }
            done => return Ok(done?),
        }
    }
}

/// Returns the first row of a query, if there is one.
pub(crate) fn one<T>(
    connection: &Connection,
    query: &str,
    parameters: impl Params,
    row: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Option<T>, Error> {
    Ok(connection.prepare_cached(query)?.query_row(parameters, row).optional()?)
}

/// Returns all rows of a query.
pub(crate) fn all<T>(
    connection: &Connection,
    query: &str,
    parameters: impl Params,
    row: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, Error> {
    Ok(connection.prepare_cached(query)?.query_map(parameters, row)?.collect::<rusqlite::Result<_>>()?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[test]
    fn pieces_of_a_deletion_shrink_until_they_fit() {
        let directory = tempfile::tempdir().unwrap();
        let database = Database::open(&directory.path().join("state.db")).unwrap();
        let (left, tried) = (std::cell::Cell::new(120_usize), std::cell::RefCell::new(Vec::new()));
        let delete = |_: &Connection, rows: usize| {
            tried.borrow_mut().push(rows);
            if rows > 60 {
                return Err(Error::Source(std::io::ErrorKind::StorageFull.into()));
            }
            let count = rows.min(left.get());
            left.set(left.get() - count);
            Ok((count, count))
        };
        database.in_pieces(None, delete, |count| assert!(count <= 50)).unwrap();
        // The first is tried once more, in the room that is kept.
        assert_eq!((left.get(), tried.take()), (0, vec![500, 500, 50, 50, 50]));
    }

    /// Fills a file with this many rows of a hundred kilobytes, and deletes all but one.
    fn grow_and_empty(database: &Database, rows: u32) {
        let insert = "INSERT INTO interactions (id, tenant, created_at, object, input) VALUES (?1, 't', 0, ?2, '')";
        for number in 0..rows {
            let row = (number.to_string(), "x".repeat(100_000));
            database.write(|database| Ok(database.execute(insert, row)?)).unwrap();
        }
        database.write(|database| Ok(database.execute("DELETE FROM interactions WHERE id <> '199'", [])?)).unwrap();
    }

    fn file_bytes(directory: &Path) -> u64 {
        let connection = Connection::open(directory.join("aludel.db")).unwrap();
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        std::fs::metadata(directory.join("aludel.db")).unwrap().len()
    }

    #[test]
    fn nothing_of_what_is_deleted_can_be_read_from_the_files() {
        let directory = tempfile::tempdir().unwrap();
        let database = Database::open(&directory.path().join("aludel.db")).unwrap();
        let insert = "INSERT INTO interactions (id, tenant, created_at, object, input) VALUES (?1, 't', 0, ?2, '')";
        for number in 0..50 {
            let row = (number.to_string(), "patient Quark ".repeat(if number % 10 == 0 { 1000 } else { 3 }));
            database.write(|database| Ok(database.execute(insert, row)?)).unwrap();
        }
        let found = || {
            let read = |name: &str| std::fs::read(directory.path().join(name)).unwrap_or_default();
            ["aludel.db", "aludel.db-wal"].map(|name| read(name).windows(7).any(|bytes| bytes == b"patient"))
        };
        assert!(found().contains(&true));
        database.write(|database| Ok(database.execute("DELETE FROM interactions WHERE id % 2 = 0", [])?)).unwrap();
        database.write(|database| Ok(database.execute("DELETE FROM interactions", [])?)).unwrap();
        database.shrink().unwrap();
        assert_eq!(found(), [false, false]);
    }

    #[test]
    fn a_file_shrinks_after_deletions() {
        let directory = tempfile::tempdir().unwrap();
        let database = Database::open(&directory.path().join("aludel.db")).unwrap();
        grow_and_empty(&database, 200);
        let before = file_bytes(directory.path());
        // One pass need not be enough on a slow machine.
        let after = (0..50).map(|_| database.shrink().map(|()| file_bytes(directory.path())).unwrap());
        let after = after.into_iter().find(|after| *after < 6_000_000);
        assert!(before > 20_000_000 && after.is_some(), "{before}");
        let found = "SELECT count(*), sum(length(object)) FROM interactions";
        let found = database.read(None, |database| one(database, found, [], |row| Ok((row.get(0)?, row.get(1)?))));
        assert_eq!(found.unwrap(), Some((1, 100_000)));
    }

    #[test]
    fn a_file_of_an_older_version_is_written_anew_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("aludel.db");
        // As older versions made it.
        Connection::open(&path).unwrap().execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE older (id)").unwrap();
        let database = Database::open(&path).unwrap();
        grow_and_empty(&database, 200);
        let before = file_bytes(directory.path());
        database.shrink().unwrap();
        assert!(file_bytes(directory.path()) >= before, "it cannot shrink yet");
        database.compact().unwrap();
        let after = file_bytes(directory.path());
        assert!(before > 20_000_000 && after < 1_000_000, "{before}, {after}");
        // The other connections go on, with the file's new shape.
        grow_and_empty(&database, 199);
        database.compact().unwrap();
        let mut passes = (0..50).map(|_| database.shrink().map(|()| file_bytes(directory.path())).unwrap());
        assert!(passes.any(|bytes| bytes < 6_000_000));
    }

    #[test]
    fn a_state_that_several_make_at_once_is_made_once() {
        for round in 0..20 {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("aludel.db");
            let together = std::sync::Barrier::new(8);
            std::thread::scope(|scope| {
                for opening in 0..8 {
                    let (path, together) = (&path, &together);
                    scope.spawn(move || {
                        together.wait();
                        Database::open(path)
                            .unwrap_or_else(|error| panic!("round {round}, opening {opening}: {error}"));
                    });
                }
            });
        }
    }
}
