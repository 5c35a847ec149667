//! Programs that wait for somebody to allow them, and what was decided.

use rusqlite::{Row, params};
use sha2::{Digest, Sha256};

use crate::database::one;
use crate::id::hex;
use crate::{ApprovalId, Error, Page, PageQuery, Store, Tenant, now};

/// A program that somebody is asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalRecord {
    /// Its id.
    pub id: ApprovalId,
    /// Whose program it is.
    pub tenant: Tenant,
    /// What it is part of: the id of a response or a completion.
    pub request: String,
    /// The call of the tool in it.
    pub call_id: String,
    /// Where it is to run.
    pub container: String,
    /// The model that wrote it.
    pub model: String,
    /// The program: exactly this is run.
    pub code: String,
    /// The SHA-256 of the program, as hexadecimal digits.
    pub sha256: String,
    /// Why somebody is asked, each in a few words.
    pub reasons: Vec<String>,
    /// Since when, seconds since 1970.
    pub created_at: i64,
    /// Until when.
    pub expires_at: i64,
    /// How it stands.
    pub status: ApprovalStatus,
    /// When it was decided.
    pub decided_at: Option<i64>,
    /// By whom, in words.
    pub decided_by: Option<String>,
    /// What the model is told.
    pub reason: Option<String>,
    /// When the program was started.
    pub started_at: Option<i64>,
}

/// How an approval stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApprovalStatus {
    /// Nobody has decided yet.
    Pending,
    /// It may run.
    Approved,
    /// It may not.
    Refused,
    /// Nobody decided in time, or whoever asked is gone.
    Expired,
}

impl ApprovalStatus {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Approved, Self::Refused, Self::Expired];

    /// As it stands in the database, and in answers.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Refused => "refused",
            Self::Expired => "expired",
        }
    }

    /// Reads the word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.word() == word)
    }
}

/// A program that is to be decided.
#[derive(Debug, Clone)]
pub struct NewApproval {
    /// What it is part of.
    pub request: String,
    /// The call of the tool in it.
    pub call_id: String,
    /// Where it is to run.
    pub container: String,
    /// The model that wrote it.
    pub model: String,
    /// The program.
    pub code: String,
    /// Why somebody is asked.
    pub reasons: Vec<String>,
    /// How long it may wait, seconds.
    pub patience: i64,
    /// What whoever asks needs in order to go on after a restart, if it can.
    pub resume: Option<String>,
}

/// A decision.
#[derive(Debug, Clone)]
pub struct Decision {
    /// Which program was seen: the SHA-256 of it.
    pub sha256: String,
    /// What comes of it. [`ApprovalStatus::Pending`] decides nothing.
    pub status: ApprovalStatus,
    /// Who decided, in words.
    pub by: String,
    /// What the model is told.
    pub reason: Option<String>,
}

/// What came of a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decided {
    /// It holds.
    Now(ApprovalRecord),
    /// It was decided before, or too late.
    Before(ApprovalRecord),
    /// Another program was seen than the one that waits.
    OtherProgram,
    /// There is no such approval.
    Unknown,
}

const COLUMNS: &str = "id, tenant, request, call_id, container, model, code, sha256, reasons, created_at, expires_at, \
                       status, decided_at, decided_by, reason, started_at";

impl ApprovalRecord {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let (reasons, status): (String, String) = (row.get(8)?, row.get(11)?);
        Ok(Self {
            id: row.get(0)?,
            tenant: row.get(1)?,
            request: row.get(2)?,
            call_id: row.get(3)?,
            container: row.get(4)?,
            model: row.get(5)?,
            code: row.get(6)?,
            sha256: row.get(7)?,
            reasons: serde_json::from_str(&reasons).unwrap_or_default(),
            created_at: row.get(9)?,
            expires_at: row.get(10)?,
            status: ApprovalStatus::parse(&status).unwrap_or(ApprovalStatus::Expired),
            decided_at: row.get(12)?,
            decided_by: row.get(13)?,
            reason: row.get(14)?,
            started_at: row.get(15)?,
        })
    }
}

/// The SHA-256 of a program, as hexadecimal digits.
pub fn program_digest(code: &str) -> String {
    hex(&Sha256::digest(code.as_bytes()))
}

impl Store {
    /// Asks about a program.
    pub async fn add_approval(&self, tenant: &Tenant, new: NewApproval) -> Result<ApprovalRecord, Error> {
        let created_at = now();
        let record = ApprovalRecord {
            id: ApprovalId::new(),
            tenant: tenant.clone(),
            sha256: program_digest(&new.code),
            request: new.request,
            call_id: new.call_id,
            container: new.container,
            model: new.model,
            code: new.code,
            reasons: new.reasons,
            created_at,
            expires_at: created_at.saturating_add(new.patience),
            status: ApprovalStatus::Pending,
            decided_at: None,
            decided_by: None,
            reason: None,
            started_at: None,
        };
        let resume = new.resume;
        let row = record.clone();
        self.write(move |database| {
            let query = format!(
                "INSERT INTO approvals ({COLUMNS}, resume)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, NULL, NULL, NULL, NULL, ?13)"
            );
            let reasons = serde_json::to_string(&row.reasons)?;
            database.prepare_cached(&query)?.execute(params![
                row.id,
                row.tenant,
                row.request,
                row.call_id,
                row.container,
                row.model,
                row.code,
                row.sha256,
                reasons,
                row.created_at,
                row.expires_at,
                row.status.word(),
                resume
            ])?;
            Ok(())
        })
        .await?;
        Ok(record)
    }

