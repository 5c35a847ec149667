//! The audit log: every program that was decided about or run. Entries can only be added, which the database itself enforces, and each
//! contains a digest of all before it, so that changed or missing entries are found. Entries refer to their programs by hash. The oldest
//! entries can be archived: the log then continues from the digest of the last archived one.

use rusqlite::{Connection, Row, params};
use serde::{Deserialize, Serialize};
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
    /// Id of its turn: of a response or a completion.
    pub request: String,
    /// Session that the program runs in.
    pub session: String,
    /// Program.
    pub code: String,
    /// Name of the party that did it.
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
    Denied,
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
            Self::Denied => "refused",
            Self::Started => "started",
            Self::Ended => "ended",
        }
    }
}

/// An entry of the log. Its JSON is a line of an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// Position in the log, from 1.
    pub number: i64,
    /// Time, milliseconds since 1970.
    pub at_ms: i64,
    /// Tenant whose program it is.
    #[serde(deserialize_with = "Tenant::deserialize_known")]
    pub tenant: Tenant,
    /// Event, as [`AuditEvent::word`] has it.
    pub event: String,
    /// Id of the turn that it is part of.
    pub request: String,
    /// Session that the program runs in.
    #[serde(rename = "container")]
    pub session: String,
    /// SHA-256 of the program, in hexadecimal.
    pub sha256: String,
    /// Program; `None` in a line of an archive that has it in a line before, as [`AuditRecord::sha256`] tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Name of the party that did it.
    pub actor: String,
    /// Outcome or reason.
    pub outcome: String,
    /// Digest of the entry and all before it, in hexadecimal.
    pub chain: String,
}

/// A position in the log: the number of an entry, and the digest of it and all before it. The default is the position before the first
/// entry. Its JSON is the first line of an archive, which continues from there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditChain {
    /// Number of the entry.
    pub number: i64,
    /// Digest, in hexadecimal.
    pub chain: String,
}

impl AuditChain {
    /// Goes on to the next entry, if that is as it was written. Takes the digest of a program that it does not have as correct.
    pub fn follow(&mut self, record: &AuditRecord) -> Result<(), TamperEvidence> {
        let number = self.number + 1;
        let program = record.code.as_ref().map_or_else(|| record.sha256.clone(), |code| program_digest(code));
        if record.number != number || record.link(&self.chain, &program) != record.chain {
            return Err(TamperEvidence { number });
        }
        *self = Self { number, chain: record.chain.clone() };
        Ok(())
    }
}

/// Evidence that the log was tampered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TamperEvidence {
    /// Number of the first entry whose digest does not match the entries before it.
    pub number: i64,
}

/// The columns of an entry with its program, which is in a table of its own, except in entries of an earlier version.
const SELECTED: &str = "number, at_ms, tenant, event, request, container, sha256, \
    coalesce((SELECT programs.code FROM programs WHERE audit.code = '' AND programs.tenant = audit.tenant \
                  AND programs.sha256 = audit.sha256), code) AS code, actor, outcome, chain";

/// The number and the digest of the last entry that was archived.
const ARCHIVED: &str = "SELECT number, chain FROM audit_archives ORDER BY number DESC LIMIT 1";

