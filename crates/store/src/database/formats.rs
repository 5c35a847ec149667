//! Formats of the state: the tables, and the upgrades from one format to the next.

use rusqlite::{Connection, TransactionBehavior};

use super::one;
use crate::Error;

/// Makes the rows of a table count for their tenants, existing and future ones, each with its cost in bytes.
macro_rules! counted {
    ($table:literal, $cost:literal) => {
        concat!(
            "\nALTER TABLE ",
            $table,
            " ADD COLUMN cost INTEGER AS (",
            $cost,
            ");\n",
            "INSERT INTO usage SELECT tenant, sum(cost) FROM ",
            $table,
            " WHERE TRUE GROUP BY tenant ",
            "ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes;\n",
            "CREATE TRIGGER ",
            $table,
            "_are_counted AFTER INSERT ON ",
            $table,
            " BEGIN\n",
            "    INSERT INTO usage VALUES (new.tenant, new.cost)\n",
            "        ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes; END;\n",
            "CREATE TRIGGER ",
            $table,
            "_are_counted_anew AFTER UPDATE ON ",
            $table,
            " WHEN new.cost <> old.cost BEGIN\n",
            "    UPDATE usage SET bytes = bytes + new.cost - old.cost WHERE tenant = new.tenant; END;\n",
            "CREATE TRIGGER ",
            $table,
            "_are_given_back AFTER DELETE ON ",
            $table,
            " BEGIN\n",
            "    UPDATE usage SET bytes = bytes - old.cost WHERE tenant = old.tenant; END;\n",
        )
    };
}

