//! Requests under way, and those that ended a moment ago: their frames, their followers, and repetitions by clients.

use std::any::Any;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aludel_ignore::Ignore;
use aludel_store::{Tenant, TurnId};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::{Failure, FailureKind, Frame};
use crate::permits::{NoRoom, Permit, Permits};

/// Time for which an ended request is remembered, for clients that repeat it.
const ENDED_LIFE: Duration = Duration::from_secs(600);
/// Requests that are remembered. Beyond that, the oldest ended ones of the tenant with most are forgotten.
const MAX_REQUESTS: usize = 2000;
/// Requests that are forgotten in one pass when there are too many.
const FORGOTTEN_AT_ONCE: usize = MAX_REQUESTS / 16;
/// Bytes of all ended requests in memory. Beyond that, the oldest ended ones are dropped.
const MAX_BYTES: usize = 128 << 20;
/// Bytes of one tenant's ended requests in memory.
const MAX_BYTES_EACH: usize = MAX_BYTES / 4;
/// Bytes that a frame, or a value of a document, takes besides its text.
const OVERHEAD_BYTES: usize = 128;

/// KiB for the frames of all requests that are under way or have followers, in [`COPIES`], and for output of programs, in
/// [`COPIES_OF_OUTPUT`].
const MAX_FRAME_KIB: usize = 1 << 20;
/// Copies of frames in memory: as they are sent, and as parts of a document.
const COPIES: usize = 2;
/// Copies of a program's output in memory until its request ends: as its program gave it and as the model gets it, and as text in the call,
/// in two frames and in the document.
const COPIES_OF_OUTPUT: usize = 8;
/// Bytes of frames that a request may have uncounted, so that small answers always have room.
const FREE_BYTES: usize = 1 << 20;

/// The requests under way, and those that ended a moment ago.
#[derive(Debug)]
pub struct InFlightRequests {
    all: Mutex<HashMap<TurnId, Entry>>,
    /// KiB for frames.
    memory: Arc<Permits>,
}

impl Default for InFlightRequests {
    fn default() -> Self {
        Self { all: Mutex::default(), memory: Permits::new(MAX_FRAME_KIB, MAX_FRAME_KIB) }
    }
}

/// A request of the table.
#[derive(Debug)]
enum Entry {
    /// Under way, or ended and kept in memory.
    InFlight(Arc<InFlightRequest>),
    /// Ended, and kept in the store or nowhere.
    Past {
        tenant: Tenant,
        fingerprint: Arc<RequestFingerprint>,
        began: Instant,
        ended: Instant,
        clients: Arc<Mutex<Clients>>,
        past: PastRequest,
    },
}

/// An earlier request with the same fingerprint.
#[derive(Debug)]
pub enum EarlierRequest {
    /// Under way, or ended and still in memory, with the client that repeats it.
    InFlight(Arc<InFlightRequest>, Follower),
    /// Ended and no longer in memory, with the client that repeats it.
    Past(PastRequest, Follower),
    /// A request with the same idempotency key and another body.
    OtherBody,
}

/// An ended request that is no longer in memory: its frames and its document are in the store, unless it failed or was not stored.
#[derive(Debug, Clone)]
pub struct PastRequest {
    /// Id.
    pub id: TurnId,
    /// Failure that a client gets in place of the document.
    pub failure: Option<Failure>,
    /// True if the store has it.
    pub is_stored: bool,
}

/// One request and its frames.
#[derive(Debug)]
pub struct InFlightRequest {
    /// Its id.
    pub id: TurnId,
    /// Ends its turns.
    pub cancel: CancellationToken,
    tenant: Tenant,
    fingerprint: Arc<RequestFingerprint>,
    frames: Mutex<Vec<Arc<Frame>>>,
    bytes: AtomicUsize,
    /// Bytes of the output of its programs.
    output: AtomicUsize,
    /// The permit for the memory of its frames.
    memory: Mutex<Permit>,
    state: watch::Sender<State>,
    end: Mutex<Option<RequestEnd>>,
    held: Mutex<Vec<HeldResource>>,
    clients: Arc<Mutex<Clients>>,
    began: Instant,
    /// Set when it has ended and stays in memory.
    in_memory: Mutex<Option<EndedRequest>>,
}

