//! Requests under way, and those that ended a moment ago: their frames, their followers, their repetition by clients.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aludel_store::{Tenant, TurnId};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Failure, Frame};

/// Time for which the frames of an ended request are kept for clients that ask again.
const KEPT: Duration = Duration::from_secs(600);
/// Requests that are kept; the oldest ended ones go first.
const MOST: usize = 2000;

/// The requests under way, and those that ended a moment ago.
#[derive(Debug, Default)]
pub struct LiveTurns(Mutex<HashMap<TurnId, Arc<Live>>>);

/// One request and its frames.
#[derive(Debug)]
pub struct Live {
    /// Its id.
    pub id: TurnId,
    /// Ends its turns.
    pub cancel: CancellationToken,
    tenant: Tenant,
    fingerprint: Fingerprint,
    frames: Mutex<Vec<Arc<Frame>>>,
    bytes: AtomicUsize,
    state: watch::Sender<State>,
    end: Mutex<Option<End>>,
    held: Mutex<Option<Held>>,
    /// Whether it was cancelled because its clients had gone.
    given_up: AtomicBool,
    began: Instant,
}

/// Something that is let go at a request's end.
struct Held(#[expect(dead_code, reason = "it is only to be dropped")] Box<dyn Any + Send + Sync>);

impl fmt::Debug for Held {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Held")
    }
}

/// The progress of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct State {
    told: usize,
    ended: bool,
}

/// The end of a request.
#[derive(Debug, Clone)]
pub struct End {
    /// The whole document.
    pub document: Value,
    /// The failure that a client gets instead, if it has heard nothing yet.
    pub failure: Option<Failure>,
}

/// A mark by which a repeated request is told from another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    /// Digest of the client's own key, or of the request's contents.
    digest: [u8; 32],
    /// Whether the client says that it asks again.
    is_retry: bool,
    /// Whether the digest is of the client's own key.
    has_key: bool,
}

impl Fingerprint {
    /// By the client's key, if there is one; otherwise by the contents, which count only for a client that says it asks again.
    pub fn new(key: Option<&str>, body: &str, is_retry: bool) -> Self {
        let digest = match key {
            Some(key) => Sha256::digest(["key\0", key].concat()),
            None => Sha256::digest(["body\0", body].concat()),
        };
        Self { digest: digest.into(), is_retry: is_retry || key.is_some(), has_key: key.is_some() }
    }

    /// The mark of a request that nobody can repeat.
    pub fn none() -> Self {
        Self { digest: [0; 32], is_retry: false, has_key: false }
    }
}

impl LiveTurns {
    /// Enters a new request; or finds the one that the same request began before.
    pub fn begin(&self, tenant: &Tenant, fingerprint: Fingerprint, id: TurnId) -> Result<Arc<Live>, Arc<Live>> {
        let mut all = self.lock();
        if fingerprint.is_retry {
            let same = |live: &&Arc<Live>| live.tenant == *tenant && live.is_answer_to(&fingerprint);
            if let Some(live) = all.values().filter(same).max_by_key(|live| live.began) {
                return Err(Arc::clone(live));
            }
        }
        all.retain(|_, live| !live.has_ended() || live.began.elapsed() < KEPT);
        if all.len() >= MOST {
            let oldest = all.values().filter(|live| live.has_ended()).min_by_key(|live| live.began);
            if let Some(id) = oldest.map(|live| live.id.clone()) {
                all.remove(&id);
            }
        }
        let live = Arc::new(Live {
            id: id.clone(),
            cancel: CancellationToken::new(),
            tenant: tenant.clone(),
            fingerprint,
            frames: Mutex::default(),
            bytes: AtomicUsize::new(0),
            state: watch::Sender::new(State::default()),
            end: Mutex::default(),
            held: Mutex::default(),
            given_up: AtomicBool::new(false),
            began: Instant::now(),
        });
        all.insert(id, Arc::clone(&live));
        Ok(live)
    }

    /// A request of this tenant that is still known.
    pub fn find(&self, tenant: &Tenant, id: &TurnId) -> Option<Arc<Live>> {
        self.lock().get(id).filter(|live| live.tenant == *tenant).cloned()
    }

    /// Forgets a request.
    pub fn forget(&self, id: &TurnId) {
        self.lock().remove(id);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TurnId, Arc<Live>>> {
        // Nothing that could panic happens while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Live {
    /// Lets all followers have these frames.
    pub fn tell(&self, frames: Vec<Frame>) {
        if frames.is_empty() {
            return;
        }
        self.bytes.fetch_add(frames.iter().map(|frame| frame.text.len()).sum(), Ordering::Relaxed);
        let mut told = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        told.extend(frames.into_iter().map(Arc::new));
        let count = told.len();
        drop(told);
        self.state.send_modify(|state| state.told = count);
    }

    /// Bytes of all frames so far.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Keeps something until the request's end, such as a permit for the memory that it takes.
    pub fn hold(&self, held: impl Send + Sync + 'static) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(Held(Box::new(held)));
    }

    /// Says that nothing more comes.
    pub fn end(&self, end: End) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = None;
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
        self.state.send_modify(|state| state.ended = true);
    }

    /// Cancels it because its clients have gone, so that nobody hears its end. Whoever asks for the same again asks anew.
    pub fn give_up(&self) {
        // The connection of a client that was told everything ends, too.
        if !self.has_ended() {
            self.given_up.store(true, Ordering::Relaxed);
            self.cancel.cancel();
        }
    }

    /// Whether this request is to answer another one of this mark.
    fn is_answer_to(&self, asked: &Fingerprint) -> bool {
        // A library that repeats a request by itself must not have its programs run again.
        let is_lost = self.given_up.load(Ordering::Relaxed) && (asked.has_key || !self.ran_code());
        self.fingerprint.digest == asked.digest && !is_lost
    }

    /// Whether it failed after a program had run.
    fn ran_code(&self) -> bool {
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let failure = end.as_ref().and_then(|end| end.failure.as_ref());
        failure.is_some_and(|failure| failure.should_retry == Some(false))
    }

    /// Whether nothing more comes.
    pub fn has_ended(&self) -> bool {
        self.state.borrow().ended
    }

    /// Waits for the end.
    pub async fn ended(&self) -> Option<End> {
        let mut state = self.state.subscribe();
        // The sender lives as long as this does.
        let _ended = state.wait_for(|state| state.ended).await.map(|state| *state);
        self.end.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The index of the first frame after the one of this number.
    pub fn index_after(&self, sequence: Option<u64>) -> usize {
        let frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        sequence.map_or(0, |sequence| frames.partition_point(|frame| frame.sequence <= sequence))
    }

    /// The frame at an index, as soon as it is told; `None` when there will be none.
    pub async fn frame(&self, index: usize) -> Option<Arc<Frame>> {
        let mut state = self.state.subscribe();
        let _moved = state.wait_for(|state| state.told > index || state.ended).await.map(|state| *state);
        self.frames.lock().unwrap_or_else(PoisonError::into_inner).get(index).cloned()
    }
}