    /// An approval; of any tenant if none is given, as for the operator.
    pub async fn approval(&self, tenant: Option<&Tenant>, id: &ApprovalId) -> Result<Option<ApprovalRecord>, Error> {
        let (tenant, id) = (tenant.cloned(), id.clone());
        self.read_any(move |database| {
            let query = format!("SELECT {COLUMNS} FROM approvals WHERE id = ?1 AND coalesce(tenant = ?2, TRUE)");
            one(database, &query, params![id, tenant], ApprovalRecord::read)
        })
        .await
    }

    /// Approvals, of all tenants if none is given.
    pub async fn approvals(
        &self,
        tenant: Option<&Tenant>,
        status: Option<ApprovalStatus>,
        page: PageQuery,
    ) -> Result<Page<ApprovalRecord>, Error> {
        let (tenant, status) = (tenant.cloned(), status.map(ApprovalStatus::word));
        self.read_any(move |database| {
            let query = format!(
                "SELECT {COLUMNS} FROM approvals WHERE coalesce(tenant = ?1, TRUE) AND coalesce(status = ?2, TRUE)"
            );
            page.read(database, (&query, "id"), vec![&tenant, &status], page.after(), ApprovalRecord::read)
        })
        .await
    }

    /// The program of a call, if somebody was asked about it.
    pub async fn approval_of_call(&self, request: &str, call_id: &str) -> Result<Option<ApprovalRecord>, Error> {
        let (request, call_id) = (request.to_owned(), call_id.to_owned());
        self.read_any(move |database| {
            let query =
                format!("SELECT {COLUMNS} FROM approvals WHERE request = ?1 AND call_id = ?2 ORDER BY id DESC LIMIT 1");
            one(database, &query, params![request, call_id], ApprovalRecord::read)
        })
        .await
    }

    /// Decides, once: the first decision holds. A tenant can decide about its own programs, the operator (`None`) about all.
    pub async fn decide(&self, tenant: Option<&Tenant>, id: &ApprovalId, decision: Decision) -> Result<Decided, Error> {
        let (tenant, id) = (tenant.cloned(), id.clone());
        self.write(move |database| {
            let query = format!("SELECT {COLUMNS} FROM approvals WHERE id = ?1 AND coalesce(tenant = ?2, TRUE)");
            let Some(found) = one(database, &query, params![id, tenant], ApprovalRecord::read)? else {
                return Ok(Decided::Unknown);
            };
            if found.sha256 != decision.sha256 {
                return Ok(Decided::OtherProgram);
            }
            if found.status != ApprovalStatus::Pending {
                return Ok(Decided::Before(found));
            }
            // Too late, also if nobody has noted it yet: the server may be down.
            if now() >= found.expires_at {
                return Ok(Decided::Before(ApprovalRecord { status: ApprovalStatus::Expired, ..found }));
            }
            let Decision { status, by, reason, sha256: _ } = decision;
            let decided = ApprovalRecord { status, decided_at: Some(now()), decided_by: Some(by), reason, ..found };
            let query = "UPDATE approvals SET status = ?2, decided_at = ?3, decided_by = ?4, reason = ?5 WHERE id = ?1";
            database.execute(
                query,
                params![decided.id, status.word(), decided.decided_at, decided.decided_by, decided.reason],
            )?;
            Ok(Decided::Now(decided))
        })
        .await
    }

    /// Lets a program run that nobody decided about in time. Does nothing when it was decided.
    pub async fn approve_unanswered(&self, id: &ApprovalId, by: &'static str) -> Result<(), Error> {
        let id = id.clone();
        self.write(move |database| {
            let query = "UPDATE approvals SET status = 'approved', decided_at = ?2, decided_by = ?3
                         WHERE id = ?1 AND status = 'pending'";
            database.execute(query, params![id, now(), by])?;
            Ok(())
        })
        .await
    }

    /// Notes that an approved program is about to run: after that it is never run again.
    pub async fn start_approved(&self, id: &ApprovalId) -> Result<(), Error> {
        let id = id.clone();
        self.write(move |database| {
            database.execute("UPDATE approvals SET started_at = ?2 WHERE id = ?1", params![id, now()])?;
            Ok(())
        })
        .await
    }

    /// The program of a request that somebody was asked about last and that was not started, with what it needs to go on.
    pub async fn resumable(&self, request: &str) -> Result<Option<(ApprovalRecord, String)>, Error> {
        let request = request.to_owned();
        self.read_any(move |database| {
            let query = format!(
                "SELECT {COLUMNS}, resume FROM approvals WHERE id = (SELECT max(id) FROM approvals WHERE request = ?1)
                 AND started_at IS NULL AND resume IS NOT NULL"
            );
            one(database, &query, [request], |row| Ok((ApprovalRecord::read(row)?, row.get("resume")?)))
        })
        .await
    }

    /// Says of all programs that nobody waits for any more, but for those of some requests, that they have expired.
    pub async fn expire_approvals_except(&self, requests: Vec<String>) -> Result<(), Error> {
        self.write(move |database| {
            let query = "UPDATE approvals SET status = 'expired', decided_at = ?1
                         WHERE status = 'pending' AND request NOT IN (SELECT value FROM json_each(?2))";
            database.execute(query, params![now(), serde_json::to_string(&requests)?])?;
            Ok(())
        })
        .await
    }

    /// Says of a program that nobody waits for any more that it has expired. Does nothing when it was decided.
    pub async fn expire_approval(&self, id: &ApprovalId) -> Result<(), Error> {
        let id = id.clone();
        self.write(move |database| {
            let query = "UPDATE approvals SET status = 'expired', decided_at = ?2 WHERE id = ?1 AND status = 'pending'";
            database.execute(query, params![id, now()])?;
            Ok(())
        })
        .await
    }
}