/// The clients of a request that are known to wait for it.
#[derive(Debug, Default)]
struct Clients {
    /// Their number now.
    present: usize,
    /// Number of arrivals and departures.
    changes: u64,
    /// True if a client disconnected before it had the whole answer, and has not repeated its request.
    is_missed: bool,
    /// True if the request was cancelled because all of them had left.
    abandoned: bool,
}

/// A client that waits for a request, until this is dropped.
#[derive(Debug)]
pub struct Follower {
    clients: Arc<Mutex<Clients>>,
    is_answered: bool,
}

impl Follower {
    /// A client that waits for this request.
    pub fn of(in_flight: &InFlightRequest) -> Self {
        Self::among(&in_flight.clients, &mut in_flight.clients.lock())
    }

    fn among(clients: &Arc<Mutex<Clients>>, locked: &mut Clients) -> Self {
        locked.present += 1;
        locked.changes += 1;
        Self { clients: Arc::clone(clients), is_answered: false }
    }

    /// Records that it got the whole answer.
    pub fn note_answered(&mut self) {
        self.is_answered = true;
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut clients = self.clients.lock();
        clients.present -= 1;
        clients.changes += 1;
        clients.is_missed |= !self.is_answered;
    }
}

/// An ended request that nothing but memory has.
#[derive(Debug, Clone, Copy)]
struct EndedRequest {
    /// Bytes of memory that it takes.
    bytes: usize,
    /// True if one of its programs ran.
    ran_code: bool,
}

/// A value that is dropped at a request's end.
pub(super) struct HeldResource(#[expect(dead_code, reason = "it is only to be dropped")] Box<dyn Any + Send + Sync>);

impl fmt::Debug for HeldResource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("HeldResource")
    }
}

/// The progress of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct State {
    frames: usize,
    /// Time of its end.
    ended: Option<Instant>,
}

/// The end of a request.
#[derive(Debug, Clone)]
pub struct RequestEnd {
    /// The whole document, as the client gets it.
    pub answer: Box<RawValue>,
    /// The failure that a client gets instead, if it has received nothing yet.
    pub failure: Option<Failure>,
}

/// A mark that identifies repetitions of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestFingerprint {
    /// Digest of the route with the client's own key, or with the request's contents.
    digest: [u8; 32],
    /// Digest of the contents.
    body: [u8; 32],
    /// True if the client says that it repeats a request.
    is_retry: bool,
    /// True if the digest is of the client's own key.
    has_key: bool,
}

impl RequestFingerprint {
    /// The fingerprint of the client's idempotency key at a route, or else of the contents. Contents match only if the client says that it
    /// repeats the request, and the earlier client left without its answer.
    pub fn new(route: &str, key: Option<&str>, body: &str, is_retry: bool) -> Self {
        let body = Sha256::digest(body);
        let digest = match key {
            Some(key) => Sha256::new().chain_update(["key\0", route, "\0", key].concat()),
            None => Sha256::new().chain_update(["body\0", route, "\0"].concat()).chain_update(body),
        };
        let is_retry = is_retry || key.is_some();
        Self { digest: digest.finalize().into(), body: body.into(), is_retry, has_key: key.is_some() }
    }

    /// The fingerprint of a request that cannot be repeated.
    pub fn none() -> Self {
        Self { digest: [0; 32], body: [0; 32], is_retry: false, has_key: false }
    }
}

