//! Memory of long events and of long programs on their way, shared between tenants: a program waits before it is sent, and before its next
//! event is read.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::frame::MAX_FRAME;

/// Copies of an event that are in memory at the same time: its frame, its value, the text that is sent.
const COPIES: usize = 3;
/// Bytes of the longest event, in all copies.
const LONGEST: usize = COPIES * MAX_FRAME;
/// A tenant may hold twice as much as is free, so that there is always room for the next one.
const SHARE_OF_REMAINING: usize = 2;

/// The memory of all tenants.
#[derive(Debug)]
pub struct AllEventMemory(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Bytes.
    all: usize,
    /// Bytes of one tenant at most.
    each: usize,
    in_use: Mutex<usize>,
    freed: Notify,
}

/// Memory for the long events of one tenant. Clones share it.
#[derive(Debug, Clone)]
pub struct EventMemory {
    shared: Arc<Shared>,
    /// Bytes in use, changed only while those of all are locked.
    own: Arc<Mutex<usize>>,
}

/// Memory of one event, until this is dropped.
#[derive(Debug)]
pub(crate) struct HeldMemory {
    memory: EventMemory,
    bytes: usize,
}

impl AllEventMemory {
    /// So many bytes, of which each tenant has at most `each`; more where the longest event needs more.
    pub fn new(all: usize, each: usize) -> Self {
        let each = each.max(LONGEST);
        let all = all.max(each + LONGEST);
        Self(Arc::new(Shared { all, each, in_use: Mutex::new(0), freed: Notify::new() }))
    }

    /// Memory of a further tenant.
    pub fn tenant(&self) -> EventMemory {
        EventMemory { shared: Arc::clone(&self.0), own: Arc::default() }
    }
}

impl EventMemory {
    /// Returns true if there are clones of this or events in it.
    pub fn is_used(&self) -> bool {
        Arc::strong_count(&self.own) > 1
    }

    /// Waits for memory for an event whose frame has this many bytes. Cancel-safe.
    pub(crate) async fn hold(&self, frame: usize) -> HeldMemory {
        self.hold_bytes(frame * COPIES).await
    }

    /// Waits for so many bytes, or as many as the longest event has. Cancel-safe.
    pub(crate) async fn hold_bytes(&self, bytes: usize) -> HeldMemory {
        loop {
            let freed = self.shared.freed.notified();
            if let Some(held) = self.take(bytes.min(LONGEST)) {
                return held;
            }
            freed.await;
        }
    }

    /// Memory for an event whose frame has this many bytes, if there is any now.
    pub(crate) fn hold_now(&self, frame: usize) -> Option<HeldMemory> {
        self.take(frame * COPIES)
    }

    fn take(&self, bytes: usize) -> Option<HeldMemory> {
        let (mut in_use, mut own) = (self.shared.in_use.lock(), self.own.lock());
        let free = self.shared.all.checked_sub(*in_use + bytes)?;
        if *own + bytes > self.shared.each || *own > free * SHARE_OF_REMAINING {
            return None;
        }
        *in_use += bytes;
        *own += bytes;
        Some(HeldMemory { memory: self.clone(), bytes })
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        let EventMemory { shared, own } = &self.memory;
        let (mut in_use, mut own) = (shared.in_use.lock(), own.lock());
        *in_use -= self.bytes;
        *own -= self.bytes;
        shared.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_tenant_leaves_memory_for_the_next() {
        let frame = 1 << 20;
        let all = AllEventMemory::new(1 << 30, 900 << 20);
        let hold_all = |memory: &EventMemory| std::iter::from_fn(|| memory.hold_now(frame)).collect::<Vec<_>>();
        let (one, other) = (all.tenant(), all.tenant());
        let held = [&one, &other].map(hold_all);
        assert_eq!(held.each_ref().map(Vec::len), [227, 76]);
        let mut waiting = Box::pin(other.hold(frame));
        assert!((&mut waiting).now_or_never().is_none());
        drop(held);
        assert!(waiting.now_or_never().is_some());
        assert_eq!(*all.0.in_use.lock(), 0);
        let longest = AllEventMemory::new(0, 0).tenant();
        assert!(longest.hold_now(MAX_FRAME).is_some() && !longest.is_used());
    }
}
