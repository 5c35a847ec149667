//! The database file: its format, and how it is opened.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Params, Row};

use crate::Error;

/// Each entry brings the format from its index to the next. Entries are never changed, only added.
const FORMATS: [&str; 3] = [
    "
CREATE TABLE keys (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, hash TEXT NOT NULL UNIQUE, hint TEXT NOT NULL,
    created_at INTEGER NOT NULL, revoked_at INTEGER
) STRICT;

CREATE TABLE files (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, blob TEXT NOT NULL, bytes INTEGER NOT NULL, filename TEXT NOT NULL,
    purpose TEXT NOT NULL, mime TEXT NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER
) STRICT;
CREATE INDEX files_of_tenant ON files (tenant, id);

CREATE TABLE uploads (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, status TEXT NOT NULL, bytes INTEGER NOT NULL, filename TEXT NOT NULL,
    purpose TEXT NOT NULL, mime TEXT NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL,
    file_lives INTEGER, file TEXT
) STRICT;
CREATE INDEX uploads_of_tenant ON uploads (tenant, id);
CREATE TABLE upload_parts (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, upload TEXT NOT NULL REFERENCES uploads (id) ON DELETE CASCADE,
    blob TEXT NOT NULL, bytes INTEGER NOT NULL, created_at INTEGER NOT NULL
) STRICT;
CREATE INDEX parts_of_upload ON upload_parts (upload);

CREATE TABLE containers (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, memory_limit TEXT, idle_ms INTEGER NOT NULL,
    created_at INTEGER NOT NULL, last_active_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX containers_of_tenant ON containers (tenant, id);
CREATE TABLE container_files (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, container TEXT NOT NULL REFERENCES containers (id) ON DELETE CASCADE,
    path TEXT NOT NULL, blob TEXT NOT NULL, bytes INTEGER NOT NULL, sha256 TEXT NOT NULL, mime TEXT NOT NULL,
    source TEXT NOT NULL, place TEXT NOT NULL, created_at INTEGER NOT NULL,
    UNIQUE (container, path)
) STRICT;
CREATE INDEX container_files_of_tenant ON container_files (tenant, container, id);

CREATE TABLE conversations (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, created_at INTEGER NOT NULL, metadata TEXT NOT NULL
) STRICT;
CREATE TABLE conversation_items (
    position INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, tenant TEXT NOT NULL,
    conversation TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE, item TEXT NOT NULL,
    UNIQUE (conversation, id)
) STRICT;
CREATE INDEX items_of_conversation ON conversation_items (conversation, position);

CREATE TABLE responses (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, status TEXT NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER,
    object TEXT NOT NULL, input TEXT NOT NULL
) STRICT;
CREATE INDEX responses_by_status ON responses (status);
CREATE TABLE response_events (
    response TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE, sequence INTEGER NOT NULL, event TEXT NOT NULL,
    PRIMARY KEY (response, sequence)
) STRICT, WITHOUT ROWID;
",
    "
CREATE TABLE approvals (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, request TEXT NOT NULL, call_id TEXT NOT NULL, container TEXT NOT NULL,
    model TEXT NOT NULL, code TEXT NOT NULL, sha256 TEXT NOT NULL, reasons TEXT NOT NULL, created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL, status TEXT NOT NULL, decided_at INTEGER, decided_by TEXT, reason TEXT,
    started_at INTEGER, resume TEXT
) STRICT;
CREATE INDEX approvals_of_tenant ON approvals (tenant, status, id);
CREATE INDEX approvals_of_request ON approvals (request, call_id);

CREATE TABLE audit (
    number INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, tenant TEXT NOT NULL, event TEXT NOT NULL,
    request TEXT NOT NULL, container TEXT NOT NULL, sha256 TEXT NOT NULL, code TEXT NOT NULL, actor TEXT NOT NULL,
    outcome TEXT NOT NULL, chain TEXT NOT NULL
) STRICT;
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit log can only be added to'); END;
CREATE TRIGGER audit_is_not_shortened BEFORE DELETE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit log can only be added to'); END;
",
    // What replaces a row deletes it without a word to the trigger above.
    "
CREATE TRIGGER audit_is_not_replaced BEFORE INSERT ON audit
    WHEN new.number <= (SELECT max(number) FROM audit)
    BEGIN SELECT RAISE(ABORT, 'the audit log can only be added to'); END;
",
];

/// How long a statement waits for another process that is writing.
const BUSY: Duration = Duration::from_secs(10);

pub(crate) fn open(path: &Path) -> Result<Connection, Error> {
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // A client that was told of a write finds it after a power cut.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.set_prepared_statement_cache_capacity(128);
    upgrade(&mut connection)?;
    Ok(connection)
}

/// Brings the file to the newest format.
fn upgrade(connection: &mut Connection) -> Result<(), Error> {
    let known = FORMATS.len() as i64;
    let format = |connection: &Connection| connection.pragma_query_value(None, "user_version", |row| row.get(0));
    if format(connection)? == known {
        // Nothing is written, so the state can be read on a full disk, too.
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let found: i64 = format(&transaction)?;
    let done = usize::try_from(found).ok().filter(|done| *done <= FORMATS.len());
    let missing = done.and_then(|done| FORMATS.get(done..)).ok_or(Error::Newer { found, known })?;
    for format in missing {
        transaction.execute_batch(format)?;
    }
    transaction.pragma_update(None, "user_version", known)?;
    Ok(transaction.commit()?)
}

/// The one row of a query, if there is one.
pub(crate) fn one<T>(
    connection: &Connection,
    query: &str,
    parameters: impl Params,
    row: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Option<T>, Error> {
    Ok(connection.prepare_cached(query)?.query_row(parameters, row).optional()?)
}

/// All rows of a query.
pub(crate) fn all<T>(
    connection: &Connection,
    query: &str,
    parameters: impl Params,
    row: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, Error> {
    Ok(connection.prepare_cached(query)?.query_map(parameters, row)?.collect::<rusqlite::Result<_>>()?)
}