impl InFlightRequests {
    /// Enters a new request, or finds an earlier one with the same fingerprint.
    pub fn begin(
        &self,
        tenant: &Tenant,
        fingerprint: RequestFingerprint,
        id: TurnId,
    ) -> Result<Arc<InFlightRequest>, EarlierRequest> {
        let mut all = self.all.lock();
        if fingerprint.is_retry {
            let same = |entry: &&Entry| *entry.tenant() == *tenant && entry.fingerprint().digest == fingerprint.digest;
            let mut same: Vec<&Entry> = all.values().filter(same).collect();
            same.sort_by_key(|entry| Reverse(entry.began()));
            if let Some(earlier) = same.into_iter().find_map(|entry| entry.join(&fingerprint)) {
                return Err(earlier);
            }
        }
        if all.len() >= MAX_REQUESTS {
            forget_old(&mut all);
        }
        if all.len() >= MAX_REQUESTS {
            make_room(&mut all);
        }
        let in_flight = Arc::new(InFlightRequest {
            id: id.clone(),
            cancel: CancellationToken::new(),
            tenant: tenant.clone(),
            fingerprint: Arc::new(fingerprint),
            frames: Mutex::default(),
            bytes: AtomicUsize::new(0),
            output: AtomicUsize::new(0),
            memory: Mutex::new(self.memory.none(tenant)),
            state: watch::Sender::new(State::default()),
            end: Mutex::default(),
            held: Mutex::default(),
            clients: Arc::default(),
            began: Instant::now(),
            in_memory: Mutex::default(),
        });
        all.insert(id, Entry::InFlight(Arc::clone(&in_flight)));
        Ok(in_flight)
    }

    /// Ends a request that is in the store. Only its followers hold it in memory from now on.
    pub fn end_stored(&self, in_flight: &InFlightRequest, end: RequestEnd) {
        let failure = end.failure.clone();
        in_flight.end(end);
        if let Some(entry) = self.all.lock().get_mut(&in_flight.id) {
            *entry = Entry::past(in_flight, failure, true);
        }
    }

    /// Ends a request that is only in memory, and keeps it there for repetitions as far as there is room.
    pub fn end(&self, in_flight: &InFlightRequest, end: RequestEnd, ran_code: bool) {
        let bytes = in_flight.weight() + OVERHEAD_BYTES + end.answer.get().len();
        in_flight.end(end);
        let mut all = self.all.lock();
        *in_flight.in_memory.lock() = Some(EndedRequest { bytes, ran_code });
        let_go(&mut all, Some(&in_flight.tenant), MAX_BYTES_EACH);
        let_go(&mut all, None, MAX_BYTES);
    }

    /// A request of this tenant that is under way or kept in memory.
    pub fn find(&self, tenant: &Tenant, id: &TurnId) -> Option<Arc<InFlightRequest>> {
        match self.all.lock().get(id)? {
            Entry::InFlight(in_flight) if in_flight.tenant == *tenant => Some(Arc::clone(in_flight)),
            Entry::InFlight(_) | Entry::Past { .. } => None,
        }
    }

    /// Tenants with requests under way.
    pub(crate) fn tenants(&self) -> HashSet<Tenant> {
        self.all.lock().values().filter(|entry| entry.ended().is_none()).map(|entry| entry.tenant().clone()).collect()
    }

    /// Cancels a tenant's requests that are under way.
    pub(crate) fn cancel_all(&self, tenant: &Tenant) {
        for entry in self.all.lock().values() {
            if let Entry::InFlight(in_flight) = entry
                && in_flight.tenant == *tenant
            {
                in_flight.cancel.cancel();
            }
        }
    }

    /// Forgets a request.
    pub fn forget(&self, id: &TurnId) {
        self.all.lock().remove(id);
    }

    /// Forgets requests that ended long enough ago.
    pub(crate) fn forget_old(&self) {
        forget_old(&mut self.all.lock());
    }
}

fn forget_old(all: &mut HashMap<TurnId, Entry>) {
    all.retain(|_, entry| entry.ended().is_none_or(|ended| ended.elapsed() < ENDED_LIFE));
}