/// Each entry upgrades the format from its index to the next. Entries are only added, never changed.
const FORMATS: [&str; 23] = [
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
    // `INSERT OR REPLACE` deletes a row without firing the trigger above.
    "
CREATE TRIGGER audit_is_not_replaced BEFORE INSERT ON audit
    WHEN new.number <= (SELECT max(number) FROM audit)
    BEGIN SELECT RAISE(ABORT, 'the audit log can only be added to'); END;
",
    // A stored stream was one dialect's rendering, and was needed to continue a waiting program: both are lost.
    "
DROP TABLE response_events;
UPDATE approvals SET status = 'expired', decided_at = unixepoch() WHERE status = 'pending';

CREATE TABLE turns (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, dialect TEXT NOT NULL, state TEXT NOT NULL, owner TEXT NOT NULL,
    epoch INTEGER NOT NULL, lease_until_ms INTEGER NOT NULL, created_at_ms INTEGER NOT NULL, updated_at_ms INTEGER NOT NULL,
    ended_at_ms INTEGER, expires_at INTEGER, session TEXT, spec TEXT NOT NULL, dialect_state TEXT NOT NULL,
    next_sequence INTEGER NOT NULL, next_position INTEGER NOT NULL
) STRICT;
CREATE INDEX turns_by_owner ON turns (owner) WHERE state <> 'ended';
CREATE INDEX turns_by_lease ON turns (lease_until_ms) WHERE state <> 'ended';
CREATE INDEX turns_by_expiry ON turns (expires_at) WHERE state = 'ended';
CREATE TABLE turn_events (
    turn TEXT NOT NULL REFERENCES turns (id) ON DELETE CASCADE, sequence INTEGER NOT NULL, at_ms INTEGER NOT NULL,
    event TEXT NOT NULL, PRIMARY KEY (turn, sequence)
) STRICT, WITHOUT ROWID;
CREATE TABLE turn_items (
    turn TEXT NOT NULL REFERENCES turns (id) ON DELETE CASCADE, position INTEGER NOT NULL, item TEXT NOT NULL,
    PRIMARY KEY (turn, position)
) STRICT, WITHOUT ROWID;
",
    "
CREATE TABLE turn_blobs (
    turn TEXT NOT NULL REFERENCES turns (id) ON DELETE CASCADE, blob TEXT NOT NULL, bytes INTEGER NOT NULL,
    PRIMARY KEY (turn, blob)
) STRICT, WITHOUT ROWID;
",
    "
ALTER TABLE approvals ADD COLUMN decider TEXT NOT NULL DEFAULT 'operator';
CREATE UNIQUE INDEX approvals_of_clients ON approvals (tenant, sha256, request, call_id) WHERE decider = 'client';
",
    "
CREATE TABLE response_items (
    tenant TEXT NOT NULL, id TEXT NOT NULL, response TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE,
    PRIMARY KEY (tenant, id, response)
) STRICT, WITHOUT ROWID;
CREATE INDEX items_of_response ON response_items (response);
CREATE INDEX conversation_items_by_id ON conversation_items (tenant, id);
INSERT OR IGNORE INTO response_items
    SELECT tenant, iif(items.type = 'object', items.value ->> 'id', NULL) AS item, responses.id FROM responses,
        json_each(iif(json_valid(object), object, '{}'), '$.output') AS items WHERE typeof(item) = 'text'
    UNION
    SELECT tenant, iif(items.type = 'object', items.value ->> 'id', NULL) AS item, responses.id FROM responses,
        json_each(iif(json_valid(input), input, '[]')) AS items WHERE typeof(item) = 'text';
",
    // The cost of a row is what it counts for its tenant: its texts and the content of its file, and a flat sum for everything else.
    // Without octet_length(), which the sqlite3 of Debian 12 lacks: operators may read the file with that.
    concat!(
        "
CREATE TABLE usage (tenant TEXT PRIMARY KEY, bytes INTEGER NOT NULL) STRICT, WITHOUT ROWID;

ALTER TABLE turns ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
UPDATE turns SET bytes = (SELECT coalesce(sum(128 + length(CAST(event AS BLOB))), 0) FROM turn_events WHERE turn = id)
    + (SELECT coalesce(sum(128 + length(CAST(item AS BLOB))), 0) FROM turn_items WHERE turn = id)
    + (SELECT coalesce(sum(4096 + bytes), 0) FROM turn_blobs WHERE turn = id);

CREATE TABLE programs (
    number INTEGER NOT NULL, tenant TEXT NOT NULL, sha256 TEXT NOT NULL, code TEXT NOT NULL, PRIMARY KEY (tenant, sha256)
) STRICT, WITHOUT ROWID;
CREATE TABLE audit_archives (number INTEGER PRIMARY KEY, chain TEXT NOT NULL) STRICT;
CREATE TRIGGER audit_archives_are_in_order BEFORE INSERT ON audit_archives
    WHEN NOT EXISTS (SELECT 1 FROM audit WHERE number = new.number AND chain = new.chain)
        OR new.number <= (SELECT max(number) FROM audit_archives)
    BEGIN SELECT RAISE(ABORT, 'only what the audit log ends or goes on with can be archived'); END;
CREATE TRIGGER audit_archives_are_not_changed BEFORE UPDATE ON audit_archives
    BEGIN SELECT RAISE(ABORT, 'the audit log can only be added to'); END;
CREATE TRIGGER audit_archives_are_not_forgotten BEFORE DELETE ON audit_archives
    BEGIN SELECT RAISE(ABORT, 'the audit log can only be added to'); END;
DROP TRIGGER audit_is_not_shortened;
CREATE TRIGGER audit_is_not_shortened BEFORE DELETE ON audit
    WHEN old.number > coalesce((SELECT max(number) FROM audit_archives), 0)
    BEGIN SELECT RAISE(ABORT, 'the audit log can only be added to'); END;
DROP TRIGGER audit_is_not_replaced;
CREATE TRIGGER audit_is_not_replaced BEFORE INSERT ON audit
    WHEN new.number <= max(coalesce((SELECT max(number) FROM audit), 0), coalesce((SELECT max(number) FROM audit_archives), 0))
    BEGIN SELECT RAISE(ABORT, 'the audit log can only be added to'); END;
CREATE TRIGGER programs_are_not_changed BEFORE UPDATE ON programs
    BEGIN SELECT RAISE(ABORT, 'the audit log can only be added to'); END;
CREATE TRIGGER programs_are_not_replaced BEFORE INSERT ON programs
    WHEN EXISTS (SELECT 1 FROM programs WHERE tenant = new.tenant AND sha256 = new.sha256 AND code <> new.code)
    BEGIN SELECT RAISE(ABORT, 'the audit log can only be added to'); END;
CREATE TRIGGER programs_are_not_forgotten BEFORE DELETE ON programs
    WHEN old.number > coalesce((SELECT max(number) FROM audit_archives), 0)
    BEGIN SELECT RAISE(ABORT, 'the audit log can only be added to'); END;
",
        counted!("files", "4096 + bytes"),
        counted!("upload_parts", "4096 + bytes"),
        counted!("container_files", "4096 + bytes"),
        counted!("uploads", "2048"),
        counted!("containers", "1024 + length(CAST(name AS BLOB))"),
        counted!("conversations", "1024 + length(CAST(metadata AS BLOB))"),
        counted!("conversation_items", "512 + 3 * length(CAST(id AS BLOB)) + length(CAST(item AS BLOB))"),
        counted!("responses", "1024 + length(CAST(object AS BLOB)) + length(CAST(input AS BLOB))"),
        counted!("response_items", "256 + 2 * length(CAST(id AS BLOB))"),
        counted!("turns", "2048 + bytes + length(CAST(spec AS BLOB)) + length(CAST(dialect_state AS BLOB))"),
        counted!(
            "approvals",
            "1024 + 3 * length(CAST(call_id AS BLOB)) + length(CAST(code AS BLOB)) + length(CAST(reasons AS BLOB)) + length(CAST(coalesce(reason, '') AS BLOB))"
        ),
        counted!("programs", "512 + length(CAST(code AS BLOB))"),
        counted!("audit", "512 + length(CAST(code AS BLOB)) + length(CAST(actor AS BLOB)) + length(CAST(outcome AS BLOB))"),
    ),
    "
CREATE TABLE secrets (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
",
    concat!(
        "
CREATE TABLE assistants (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, object TEXT NOT NULL) STRICT;
CREATE INDEX assistants_of_tenant ON assistants (tenant, id);
CREATE TABLE threads (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, session TEXT, object TEXT NOT NULL) STRICT;
CREATE INDEX threads_of_tenant ON threads (tenant, id);
CREATE TABLE messages (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, thread TEXT NOT NULL REFERENCES threads (id) ON DELETE CASCADE, run TEXT,
    object TEXT NOT NULL
) STRICT;
CREATE INDEX messages_of_thread ON messages (thread, id);
CREATE TABLE runs (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, thread TEXT NOT NULL REFERENCES threads (id) ON DELETE CASCADE,
    turn TEXT NOT NULL, is_active INTEGER NOT NULL, expires_at INTEGER NOT NULL, object TEXT NOT NULL
) STRICT;
CREATE INDEX runs_of_thread ON runs (thread, id);
CREATE UNIQUE INDEX active_run_of_thread ON runs (thread) WHERE is_active;
CREATE TABLE run_steps (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, thread TEXT NOT NULL,
    run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE, object TEXT NOT NULL
) STRICT;
CREATE INDEX steps_of_run ON run_steps (run, id);
CREATE INDEX steps_of_thread ON run_steps (thread, id);
",
        counted!("assistants", "1024 + length(CAST(object AS BLOB))"),
        counted!("threads", "1024 + length(CAST(object AS BLOB))"),
        counted!("messages", "1024 + length(CAST(object AS BLOB))"),
        counted!("runs", "1024 + length(CAST(object AS BLOB))"),
        counted!("run_steps", "1024 + length(CAST(object AS BLOB))"),
    ),
    "
CREATE TABLE metered (
    tenant TEXT NOT NULL, day INTEGER NOT NULL, model TEXT NOT NULL, requests INTEGER NOT NULL, input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, programs INTEGER NOT NULL, program_ms INTEGER NOT NULL, sandbox_ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, day, model)
) STRICT, WITHOUT ROWID;
",
    "
ALTER TABLE keys ADD COLUMN expires_at INTEGER;
",
    "
ALTER TABLE keys ADD COLUMN requests_per_day INTEGER;
ALTER TABLE keys ADD COLUMN tokens_per_day INTEGER;
ALTER TABLE keys ADD COLUMN program_seconds_per_day INTEGER;
",
    concat!(
        "
CREATE TABLE container_variables (
    container TEXT PRIMARY KEY REFERENCES containers (id) ON DELETE CASCADE, tenant TEXT NOT NULL, variables TEXT NOT NULL
) STRICT;
",
        counted!("container_variables", "512 + length(CAST(variables AS BLOB))"),
    ),
    concat!(
        "
CREATE TABLE interactions (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, created_at INTEGER NOT NULL, object TEXT NOT NULL, input TEXT NOT NULL
) STRICT;
",
        counted!("interactions", "1024 + length(CAST(object AS BLOB)) + length(CAST(input AS BLOB))"),
    ),
    "
DROP INDEX approvals_of_tenant;
CREATE INDEX approvals_of_tenant ON approvals (tenant, id) WHERE decider = 'operator';
CREATE INDEX approvals_of_tenant_by_status ON approvals (tenant, status, id) WHERE decider = 'operator';
CREATE INDEX approvals_by_status ON approvals (status, id) WHERE decider = 'operator';
CREATE INDEX approvals_by_expiry ON approvals (decider, expires_at);
CREATE INDEX responses_by_expiry ON responses (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX files_by_expiry ON files (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX containers_by_name ON containers (tenant, name, last_active_ms);
CREATE INDEX containers_by_use ON containers (last_active_ms);
CREATE INDEX uploads_by_expiry ON uploads (expires_at);
DROP INDEX turns_by_expiry;
CREATE INDEX turns_by_expiry ON turns (expires_at) WHERE expires_at IS NOT NULL;
",
    "
CREATE INDEX starts_of_request ON audit (request) WHERE event = 'started';
",
    // With a ROWID: a search in a table without one reads each row that it compares as a whole, however large.
    "
ALTER TABLE turn_events RENAME TO former_turn_events;
CREATE TABLE turn_events (
    turn TEXT NOT NULL REFERENCES turns (id) ON DELETE CASCADE, sequence INTEGER NOT NULL, at_ms INTEGER NOT NULL,
    event TEXT NOT NULL, PRIMARY KEY (turn, sequence)
) STRICT;
INSERT INTO turn_events SELECT * FROM former_turn_events;
DROP TABLE former_turn_events;
ALTER TABLE turn_items RENAME TO former_turn_items;
CREATE TABLE turn_items (
    turn TEXT NOT NULL REFERENCES turns (id) ON DELETE CASCADE, position INTEGER NOT NULL, item TEXT NOT NULL,
    PRIMARY KEY (turn, position)
) STRICT;
INSERT INTO turn_items SELECT * FROM former_turn_items;
DROP TABLE former_turn_items;
ALTER TABLE programs RENAME TO former_programs;
CREATE TABLE programs (
    number INTEGER NOT NULL, tenant TEXT NOT NULL, sha256 TEXT NOT NULL, code TEXT NOT NULL,
    cost INTEGER AS (512 + length(CAST(code AS BLOB))), PRIMARY KEY (tenant, sha256)
) STRICT;
INSERT INTO programs SELECT number, tenant, sha256, code FROM former_programs;
DROP TABLE former_programs;
CREATE TRIGGER programs_are_not_changed BEFORE UPDATE ON programs
    BEGIN SELECT RAISE(ABORT, 'the audit log can only be added to'); END;
CREATE TRIGGER programs_are_not_replaced BEFORE INSERT ON programs
    WHEN EXISTS (SELECT 1 FROM programs WHERE tenant = new.tenant AND sha256 = new.sha256 AND code <> new.code)
    BEGIN SELECT RAISE(ABORT, 'the audit log can only be added to'); END;
CREATE TRIGGER programs_are_not_forgotten BEFORE DELETE ON programs
    WHEN old.number > coalesce((SELECT max(number) FROM audit_archives), 0)
    BEGIN SELECT RAISE(ABORT, 'the audit log can only be added to'); END;
CREATE TRIGGER programs_are_counted AFTER INSERT ON programs BEGIN
    INSERT INTO usage VALUES (new.tenant, new.cost) ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes; END;
CREATE TRIGGER programs_are_given_back AFTER DELETE ON programs BEGIN
    UPDATE usage SET bytes = bytes - old.cost WHERE tenant = old.tenant; END;
",
    "
ALTER TABLE keys ADD COLUMN former_hash TEXT;
ALTER TABLE keys ADD COLUMN former_until INTEGER;
CREATE INDEX keys_by_former_hash ON keys (former_hash) WHERE former_hash IS NOT NULL;
",
    "
ALTER TABLE keys ADD COLUMN erased_at INTEGER;
",
    "
ALTER TABLE containers ADD COLUMN has_run INTEGER NOT NULL DEFAULT FALSE;
",
    "
ALTER TABLE files ADD COLUMN name TEXT;
ALTER TABLE files ADD COLUMN sha256 TEXT;
ALTER TABLE uploads ADD COLUMN name TEXT;
CREATE UNIQUE INDEX files_by_name ON files (tenant, name) WHERE name IS NOT NULL;
",
    "
CREATE TABLE open_programs (
    tenant TEXT NOT NULL, request TEXT NOT NULL, container TEXT NOT NULL, sha256 TEXT NOT NULL,
    number INTEGER NOT NULL, times INTEGER NOT NULL, PRIMARY KEY (tenant, request, container, sha256)
) STRICT, WITHOUT ROWID;
INSERT INTO open_programs
    SELECT tenant, request, container, sha256, max(number), sum(event = 'started') - sum(event = 'ended') AS times
        FROM audit WHERE number > (SELECT max(number) FROM audit) - 10000
        GROUP BY tenant, request, container, sha256 HAVING times > 0;
CREATE TRIGGER programs_are_open AFTER INSERT ON audit WHEN new.event = 'started' BEGIN
    INSERT INTO open_programs VALUES (new.tenant, new.request, new.container, new.sha256, new.number, 1)
        ON CONFLICT DO UPDATE SET times = times + 1, number = excluded.number; END;
CREATE TRIGGER programs_are_over AFTER INSERT ON audit WHEN new.event = 'ended' BEGIN
    UPDATE open_programs SET times = times - 1
        WHERE tenant = new.tenant AND request = new.request AND container = new.container AND sha256 = new.sha256;
    DELETE FROM open_programs WHERE times = 0 AND tenant = new.tenant AND request = new.request
        AND container = new.container AND sha256 = new.sha256; END;
",
];

/// Data that an upgrade dropped, because the newest format cannot continue it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UpgradeLoss {
    /// Number of responses whose stored stream of events is gone. The responses themselves are kept.
    pub streams: u64,
    /// Number of programs that waited for approval and have expired.
    pub approvals: u64,
}

/// Upgrades the file to the newest format, and returns the data that this dropped.
pub(super) fn upgrade(connection: &mut Connection) -> Result<UpgradeLoss, Error> {
    upgrade_to(connection, &FORMATS)
}

/// Returns true if the file has a format before the newest, but for a new file.
pub(super) fn is_older(connection: &Connection) -> rusqlite::Result<bool> {
    let format = connection.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0))?;
    Ok((1..FORMATS.len() as i64).contains(&format))
}

