//! The end of turns whose key was revoked or has expired.

use std::sync::Arc;

use crate::{Engine, KEY_CHECK_INTERVAL};

/// Cancels the turns of every tenant whose key was revoked or has expired, until the engine closes.
pub async fn cancel_revoked(engine: Arc<Engine>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(KEY_CHECK_INTERVAL) => {}
            () = engine.shutdown.cancelled() => return,
        }
        for tenant in engine.in_flight.tenants() {
            // A temporary failure of the store says nothing about the key.
            if let Ok(false) = engine.store.may_ask(&tenant).await {
                engine.in_flight.cancel_all(&tenant);
            }
        }
    }
}