/// Forgets ended requests, each time the oldest of the tenant with most. Takes several in one pass, because scanning all of them is
/// expensive.
fn make_room(all: &mut HashMap<TurnId, Entry>) {
    let mut by_tenant: HashMap<&Tenant, Vec<(Instant, &TurnId)>> = HashMap::new();
    for (id, entry) in all.iter() {
        if let Some(ended) = entry.ended() {
            by_tenant.entry(entry.tenant()).or_default().push((ended, id));
        }
    }
    let mut ended: Vec<_> = by_tenant.into_values().collect();
    ended.iter_mut().for_each(|ended| ended.sort_by_key(|(at, _)| Reverse(*at)));
    let oldest = std::iter::from_fn(|| ended.iter_mut().max_by_key(|ended| ended.len())?.pop());
    let forgotten: Vec<TurnId> = oldest.take(FORGOTTEN_AT_ONCE).map(|(_, id)| id.clone()).collect();
    for id in forgotten {
        all.remove(&id);
    }
}

/// Drops ended requests from memory, the oldest first, until those of a tenant, or all, take at most this many bytes.
fn let_go(all: &mut HashMap<TurnId, Entry>, tenant: Option<&Tenant>, most: usize) {
    let mut ended: Vec<(EndedRequest, Arc<InFlightRequest>)> = Vec::new();
    for entry in all.values() {
        if let Entry::InFlight(in_flight) = entry
            && tenant.is_none_or(|tenant| in_flight.tenant == *tenant)
            && let Some(kept) = *in_flight.in_memory.lock()
        {
            ended.push((kept, Arc::clone(in_flight)));
        }
    }
    ended.sort_by_key(|(_, in_flight)| in_flight.ended_at());
    let mut taken: usize = ended.iter().map(|(kept, _)| kept.bytes).sum();
    for (kept, in_flight) in ended {
        if taken <= most {
            return;
        }
        taken -= kept.bytes;
        if kept.ran_code {
            // A repetition must not run it again.
            let words = "This request was answered before, and its answer is not kept any more. Its programs are not run again; \
                         send it under another idempotency key.";
            let gone = Failure { should_retry: Some(false), ..Failure::new(FailureKind::Unavailable, words) };
            all.insert(in_flight.id.clone(), Entry::past(&in_flight, Some(gone), false));
        } else {
            all.remove(&in_flight.id);
        }
    }
}

impl Entry {
    /// The entry of an ended request whose frames are not in memory.
    fn past(in_flight: &InFlightRequest, failure: Option<Failure>, is_stored: bool) -> Self {
        Self::Past {
            tenant: in_flight.tenant.clone(),
            fingerprint: Arc::clone(&in_flight.fingerprint),
            began: in_flight.began,
            ended: in_flight.ended_at().unwrap_or_else(Instant::now),
            clients: Arc::clone(&in_flight.clients),
            past: PastRequest { id: in_flight.id.clone(), failure, is_stored },
        }
    }

    fn tenant(&self) -> &Tenant {
        match self {
            Self::InFlight(in_flight) => &in_flight.tenant,
            Self::Past { tenant, .. } => tenant,
        }
    }

    fn began(&self) -> Instant {
        match self {
            Self::InFlight(in_flight) => in_flight.began,
            Self::Past { began, .. } => *began,
        }
    }

    /// The time of its end.
    fn ended(&self) -> Option<Instant> {
        match self {
            Self::InFlight(in_flight) => in_flight.ended_at(),
            Self::Past { ended, .. } => Some(*ended),
        }
    }

    fn fingerprint(&self) -> &RequestFingerprint {
        match self {
            Self::InFlight(in_flight) => &in_flight.fingerprint,
            Self::Past { fingerprint, .. } => fingerprint,
        }
    }

    /// Adds a client with a fingerprint of the same digest, if this request answers it.
    fn join(&self, asked: &RequestFingerprint) -> Option<EarlierRequest> {
        let (clients, ran_code) = match self {
            Self::InFlight(in_flight) => (&in_flight.clients, in_flight.ran_code()),
            Self::Past { clients, past, .. } => (clients, ran_code(past.failure.as_ref())),
        };
        let mut locked = clients.lock();
        // If a library repeats a request on its own, its programs must not run again.
        let is_lost = locked.abandoned && (asked.has_key || !ran_code);
        // Equal requests of one client are not repetitions of each other: each takes up one that nobody else gets.
        let is_another = !asked.has_key && (locked.present > 0 || !locked.is_missed);
        if is_lost || is_another {
            return None;
        }
        if self.fingerprint().body != asked.body {
            return Some(EarlierRequest::OtherBody);
        }
        locked.is_missed = false;
        let follower = Follower::among(clients, &mut locked);
        Some(match self {
            Self::InFlight(in_flight) => EarlierRequest::InFlight(Arc::clone(in_flight), follower),
            Self::Past { past, .. } => EarlierRequest::Past(past.clone(), follower),
        })
    }
}

