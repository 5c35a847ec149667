//! Programs that wait for approval, and the decisions.

use rusqlite::{Row, params};
use sha2::{Digest, Sha256};

use crate::database::{all, one};
use crate::id::hex;
use crate::owners::Owners;
use crate::{ApprovalId, Error, Page, PageQuery, Store, Tenant, now};

/// An approval: a program that waits, or waited, for a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalRecord {
    /// Id.
    pub id: ApprovalId,
    /// Tenant whose program it is.
    pub tenant: Tenant,
    /// Id of its turn: of a response or a completion.
    pub request: String,
    /// Id of the tool call.
    pub call_id: String,
    /// Session that it is to run in.
    pub session: String,
    /// Model that wrote it.
    pub model: String,
    /// Program. Exactly this is run.
    pub code: String,
    /// SHA-256 of the program, in hexadecimal.
    pub sha256: String,
    /// Reasons to ask, each in a few words.
    pub reasons: Vec<String>,
    /// Time of the request, seconds since 1970.
    pub created_at: i64,
    /// Time at which it expires, seconds since 1970.
    pub expires_at: i64,
    /// Status.
    pub status: ApprovalStatus,
    /// Time of the decision, seconds since 1970.
    pub decided_at: Option<i64>,
    /// Name of the party that decided.
    pub decided_by: Option<String>,
    /// Reason that the model is told.
    pub reason: Option<String>,
    /// Time at which the program was started, seconds since 1970.
    pub started_at: Option<i64>,
}

/// Status of an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApprovalStatus {
    /// Not decided yet.
    Pending,
    /// Allowed to run.
    Approved,
    /// Not allowed to run.
    Denied,
    /// Not decided in time, or not waited for any more.
    Expired,
}

impl ApprovalStatus {
    /// All statuses.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Approved, Self::Denied, Self::Expired];

    /// Returns the word that stands in the database and in answers.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Denied => "refused",
            Self::Expired => "expired",
        }
    }

    /// Reads the word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.word() == word)
    }
}

/// An approval to be requested.
#[derive(Debug, Clone)]
pub struct NewApproval {
    /// Id of the turn that it is part of.
    pub request: String,
    /// Id of the tool call.
    pub call_id: String,
    /// Session that it is to run in.
    pub session: String,
    /// Model that wrote it.
    pub model: String,
    /// Program.
    pub code: String,
    /// Reasons to ask, each in a few words.
    pub reasons: Vec<String>,
    /// Time until it expires, seconds.
    pub patience: i64,
}

/// A decision.
#[derive(Debug, Clone)]
pub struct ApprovalUpdate {
    /// SHA-256 of the program that was seen.
    pub sha256: String,
    /// New status. [`ApprovalStatus::Pending`] decides nothing.
    pub status: ApprovalStatus,
    /// Name of the party that decides.
    pub by: String,
    /// Reason that the model is told.
    pub reason: Option<String>,
}

/// Outcome of a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecisionOutcome {
    /// The decision holds.
    Now(ApprovalRecord),
    /// Decided before, or too late.
    Before(ApprovalRecord),
    /// The program that was seen is not the waiting one.
    OtherProgram,
    /// No such approval.
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
            session: row.get(4)?,
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

/// Returns the SHA-256 of a program, in hexadecimal.
pub fn program_digest(code: &str) -> String {
    hex(&Sha256::digest(code.as_bytes()))
}

impl Store {
    /// Requests an approval.
    pub async fn add_approval(&self, tenant: &Tenant, new: NewApproval) -> Result<ApprovalRecord, Error> {
        let created_at = now();
        let record = ApprovalRecord {
            id: ApprovalId::new(),
            tenant: tenant.clone(),
            sha256: program_digest(&new.code),
            request: new.request,
            call_id: new.call_id,
            session: new.session,
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
        let row = record.clone();
        self.write_for(tenant, move |database, _| {
            let query = format!(
                "INSERT INTO approvals ({COLUMNS})
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, NULL, NULL, NULL, NULL)"
            );
            let reasons = serde_json::to_string(&row.reasons)?;
            database.prepare_cached(&query)?.execute(params![
                row.id,
                row.tenant,
                row.request,
                row.call_id,
                row.session,
                row.model,
                row.code,
                row.sha256,
                reasons,
                row.created_at,
                row.expires_at,
                row.status.word(),
            ])?;
            Ok(())
        })
        .await?;
        Ok(record)
    }

