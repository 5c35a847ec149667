//! Approval of programs before they run: by rules, by the operator, by a webhook; and the audit log of all of it.
//!
//! A guard against honest mistakes, and a record; the security boundary is the sandbox.

mod gate;
mod kernel_programs;
#[cfg(test)]
mod tests;
mod webhook;

use std::sync::Arc;
use std::time::Duration;

use aludel_rules::Rules;
use aludel_store::{ApprovalRecord, ApprovalStatus};
use serde::Deserialize;
use serde_json::{Value, json};

pub use gate::{Decider, Gate, ProgramOrigin, TerminalApprover};
pub use kernel_programs::KernelPrograms;
pub use webhook::Webhook;

/// The operator's policy about programs.
#[derive(Debug, Clone)]
pub struct ApprovalPolicy {
    /// The programs that wait for a decision.
    pub mode: ApprovalMode,
    /// Time for a decision.
    pub timeout: Duration,
    /// The decision when that time is over.
    pub on_timeout: OnTimeout,
    /// True if the program's own key may decide about it, besides the operator.
    pub by_key: bool,
    /// The webhook that is called for each program that waits.
    pub webhook: Option<Webhook>,
}

impl Default for ApprovalPolicy {
    fn default() -> Self {
        Self {
            mode: ApprovalMode::Never,
            timeout: Duration::from_secs(300),
            on_timeout: OnTimeout::Deny,
            by_key: false,
            webhook: None,
        }
    }
}

/// The programs that wait for a decision.
#[derive(Debug, Clone, Default)]
pub enum ApprovalMode {
    /// None.
    #[default]
    Never,
    /// All.
    Always,
    /// Those that the rules neither allow nor refuse.
    Rules(Arc<Rules>),
}

/// The decision about a program when nobody decided in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTimeout {
    /// It does not run; the model learns so.
    Deny,
    /// It runs.
    Allow,
}

/// A person's or a webhook's decision about a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OperatorDecision {
    /// It may run.
    Approve,
    /// It may not.
    #[serde(rename = "refuse")]
    Deny,
}

impl From<OperatorDecision> for ApprovalStatus {
    fn from(decision: OperatorDecision) -> Self {
        match decision {
            OperatorDecision::Approve => Self::Approved,
            OperatorDecision::Deny => Self::Denied,
        }
    }
}

/// A request for approval as webhooks and clients see it.
pub fn describe(approval: &ApprovalRecord) -> Value {
    json!({
        "id": approval.id.as_str(), "object": "approval", "status": approval.status.word(),
        "request_id": approval.request, "container_id": approval.session, "model": approval.model,
        "code": approval.code, "sha256": approval.sha256, "reasons": approval.reasons,
        "created_at": approval.created_at, "expires_at": approval.expires_at, "decided_at": approval.decided_at,
        "decided_by": approval.decided_by, "reason": approval.reason,
    })
}
