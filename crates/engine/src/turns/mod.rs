//! Turns: one driver for all dialects, its events, and the log of frames that clients follow.

pub(crate) mod effects;
mod event;
mod in_flight;
mod journal;
mod lease;
mod recover;
mod render;
mod run;
mod spec;
#[cfg(test)]
mod tests;

pub use crate::failure::{DISK_FULL, Failure, FailureKind};
pub use event::{
    EndReason, EventKind, Image, ItemId, OutputPiece, RichData, RichValue, StoredBytes, ToolCall, ToolEnd, ToolKind,
    ToolOutcome, TurnEvent,
};
pub use in_flight::{
    EarlierRequest, Follower, InFlightRequest, InFlightRequests, PastRequest, RequestEnd, RequestFingerprint,
};
pub use journal::{Journal, NewJournal};
pub use lease::renew;
pub use recover::{RecoveryOutcome, RestoredRequest, StoredRequests, recover, replay};
pub use render::{Documents, Flow, Frame, Render, RenderedEvent};
pub use run::{ChoicePlan, Run, SessionRetention, Suspension, Suspensions, TakenSuspension};
pub use spec::TurnSpec;
