//! The start of a request, which completes even if the client disconnects.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use aludel_engine::turns::{
    EarlierRequest, Failure, FailureKind, InFlightRequest, PastRequest, RequestEnd, RequestFingerprint, Run,
};
use aludel_store::{Tenant, TurnId};
use futures_util::FutureExt;
use tracing::{Instrument, Span};

use crate::app::App;
use crate::error::ApiError;

/// Begins a client's request, which holds this memory to its end, or joins the same request under way. Returns true for a new one.
pub(crate) fn begin(
    app: &App,
    tenant: &Tenant,
    fingerprint: RequestFingerprint,
    id: TurnId,
    memory: impl Send + Sync + 'static,
) -> Result<(Arc<InFlightRequest>, bool), PastRequest> {
    match app.engine.in_flight.begin(tenant, fingerprint, id) {
        Err(EarlierRequest::Past(past)) => Err(past),
        Err(EarlierRequest::InFlight(same)) => Ok((same, false)),
        Ok(in_flight) => {
            in_flight.hold(memory);
            Ok((in_flight, true))
        }
    }
}

/// The answer to a repetition of a request whose answer is not stored.
pub(crate) fn not_stored(past: PastRequest) -> ApiError {
    past.failure.map_or_else(|| ApiError::internal(format!("{} was taken for stored", past.id)), ApiError::from)
}

/// Makes a stored request known, and runs it in a task.
pub(crate) async fn spawn_run(app: &App, mut run: Run, background: bool, span: Span) -> Result<(), ApiError> {
    if let Err(failure) = run.create(background).await {
        run.abandon().await;
        return Err(failure.into());
    }
    app.tasks.spawn(run.run().instrument(span));
    Ok(())
}

/// Starts a request's turns in a task of its own, and forgets the request if that fails.
///
/// A handler is dropped when its client disconnects. Between two steps this would leave reserved room without a program, a stored turn
/// without a driver, and a request that a repetition would wait for without end.
pub(crate) async fn launch(
    app: &Arc<App>,
    in_flight: &Arc<InFlightRequest>,
    starting: impl Future<Output = Result<(), ApiError>> + Send + 'static,
) -> Result<(), ApiError> {
    let (engine, in_flight) = (Arc::clone(&app.engine), Arc::clone(in_flight));
    // Everything that is made of a large request is made here.
    let share = engine.processor_time.share_of(in_flight.tenant());
    let task = async move {
        let started = AssertUnwindSafe(starting).catch_unwind().await;
        let started = started.unwrap_or_else(|_| Err(ApiError::internal("a panic at the start of a turn")));
        if started.is_err() {
            engine.in_flight.forget(&in_flight.id);
            // Repetitions of the request may wait for it.
            let failure = Failure::new(FailureKind::Unavailable, "The request could not be started; try again.");
            in_flight.end(RequestEnd { answer: Box::default(), failure: Some(failure) });
        }
        started
    };
    app.finish(share.pace(task)).await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_start_waits_for_its_tenants_share() {
        let data = tempfile::tempdir().unwrap();
        let app = App::on_memory(data.path(), Default::default()).await;
        let tenant = Tenant::local();
        let (in_flight, _) = begin(&app, &tenant, RequestFingerprint::none(), TurnId::new(), ()).unwrap();
        tokio::time::pause();
        let shares = &app.engine.processor_time;
        shares.share_of(&tenant).take(Duration::from_secs(3600));
        shares.share_of(&Tenant::of_signed("another")).take(Duration::from_millis(1));
        let began = Instant::now();
        launch(&app, &in_flight, async { Ok(()) }).await.unwrap();
        assert!(began.elapsed() > Duration::from_millis(100), "{:?}", began.elapsed());
    }
}