/// Returns true if a request failed after a program had run.
fn ran_code(failure: Option<&Failure>) -> bool {
    failure.is_some_and(|failure| failure.should_retry == Some(false))
}

impl InFlightRequest {
    /// Returns the tenant whose request it is.
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Appends frames and wakes the followers.
    pub fn publish(&self, frames: Vec<Frame>) {
        if frames.is_empty() {
            return;
        }
        self.bytes.fetch_add(frames.iter().map(|frame| frame.text.len()).sum(), Ordering::Relaxed);
        let mut log = self.frames.lock();
        log.extend(frames.into_iter().map(Arc::new));
        let count = log.len();
        drop(log);
        self.state.send_modify(|state| state.frames = count);
    }

    /// Counts the memory of a program's output, before anything is made of it. Fails if there is no room.
    pub(super) fn count_output(&self, bytes: usize) -> Result<(), NoRoom> {
        self.output.fetch_add(bytes, Ordering::Relaxed);
        self.count_memory()
    }

    /// Counts the memory of its frames and of the output so far for its tenant, until nobody follows it any more. Fails if there is no
    /// room.
    pub(super) fn count_memory(&self) -> Result<(), NoRoom> {
        let bytes = (self.bytes() * COPIES).max(self.output.load(Ordering::Relaxed) * COPIES_OF_OUTPUT);
        let kib = bytes.saturating_sub(FREE_BYTES * COPIES) >> 10;
        let mut permit = self.memory.lock();
        let more = kib.saturating_sub(permit.count());
        permit.acquire_more(more)
    }

    /// Bytes of all frames so far.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of memory that its frames take, about.
    fn weight(&self) -> usize {
        let frames = self.frames.lock();
        frames.iter().map(|frame| OVERHEAD_BYTES + frame.kind.len() + frame.text.len()).sum()
    }

    /// Holds a value until the request's end, such as a permit for its memory, besides earlier ones.
    pub fn hold(&self, held: impl Send + Sync + 'static) {
        self.held.lock().push(HeldResource(Box::new(held)));
    }

    /// Takes the held values, for another request to hold.
    pub(super) fn take_held(&self) -> Vec<HeldResource> {
        std::mem::take(&mut *self.held.lock())
    }

    /// Marks it as ended.
    pub fn end(&self, end: RequestEnd) {
        self.held.lock().clear();
        *self.end.lock() = Some(end);
        self.state.send_modify(|state| state.ended = Some(Instant::now()));
    }

    /// Cancels it if it has no client for this long. A repetition starts anew.
    pub async fn give_up_after(&self, pause: Duration) {
        let changes = self.clients.lock().changes;
        if !pause.is_zero() {
            timeout(pause, self.ended()).await.ignore("the clients are counted below in any case");
        }
        let mut clients = self.clients.lock();
        // The connection of a client that received everything closes as well.
        if clients.present == 0 && clients.changes == changes && !self.has_ended() {
            clients.abandoned = true;
            drop(clients);
            self.cancel.cancel();
        }
    }

    /// Returns true if it failed after a program had run.
    fn ran_code(&self) -> bool {
        let end = self.end.lock();
        ran_code(end.as_ref().and_then(|end| end.failure.as_ref()))
    }

    /// Returns true once it has ended.
    pub fn has_ended(&self) -> bool {
        self.ended_at().is_some()
    }

    /// The time of its end.
    fn ended_at(&self) -> Option<Instant> {
        self.state.borrow().ended
    }

    /// Waits for the end.
    pub async fn ended(&self) -> Option<RequestEnd> {
        let mut state = self.state.subscribe();
        state.wait_for(|state| state.ended.is_some()).await.ignore("the sender is a field of this request");
        self.end.lock().clone()
    }

