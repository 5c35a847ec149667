//! The start of a request, which completes even if the client disconnects.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use aludel_engine::permits::NoRoom;
use aludel_engine::turns::{
    EarlierRequest, Failure, FailureKind, Follower, InFlightRequest, PastRequest, RequestEnd, RequestFingerprint, Run,
};
use aludel_store::{Tenant, TurnId};
use futures_util::FutureExt;
use tracing::{Instrument, Span};

use super::delivery::{Delivery, WaitingClient};
use crate::app::App;
use crate::error::ApiError;

/// Begins a client's request, which holds this memory to its end, or joins the same request under way. Returns true for a new one.
pub(crate) fn begin(
    app: &App,
    tenant: &Tenant,
    fingerprint: RequestFingerprint,
    id: TurnId,
    memory: impl Send + Sync + 'static,
    delivery: Delivery,
) -> Result<(Arc<InFlightRequest>, WaitingClient, bool), BeginRefusal> {
    let (in_flight, follower, is_new) = match app.engine.in_flight.begin(tenant, fingerprint, id) {
        Err(EarlierRequest::Past(past, follower)) => return Err(BeginRefusal::Past(past, follower)),
        Err(EarlierRequest::OtherBody) => return Err(BeginRefusal::OtherBody),
        Err(EarlierRequest::InFlight(same, follower)) => (same, follower, false),
        Ok(in_flight) => {
            in_flight.hold(memory);
            let follower = Follower::of(&in_flight);
            (in_flight, follower, true)
        }
    };
    let connection = WaitingClient::new(&in_flight, follower, delivery);
    Ok((in_flight, connection, is_new))
}

/// The reason for which a request neither begins nor joins another.
#[derive(Debug)]
pub(crate) enum BeginRefusal {
    /// It was answered before. The caller has to call [`Follower::note_answered`].
    Past(PastRequest, Follower),
    /// Its idempotency key belongs to another request.
    OtherBody,
}

/// The answer to a repetition of a request whose answer is not stored.
pub(crate) fn not_stored(refusal: BeginRefusal) -> ApiError {
    match refusal {
        BeginRefusal::Past(past, mut follower) => {
            follower.note_answered();
            past.failure.map_or_else(|| ApiError::internal(format!("{} was taken for stored", past.id)), ApiError::from)
        }
        BeginRefusal::OtherBody => {
            let message =
                "This idempotency key was sent before with another body; a different request needs a key of its own.";
            ApiError::conflict(message).code("idempotency_key_reused")
        }
    }
}

/// Makes a stored request known, and runs it in a task. That has a permit of its own, since it may go on without a client.
pub(crate) async fn spawn_run(
    app: &App,
    tenant: &Tenant,
    mut run: Run,
    background: bool,
    span: Span,
) -> Result<(), ApiError> {
    let permit = match app.turns.acquire(tenant) {
        Ok(permit) => permit,
        Err(no_room) => {
            run.abandon().await;
            return Err(too_many_turns(app, no_room));
        }
    };
    if let Err(failure) = run.create(background).await {
        run.abandon().await;
        return Err(failure.into());
    }
    let turn = async move {
        run.run().await;
        drop(permit);
    };
    app.tasks.spawn(turn.instrument(span));
    Ok(())
}

fn too_many_turns(app: &App, no_room: NoRoom) -> ApiError {
    let message = match no_room {
        NoRoom::AtAll => format!("The server is running {} responses already (server.requests)", app.turns.all()),
        NoRoom::ForThisTenant => {
            "The server is running as many responses of yours as it may (server.requests_per_key)".to_owned()
        }
    };
    ApiError::too_many(format!("{message}; wait for some to end, or cancel them."), Duration::from_secs(1))
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
    app.tasks.finish(share.pace(task)).await?
}

/// Waits until a request that an earlier one with the same key began can be found. Fails as its start did.
pub(crate) async fn started(in_flight: &InFlightRequest) -> Result<(), ApiError> {
    if in_flight.frame(0).await.is_some() {
        return Ok(());
    }
    match in_flight.ended().await {
        Some(RequestEnd { failure: Some(failure), .. }) => Err(failure.into()),
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_start_waits_for_its_tenants_share() {
        let data = tempfile::tempdir().unwrap();
        let app = App::on_memory(data.path(), Default::default()).await;
        let tenant = Tenant::local();
        let fingerprint = RequestFingerprint::none();
        let (in_flight, ..) = begin(&app, &tenant, fingerprint, TurnId::new(), (), Delivery::Whole).unwrap();
        tokio::time::pause();
        let shares = &app.engine.processor_time;
        shares.share_of(&tenant).take(Duration::from_secs(3600));
        shares.share_of(&Tenant::of_signed("another")).take(Duration::from_millis(1));
        let began = Instant::now();
        launch(&app, &in_flight, async { Ok(()) }).await.unwrap();
        assert!(began.elapsed() > Duration::from_millis(100), "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn a_client_that_goes_leaves_the_turn_to_one_that_has_joined_it() {
        let data = tempfile::tempdir().unwrap();
        let app = App::on_memory(data.path(), Default::default()).await;
        tokio::time::pause();
        for (delivery, seconds) in [(Delivery::Stream, 0), (Delivery::Whole, 10)] {
            let ask = || {
                let fingerprint = RequestFingerprint::new("route", Some(&format!("{delivery:?}")), "", false);
                begin(&app, &Tenant::local(), fingerprint, TurnId::new(), (), delivery).unwrap()
            };
            let (in_flight, first, _) = ask();
            let (_, second, is_new) = ask();
            assert!(!is_new);
            drop(first);
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert!(!in_flight.cancel.is_cancelled(), "{delivery:?}");
            drop(second);
            let left = Instant::now();
            in_flight.cancel.cancelled().await;
            assert_eq!(left.elapsed().as_secs(), seconds, "{delivery:?}");
        }
    }
}
