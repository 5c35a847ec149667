//! Asking before a program runs: by rules, by people over HTTP or the command line, by a webhook; and the audit log of all of it.
//!
//! A seat belt for honest mistakes and a record of what was done; the sandbox is the boundary.

mod api;
mod gate;
mod webhook;

use std::sync::Arc;
use std::time::Duration;

use aludel_rules::Rules;

pub(crate) use api::{decide, list, retrieve};
pub(crate) use gate::{Asked, Gate, Origin};
pub use webhook::Webhook;

/// When programs are held back, and who is asked.
#[derive(Debug, Clone)]
pub struct Approvals {
    /// Which programs.
    pub mode: ApprovalMode,
    /// How long somebody may take to decide.
    pub patience: Duration,
    /// What happens when nobody decides.
    pub otherwise: Otherwise,
    /// Who is told of each program that waits.
    pub webhook: Option<Webhook>,
}

impl Default for Approvals {
    fn default() -> Self {
        Self {
            mode: ApprovalMode::Never,
            patience: Duration::from_secs(300),
            otherwise: Otherwise::Refuse,
            webhook: None,
        }
    }
}

/// Which programs are held back.
#[derive(Debug, Clone, Default)]
pub enum ApprovalMode {
    /// None.
    #[default]
    Never,
    /// All.
    Always,
    /// Those that rules do not simply allow or refuse.
    Rules(Arc<Rules>),
}

/// What happens to a program that nobody decided about in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Otherwise {
    /// It does not run, and the model is told so.
    Refuse,
    /// It runs.
    Allow,
}
