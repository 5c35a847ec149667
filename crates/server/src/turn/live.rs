//! Answers that are being written, or were a moment ago: who listens, who cancels, who asks for the same again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aludel_store::{ResponseId, Tenant};
use axum::http::HeaderMap;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::error::ApiError;
use crate::http::Fields;

/// How long a finished response is kept for clients that ask again.
const KEPT: Duration = Duration::from_secs(600);
/// How many are kept at most; the oldest go first.
const MOST: usize = 2000;

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct LiveTurns(Mutex<HashMap<ResponseId, Arc<Live>>>);

/// One event.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) sequence: u64,
    /// What kind of event it is, in a protocol that says so.
    pub(crate) kind: String,
    /// All of it, as JSON on one line.
    pub(crate) text: String,
}

/// One turn and what is told of it.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) id: ResponseId,
    tenant: Tenant,
    /// What it was asked with, if a client may ask with the same again.
    fingerprint: Fingerprint,
    /// Ends the turn.
    pub(crate) cancel: CancellationToken,
    told: Mutex<Vec<Arc<Told>>>,
    bytes: AtomicUsize,
    state: watch::Sender<State>,
    end: Mutex<Option<End>>,
    began: Instant,
}

/// How far it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct State {
    told: usize,
    ended: bool,
}

/// How it ended.
#[derive(Debug, Clone)]
pub(crate) struct End {
    /// The whole object.
    pub(crate) object: Value,
    /// What a client that has heard nothing yet gets instead: nothing was done.
    pub(crate) error: Option<ApiError>,
}

/// What tells a repeated request from another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    /// The client's own word for it, or the request's contents.
    digest: [u8; 32],
    /// Whether the client says that it asks again.
    pub(crate) is_retry: bool,
}

impl Fingerprint {
    /// Of a request.
    pub(crate) fn of(headers: &HeaderMap, fields: &Fields) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let is_retry = text("x-stainless-retry-count").is_some_and(|count| count.trim() != "0");
        Self::new(text("idempotency-key"), &fields.to_json(), is_retry)
    }

    /// Of a turn that nobody can ask for again.
    pub(crate) fn none() -> Self {
        Self { digest: [0; 32], is_retry: false }
    }

    /// By the key, if there is one; otherwise by the contents, which count only for a client that says it asks again.
    fn new(key: Option<&str>, body: &str, is_retry: bool) -> Self {
        let digest = match key {
            Some(key) => Sha256::digest(["key\0", key].concat()),
            None => Sha256::digest(["body\0", body].concat()),
        };
        Self { digest: digest.into(), is_retry: is_retry || key.is_some() }
    }
}

impl LiveTurns {
    /// Makes room for a new response; or finds the one that the same request began before.
    pub(crate) fn begin(
        &self,
        tenant: &Tenant,
        fingerprint: Fingerprint,
        id: ResponseId,
    ) -> Result<Arc<Live>, Arc<Live>> {
        let mut all = self.lock();
        if fingerprint.is_retry {
            let same = |live: &&Arc<Live>| live.tenant == *tenant && live.fingerprint.digest == fingerprint.digest;
            if let Some(live) = all.values().filter(same).max_by_key(|live| live.began) {
                return Err(Arc::clone(live));
            }
        }
        all.retain(|_, live| !live.state.borrow().ended || live.began.elapsed() < KEPT);
        if all.len() >= MOST {
            let oldest = all.values().filter(|live| live.state.borrow().ended).min_by_key(|live| live.began);
            if let Some(id) = oldest.map(|live| live.id.clone()) {
                all.remove(&id);
            }
        }
        let live = Arc::new(Live {
            id: id.clone(),
            tenant: tenant.clone(),
            fingerprint,
            cancel: CancellationToken::new(),
            told: Mutex::default(),
            bytes: AtomicUsize::new(0),
            state: watch::Sender::new(State::default()),
            end: Mutex::default(),
            began: Instant::now(),
        });
        all.insert(id, Arc::clone(&live));
        Ok(live)
    }

    /// A response of this tenant that is still known.
    pub(crate) fn find(&self, tenant: &Tenant, id: &ResponseId) -> Option<Arc<Live>> {
        self.lock().get(id).filter(|live| live.tenant == *tenant).cloned()
    }

    pub(crate) fn forget(&self, id: &ResponseId) {
        self.lock().remove(id);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ResponseId, Arc<Live>>> {
        // Nothing that could panic happens while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Live {
    /// Lets everybody who listens have these events.
    pub(crate) fn tell(&self, events: &[Told]) {
        self.bytes.fetch_add(events.iter().map(|told| told.text.len()).sum(), Ordering::Relaxed);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.extend(events.iter().cloned().map(Arc::new));
        let count = told.len();
        drop(told);
        self.state.send_modify(|state| state.told = count);
    }

    /// Bytes of all events so far.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Says that nothing more comes.
    pub(crate) fn end(&self, end: End) {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
        self.state.send_modify(|state| state.ended = true);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state.borrow().ended
    }

    /// Waits for the end.
    pub(crate) async fn ended(&self) -> Option<End> {
        let mut state = self.state.subscribe();
        // The sender lives as long as this does.
        let _ended = state.wait_for(|state| state.ended).await.map(|state| *state);
        self.end.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The event at a place, as soon as it is told; `None` when there will be none.
    pub(crate) async fn event(&self, place: usize) -> Option<Arc<Told>> {
        let mut state = self.state.subscribe();
        let _moved = state.wait_for(|state| state.told > place || state.ended).await.map(|state| *state);
        self.told.lock().unwrap_or_else(PoisonError::into_inner).get(place).cloned()
    }
}
