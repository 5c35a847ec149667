//! What all handlers share.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use aludel_session::{Limits, Local};
use aludel_store::{Store, Tenant, now};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::approvals::Approvals;
use crate::containers::Containers;
use crate::error::ApiError;
use crate::http::{Callers, Places};
use crate::models::{Model, Models};
use crate::telemetry::{Telemetry, Traces};
use crate::turn::LiveTurns;

/// A server that is ready to serve.
pub struct App {
    pub(crate) store: Store,
    models: RwLock<Arc<Models>>,
    approvals: RwLock<Arc<Approvals>>,
    pub(crate) containers: Containers,
    pub(crate) settings: Settings,
    pub(crate) telemetry: Arc<Telemetry>,
    /// Turns that are going on.
    pub(crate) live: LiveTurns,
    /// What is installed in every container.
    pub(crate) packages: Vec<String>,
    /// When the server started, seconds since 1970.
    pub(crate) started: i64,
    /// Tells what may wait for people, and can go on after a restart, that the server is about to end.
    pub(crate) ending: CancellationToken,
    /// Tells everything that goes on beyond its request to end.
    pub(crate) closing: CancellationToken,
    /// What goes on beyond its request; the server's end waits for it.
    pub(crate) tasks: TaskTracker,
    /// Whose key is whose.
    pub(crate) callers: Callers,
    /// How many requests may be answered at once.
    pub(crate) requests: Arc<Places>,
    /// How many KiB of bodies may be in memory at once.
    pub(crate) bodies: Arc<Semaphore>,
}

/// What a server may use, and what it gives.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The limits of a container that asks for none.
    pub limits: Limits,
    /// The most memory that a container gets, whatever it asks for, bytes.
    pub max_memory: u64,
    /// How long a container may be left alone before it ends.
    pub idle: Duration,
    /// How long the sandbox of a chat completion is kept for the next request; its files stay as long as those of other containers.
    pub linger: Duration,
    /// How long the files of a container that ended are kept.
    pub keep: Duration,
    /// How many containers may be live at once.
    pub containers: usize,
    /// How many requests may be answered at once.
    pub requests: usize,
    /// How many of them may be one tenant's.
    pub requests_per_key: usize,
    /// How much one tenant may store, bytes.
    pub storage: u64,
    /// Whether there are figures at `/metrics`.
    pub metrics: bool,
    /// Where traces are sent, if anywhere.
    pub traces: Option<Traces>,
    /// Whether prompts, programs and what they put out may stand in the log and in traces.
    pub log_contents: bool,
}

impl Default for Settings {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            max_memory: limits.memory,
            limits,
            idle: Duration::from_secs(20 * 60),
            linger: Duration::from_secs(2 * 60),
            keep: Duration::from_secs(30 * 24 * 3600),
            containers: 64,
            requests: 256,
            requests_per_key: 256,
            storage: 20 << 30,
            metrics: false,
            traces: None,
            log_contents: false,
        }
    }
}

impl Settings {
    /// What is said to a tenant that has stored too much.
    pub(crate) fn no_room(&self) -> ApiError {
        let mb = self.storage >> 20;
        let message = format!("The {mb} MB that you may store here are used up; delete files or containers.");
        ApiError::bad_request(message).code("storage_limit_exceeded")
    }
}

/// KiB of bodies that are in memory at once.
const BODIES: usize = 1 << 20;

impl App {
    /// Puts a server together. `approvals` says which programs are held back, `packages` what is installed in the backend's sandboxes.
    pub fn new(
        store: Store,
        backend: Local,
        models: impl IntoIterator<Item = Model>,
        approvals: Approvals,
        packages: Vec<String>,
        settings: Settings,
    ) -> Self {
        Self {
            containers: Containers::new(store.clone(), backend, settings.clone()),
            models: RwLock::new(Arc::new(Models::new(models))),
            approvals: RwLock::new(Arc::new(approvals)),
            telemetry: Arc::new(Telemetry::new(settings.metrics, settings.traces.clone(), settings.log_contents)),
            live: LiveTurns::default(),
            packages,
            started: now(),
            ending: CancellationToken::new(),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
            callers: Callers::default(),
            requests: Places::new(settings.requests, settings.requests_per_key),
            bodies: Arc::new(Semaphore::new(BODIES)),
            store,
            settings,
        }
    }

    /// The models as they are now.
    pub(crate) fn models(&self) -> Arc<Models> {
        Arc::clone(&self.models.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Offers these models from now on. What is going on keeps those that it began with.
    pub fn set_models(&self, models: impl IntoIterator<Item = Model>) {
        let models = Arc::new(Models::new(models));
        *self.models.write().unwrap_or_else(PoisonError::into_inner) = models;
    }

    /// Which programs are held back, as it is now.
    pub(crate) fn approvals(&self) -> Arc<Approvals> {
        Arc::clone(&self.approvals.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Holds these programs back from now on. What is going on keeps to what it began with.
    pub fn set_approvals(&self, approvals: Approvals) {
        *self.approvals.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(approvals);
    }

    /// How much more a tenant may store, bytes; an error when it is nothing.
    pub(crate) async fn room_for(&self, tenant: &Tenant) -> Result<u64, ApiError> {
        let used = self.store.bytes_of(tenant).await?;
        self.settings.storage.checked_sub(used).ok_or_else(|| self.settings.no_room())
    }
}