    /// Returns an approval; without a tenant, as for the operator, of any tenant.
    pub async fn approval(&self, tenant: Option<&Tenant>, id: &ApprovalId) -> Result<Option<ApprovalRecord>, Error> {
        let (owner, id) = (tenant.cloned(), id.clone());
        self.read_for(tenant, move |database| {
            let query = format!(
                "SELECT {COLUMNS} FROM approvals
                         WHERE id = ?1 AND decider = 'operator' AND coalesce(tenant = ?2, TRUE)"
            );
            one(database, &query, params![id, owner], ApprovalRecord::read)
        })
        .await
    }

    /// Returns a page of approvals, of all tenants if none is given.
    pub async fn approvals(
        &self,
        tenant: Option<&Tenant>,
        status: Option<ApprovalStatus>,
        page: PageQuery,
    ) -> Result<Page<ApprovalRecord>, Error> {
        let (owner, status) = (tenant.cloned(), status.map(ApprovalStatus::word));
        self.read_for(tenant, move |database| {
            // With these conditions an index has all that is asked for: a row's program is not read to pass it over.
            let of_owner = if owner.is_some() { "tenant = ?1" } else { "?1 IS NULL" };
            let of_status = if status.is_some() { "status = ?2" } else { "?2 IS NULL" };
            let query =
                format!("SELECT {COLUMNS} FROM approvals WHERE decider = 'operator' AND {of_owner} AND {of_status}");
            page.read(database, (&query, "id"), vec![&owner, &status], page.after(), ApprovalRecord::read)
        })
        .await
    }

    /// Returns the latest approval of a tool call.
    pub async fn approval_of_call(&self, request: &str, call_id: &str) -> Result<Option<ApprovalRecord>, Error> {
        let (request, call_id) = (request.to_owned(), call_id.to_owned());
        self.read_any(move |database| {
            let query = format!(
                "SELECT {COLUMNS} FROM approvals
                 WHERE request = ?1 AND call_id = ?2 AND decider = 'operator' ORDER BY id DESC LIMIT 1"
            );
            one(database, &query, params![request, call_id], ApprovalRecord::read)
        })
        .await
    }

    /// Stores a decision. Only the first counts. A tenant can decide about its own programs, the operator (`None`) about all.
    pub async fn decide(
        &self,
        tenant: Option<&Tenant>,
        id: &ApprovalId,
        decision: ApprovalUpdate,
    ) -> Result<DecisionOutcome, Error> {
        let (tenant, id) = (tenant.cloned(), id.clone());
        self.write(move |database| {
            let query = format!(
                "SELECT {COLUMNS} FROM approvals
                         WHERE id = ?1 AND decider = 'operator' AND coalesce(tenant = ?2, TRUE)"
            );
            let Some(found) = one(database, &query, params![id, tenant], ApprovalRecord::read)? else {
                return Ok(DecisionOutcome::Unknown);
            };
            if found.sha256 != decision.sha256 {
                return Ok(DecisionOutcome::OtherProgram);
            }
            if found.status != ApprovalStatus::Pending {
                return Ok(DecisionOutcome::Before(found));
            }
            // Too late, even if the expiry was not recorded: the server may have been down.
            if now() >= found.expires_at {
                return Ok(DecisionOutcome::Before(ApprovalRecord { status: ApprovalStatus::Expired, ..found }));
            }
            let ApprovalUpdate { status, by, reason, sha256: _ } = decision;
            let decided = ApprovalRecord { status, decided_at: Some(now()), decided_by: Some(by), reason, ..found };
            let query = "UPDATE approvals SET status = ?2, decided_at = ?3, decided_by = ?4, reason = ?5 WHERE id = ?1";
            database.execute(
                query,
                params![decided.id, status.word(), decided.decided_at, decided.decided_by, decided.reason],
            )?;
            Ok(DecisionOutcome::Now(decided))
        })
        .await
    }

