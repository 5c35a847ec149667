//! The supervisor of the warden: replaces a warden that ends or hangs, and removes what it left.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aludel_ignore::Ignore;
use aludel_jail::message::{Setup, WardenMessage};
use aludel_jail::{WORKSPACES, WardenProcess, sweep};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::timeout;

use super::warden_client::WardenClient;
use super::{CREATE_TIMEOUT, Require};
use crate::Error;

/// Pause before another warden is started. It doubles with each warden that ends before it has made a sandbox.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest such pause.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// The warden of a backend, whichever that is at the moment.
#[derive(Debug)]
pub(super) struct Supervisor {
    current: watch::Sender<WardenStatus>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
enum WardenStatus {
    Up(Arc<WardenClient>),
    /// The next warden is being started; the reason for the last one's end.
    Down(String),
    /// The backend was shut down.
    ShutDown,
}

/// Everything that a warden is started with.
#[derive(Debug)]
pub(super) struct WardenSettings {
    /// The directory of all instances.
    pub(super) run: PathBuf,
    /// The setup; each warden gets an instance of its own.
    pub(super) setup: Setup,
    /// The isolation that must be enforceable.
    pub(super) require: Require,
    /// Longest silence of a warden, after which one more part passes before it is replaced.
    pub(super) max_silence: Duration,
}

/// A running warden with the directory of its instance.
struct WardenInstance {
    client: Arc<WardenClient>,
    instance: PathBuf,
}

impl Supervisor {
    /// Starts the first warden and returns the protections that the host cannot enforce. Blocks for as long as the template's imports take.
    pub(super) fn start(settings: WardenSettings) -> Result<(Arc<Self>, Vec<String>), Error> {
        sweep::sweep(&settings.run);
        let (first, warnings) = settings.start()?;
        let current = watch::Sender::new(WardenStatus::Up(Arc::clone(&first.client)));
        let supervisor = Arc::new(Self { current, thread: Mutex::default() });
        let supervising = Arc::clone(&supervisor);
        let thread = std::thread::Builder::new().name("aludel-warden".into());
        let thread = thread.spawn(move || supervising.supervise(&settings, first));
        *supervisor.thread.lock() = Some(thread.map_err(|error| Error::Setup(format!("start a thread: {error}")))?);
        Ok((supervisor, warnings))
    }

    /// The client of the warden. Without a warden, waits for one, at most as long as a sandbox may take to be made.
    pub(super) async fn client(&self) -> Result<Arc<WardenClient>, Error> {
        self.client_if(|_| true).await
    }

    /// The client of the warden that follows this one.
    pub(super) async fn client_after(&self, ended: &Arc<WardenClient>) -> Result<Arc<WardenClient>, Error> {
        // The caller may know of its end before the supervisor does.
        self.client_if(|client| !Arc::ptr_eq(client, ended)).await
    }

    async fn client_if(&self, is_wanted: impl Fn(&Arc<WardenClient>) -> bool) -> Result<Arc<WardenClient>, Error> {
        let mut current = self.current.subscribe();
        let settled = current.wait_for(|current| match current {
            WardenStatus::Up(client) => is_wanted(client),
            WardenStatus::Down(_) => false,
            WardenStatus::ShutDown => true,
        });
        let settled = timeout(CREATE_TIMEOUT, settled).await;
        let settled = settled.map_err(|_| Error::Timeout { what: "warden", limit: CREATE_TIMEOUT })?;
        match settled.as_deref() {
            Ok(WardenStatus::Up(client)) => Ok(Arc::clone(client)),
            Ok(WardenStatus::Down(_) | WardenStatus::ShutDown) | Err(_) => {
                Err(Error::Over("the backend was shut down".into()))
            }
        }
    }

    /// Reason for which there is no warden now, if that is so.
    pub(super) fn failure(&self) -> Option<String> {
        match &*self.current.borrow() {
            WardenStatus::Up(_) => None,
            WardenStatus::Down(reason) => Some(format!("{reason}; another warden is being started")),
            WardenStatus::ShutDown => Some("the backend was shut down".into()),
        }
    }

