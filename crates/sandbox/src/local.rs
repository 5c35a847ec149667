//! The local backend (stub while it is being written).
use std::path::PathBuf;
use crate::{Error, Event, Limits, Template, Workspace};

/// Settings of the local backend.
pub struct LocalConfig { pub data: PathBuf, pub template: Template, pub limits: Limits, pub pool: usize, pub require: Require }
/// How much of the isolation must be enforceable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Require { /// Degrade, and say so.
 Default, /// Refuse.
 Strict }
/// The local backend. Cheap to clone.
#[derive(Clone)]
pub struct Local;
impl Local {
    /// Starts the zygote; takes about as long as importing pandas.
    pub async fn start(config: LocalConfig) -> Result<Self, Error> { unimplemented!() }
    /// What the host cannot enforce, in words; printed at start.
    pub fn warnings(&self) -> &[String] { unimplemented!() }
    /// Ends every sandbox and the zygote, and removes what they left.
    pub async fn shutdown(self) { unimplemented!() }
}
/// What a sandbox is made from.
pub struct SandboxSpec { pub limits: Limits, pub workspace: Option<Workspace> }
/// A live sandbox with one kernel.
pub struct Sandbox;
/// A running execution.
pub struct Execution;
impl Execution {
    /// The next event; `None` after [`Event::Finished`].
    pub async fn next(&mut self) -> Option<Event> { unimplemented!() }
    /// A handle that can interrupt the program from elsewhere.
    pub fn interrupter(&self) -> Interrupter { unimplemented!() }
}
/// Interrupts one execution. Cheap to clone.
#[derive(Clone)]
pub struct Interrupter;
impl Interrupter {
    /// SIGINT now, kill after the grace period.
    pub fn interrupt(&self) { unimplemented!() }
}
