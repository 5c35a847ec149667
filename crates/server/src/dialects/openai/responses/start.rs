//! Starting a response, and ending those that an earlier version left unfinished.

use std::sync::Arc;

use aludel_engine::Session;
use aludel_engine::approvals::{ApprovalMode, Decider};
use aludel_engine::processor_time::end_long_step;
use aludel_engine::turns::{InFlightRequest, NewJournal, Run, SessionRetention, TurnSpec};
use aludel_store::{ResponseId, Tenant, now};
use aludel_wire::openai::responses::Response;
use tracing::info_span;

use super::context::Context;
use super::render::{NAME, RendererStart, ResponseRenderer, Stored};
use super::request::ParsedRequest;
use crate::app::App;
use crate::error::ApiError;
use crate::raw_json::raw_json;
use crate::turn;

/// Time for which a response that is not to be stored can be polled, seconds.
const UNSTORED_LIFE_SECONDS: i64 = 600;
/// Bytes that an item of a conversation takes besides its text.
const ITEM_OVERHEAD_BYTES: u64 = 1024;

/// Validates a request, and starts the turn.
pub(super) async fn response(
    app: Arc<App>,
    tenant: Tenant,
    request: ParsedRequest,
    in_flight: Arc<InFlightRequest>,
) -> Result<(), ApiError> {
    let (app, tenant) = (&app, &tenant);
    let context = Context::collect(app, tenant, &request).await?;
    in_flight.hold(context.memory());
    app.engine.models().find(&request.model)?;
    let (session, is_new) = match &request.interpreter {
        Some(interpreter) => {
            let (session, is_new) = interpreter.open(app, tenant, context.container()).await?;
            (Some(session), is_new)
        }
        None => (None, false),
    };
    let started = start(app, tenant, request, context, in_flight, session.clone()).await;
    if started.is_err()
        && let Some(session) = session.filter(|_| is_new)
    {
        app.engine.sessions.remove_unused(&session).await;
    }
    started
}

async fn start(
    app: &Arc<App>,
    tenant: &Tenant,
    request: ParsedRequest,
    context: Context,
    in_flight: Arc<InFlightRequest>,
    session: Option<Arc<Session>>,
) -> Result<(), ApiError> {
    let background = request.background;
    let run = prepare(app, tenant, request, context, in_flight, session).await?;
    let span = info_span!("answer", api = "responses", id = %run.in_flight.id);
    turn::spawn_run(app, tenant, run, background, span).await
}

async fn prepare(
    app: &Arc<App>,
    tenant: &Tenant,
    request: ParsedRequest,
    mut context: Context,
    in_flight: Arc<InFlightRequest>,
    session: Option<Arc<Session>>,
) -> Result<Run, ApiError> {
    let mut reservation = None;
    if let Some(session) = &session {
        context.place_files(app, tenant, session).await?;
        // Reserved now, so that a lack of room is reported at once.
        reservation = Some(session.reserve().await?);
    }
    let mut view = context.for_model(app, tenant, &request.functions).await?;
    let said = std::mem::take(&mut view.instructions);
    let instructions = [request.instructions.clone().unwrap_or_default(), said].join("\n\n").trim().to_owned();
    let spec = TurnSpec {
        functions: request.functions.clone(),
        tool_choice: request.tool_choice.clone(),
        sampling: request.sampling.clone(),
        max_programs: request.max_tool_calls,
        decider: match &request.mcp {
            Some(mcp) if mcp.asks => Decider::Client,
            _ => Decider::Operator,
        },
        ..TurnSpec::new(request.model.clone(), instructions)
    };
    let asks = session.is_some() && !matches!(app.engine.approvals().mode, ApprovalMode::Never);
    let survives_restart = request.store && asks;
    let gated = match &session {
        Some(session) => {
            let gate = spec.gate(&app.engine, tenant, in_flight.id.to_string(), session, survives_restart);
            for (code, reason) in &view.refused {
                gate.denied_by_client(code, reason).await?;
            }
            Some((Arc::clone(session), gate))
        }
        None => None,
    };
    let gate = gated.as_ref().map(|(_, gate)| &**gate).filter(|_| request.mcp.is_some());
    view.take_approvals(gate).await?;
    let items = view.items;
    let container = session.as_ref().map(|session| session.id().to_string());
    end_long_step().await;
    let mut choice = spec.plan_choice(&app.engine, tenant, items.clone(), gated, SessionRetention::Keep)?;
    choice.reservation = reservation;
    let id = ResponseId::parse(in_flight.id.as_str()).ok_or_else(|| ApiError::internal("an id of another dialect"))?;
    let base = Response { id: id.to_string(), created_at: now(), ..request.answer };
    let mcp = request.mcp.map(|mcp| mcp.label);
    let beginning = RendererStart { base, include: request.include, mcp, container: container.clone() };
    end_long_step().await;
    let own = raw_json(&beginning);
    end_long_step().await;
    let render = Box::new(ResponseRenderer::new(beginning));
    let mut run = Run::new(&app.engine, tenant, in_flight, vec![choice], render);
    (run.truncate, run.survives_restart) = (request.truncate, survives_restart);
    run.is_followed = request.stream || request.background || survives_restart;
    if request.store || request.background {
        let new = context.into_new();
        let input = serde_json::to_string(&new).map_err(ApiError::internal)?;
        let bytes = if request.conversation.is_some() {
            ITEM_OVERHEAD_BYTES * new.len() as u64 + input.len() as u64
        } else {
            0
        };
        let room = app.store.reserve(tenant, bytes..=bytes).await?;
        let expires_at = (!request.store).then(|| now() + UNSTORED_LIFE_SECONDS);
        let journal = NewJournal {
            id: id.clone().into(),
            dialect: NAME,
            expires_at,
            session: container,
            owns_session: false,
            spec: survives_restart.then(|| spec.to_json()),
            own,
            items,
        };
        run = run.with_journal(journal).await?;
        run.documents = Some(Box::new(Stored {
            tenant: tenant.clone(),
            id,
            input,
            conversation: request.conversation,
            _room: room,
            expires_at,
        }));
    }
    Ok(run)
}
