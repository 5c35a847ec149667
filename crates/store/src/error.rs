//! Errors of the state.

use std::io;
use std::path::PathBuf;

use rusqlite::ffi;

use crate::TurnId;

/// The state could not be read or written. Except [`Error::Full`], none of these is a client's fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database refused.
    #[error("the database: {0}")]
    Database(#[from] rusqlite::Error),
    /// A row holds something that no version of this program wrote.
    #[error("the database holds JSON that cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// A file or directory could not be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// Its path.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The state cannot be written to, which reading it does, too.
    #[error("{} must be writable, also to read it; make it so, or give another directory with --data: {source}", path.display())]
    NotWritable {
        /// Its directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A reader of content to be stored failed.
    #[error("the data to store could not be read: {0}")]
    Source(#[source] io::Error),
    /// An event of a turn has a number that was used before.
    #[error("event {sequence} of the turn {turn} was numbered before; the next number is {next}")]
    Sequence {
        /// The turn.
        turn: TurnId,
        /// Number of the event.
        sequence: u64,
        /// Least number that is free.
        next: u64,
    },
    /// The tenant stores as much as it may.
    #[error("the {} MB that may be stored are used up", limit >> 20)]
    Full {
        /// Bytes that the tenant may store.
        limit: u64,
    },
    /// The tenant's key was revoked, and its data erased.
    #[error("the key was revoked and what was stored for it erased, so nothing more is")]
    Erased,
    /// Another server works on the same data.
    #[error("another server is using {}; end it, or give another directory with --data", .0.display())]
    InUse(PathBuf),
    /// There is no state, only the part of a copy whose making was broken off.
    #[error("{} is a backup that was broken off; make it anew, or remove it to start without any data", .0.display())]
    Partial(PathBuf),
    /// A server of an older version works on the same data.
    #[error(
        "a server of an older version is running on this data; use its program, or end it first: this one changes the data's format"
    )]
    OlderServer,
    /// The database was made by a newer version.
    #[error("the database has format {found}, but this version knows only up to {known}; use a newer version")]
    Newer {
        /// The format of the file.
        found: i64,
        /// The newest format that is known.
        known: i64,
    },
}

impl Error {
    /// Returns true if the file system has no room.
    pub fn is_disk_full(&self) -> bool {
        match self {
            // The file of the locks, which are in shared memory, cannot grow.
            Self::Database(rusqlite::Error::SqliteFailure(error, _))
                if error.extended_code == ffi::SQLITE_IOERR_SHMSIZE =>
            {
                true
            }
            Self::Database(error) => error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull),
            Self::Io { source, .. } | Self::Source(source) => source.kind() == io::ErrorKind::StorageFull,
            _ => false,
        }
    }
}
