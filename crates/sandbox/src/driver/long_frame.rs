//! The long frame of a kernel that is on its way, if there is one, and the memory for its event.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::EventMemory;
use crate::event_memory::HeldMemory;
use crate::link::Link;

/// Time that a frame may take to arrive, since it holds memory. The kernel program writes it at once.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(30);

/// A long frame that is on its way, or none.
pub(super) struct LongFrame {
    /// `None` for as much as it needs.
    memory: Option<EventMemory>,
    state: State,
}

enum State {
    None,
    /// One of this many bytes waits for memory.
    Announced(usize),
    /// It is read, and has arrived by then.
    Accepted(Instant, Option<HeldMemory>),
}

impl LongFrame {
    /// None so far.
    pub(super) fn new(memory: Option<EventMemory>) -> Self {
        Self { memory, state: State::None }
    }

    /// A frame of this many bytes begins.
    pub(super) fn announce(&mut self, bytes: usize) {
        self.state = State::Announced(bytes);
    }

    /// Accepts an announced frame once there is memory for its event. If the program is to end, it waits for none: without memory the frame
    /// is skipped. Returns true if it is on its way from now on. Cancel-safe.
    pub(super) async fn accept<L: Link>(&mut self, link: &mut L, is_ending: bool) -> bool {
        let State::Announced(bytes) = self.state else { return false };
        let held = match &self.memory {
            None => None,
            Some(memory) if !is_ending => Some(memory.hold(bytes).await),
            Some(memory) => match memory.hold_now(bytes) {
                None => {
                    self.state = State::None;
                    return false;
                }
                held => held,
            },
        };
        link.accept();
        self.state = State::Accepted(Instant::now() + ARRIVAL_TIMEOUT, held);
        true
    }

    /// A frame has arrived. Returns the memory that its event holds.
    pub(super) fn arrived(&mut self) -> Option<HeldMemory> {
        match std::mem::replace(&mut self.state, State::None) {
            State::Accepted(_, held) => held,
            State::None | State::Announced(_) => None,
        }
    }

    /// The time by which it has arrived.
    pub(super) fn arrives_by(&self) -> Option<Instant> {
        match self.state {
            State::Accepted(at, _) => Some(at),
            State::None | State::Announced(_) => None,
        }
    }

    /// Gives it more time to arrive.
    pub(super) fn put_off(&mut self, by: Duration) {
        if let State::Accepted(at, _) = &mut self.state {
            *at += by;
        }
    }
}

/// Waits for a time, for ever without one.
pub(super) async fn passed(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