    /// The index of the first frame after this number.
    pub fn index_after(&self, sequence: Option<u64>) -> usize {
        let frames = self.frames.lock();
        sequence.map_or(0, |sequence| frames.partition_point(|frame| frame.sequence <= sequence))
    }

    /// The frame at an index, as soon as it is published; `None` after the last.
    pub async fn frame(&self, index: usize) -> Option<Arc<Frame>> {
        let mut state = self.state.subscribe();
        state
            .wait_for(|state| state.frames > index || state.ended.is_some())
            .await
            .ignore("the sender is a field of this request");
        self.frames.lock().get(index).cloned()
    }
}

#[cfg(test)]
mod tests {
    use aludel_store::ResponseId;
    use serde_json::value::to_raw_value;
    use serde_json::{Value, json};

    use super::*;
    const MB: usize = 1 << 20;

    fn key(name: &str) -> RequestFingerprint {
        RequestFingerprint::new("route", Some(name), "", false)
    }

    /// Begins a request with a stream of this size.
    fn begun(all: &InFlightRequests, tenant: &Tenant, name: &str, bytes: usize) -> Arc<InFlightRequest> {
        let in_flight = all.begin(tenant, key(name), ResponseId::new().into()).unwrap();
        in_flight.publish(vec![Frame { sequence: 0, kind: String::new(), text: "x".repeat(bytes) }]);
        in_flight
    }

    fn done(answer: &Value) -> RequestEnd {
        RequestEnd { answer: to_raw_value(answer).unwrap(), failure: None }
    }

    #[tokio::test]
    async fn a_stored_request_is_held_by_its_followers_alone() {
        let (all, tenant) = (InFlightRequests::default(), Tenant::local());
        let in_flight = begun(&all, &tenant, "a", 10);
        let failure = Failure::new(FailureKind::Rejected, "no");
        all.end_stored(&in_flight, RequestEnd { failure: Some(failure.clone()), ..done(&json!({})) });
        assert_eq!(Arc::strong_count(&in_flight), 1, "a follower's");
        assert_eq!(in_flight.frame(0).await.unwrap().text, "xxxxxxxxxx");
        assert!(all.find(&tenant, &in_flight.id).is_none());
        let Err(EarlierRequest::Past(past, _)) = all.begin(&tenant, key("a"), ResponseId::new().into()) else {
            panic!("begun anew")
        };
        assert_eq!((past.id, past.failure, past.is_stored), (in_flight.id.clone(), Some(failure), true));
        assert!(all.begin(&Tenant::terminal(), key("a"), ResponseId::new().into()).is_ok());
    }

    #[test]
    fn frames_count_for_their_tenant_until_nobody_follows() {
        let (all, tenant) = (InFlightRequests::default(), Tenant::local());
        let requests: Vec<_> = (0..3).map(|name| begun(&all, &tenant, &name.to_string(), 200 * MB)).collect();
        let counted: Vec<bool> = requests.iter().map(|request| request.count_memory().is_ok()).collect();
        assert_eq!(counted, [true, true, false]);
        assert!(begun(&all, &tenant, "small", MB).count_memory().is_ok());
        for request in &requests[..2] {
            all.end_stored(request, done(&Value::Null));
        }
        assert!(requests[2].count_memory().is_err(), "the followers are there");
        drop(requests);
        assert!(begun(&all, &tenant, "next", 200 * MB).count_memory().is_ok());
    }

    #[test]
    fn output_counts_before_it_is_rendered() {
        let (all, tenant) = (InFlightRequests::default(), Tenant::local());
        let requests: Vec<_> = (0..3).map(|name| begun(&all, &tenant, &name.to_string(), 10)).collect();
        let counted: Vec<bool> = requests.iter().map(|request| request.count_output(48 * MB).is_ok()).collect();
        assert_eq!(counted, [true, true, false]);
        assert!(begun(&all, &tenant, "small", 10).count_output(100 << 10).is_ok());
    }

