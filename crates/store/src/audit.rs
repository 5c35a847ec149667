//! The audit log: every program that was decided about or run. It is only ever added to, which the database itself enforces, and each entry
//! holds a digest of all before it, so that a changed or missing one is found.

use rusqlite::{Connection, Row, params};
use sha2::{Digest, Sha256};

use crate::approvals::program_digest;
use crate::database::{all, one};
use crate::id::hex;
use crate::owners::Owners;
use crate::{Error, Store, Tenant, now_ms};

/// An entry to be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Event.
    pub event: AuditEvent,
    /// Id of the turn that it is part of: of a response or a completion.
    pub request: String,
    /// Session that the program runs in.
    pub container: String,
    /// Program.
    pub code: String,
    /// Name of whoever did it, in words.
    pub actor: String,
    /// Outcome or reason.
    pub outcome: String,
}

/// Event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditEvent {
    /// Approval of a program was requested.
    Asked,
    /// A program may run.
    Approved,
    /// A program may not run.
    Refused,
    /// A program is about to run.
    Started,
    /// A program ended.
    Ended,
}

impl AuditEvent {
    /// Returns the word that stands in the database and is shown.
    pub fn word(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Approved => "approved",
            Self::Refused => "refused",
            Self::Started => "started",
            Self::Ended => "ended",
        }
    }
}

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    /// Position in the log, from 1.
    pub number: i64,
    /// Time, milliseconds since 1970.
    pub at_ms: i64,
    /// Tenant whose program it is.
    pub tenant: Tenant,
    /// Event, as [`AuditEvent::word`] has it.
    pub event: String,
    /// Id of the turn that it is part of.
    pub request: String,
    /// Session that the program runs in.
    pub container: String,
    /// SHA-256 of the program, in hexadecimal.
    pub sha256: String,
    /// Program.
    pub code: String,
    /// Name of whoever did it.
    pub actor: String,
    /// Outcome or reason.
    pub outcome: String,
    chain: String,
}

/// Evidence that the log was tampered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tampered {
    /// Number of the first entry that does not follow from those before it.
    pub number: i64,
}

const COLUMNS: &str = "number, at_ms, tenant, event, request, container, sha256, code, actor, outcome, chain";

impl AuditRecord {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            number: row.get(0)?,
            at_ms: row.get(1)?,
            tenant: row.get(2)?,
            event: row.get(3)?,
            request: row.get(4)?,
            container: row.get(5)?,
            sha256: row.get(6)?,
            code: row.get(7)?,
            actor: row.get(8)?,
            outcome: row.get(9)?,
            chain: row.get(10)?,
        })
    }

    /// Returns the digest of this entry, with the digest of its program and, by the one before it, of all earlier entries.
    fn link(&self, before: &str, code: &str) -> String {
        let mut digest = Sha256::new();
        let fields = [
            before,
            &self.number.to_string(),
            &self.at_ms.to_string(),
            self.tenant.as_str(),
            &self.event,
            &self.request,
            &self.container,
            &self.sha256,
            code,
            &self.actor,
            &self.outcome,
        ];
        for field in fields {
            // The length first: otherwise two fields could share what they say in other ways.
            digest.update((field.len() as u64).to_be_bytes());
            digest.update(field.as_bytes());
        }
        hex(&digest.finalize())
    }
}

impl Store {
    /// Adds entries to the log, in order.
    pub async fn audit(&self, tenant: &Tenant, entries: Vec<AuditEntry>) -> Result<(), Error> {
        let tenant = tenant.clone();
        self.run(move |store| {
            let digests = entries.iter().map(|entry| program_digest(&entry.code)).collect::<Vec<_>>();
            let entries = entries.into_iter().zip(digests).map(|(entry, sha256)| (tenant.clone(), entry, sha256));
            store.0.database.write(|database| append(database, entries))
        })
        .await
    }

