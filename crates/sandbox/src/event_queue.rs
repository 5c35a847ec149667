//! The events of an execution on their way to its reader, bounded by their bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use aludel_ignore::Ignore;
use tokio::sync::{Notify, mpsc};

use crate::event_memory::HeldMemory;
use crate::outcome::ExecutionEvent;

/// Bytes of events that wait for their reader. With more, the program waits. One event may have more.
const MAX_UNREAD: usize = 1 << 20;
/// Bytes that an event takes besides its texts.
const EVENT_COST: usize = 256;

/// Bytes that nobody has read yet.
#[derive(Debug, Default)]
struct Unread {
    bytes: AtomicUsize,
    read: Notify,
}

/// An event on its way.
#[derive(Debug)]
struct QueuedEvent {
    event: ExecutionEvent,
    bytes: usize,
    held: Option<HeldMemory>,
}

/// The end of the program.
#[derive(Debug)]
pub(crate) struct EventSender {
    events: mpsc::UnboundedSender<QueuedEvent>,
    unread: Arc<Unread>,
}

/// The end of the reader.
#[derive(Debug)]
pub(crate) struct EventReceiver {
    events: mpsc::UnboundedReceiver<QueuedEvent>,
    unread: Arc<Unread>,
    /// The memory of the last event, until the next is asked for.
    held: Option<HeldMemory>,
}

/// A queue of events.
pub(crate) fn event_queue() -> (EventSender, EventReceiver) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let unread = Arc::new(Unread::default());
    let receiver = EventReceiver { events: receiver, unread: Arc::clone(&unread), held: None };
    (EventSender { events: sender, unread }, receiver)
}

impl EventSender {
    /// Sends an event and the memory that it holds until its reader asks for the next, whether or not there is room.
    pub(crate) fn send(&self, event: ExecutionEvent, held: Option<HeldMemory>) {
        let bytes = event.bytes() + EVENT_COST;
        self.unread.bytes.fetch_add(bytes, Ordering::AcqRel);
        let sent = self.events.send(QueuedEvent { event, bytes, held });
        sent.ignore("without a receiver, the execution is being interrupted");
    }

    /// Waits for room, for ever once the reader has gone. Cancel-safe; one caller at a time.
    pub(crate) async fn room(&self) {
        while self.unread.bytes.load(Ordering::Acquire) >= MAX_UNREAD {
            self.unread.read.notified().await;
        }
    }
}

impl EventReceiver {
    /// The next event; `None` after the last. Cancel-safe.
    pub(crate) async fn recv(&mut self) -> Option<ExecutionEvent> {
        self.held = None;
        let QueuedEvent { event, bytes, held } = self.events.recv().await?;
        self.held = held;
        self.unread.bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.unread.read.notify_one();
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn there_is_room_once_enough_was_read() {
        let (sender, mut receiver) = event_queue();
        sender.room().await;
        for text in ["x".repeat(MAX_UNREAD), "y".to_owned()] {
            sender.send(ExecutionEvent::Stdout(text), None);
        }
        assert!(sender.room().now_or_never().is_none());
        receiver.recv().await.unwrap();
        sender.room().await;
        assert_eq!(receiver.recv().await, Some(ExecutionEvent::Stdout("y".to_owned())));
        assert_eq!(sender.unread.bytes.load(Ordering::Acquire), 0);
    }
}