    #[test]
    fn a_tenant_with_many_requests_does_not_have_those_of_others_forgotten() {
        let (all, tenant, other) = (InFlightRequests::default(), Tenant::local(), Tenant::terminal());
        let begin = |tenant: &Tenant, name: &str| all.begin(tenant, key(name), ResponseId::new().into());
        let end = |in_flight: Arc<InFlightRequest>| all.end_stored(&in_flight, done(&Value::Null));
        end(begin(&other, "others").unwrap());
        for number in 0..MAX_REQUESTS + 10 {
            end(begin(&tenant, &number.to_string()).unwrap());
        }
        assert!(begin(&tenant, "0").is_ok(), "the oldest one is forgotten");
        assert!(matches!(begin(&other, "others"), Err(EarlierRequest::Past(..))));
    }

    #[tokio::test(start_paused = true)]
    async fn an_ended_request_is_remembered_from_its_end_on() {
        let (all, tenant) = (InFlightRequests::default(), Tenant::local());
        let long = ["stored", "in memory"].map(|name| begun(&all, &tenant, name, 1));
        tokio::time::advance(2 * ENDED_LIFE).await;
        all.end_stored(&long[0], done(&Value::Null));
        all.end(&long[1], done(&Value::Null), true);
        tokio::time::advance(ENDED_LIFE - Duration::from_secs(1)).await;
        all.forget_old();
        let again = |name: &str| all.begin(&tenant, key(name), ResponseId::new().into());
        assert!(matches!(again("stored"), Err(EarlierRequest::Past(past, _)) if past.id == long[0].id));
        assert!(matches!(again("in memory"), Err(EarlierRequest::InFlight(same, _)) if same.id == long[1].id));
        tokio::time::advance(Duration::from_secs(1)).await;
        all.forget_old();
        assert!(again("stored").is_ok() && again("in memory").is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_given_up_when_the_last_of_its_clients_is_gone_for_long() {
        let (all, tenant) = (InFlightRequests::default(), Tenant::local());
        let in_flight = begun(&all, &tenant, "a", 1);
        let first = Follower::of(&in_flight);
        let join = || match all.begin(&tenant, key("a"), ResponseId::new().into()) {
            Err(EarlierRequest::InFlight(same, follower)) if same.id == in_flight.id => follower,
            other => panic!("{other:?}"),
        };
        let pause = Duration::from_secs(10);
        let gone = |seconds| {
            let in_flight = Arc::clone(&in_flight);
            async move {
                in_flight.give_up_after(Duration::from_secs(seconds)).await;
                in_flight.cancel.is_cancelled()
            }
        };
        // One more came before the first one went, another one went meanwhile.
        let second = join();
        drop(first);
        assert!(!gone(0).await && !gone(10).await);
        drop(second);
        let given_up = tokio::spawn(gone(10));
        tokio::time::sleep(pause / 2).await;
        drop(join());
        let later = tokio::spawn(gone(10));
        assert!(!given_up.await.unwrap());
        assert!(later.await.unwrap());
        assert!(all.begin(&tenant, key("a"), ResponseId::new().into()).is_ok());
    }

    #[test]
    fn a_key_is_of_one_route_and_one_body() {
        let (all, tenant) = (InFlightRequests::default(), Tenant::local());
        let begin = |route, body| {
            let fingerprint = RequestFingerprint::new(route, Some("a"), body, false);
            all.begin(&tenant, fingerprint, ResponseId::new().into())
        };
        let first = begin("responses", "1").unwrap();
        assert!(begin("completions", "1").is_ok());
        assert!(matches!(begin("responses", "2"), Err(EarlierRequest::OtherBody)));
        assert!(matches!(begin("responses", "1"), Err(EarlierRequest::InFlight(same, _)) if same.id == first.id));
        all.end_stored(&first, done(&Value::Null));
        assert!(matches!(begin("responses", "2"), Err(EarlierRequest::OtherBody)));
        assert!(matches!(begin("responses", "1"), Err(EarlierRequest::Past(past, _)) if past.id == first.id));
    }

    #[tokio::test(start_paused = true)]
    async fn a_retry_without_a_key_takes_up_one_request_whose_client_went_unanswered() {
        let (all, tenant) = (InFlightRequests::default(), Tenant::local());
        let ask = |route, is_retry| {
            let fingerprint = RequestFingerprint::new(route, None, "equal", is_retry);
            all.begin(&tenant, fingerprint, ResponseId::new().into())
        };
        let (answered, cut) = (ask("responses", false).unwrap(), ask("responses", false).unwrap());
        let (mut first, second) = (Follower::of(&answered), Follower::of(&cut));
        // Of one that was refused: the others have clients of their own.
        let refused = ask("responses", true).unwrap();
        let _third = Follower::of(&refused);
        first.note_answered();
        drop(first);
        all.end_stored(&answered, done(&Value::Null));
        assert!(ask("responses", true).is_ok(), "the answer of another one");
        drop(second);
        assert!(ask("completions", true).is_ok());
        let Err(EarlierRequest::InFlight(same, again)) = ask("responses", true) else { panic!("begun twice") };
        assert_eq!(same.id, cut.id);
        assert!(ask("responses", true).is_ok(), "it has its client back");
        drop(again);
        all.end_stored(&cut, done(&Value::Null));
        for is_answered in [false, true] {
            let Err(EarlierRequest::Past(past, mut again)) = ask("responses", true) else { panic!("begun twice") };
            assert_eq!(past.id, cut.id);
            if is_answered {
                again.note_answered();
            }
        }
        assert!(ask("responses", true).is_ok(), "its client has the answer");
    }

    #[test]
    fn ended_requests_of_a_tenant_take_its_share_of_memory() {
        let (all, tenant, other) = (InFlightRequests::default(), Tenant::local(), Tenant::terminal());
        let others = begun(&all, &other, "others", MB);
        all.end(&others, done(&Value::Null), true);
        let first = begun(&all, &tenant, "first", 12 * MB);
        let ran = begun(&all, &tenant, "ran", 12 * MB);
        // The end counts, and not the beginning. A document counts, too.
        all.end(&ran, done(&Value::Null), true);
        all.end(&first, done(&Value::Null), false);
        let last = begun(&all, &tenant, "last", MB);
        all.end(&last, done(&json!({ "text": "x".repeat(18 * MB) })), false);
        assert!(all.find(&tenant, &last.id).is_some() && all.find(&tenant, &first.id).is_some());
        assert!(all.find(&tenant, &ran.id).is_none() && all.find(&other, &others.id).is_some());
        let Err(EarlierRequest::Past(past, _)) = all.begin(&tenant, key("ran"), ResponseId::new().into()) else {
            panic!("its programs would run again");
        };
        assert_eq!((past.is_stored, past.failure.unwrap().should_retry), (false, Some(false)));
        // A log larger than the share is not kept at all; if it ran no program, a repetition starts anew.
        let large = begun(&all, &tenant, "large", MAX_BYTES_EACH);
        all.end(&large, done(&Value::Null), false);
        assert!(all.begin(&tenant, key("large"), ResponseId::new().into()).is_ok());
        assert!(all.begin(&tenant, key("last"), ResponseId::new().into()).is_ok());
    }

    #[tokio::test]
    async fn ended_requests_of_all_tenants_take_no_more_than_they_may_together() {
        let data = tempfile::tempdir().unwrap();
        let store = aludel_store::Store::open(data.path()).await.unwrap();
        let all = InFlightRequests::default();
        let mut ended = Vec::new();
        for name in ["a", "b", "c", "d", "e"] {
            let secret = store.create_key(name, None).await.unwrap().secret;
            let tenant = store.tenant_of_key(&secret).await.unwrap().unwrap();
            let in_flight = begun(&all, &tenant, name, MAX_BYTES_EACH - MB);
            all.end(&in_flight, done(&Value::Null), false);
            ended.push((tenant, in_flight.id.clone()));
        }
        let kept: Vec<bool> = ended.iter().map(|(tenant, id)| all.find(tenant, id).is_some()).collect();
        assert_eq!(kept, [false, true, true, true, true]);
    }
}