    /// Makes the warden remove everything and end, and starts no other.
    pub(super) fn end(&self) {
        if let WardenStatus::Up(client) = self.current.send_replace(WardenStatus::ShutDown) {
            client.hang_up();
        }
        if let Some(thread) = &*self.thread.lock() {
            thread.thread().unpark();
        }
    }

    /// Waits until the last warden has removed everything. Blocks; call it after [`Supervisor::end`].
    pub(super) fn wait(&self) {
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            thread.join().ignore("a panic of the thread has been printed");
        }
    }

    fn is_over(&self) -> bool {
        matches!(*self.current.borrow(), WardenStatus::ShutDown)
    }

    /// Sets the current state, unless all is over.
    fn set(&self, next: WardenStatus) {
        self.current.send_if_modified(|current| {
            let goes_on = !matches!(current, WardenStatus::ShutDown);
            if goes_on {
                *current = next;
            }
            goes_on
        });
    }

    fn supervise(&self, settings: &WardenSettings, mut warden: WardenInstance) {
        let mut pause = FIRST_PAUSE;
        loop {
            let reason = warden.client.listen();
            self.set(WardenStatus::Down(reason.clone()));
            if !self.is_over() {
                tracing::warn!(reason, "there is no warden any more: its sandboxes are lost, another one is started");
            }
            let WardenInstance { client, instance } = warden;
            client.hang_up();
            client.wait();
            sweep::remove_ended(&instance);
            if client.has_made_sandbox() {
                pause = FIRST_PAUSE;
            }
            drop(client);
            let Some(next) = self.start_another(settings, &mut pause) else { return };
            warden = next;
            self.set(WardenStatus::Up(Arc::clone(&warden.client)));
            if self.is_over() {
                warden.client.hang_up();
            } else {
                tracing::info!("there is a warden again");
            }
        }
    }

    /// Starts a warden, with as many attempts as it takes; `None` on shutdown.
    fn start_another(&self, settings: &WardenSettings, pause: &mut Duration) -> Option<WardenInstance> {
        loop {
            self.park(*pause);
            if self.is_over() {
                return None;
            }
            *pause = (*pause * 2).min(MAX_PAUSE);
            match settings.start() {
                Ok((started, _)) => return Some(started),
                Err(error) => {
                    tracing::warn!(%error, "no warden could be started; it is tried again in {} ms", pause.as_millis());
                    self.set(WardenStatus::Down(error.to_string()));
                }
            }
        }
    }

    /// Waits so long, or until all is over.
    fn park(&self, pause: Duration) {
        let until = Instant::now() + pause;
        while !self.is_over() {
            match until.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => std::thread::park_timeout(left),
                _ => return,
            }
        }
    }
}

impl WardenSettings {
    /// Starts a warden in an instance of its own. A failed start leaves nothing.
    fn start(&self) -> Result<(WardenInstance, Vec<String>), Error> {
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| Error::Io { path, source }
        };
        let (instance, lock) = sweep::new_instance(&self.run).map_err(failed(&self.run))?;
        let started = || {
            let workspaces = instance.join(WORKSPACES);
            std::fs::create_dir(&workspaces).map_err(failed(&workspaces))?;
            let setup = Setup { instance: instance.clone(), ..self.setup.clone() };
            let (warden, ready) =
                WardenProcess::spawn(&setup, lock).map_err(|error| Error::Setup(error.to_string()))?;
            let WardenMessage::Ready { owner_base, warnings, memory_is_bounded } = ready else {
                return Err(Error::Setup("the warden answered out of turn".into()));
            };
            if self.require == Require::Strict && !warnings.is_empty() {
                return Err(Error::Setup(format!("sandbox.require is strict, and: {}", warnings.join("; "))));
            }
            let client = WardenClient::start(warden, owner_base, memory_is_bounded, self.max_silence);
            let client = client.map_err(|error| Error::Setup(format!("start a thread: {error}")))?;
            Ok((client, warnings))
        };
        match started() {
            Ok((client, warnings)) => Ok((WardenInstance { client, instance }, warnings)),
            Err(error) => {
                sweep::remove_ended(&instance);
                Err(error)
            }
        }
    }
}
