//! The engine behind the server and the terminal: sessions, turns, approvals, budgets of work, and recovery after a crash.
//!
//! This crate knows no HTTP server and no vendor's words. A dialect parses requests into its types and renders its results and errors.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test's tasks end with its runtime"))]

pub mod approvals;
mod arrivals;
mod creation;
mod environment;
mod error;
mod event_memories;
pub mod executions;
mod failure;
mod meter;
mod models;
/// Executions and their outcomes, from the sandbox layer.
pub mod execution {
    pub use aludel_sandbox::process::{ExitStatus, SIGKILL, SIGTERM};
    pub use aludel_sandbox::{CHART, TABLE};
    pub use aludel_sandbox::{
        ClientAnswer, ClientCall, ExecutionEvent, FileEntry, Finished, KernelDeath, LimitHit, Limits, MimeBundle,
        MimeData, Outcome, ProgramError, VariablesState, ending_of, mime_of,
    };
}
pub mod permits;
pub mod processor_time;
mod revoked;
pub mod sandboxes;
pub mod sessions;
mod settings;
mod tasks;
pub mod transcript;
pub mod turns;

use std::sync::{Arc, OnceLock};

use aludel_agent::upstream::Upstream;
use aludel_ignore::Ignore;
pub use aludel_sandbox::BackendStatus;
pub use aludel_sandbox::Error as SandboxError;
pub use aludel_sandbox::template::TemplateName;
use aludel_sandbox::{Backend, Health};
pub use aludel_sandbox::{KernelSpec, Language};
use aludel_store::{Store, Tenant};
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use aludel_store::MeteredWork;
pub use approvals::ApprovalPolicy;
pub use arrivals::{Arrival, ArrivalOrder};
pub use environment::Environment;
pub use error::{Error, ErrorKind, Missing};
pub use meter::{Account, Meter};
pub use models::{Model, Models, ProgramParts};
pub use revoked::end_revoked;
pub use sessions::{Session, SessionFile, Sessions};
pub use settings::SessionSettings;
pub use tasks::Tasks;

/// Makes the upstream of a model that takes part in traces.
pub type Tracer = fn(&Model) -> Arc<dyn Upstream>;

/// Everything below the dialects.
#[derive(Debug)]
pub struct Engine {
    /// Durable state.
    pub store: Store,
    /// Sessions, live and stored.
    pub sessions: Sessions,
    /// Sandboxes that clients own.
    pub sandboxes: sandboxes::Sandboxes,
    /// Counts of the work that is done for tenants.
    pub meter: Meter,
    /// Packages that programs find installed.
    pub packages: Vec<String>,
    /// Limits and expiry.
    pub settings: SessionSettings,
    /// Cancelled when the process is about to end: stops waits that can go on after a restart.
    pub draining: CancellationToken,
    /// Cancelled to end everything that outlives its request.
    pub shutdown: CancellationToken,
    /// Tasks that outlive their request. The process waits for them at its end.
    pub tasks: Tasks,
    /// Connections over a socket that is not HTTP. A server that shuts down lets them finish, too.
    pub socket_connections: TaskTracker,
    /// Time of the processors for the process's own work.
    pub processor_time: processor_time::ProcessorTime,
    /// Requests under way.
    pub in_flight: turns::InFlightRequests,
    /// Turns whose programs wait for their clients.
    pub suspended: turns::Suspensions,
    /// Permits of executions without a turn.
    pub(crate) executions: Arc<permits::Permits>,
    traced: OnceLock<Tracer>,
    models: RwLock<Arc<Models>>,
    approvals: RwLock<Arc<ApprovalPolicy>>,
}

impl Engine {
    /// An engine with this state and sandboxes of this backend. `packages` are those of the backend's template.
    pub fn new(
        store: Store,
        backend: Arc<dyn Backend>,
        models: impl IntoIterator<Item = Model>,
        approvals: ApprovalPolicy,
        packages: Vec<String>,
        settings: SessionSettings,
    ) -> Self {
        let (draining, shutdown) = (CancellationToken::new(), CancellationToken::new());
        let (tasks, lifetime) = (Tasks::default(), settings.sandbox_lifetime);
        let meter = Meter::new(store.clone(), tasks.clone(), shutdown.clone());
        let processor_time = processor_time::ProcessorTime::default();
        let sessions = Sessions::new(store.clone(), backend, settings.clone(), meter.clone());
        Self {
            meter,
            sandboxes: sandboxes::Sandboxes::new(
                sessions.clone(),
                tasks.clone(),
                processor_time.clone(),
                draining.clone(),
                shutdown.clone(),
                lifetime,
            ),
            sessions,
            traced: OnceLock::new(),
            models: RwLock::new(Arc::new(Models::new(models))),
            approvals: RwLock::new(Arc::new(approvals)),
            packages,
            draining,
            shutdown,
            tasks,
            socket_connections: TaskTracker::new(),
            processor_time,
            in_flight: turns::InFlightRequests::default(),
            suspended: turns::Suspensions::default(),
            executions: permits::Permits::new(executions::MAX_EXECUTIONS, executions::MAX_EXECUTIONS),
            store,
            settings,
        }
    }

    /// Waits until a tenant's key is revoked or expires.
    pub async fn key_ends(&self, tenant: &Tenant) {
        revoked::key_ends(&self.store, tenant).await;
    }

    /// The kernel that the programs of every session run in.
    pub fn kernel(&self) -> &KernelSpec {
        self.sessions.kernel()
    }

    /// Packages that programs find installed in a template; `None` stands for the usual one.
    pub(crate) fn packages_of(&self, template: Option<&TemplateName>) -> &[String] {
        let Some(name) = template else { return &self.packages };
        let offers = &self.sandboxes.capabilities().templates;
        offers.iter().find(|offer| offer.name == *name).map_or(&[], |offer| &offer.packages)
    }

    /// Returns the backend's health as far as it is known, without trying.
    pub fn backend_health(&self) -> Health {
        self.sessions.backend_health()
    }

    /// The models as they are now.
    pub fn models(&self) -> Arc<Models> {
        Arc::clone(&self.models.read())
    }

    /// Replaces the models. Turns under way keep their models.
    pub fn set_models(&self, models: impl IntoIterator<Item = Model>) {
        let models = Arc::new(Models::new(models));
        *self.models.write() = models;
    }

    /// Wraps the models of later turns. Only the first wrapper counts.
    pub fn trace_models(&self, traced: Tracer) {
        self.traced.set(traced).ignore("with two servers on one engine, the first wrapper counts");
    }

    /// The upstream of a model, for a turn.
    pub(crate) fn upstream(&self, model: &Model) -> Arc<dyn Upstream> {
        match self.traced.get() {
            Some(traced) => traced(model),
            None => Arc::clone(&model.upstream),
        }
    }

    /// The approval policy as it is now.
    pub fn approvals(&self) -> Arc<ApprovalPolicy> {
        Arc::clone(&self.approvals.read())
    }

    /// Replaces the approval policy. Turns under way keep theirs.
    pub fn set_approvals(&self, approvals: ApprovalPolicy) {
        *self.approvals.write() = Arc::new(approvals);
    }
}
