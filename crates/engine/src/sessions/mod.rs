//! Sessions: a workspace that outlives its sandboxes, an expiry, limits, and at most one live sandbox.

mod links;
mod memory;
mod names;
mod registry;
mod sandbox;
mod session;
#[cfg(test)]
mod tests;

pub(crate) use links::has_link;
pub use links::{LINK, path_at};
pub use memory::MemoryTier;
pub use names::{check_name, free_name};
pub(crate) use registry::SandboxPermit;
pub use registry::{NewSession, SessionChoice, SessionStatus, Sessions, heartbeat, reap};
pub use sandbox::SessionSandbox;
pub use session::{Session, SessionFile, SessionReservation, StoredChanges};

/// The directory where programs find the workspace.
pub const WORKSPACE: &str = "/mnt/data";
