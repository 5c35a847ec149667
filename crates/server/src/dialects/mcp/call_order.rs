//! The order of calls that a client sends over one pipe without waiting for answers. The protocol's library works on them side by side.

use std::sync::Arc;

use tokio_util::sync::{CancellationToken, DropGuard};

/// Numbers the calls of one client.
#[derive(Debug, Default)]
pub(super) struct CallSequence(Option<CancellationToken>);

/// The position of a call: the next one may begin when all copies of this are dropped.
#[derive(Debug, Clone)]
pub(super) struct CallPosition {
    before: Option<CancellationToken>,
    _begun: Arc<DropGuard>,
}

impl CallSequence {
    /// The position of a call that came after all others.
    pub(super) fn next(&mut self) -> CallPosition {
        let begun = CancellationToken::new();
        let before = self.0.replace(begun.clone());
        CallPosition { before, _begun: Arc::new(begun.drop_guard()) }
    }
}

impl CallPosition {
    /// Waits until the call before this one has begun, or is over.
    pub(super) async fn wait(&self) {
        if let Some(before) = &self.before {
            before.cancelled().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[tokio::test]
    async fn a_call_waits_for_the_one_before() {
        let mut calls = CallSequence::default();
        let [first, second, third] = std::array::from_fn(|_| calls.next());
        first.wait().await;
        {
            let mut waiting = pin!(second.wait());
            assert!(futures_util::poll!(&mut waiting).is_pending());
            drop(first);
            waiting.await;
        }
        drop(second);
        third.wait().await;
    }
}
