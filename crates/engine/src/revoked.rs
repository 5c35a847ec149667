//! The end of what runs for keys that were revoked or have expired.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use aludel_store::{Store, Tenant};
use tokio::time::sleep;

use crate::Engine;

/// Interval between checks of a key.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Cancels the turns of every tenant whose key was revoked or has expired, and ends the sandboxes of its sessions, until the engine closes.
pub async fn end_revoked(engine: Arc<Engine>) {
    loop {
        tokio::select! {
            () = sleep(CHECK_INTERVAL) => {}
            () = engine.shutdown.cancelled() => return,
        }
        let tenants: HashSet<Tenant> =
            engine.in_flight.tenants().into_iter().chain(engine.sessions.tenants()).collect();
        for tenant in tenants {
            if has_ended(&engine.store, &tenant).await {
                engine.in_flight.cancel_all(&tenant);
                engine.sessions.end_all_of(&tenant, &engine.tasks);
            }
        }
    }
}

/// Waits until a tenant's key is revoked or expires.
pub(crate) async fn key_ends(store: &Store, tenant: &Tenant) {
    loop {
        sleep(CHECK_INTERVAL).await;
        if has_ended(store, tenant).await {
            return;
        }
    }
}

/// Returns true if a tenant's key was revoked or has expired.
async fn has_ended(store: &Store, tenant: &Tenant) -> bool {
    // A temporary failure of the store says nothing about the key.
    matches!(store.may_ask(tenant).await, Ok(false))
}
