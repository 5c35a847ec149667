//! `aludel approvals`: deciding about programs that wait.

use aludel_store::{
    ApprovalId, ApprovalRecord, ApprovalStatus, ApprovalUpdate, DecisionOutcome, PageQuery, Store, now,
};
use anyhow::Context as _;
use clap::Subcommand;
use serde_json::json;

use crate::console::{Console, StandardStream};
use crate::context::CommandContext;
use crate::exit::{Exit, usage};
use crate::{console, state, terminal};

/// Programs that are read at once.
const AT_ONCE: usize = 1000;

/// List the programs that wait for approval, and decide about them
///
/// With `approval.mode` set, the server holds programs back until somebody decides, here or over HTTP (`/v1/approvals`). What is approved
/// is exactly the program that `show` prints.
#[derive(Debug, Subcommand)]
pub(crate) enum ApprovalsCommand {
    /// List the programs that wait
    List {
        /// Also those that were decided
        #[arg(long)]
        all: bool,
        /// Print one JSON object a line, with the whole programs
        #[arg(long)]
        json: bool,
    },
    /// Print a program that waits, and why
    Show {
        /// Its id, appr_…
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Let a program run
    Approve {
        /// Its id, appr_…
        #[arg(value_name = "ID")]
        id: String,
        /// Only if this is still its SHA-256
        #[arg(long, value_name = "SHA256")]
        sha256: Option<String>,
    },
    /// Do not let a program run
    Refuse {
        /// Its id, appr_…
        #[arg(value_name = "ID")]
        id: String,
        /// Reason, for the model
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
}

pub(crate) async fn run(command: ApprovalsCommand, context: &CommandContext) -> anyhow::Result<Exit> {
    let store = state::open_beside(context).await?;
    let mut console = Console::new();
    match command {
        ApprovalsCommand::List { all, json } => {
            let status = (!all).then_some(ApprovalStatus::Pending);
            let mut query = PageQuery::first(AT_ONCE);
            loop {
                let page = store.approvals(None, status, query.clone()).await.context("cannot read the approvals")?;
                for approval in &page.data {
                    console.line(StandardStream::Stdout, &if json { details(approval) } else { line(approval) })?;
                }
                let last = page.data.last().map(|approval| approval.id.to_string());
                if last.is_none() && query.after.is_none() && !json {
                    console::status(if all { "no program was ever held back" } else { "no program waits" });
                }
                if last.is_none() || !page.has_more {
                    break;
                }
                query.after = last;
            }
        }
        ApprovalsCommand::Show { id } => {
            let approval = find(&store, &id).await?;
            console.line(StandardStream::Stdout, &summary(&approval))?;
            console.line(StandardStream::Stdout, &terminal::reveal(&approval.code))?;
        }
        ApprovalsCommand::Approve { id, sha256 } => {
            decide(&store, &mut console, &id, sha256, ApprovalStatus::Approved, None).await?;
        }
        ApprovalsCommand::Refuse { id, reason } => {
            decide(&store, &mut console, &id, None, ApprovalStatus::Denied, reason).await?;
        }
    }
    Ok(Exit::Success)
}

async fn find(store: &Store, id: &str) -> anyhow::Result<ApprovalRecord> {
    let found = match ApprovalId::parse(id) {
        Some(id) => store.approval(None, &id).await.context("cannot read the approvals")?,
        None => None,
    };
    found.ok_or_else(|| unknown(id))
}

fn unknown(id: &str) -> anyhow::Error {
    usage(format!("there is no approval {}; `aludel approvals list` shows them", terminal::name(id)))
}

async fn decide(
    store: &Store,
    console: &mut Console,
    id: &str,
    sha256: Option<String>,
    status: ApprovalStatus,
    reason: Option<String>,
) -> anyhow::Result<()> {
    let approval = find(store, id).await?;
    let sha256 = sha256.unwrap_or(approval.sha256).to_lowercase();
    let decision = ApprovalUpdate { sha256, status, by: "the command line".to_owned(), reason };
    match store.decide(None, &approval.id, decision).await.context("cannot decide")? {
        DecisionOutcome::Now(approval) => {
            console.line(StandardStream::Stdout, &format!("{} {}", approval.status.word(), approval.id))?;
            Ok(())
        }
        DecisionOutcome::Before(approval) => {
            Err(usage(format!("{} is {} already", approval.id, approval.status.word())))
        }
        DecisionOutcome::OtherProgram => Err(usage(format!("{id} has another program; look at it again"))),
        DecisionOutcome::Unknown => Err(unknown(id)),
    }
}

fn line(approval: &ApprovalRecord) -> String {
    let program = terminal::excerpt(&approval.code, 60);
    let reasons = terminal::excerpt(&approval.reasons.join("; "), 80);
    let (status, tenant) = (approval.status.word(), approval.tenant.as_str());
    let until = until(approval).map(|until| format!("  {until}")).unwrap_or_default();
    format!("{}  {status:8}{until}  {tenant}  {reasons}  | {program}", approval.id)
}

/// The time that is left for a decision, as text.
fn until(approval: &ApprovalRecord) -> Option<String> {
    let left = approval.expires_at - now();
    let (hours, minutes, seconds) = (left / 3600, left / 60 % 60, left % 60);
    match approval.status {
        ApprovalStatus::Pending if left <= 0 => Some("too late to decide".to_owned()),
        ApprovalStatus::Pending if hours > 0 => Some(format!("expires in {hours}h {minutes}m")),
        ApprovalStatus::Pending if minutes > 0 => Some(format!("expires in {minutes}m {seconds}s")),
        ApprovalStatus::Pending => Some(format!("expires in {seconds}s")),
        ApprovalStatus::Approved | ApprovalStatus::Denied | ApprovalStatus::Expired => None,
    }
}

fn summary(approval: &ApprovalRecord) -> String {
    let mut lines = vec![
        format!("# {} ({})", approval.id, approval.status.word()),
        format!("# of {} in {}, written by {}", approval.request, approval.session, terminal::name(&approval.model)),
        format!("# sha256 {}", approval.sha256),
    ];
    lines.extend(until(approval).map(|until| format!("# {until}")));
    lines.extend(approval.reasons.iter().map(|reason| format!("# asked because {}", terminal::excerpt(reason, 200))));
    lines.join("\n")
}

fn details(approval: &ApprovalRecord) -> String {
    json!({
        "id": approval.id.as_str(), "status": approval.status.word(), "tenant": approval.tenant.as_str(),
        "request": approval.request, "container": approval.session, "model": approval.model,
        "sha256": approval.sha256, "code": approval.code, "reasons": approval.reasons,
        "created_at": approval.created_at, "expires_at": approval.expires_at, "decided_by": approval.decided_by,
        "reason": approval.reason,
    })
    .to_string()
}