    /// Approves a program that was not decided about in time. Does nothing if it was.
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

    /// Records that an approved program is about to run. It is never run again after that.
    pub async fn start_approved(&self, id: &ApprovalId) -> Result<(), Error> {
        let id = id.clone();
        self.write(move |database| {
            database.execute("UPDATE approvals SET started_at = ?2 WHERE id = ?1", params![id, now()])?;
            Ok(())
        })
        .await
    }

    /// Records that a tenant was asked about a program of its own, which waits `patience` seconds for the answer. The program itself is not
    /// stored. A call that was asked about before stays as it is.
    pub async fn ask_tenant(
        &self,
        tenant: &Tenant,
        request: &str,
        call_id: &str,
        code: &str,
        patience: i64,
    ) -> Result<(), Error> {
        let (request, call_id) = (request.to_owned(), call_id.to_owned());
        let digest = program_digest(code);
        self.write_for(tenant, move |database, tenant| {
            let query = "INSERT OR IGNORE INTO approvals (id, tenant, request, call_id, container, model, code, sha256,
                             reasons, created_at, expires_at, status, decider)
                         VALUES (?1, ?2, ?3, ?4, '', '', '', ?5, '[]', ?6, ?7, 'pending', 'client')";
            let (id, now) = (ApprovalId::new(), now());
            database
                .execute(query, params![id, tenant, request, call_id, digest, now, now.saturating_add(patience)])?;
            Ok(())
        })
        .await
    }

    /// Takes a tenant's answer about a program that it was asked about. Returns false if it was not asked, or has answered: each question
    /// is answered once.
    pub async fn tenant_answered(&self, tenant: &Tenant, code: &str, status: ApprovalStatus) -> Result<bool, Error> {
        let digest = program_digest(code);
        self.write_uncounted(tenant, move |database, tenant| {
            let query = "UPDATE approvals SET status = ?3, decided_at = ?4, started_at = ?4 WHERE id = (
                             SELECT id FROM approvals INDEXED BY approvals_of_clients WHERE tenant = ?1 AND sha256 = ?2 AND decider = 'client'
                                 AND status = 'pending' AND expires_at >= ?4 ORDER BY id LIMIT 1)";
            Ok(database.execute(query, params![tenant, digest, status.word(), now()])? == 1)
        })
        .await
    }

    /// Expires all pending approvals but those of some turns. For a server's start, when nothing waits except these and the turns of
    /// [`Store::owned_turn_id`] whose owners live.
    pub async fn expire_approvals_except(&self, mut requests: Vec<String>) -> Result<(), Error> {
        self.run(move |store| {
            store.0.database.write(|database| {
                let query = "SELECT DISTINCT request FROM approvals WHERE status = 'pending' AND decider = 'operator'";
                let pending: Vec<String> = all(database, query, [], |row| row.get(0))?;
                // After the approvals: an owner that comes later is not seen, and waits for none of them.
                let owners = Owners::look(&store.0.owners)?;
                requests.extend(pending.into_iter().filter(|request| owners.may_end(request)));
                let query = "UPDATE approvals INDEXED BY approvals_by_status SET status = 'expired', decided_at = ?1
                             WHERE status = 'pending' AND decider = 'operator' AND request NOT IN (SELECT value FROM json_each(?2))";
                database.execute(query, params![now(), serde_json::to_string(&requests)?])?;
                Ok(())
            })
        })
        .await
    }

    /// Expires an approval. Does nothing when it was decided.
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
