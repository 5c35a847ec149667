//! The state that all handlers share.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aludel_engine::permits::Permits;
use aludel_engine::{Engine, Tasks};
use aludel_store::{Store, now};
use tokio::sync::{OnceCell, Semaphore};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::auth::{DailyBudgets, FRESH, KeyCache, Origins};
use crate::client_sandboxes::repeated::RepeatedCreations;
use crate::dialects::mcp::Mcp;
use crate::error::ApiError;
use crate::telemetry::{Telemetry, Traces, watched};

/// Default time after which a call of an MCP tool returns while its program goes on.
pub const MCP_RETURN_AFTER: Duration = Duration::from_secs(45);
/// Default time after which a run of the Assistants API expires.
pub const RUN_LIFETIME: Duration = Duration::from_secs(600);

/// A server that is ready to serve.
pub struct App {
    pub(crate) engine: Arc<Engine>,
    /// The engine's store.
    pub(crate) store: Store,
    /// The engine's signals and tasks.
    pub(crate) draining: CancellationToken,
    pub(crate) shutdown: CancellationToken,
    pub(crate) tasks: Tasks,
    pub(crate) telemetry: Arc<Telemetry>,
    /// The reason for which recovery failed, if it did.
    pub(crate) unrecovered: OnceLock<String>,
    /// Time of the server's start, seconds since 1970.
    pub(crate) started: i64,
    /// Tenants by key.
    pub(crate) callers: KeyCache,
    pub(crate) budgets: Arc<DailyBudgets>,
    /// The server's public address, if one is configured.
    pub(crate) url: Option<String>,
    /// The web pages that may make requests from a browser.
    pub(crate) origins: Origins,
    /// The secret that signs links, read on first use.
    link_secret: OnceCell<Arc<str>>,
    /// Permits for concurrent requests.
    pub(crate) requests: Arc<Permits>,
    /// Permits for requests that programs in sandboxes answer: as many again.
    pub(crate) program_requests: Arc<Permits>,
    /// Permits for WebSockets, idle or not: as many again.
    pub(crate) sockets: Arc<Permits>,
    /// Permits for turns that may continue without a client: as many again.
    pub(crate) turns: Arc<Permits>,
    /// Permits to parse a large body: one for each processor.
    pub(crate) parsers: Semaphore,
    /// KiB of memory for JSON bodies, everything made of them, and replays.
    pub(crate) bodies: Arc<Permits>,
    /// Time after which a run of the Assistants API expires.
    pub(crate) run_lifetime: Duration,
    /// Creations of sandboxes with an idempotency key.
    pub(crate) repeated_creations: RepeatedCreations,
    /// Connections and programs of MCP's clients.
    pub(crate) mcp: Arc<Mcp>,
}

/// Bounds on requests, and what the operator sees.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// Requests that may be answered at once.
    pub requests: usize,
    /// Concurrent requests of one tenant.
    pub requests_per_key: usize,
    /// Bytes of memory for JSON bodies, everything made of them, and replays, at once.
    pub bodies: usize,
    /// The server's public address, such as `https://aludel.example.com`; `None` for the address that each client used.
    pub url: Option<String>,
    /// The web pages that may make requests from a browser.
    pub origins: Origins,
    /// True if there are figures at `/metrics`.
    pub metrics: bool,
    /// The collector of traces, if there is one.
    pub traces: Option<Traces>,
    /// True if the log and traces may contain prompts, programs and their output.
    pub log_contents: bool,
    /// Time after which a call of an MCP tool returns while its program goes on.
    pub mcp_return_after: Duration,
    /// Time after which a run of the Assistants API expires; whole seconds.
    pub run_lifetime: Duration,
    /// Time for which the store's answer about a key is cached. A revoked key may be accepted for as long.
    pub keys_fresh: Duration,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            requests: 256,
            requests_per_key: 256,
            bodies: 1 << 30,
            url: None,
            origins: Origins::default(),
            metrics: false,
            traces: None,
            log_contents: false,
            mcp_return_after: MCP_RETURN_AFTER,
            run_lifetime: RUN_LIFETIME,
            keys_fresh: FRESH,
        }
    }
}

impl App {
    /// A server on this engine.
    pub fn new(engine: Arc<Engine>, settings: ServerSettings) -> Self {
        info!(backend = engine.sandboxes.capabilities().backend, "programs run in sandboxes");
        let ServerSettings {
            requests,
            requests_per_key,
            bodies,
            url,
            origins,
            metrics,
            traces,
            log_contents,
            mcp_return_after,
            run_lifetime,
            keys_fresh,
        } = settings;
        engine.trace_models(watched);
        let budgets = Arc::new(DailyBudgets::new(keys_fresh));
        // Paths follow.
        let url = url.map(|url| url.trim_end_matches('/').to_owned());
        Self {
            store: engine.store.clone(),
            draining: engine.draining.clone(),
            shutdown: engine.shutdown.clone(),
            tasks: engine.tasks.clone(),
            telemetry: Arc::new(Telemetry::new(metrics, traces, log_contents)),
            unrecovered: OnceLock::new(),
            started: now(),
            callers: KeyCache::new(keys_fresh),
            budgets: Arc::clone(&budgets),
            url,
            origins,
            link_secret: OnceCell::new(),
            requests: Permits::new(requests, requests_per_key),
            program_requests: Permits::new(requests, requests_per_key),
            sockets: Permits::new(requests, requests_per_key),
            turns: Permits::new(requests, requests_per_key),
            parsers: Semaphore::new(std::thread::available_parallelism().map_or(1, usize::from)),
            bodies: Permits::new(bodies >> 10, bodies >> 10),
            run_lifetime,
            repeated_creations: RepeatedCreations::default(),
            mcp: Mcp::new(&engine, budgets, mcp_return_after),
            engine,
        }
    }

    /// A server for tests, with the memory backend and a store in this directory.
    #[cfg(test)]
    pub(crate) async fn on_memory(data: &std::path::Path, settings: ServerSettings) -> Arc<Self> {
        let store = Store::open(data).await.unwrap();
        let backend = Arc::new(aludel_sandbox::memory::Memory::default());
        let engine = Engine::new(store, backend, [], Default::default(), Vec::new(), Default::default());
        Arc::new(Self::new(Arc::new(engine), settings))
    }

    /// Returns the secret that signs links.
    pub(crate) async fn link_secret(&self) -> Result<Arc<str>, ApiError> {
        let made = async { Ok::<_, ApiError>(Arc::from(self.store.secret("links").await?)) };
        self.link_secret.get_or_try_init(|| made).await.cloned()
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }
}