impl AuditRecord {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            number: row.get(0)?,
            at_ms: row.get(1)?,
            tenant: row.get(2)?,
            event: row.get(3)?,
            request: row.get(4)?,
            session: row.get(5)?,
            sha256: row.get(6)?,
            code: row.get(7)?,
            actor: row.get(8)?,
            outcome: row.get(9)?,
            chain: row.get(10)?,
        })
    }

    /// Returns the digest of this entry, of its program's digest and of the digest before it.
    fn link(&self, before: &str, code: &str) -> String {
        let mut digest = Sha256::new();
        let fields = [
            before,
            &self.number.to_string(),
            &self.at_ms.to_string(),
            self.tenant.as_str(),
            &self.event,
            &self.request,
            &self.session,
            &self.sha256,
            code,
            &self.actor,
            &self.outcome,
        ];
        for field in fields {
            // The length comes first, so that no two lists of fields have the same digest.
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
            store.0.database.write_for(&tenant, |database| append(database, entries))
        })
        .await
    }

    /// Adds an entry with the mere beginning of a program, if the log has the whole one under this digest; else of the beginning.
    pub async fn audit_shortened(&self, tenant: &Tenant, entry: AuditEntry, whole: String) -> Result<(), Error> {
        let tenant = tenant.clone();
        self.run(move |store| {
            let beginning = program_digest(&entry.code);
            store.0.database.write_for(&tenant, |database| {
                let query = "SELECT code FROM programs WHERE tenant = ?1 AND sha256 = ?2";
                let known = one(database, query, params![tenant, whole], |row| row.get(0))?;
                let (code, sha256) = match known {
                    Some(code) => (code, whole),
                    None => (entry.code, beginning),
                };
                append(database, std::iter::once((tenant.clone(), AuditEntry { code, ..entry }, sha256)))
            })
        })
        .await
    }

    /// Adds the end of every program without one, because its process was killed. For a server's start, when nothing runs except the turns
    /// of [`Store::owned_turn_id`] whose owners live.
    pub async fn end_what_was_cut_off(&self, outcome: &str) -> Result<(), Error> {
        let outcome = outcome.to_owned();
        self.run(move |store| {
            store.0.database.write(|database| {
                // One whose beginning was archived has no program here, and its end would have no right digest.
                let query = "SELECT tenant, request, container, code, sha256, times
                                 FROM open_programs JOIN programs USING (tenant, sha256) ORDER BY open_programs.number";
                let open = all(database, query, [], |row| {
                    let entry = AuditEntry {
                        event: AuditEvent::Ended,
                        request: row.get(1)?,
                        session: row.get(2)?,
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
            let query = "SELECT count(*) FROM audit INDEXED BY starts_of_request
                         WHERE tenant = ?1 AND request = ?2 AND event = 'started'";
            Ok(database.query_row(query, params![tenant, request], |row| row.get(0))?)
        })
        .await
    }

    /// Returns at most `limit` entries after this number, oldest first. Archived entries are gone.
    pub async fn audit_log(&self, after: i64, limit: usize) -> Result<Vec<AuditRecord>, Error> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.read_any(move |database| {
            let (archived, _) = last(database, ARCHIVED)?;
            let query = format!("SELECT {SELECTED} FROM audit WHERE number > ?1 ORDER BY number LIMIT ?2");
            all(database, &query, params![after.max(archived), limit], AuditRecord::read)
        })
        .await
    }

    /// Returns the position at which the log begins: after the last archived entry.
    pub async fn audit_log_start(&self) -> Result<AuditChain, Error> {
        self.read_any(|database| {
            let (number, chain) = last(database, ARCHIVED)?;
            Ok(AuditChain { number, chain })
        })
        .await
    }

    /// Returns the number of all entries ever written, or the place where they were changed. Entries missing at the end cannot be detected
    /// here: keep the number and compare.
    pub async fn verify_audit_log(&self) -> Result<Result<i64, TamperEvidence>, Error> {
        /// Entries that are in memory at once, each with its program, which may have a megabyte.
        const AT_ONCE: usize = 64;
        let mut chain = self.audit_log_start().await?;
        loop {
            let records = self.audit_log(chain.number, AT_ONCE).await?;
            if records.is_empty() {
                return Ok(Ok(chain.number));
            }
            for record in &records {
                if let Err(tampered) = chain.follow(record) {
                    return Ok(Err(tampered));
                }
            }
        }
    }

    /// Removes the archived entries up to this one, and the programs that no later entry refers to. The log continues from its digest.
    /// Fails if the log has no such entry.
    pub async fn remove_archived(&self, end: AuditChain) -> Result<(), Error> {
        /// Entries of one transaction; other writers run in between.
        const AT_ONCE: i64 = 10_000;
        /// Programs of one, of up to a megabyte each.
        const PROGRAMS_AT_ONCE: usize = 20;
        self.run(move |store| {
            let AuditChain { number, chain } = end;
            store.0.database.write(|database| {
                Ok(database.execute("INSERT INTO audit_archives VALUES (?1, ?2)", params![number, chain])?)
            })?;
            let query = "DELETE FROM audit WHERE number IN (SELECT number FROM audit WHERE number <= ?1 LIMIT ?2)";
            while store.0.database.write(|database| Ok(database.execute(query, [number, AT_ONCE])?))? > 0 {}
            let (last, unnamed): (i64, Vec<i64>) = store.0.database.read(None, |database| {
                let (last, _) = last(database, "SELECT number, chain FROM audit ORDER BY number DESC LIMIT 1")?;
                let query = "SELECT rowid FROM programs
                             WHERE number <= ?1 AND (tenant, sha256) NOT IN (SELECT tenant, sha256 FROM audit)";
                Ok((last, all(database, query, [number], |row| row.get(0))?))
            })?;
            // Unless an entry has named it since.
            let query = "DELETE FROM programs WHERE rowid = ?1 AND NOT EXISTS (SELECT 1 FROM audit
                             WHERE audit.number > ?2 AND audit.tenant = programs.tenant AND audit.sha256 = programs.sha256)";
            for programs in unnamed.chunks(PROGRAMS_AT_ONCE) {
                store.0.database.write(|database| {
                    let mut delete = database.prepare_cached(query)?;
                    Ok(programs.iter().try_for_each(|program| delete.execute([*program, last]).map(drop))?)
                })?;
            }
            Ok(())
        })
        .await
    }
}

/// Returns the number and digest of an entry; those of the position before the first if there is none.
fn last(database: &Connection, query: &str) -> Result<(i64, String), Error> {
    Ok(one(database, query, [], |row| Ok((row.get(0)?, row.get(1)?)))?.unwrap_or_default())
}

/// Appends entries, each with its tenant and the digest of its program.
fn append(database: &Connection, entries: impl Iterator<Item = (Tenant, AuditEntry, String)>) -> Result<(), Error> {
    let written = last(database, "SELECT number, chain FROM audit ORDER BY number DESC LIMIT 1")?;
    let (mut number, mut chain) = if written.0 > 0 { written } else { last(database, ARCHIVED)? };
    let query =
        "INSERT INTO audit (number, at_ms, tenant, event, request, container, sha256, code, actor, outcome, chain)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, '', ?8, ?9, ?10)";
    let mut insert = database.prepare_cached(query)?;
    let query = "INSERT INTO programs (number, tenant, sha256, code) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING";
    let mut insert_program = database.prepare_cached(query)?;
    for (tenant, entry, sha256) in entries {
        number += 1;
        let AuditEntry { event, request, session, code, actor, outcome } = entry;
        let mut record = AuditRecord {
            number,
            at_ms: now_ms(),
            tenant,
            event: event.word().to_owned(),
            request,
            session,
            sha256,
            code: Some(code),
            actor,
            outcome,
            chain: String::new(),
        };
        record.chain = record.link(&chain, &record.sha256);
        let AuditRecord { number, at_ms, tenant, event, request, session, sha256, code, actor, outcome, chain: link } =
            record;
        insert_program.execute(params![number, tenant, sha256, code])?;
        insert.execute(params![number, at_ms, tenant, event, request, session, sha256, actor, outcome, link])?;
        chain = link;
    }
    Ok(())
}