/// The same to the newest of these formats.
fn upgrade_to(connection: &mut Connection, formats: &[&str]) -> Result<UpgradeLoss, Error> {
    let known = formats.len() as i64;
    let format = |connection: &Connection| connection.pragma_query_value(None, "user_version", |row| row.get(0));
    if format(connection)? == known {
        // Nothing is written, so that the state can be read on a full disk.
        return Ok(UpgradeLoss::default());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found: i64 = format(&transaction)?;
    let done = usize::try_from(found).ok().filter(|done| *done <= formats.len());
    let missing = done.and_then(|done| formats.get(done..)).ok_or(Error::Newer { found, known })?;
    let before = droppable(&transaction)?;
    for format in missing {
        transaction.execute_batch(format)?;
    }
    let after = droppable(&transaction)?;
    transaction.pragma_update(None, "user_version", known)?;
    transaction.commit()?;
    Ok(UpgradeLoss {
        streams: before.streams.saturating_sub(after.streams),
        approvals: before.approvals.saturating_sub(after.approvals),
    })
}

/// Counts what an upgrade may drop.
fn droppable(connection: &Connection) -> Result<UpgradeLoss, Error> {
    let count = |table: &str, query: &str| {
        let there =
            one(connection, "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?1", [table], |_| Ok(()))?;
        Ok::<u64, Error>(if there.is_some() { connection.query_row(query, [], |row| row.get(0))? } else { 0 })
    };
    Ok(UpgradeLoss {
        streams: count("response_events", "SELECT count(DISTINCT response) FROM response_events")?,
        approvals: count("approvals", "SELECT count(*) FROM approvals WHERE status = 'pending'")?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::super::all;
    use super::*;

    const ROWS: &str = "
INSERT INTO responses VALUES ('resp_1', 'local', 'completed', 1, NULL, '{}', '[]'), ('resp_2', 'local', 'completed', 1, NULL, '{}', '[]');
INSERT INTO response_events VALUES ('resp_1', 0, '{}'), ('resp_1', 1, '{}'), ('resp_2', 0, '{}');
INSERT INTO approvals (id, tenant, request, call_id, container, model, code, sha256, reasons, created_at, expires_at, status)
    VALUES ('appr_1', 'local', 'resp_1', 'c', 'cntr_1', 'm', '', '', '[]', 1, 2, 'pending'),
           ('appr_2', 'local', 'resp_2', 'c', 'cntr_1', 'm', '', '', '[]', 1, 2, 'approved');
INSERT INTO files VALUES ('file-1', 'local', 'b', 1, 'f', 'user_data', 'text/plain', 1, NULL);
";

    #[test]
    fn a_state_of_every_older_format_keeps_its_rows() {
        for format in 2..4 {
            let mut connection = Connection::open_in_memory().unwrap();
            upgrade_to(&mut connection, &FORMATS[..format]).unwrap();
            connection.execute_batch(ROWS).unwrap();
            // Everything except streams, which cannot be rendered again, and the chance to approve a program.
            let dropped = UpgradeLoss { streams: 2, approvals: 1 };
            assert_eq!(upgrade_to(&mut connection, &FORMATS).unwrap(), dropped);
            assert_eq!(upgrade_to(&mut connection, &FORMATS).unwrap(), UpgradeLoss::default());
            for (table, rows) in [("responses", 2), ("approvals", 2), ("files", 1), ("turns", 0)] {
                let query = format!("SELECT count(*) FROM {table}");
                assert_eq!(connection.query_row(&query, [], |row| row.get::<_, u64>(0)).unwrap(), rows, "{table}");
            }
            let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
            assert_eq!(version, FORMATS.len() as i64);
        }
    }

    #[test]
    fn turns_of_the_format_before_are_kept() {
        let mut connection = Connection::open_in_memory().unwrap();
        upgrade_to(&mut connection, &FORMATS[..4]).unwrap();
        let turn = "INSERT INTO turns VALUES ('resp_1', 'local', 'd', 'ended', 'o', 1, 0, 0, 0, NULL, NULL, NULL, '', '', 1, 0);
                    INSERT INTO turn_events VALUES ('resp_1', 0, 0, '{}');";
        connection.execute_batch(turn).unwrap();
        assert_eq!(upgrade_to(&mut connection, &FORMATS).unwrap(), UpgradeLoss::default());
        let query = "SELECT count(*) FROM turns JOIN turn_events ON turn = id";
        assert_eq!(connection.query_row(query, [], |row| row.get::<_, u64>(0)).unwrap(), 1);
    }

    #[test]
    fn items_of_responses_of_the_format_before_are_found() {
        let mut connection = Connection::open_in_memory().unwrap();
        upgrade_to(&mut connection, &FORMATS[..6]).unwrap();
        let output = r#"{"output": [{"id": "msg_2"}, {"id": 3}, {}, "odd", null]}"#;
        let row = "INSERT INTO responses VALUES (?1, 'local', 'completed', 1, NULL, ?2, ?3)";
        for (id, object, input) in
            [("resp_1", output, r#"[{"id": "msg_1"}]"#), ("resp_2", "{}", "[]"), ("resp_3", "no JSON", "{")]
        {
            connection.execute(row, [id, object, input]).unwrap();
        }
        upgrade_to(&mut connection, &FORMATS).unwrap();
        let found = all(&connection, "SELECT id, response FROM response_items", [], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
        });
        let expected = [("msg_1", "resp_1"), ("msg_2", "resp_1")].map(|(id, of)| (id.to_owned(), of.to_owned()));
        assert_eq!(found.unwrap(), expected);
    }

    #[test]
    fn what_the_format_before_stored_is_counted() {
        let mut connection = Connection::open_in_memory().unwrap();
        upgrade_to(&mut connection, &FORMATS[..7]).unwrap();
        let rows = "INSERT INTO files VALUES ('file-1', 'a', 'b', 1, 'f', 'user_data', 'text/plain', 1, NULL);
                    INSERT INTO responses VALUES ('resp_1', 'a', 'completed', 1, NULL, '{}', '[]');
                    INSERT INTO turns VALUES ('resp_1', 'b', 'd', 'ended', 'o', 1, 0, 0, 0, NULL, NULL, NULL, '', '', 1, 0);
                    INSERT INTO turn_events VALUES ('resp_1', 0, 0, '{}'), ('resp_1', 1, 0, '{}');
                    INSERT INTO turn_blobs VALUES ('resp_1', 'b', 1000);
                    INSERT INTO audit VALUES (1, 1, 'b', 'started', 'r', 'c', 's', 'code', 'actor', '', 'chain');";
        connection.execute_batch(rows).unwrap();
        upgrade_to(&mut connection, &FORMATS).unwrap();
        let found = all(&connection, "SELECT tenant, bytes FROM usage", [], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, u64>(1)?))
        });
        let (file, response, turn, audit) = (4096 + 1, 1024 + 4, 2048 + 2 * (128 + 2) + 4096 + 1000, 512 + 4 + 5);
        assert_eq!(found.unwrap(), [("a".to_owned(), file + response), ("b".to_owned(), turn + audit)]);
    }

    #[test]
    fn programs_of_the_format_before_are_kept_and_counted() {
        let mut connection = Connection::open_in_memory().unwrap();
        upgrade_to(&mut connection, &FORMATS[..17]).unwrap();
        let rows = "INSERT INTO audit VALUES (1, 1, 'a', 'started', 'r', 'c', 's', '', 'actor', '', 'chain');
                    INSERT INTO programs (number, tenant, sha256, code) VALUES (1, 'a', 's', 'code');";
        connection.execute_batch(rows).unwrap();
        let counted = |connection: &Connection| {
            connection.query_row("SELECT bytes FROM usage", [], |row| row.get::<_, u64>(0)).unwrap()
        };
        let before = counted(&connection);
        upgrade_to(&mut connection, &FORMATS).unwrap();
        assert_eq!(counted(&connection), before);
        for change in ["UPDATE programs SET code = ''", "DELETE FROM programs"] {
            assert!(connection.execute(change, []).unwrap_err().to_string().contains("only be added to"), "{change}");
        }
        connection.execute("INSERT INTO audit_archives VALUES (1, 'chain')", []).unwrap();
        connection.execute("DELETE FROM programs", []).unwrap();
        assert_eq!(counted(&connection), before - 512 - 4);
    }

    #[test]
    fn no_search_reads_large_rows() {
        let mut connection = Connection::open_in_memory().unwrap();
        upgrade_to(&mut connection, &FORMATS).unwrap();
        let query = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%WITHOUT ROWID%' ORDER BY name";
        let found = all(&connection, query, [], |row| row.get::<_, String>(0)).unwrap();
        // Rows that are compared are read as a whole.
        assert_eq!(found, ["metered", "open_programs", "response_items", "turn_blobs", "usage"]);
    }

    #[test]
    fn a_state_of_a_newer_format_is_refused() {
        let mut connection = Connection::open_in_memory().unwrap();
        let formats: Vec<&str> = FORMATS.into_iter().chain(["CREATE TABLE later (id TEXT)"]).collect();
        upgrade_to(&mut connection, &formats).unwrap();
        let refused = upgrade_to(&mut connection, &FORMATS);
        assert!(matches!(refused, Err(Error::Newer { found, known }) if found == known + 1), "{refused:?}");
    }
}
