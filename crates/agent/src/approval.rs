//! Approval before a program runs. A guard against honest mistakes; the security boundary is the sandbox.

use std::sync::Arc;

use futures_util::future::BoxFuture;

/// A program that waits for approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalRequest {
    /// Id of the tool's call.
    pub call_id: String,
    /// The program. If it is approved, exactly this is run.
    pub code: String,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApprovalDecision {
    /// Run it.
    Allow,
    /// Run it and all other programs of this turn.
    AllowAll,
    /// Nobody can answer now: the turn ends with [`crate::Ending::AwaitsApproval`]. Resuming its items runs exactly these programs; a call
    /// that got an output in between is refused.
    Later,
    /// Do not; the model is told why, and may try something else.
    Deny {
        /// The reason, for the model.
        reason: String,
    },
}

/// The message to the model that a program may not run.
pub fn denied(reason: &str) -> String {
    format!("The user did not allow this program to run: {reason}")
}

type Callback = dyn Fn(ApprovalRequest) -> BoxFuture<'static, ApprovalDecision> + Send + Sync;

/// The party that decides about programs.
#[derive(Clone, Default)]
pub(crate) enum Approver {
    /// Nobody: everything runs.
    #[default]
    Nobody,
    /// A function of the caller's.
    Callback(Arc<Callback>),
}

impl Approver {
    pub(crate) fn callback<F, R>(ask: F) -> Self
    where
        F: Fn(ApprovalRequest) -> R + Send + Sync + 'static,
        R: Future<Output = ApprovalDecision> + Send + 'static,
    {
        Self::Callback(Arc::new(move |request| Box::pin(ask(request))))
    }
}

impl std::fmt::Debug for Approver {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Nobody => "Nobody",
            Self::Callback(_) => "Callback",
        })
    }
}
