//! The order in which programs and calls arrive, for those that are worked on side by side and must begin one after another.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};

/// An order of arrival.
#[derive(Debug, Default)]
pub struct ArrivalOrder(Mutex<Vec<CancellationToken>>);

/// A place in the order: the time of those behind it comes when all copies of this are dropped.
#[derive(Debug, Clone)]
pub struct Arrival {
    before: Vec<CancellationToken>,
    _begun: Arc<DropGuard>,
}

impl ArrivalOrder {
    /// The place behind all others.
    pub fn arrive(&self) -> Arrival {
        let begun = CancellationToken::new();
        let mut places = self.0.lock();
        places.retain(|place| !place.is_cancelled());
        let before = places.clone();
        places.push(begun.clone());
        Arrival { before, _begun: Arc::new(begun.drop_guard()) }
    }
}

impl Arrival {
    /// Waits until all places before this one are given up. Cancel-safe.
    pub async fn wait(&self) {
        for place in &self.before {
            place.cancelled().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[tokio::test]
    async fn each_waits_for_all_before_it() {
        let order = ArrivalOrder::default();
        let [first, second, third] = std::array::from_fn(|_| order.arrive());
        first.wait().await;
        let mut waiting = pin!(third.wait());
        drop(second);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        drop(first);
        waiting.await;
        order.arrive().before.iter().for_each(|place| assert!(!place.is_cancelled()));
    }
}
