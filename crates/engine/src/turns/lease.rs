//! Leases of stored requests. A process that stops renewing its leases loses them.

use std::sync::Arc;
use std::time::Duration;

use aludel_store::now_ms;

use crate::Engine;

/// Time for which a lease holds.
const LEASE: Duration = Duration::from_secs(15);
/// Interval between renewals: two may fail before a lease is lost.
const RENEWAL: Duration = Duration::from_secs(5);

/// The end of a lease that begins now, milliseconds since 1970.
pub(super) fn until() -> i64 {
    now_ms() + LEASE.as_millis() as i64
}

/// Renews this process's leases until the engine closes.
pub async fn renew(engine: Arc<Engine>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(RENEWAL) => {}
            () = engine.shutdown.cancelled() => return,
        }
        if let Err(error) = engine.store.renew_leases(engine.store.owner(), until()).await {
            tracing::error!("cannot renew the leases of turns: {error}");
        }
    }
}
