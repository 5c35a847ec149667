//! The start of a request, which does not stop halfway when its client goes away.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use aludel_engine::turns::{Failure, FailureKind, LiveRequest, RequestEnd};
use futures_util::FutureExt;
use serde_json::Value;

use crate::app::App;
use crate::error::ApiError;

/// Runs what starts a request's turns in a task of its own, and forgets the request when it fails.
///
/// A handler is dropped with its client's connection. Dropped between two steps it would leave room that is reserved for no program, a
/// stored turn that nobody drives, and a request that a client which asks again would wait for without end.
pub(crate) async fn start(
    app: &Arc<App>,
    live: &Arc<LiveRequest>,
    starting: impl Future<Output = Result<(), ApiError>> + Send + 'static,
) -> Result<(), ApiError> {
    let (engine, live) = (Arc::clone(&app.engine), Arc::clone(live));
    let task = async move {
        let started = AssertUnwindSafe(starting).catch_unwind().await;
        let started = started.unwrap_or_else(|_| Err(ApiError::internal("a panic at the start of a turn")));
        if started.is_err() {
            engine.live.forget(&live.id);
            // Whoever asked again meanwhile waits for it.
            let failure = Failure::new(FailureKind::Unavailable, "The request could not be started; try again.");
            live.end(RequestEnd { document: Value::Null, failure: Some(failure) });
        }
        started
    };
    app.finish(task).await
}