    /// Adds the end of every program whose end nobody wrote: what ran it was killed. For a server's start, when nothing runs but the turns of
    /// [`Store::owned_turn_id`] whose owners live. Looks at the last entries only; more programs than that do not run at once.
    pub async fn end_what_was_cut_off(&self, outcome: &str) -> Result<(), Error> {
        const LAST: i64 = 10_000;
        let outcome = outcome.to_owned();
        self.run(move |store| {
            store.0.database.write(|database| {
                let query =
                "SELECT tenant, request, container, code, sha256, sum(event = 'started') - sum(event = 'ended') AS open
                         FROM audit WHERE number > (SELECT max(number) FROM audit) - ?1
                         GROUP BY tenant, request, container, sha256 HAVING open > 0 ORDER BY max(number)";
                let open = all(database, query, params![LAST], |row| {
                    let entry = AuditEntry {
                        event: AuditEvent::Ended,
                        request: row.get(1)?,
                        container: row.get(2)?,
                        code: row.get(3)?,
                        actor: String::new(),
                        outcome: outcome.clone(),
                    };
                    Ok((row.get::<_, usize>(5)?, (row.get(0)?, entry, row.get(4)?)))
                })?;
                // After the entries: an owner that comes later is not seen, and has written none of them.
                let owners = Owners::look(&store.0.owners)?;
                let cut_off = open.into_iter().filter(|(_, (_, entry, _))| !owners.may_end(&entry.request));
                append(database, cut_off.flat_map(|(times, entry)| vec![entry; times]))
            })
        })
        .await
    }

    /// Counts the programs of a turn that were started.
    pub async fn programs_started(&self, tenant: &Tenant, request: &str) -> Result<u32, Error> {
        let request = request.to_owned();
        self.read(tenant, move |database, tenant| {
            let query = "SELECT count(*) FROM audit WHERE tenant = ?1 AND request = ?2 AND event = 'started'";
            Ok(database.query_row(query, params![tenant, request], |row| row.get(0))?)
        })
        .await
    }

    /// Returns at most `limit` entries after one, oldest first.
    pub async fn audit_log(&self, after: i64, limit: usize) -> Result<Vec<AuditRecord>, Error> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.read_any(move |database| {
            let query = format!("SELECT {COLUMNS} FROM audit WHERE number > ?1 ORDER BY number LIMIT ?2");
            all(database, &query, params![after, limit], AuditRecord::read)
        })
        .await
    }

    /// The number of entries of the log, or the place where it was changed. Entries that were taken off its end cannot be seen missing here: keep the
    /// number and compare.
    pub async fn verify_audit_log(&self) -> Result<Result<i64, Tampered>, Error> {
        const AT_ONCE: usize = 1000;
        let (mut number, mut chain) = (0, String::new());
        loop {
            let records = self.audit_log(number, AT_ONCE).await?;
            if records.is_empty() {
                return Ok(Ok(number));
            }
            for record in records {
                if record.number != number + 1 || record.link(&chain, &program_digest(&record.code)) != record.chain {
                    return Ok(Err(Tampered { number: number + 1 }));
                }
                number = record.number;
                chain = record.chain;
            }
        }
    }
}

/// Writes entries behind the last one, each with its tenant and the digest of its program.
fn append(database: &Connection, entries: impl Iterator<Item = (Tenant, AuditEntry, String)>) -> Result<(), Error> {
    let last = one(database, "SELECT number, chain FROM audit ORDER BY number DESC LIMIT 1", [], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
    })?;
    let (mut number, mut chain) = last.unwrap_or_default();
    let query = format!("INSERT INTO audit ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)");
    let mut insert = database.prepare_cached(&query)?;
    for (tenant, entry, sha256) in entries {
        number += 1;
        let AuditEntry { event, request, container, code, actor, outcome } = entry;
        let mut record = AuditRecord {
            number,
            at_ms: now_ms(),
            tenant,
            event: event.word().to_owned(),
            request,
            container,
            sha256,
            code,
            actor,
            outcome,
            chain: String::new(),
        };
        record.chain = record.link(&chain, &record.sha256);
        let AuditRecord { number, at_ms, tenant, event, request, container, sha256, code, actor, outcome, chain: link } =
            record;
        insert
            .execute(params![number, at_ms, tenant, event, request, container, sha256, code, actor, outcome, link])?;
        chain = link;
    }
    Ok(())
}
