//! Received frames and output of a kernel, in order.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::bytes::{Bytes, BytesMut};

use super::CHUNK;
use crate::link::OutputStream;

/// Pieces that may wait. Neighbours of the same stream are merged, so only a program that alternates between streams has more.
const MAX_WAITING: usize = 16 << 10;

/// One item from a kernel, in the order in which they happened.
#[derive(Debug)]
pub(super) enum KernelItem {
    /// A piece of its channel.
    Frames(BytesMut),
    /// Printed bytes.
    Printed(OutputStream, BytesMut),
    /// The answer to a wish for its checkpoint.
    Restored(bool),
    /// It could not be started.
    Failed(String),
}

/// Items that wait for one reader.
#[derive(Debug, Default)]
pub(super) struct Items {
    waiting: Mutex<VecDeque<KernelItem>>,
    came: Notify,
}

impl KernelItem {
    /// Wraps bytes of the channel, or output of a stream.
    pub(super) fn of(stream: Option<OutputStream>, bytes: &Bytes) -> Self {
        // Copied: the buffer in which they arrived is larger.
        let bytes = BytesMut::from(&bytes[..]);
        match stream {
            None => Self::Frames(bytes),
            Some(stream) => Self::Printed(stream, bytes),
        }
    }

    /// Appends another item of the same stream, if both together fit into a message.
    fn add(&mut self, other: &Self) -> bool {
        let (bytes, more) = match (self, other) {
            (Self::Frames(bytes), Self::Frames(more)) => (bytes, more),
            (Self::Printed(stream, bytes), Self::Printed(other, more)) if stream == other => (bytes, more),
            _ => return false,
        };
        let fits = bytes.len() + more.len() <= CHUNK;
        if fits {
            bytes.extend_from_slice(more);
        }
        fits
    }
}

impl Items {
    /// Adds an item; `None` if too many wait.
    pub(super) fn push(&self, item: KernelItem) -> Option<()> {
        let mut waiting = self.waiting.lock();
        if !waiting.back_mut().is_some_and(|last| last.add(&item)) {
            if waiting.len() >= MAX_WAITING {
                return None;
            }
            waiting.push_back(item);
        }
        drop(waiting);
        self.came.notify_one();
        Some(())
    }

    /// Takes the first item, if there is one.
    pub(super) fn try_next(&self) -> Option<KernelItem> {
        self.waiting.lock().pop_front()
    }

    /// Takes the first item once there is one. Cancel-safe.
    pub(super) async fn next(&self) -> KernelItem {
        loop {
            if let Some(item) = self.try_next() {
                return item;
            }
            self.came.notified().await;
        }
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.lock().len()
    }
}
