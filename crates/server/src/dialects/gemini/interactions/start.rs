//! Starting an interaction.

use std::sync::Arc;

use aludel_agent::CodeInterpreter;
use aludel_engine::Session;
use aludel_engine::approvals::ApprovalMode;
use aludel_engine::sessions::{SessionChoice, SessionReservation};
use aludel_engine::turns::{InFlightRequest, NewJournal, Run, SessionRetention, TurnSpec};
use aludel_store::{InteractionId, Tenant, now};
use aludel_wire::gemini::interactions::Interaction;
use tracing::info_span;

use super::context::Context;
use super::render::{FileLinks, InteractionRenderer, NAME, RendererStart, Stored};
use super::request::{ParsedRequest, SourceFile};
use crate::app::App;
use crate::dialects::rfc3339::rfc3339;
use crate::error::ApiError;
use crate::http::{MemoryCharge, mime_of};
use crate::links::Links;
use crate::raw_json::raw_json;
use crate::turn;

/// Validates a request, and starts the turn. Links begin with `base`.
pub(super) async fn interaction(
    app: Arc<App>,
    tenant: Tenant,
    request: ParsedRequest,
    base: String,
    in_flight: Arc<InFlightRequest>,
) -> Result<(), ApiError> {
    let (app, tenant) = (&app, &tenant);
    app.engine.models().find(&request.model)?;
    // Before anything is taken that would have to be given back.
    let secret = app.link_secret().await?;
    let memory = MemoryCharge::of(app, tenant)?;
    in_flight.hold(memory.clone());
    let tool = CodeInterpreter::name_beside(app.engine.kernel(), &request.functions);
    let context = Context::collect(app, tenant, &request, &tool, &memory).await?;
    let (session, reservation, is_new) = match request.runs_code {
        true => {
            let (session, reservation, is_new) = open(app, tenant, &request, &context).await?;
            (Some(session), Some(reservation), is_new)
        }
        false => (None, None, false),
    };
    let links = session.as_ref().map(|session| Links::to(secret, &base, tenant, session.id()));
    let background = request.background;
    let started = async {
        let reserved = session.clone().zip(reservation);
        let run = prepare(app, tenant, request, context, in_flight, reserved, (links, &base)).await?;
        let span = info_span!("answer", api = "interactions", id = %run.in_flight.id);
        turn::spawn_run(app, tenant, run, background, span).await
    };
    let started = started.await;
    if started.is_err()
        && let Some(session) = session.filter(|_| is_new)
    {
        app.engine.sessions.remove_unused(&session).await;
    }
    started
}

/// Opens the session that the request names, that of the conversation, or a new one, with the request's files. Returns true for a new one.
async fn open(
    app: &App,
    tenant: &Tenant,
    request: &ParsedRequest,
    context: &Context,
) -> Result<(Arc<Session>, SessionReservation, bool), ApiError> {
    let (choice, is_new) = match (&request.environment, &context.session) {
        (Some(id), _) => (SessionChoice::Explicit(id.clone()), false),
        (None, Some(id)) => (SessionChoice::Reuse(id.clone()), false),
        (None, None) => (SessionChoice::Auto { file_ids: Vec::new(), memory: None }, true),
    };
    let session = app.engine.sessions.open(tenant, choice).await?;
    let placed = async {
        if !request.variables.is_empty() {
            session.add_environment(&request.variables).await?;
        }
        put(app, &session, &request.sources).await?;
        context.inputs.copy_into(app, &session).await?;
        // Reserved now, so that a lack of room is reported at once.
        Ok(session.reserve().await?)
    };
    match placed.await {
        Ok(reservation) => Ok((session, reservation, is_new)),
        Err(refused) => {
            if is_new {
                app.engine.sessions.remove_unused(&session).await;
            }
            Err(refused)
        }
    }
}

/// Puts files into a session.
async fn put(app: &App, session: &Session, files: &[SourceFile]) -> Result<(), ApiError> {
    for SourceFile { name, bytes } in files {
        let blob = app.store.write_blob(session.tenant(), bytes).await?;
        session.add_file(name, &mime_of(name, None), blob).await?;
    }
    Ok(())
}

async fn prepare(
    app: &Arc<App>,
    tenant: &Tenant,
    request: ParsedRequest,
    context: Context,
    in_flight: Arc<InFlightRequest>,
    reserved: Option<(Arc<Session>, SessionReservation)>,
    (links, base): (Option<Links>, &str),
) -> Result<Run, ApiError> {
    let spec = TurnSpec {
        functions: request.functions,
        tool_choice: request.tool_choice,
        sampling: request.sampling,
        ..TurnSpec::new(request.model, request.instructions)
    };
    let (session, reservation) = reserved.unzip();
    let asks = session.is_some() && !matches!(app.engine.approvals().mode, ApprovalMode::Never);
    let survives_restart = request.store && asks;
    let environment = session.as_ref().map(|session| session.id().to_string());
    let gated = session.map(|session| {
        let gate = spec.gate(&app.engine, tenant, in_flight.id.to_string(), &session, survives_restart);
        (session, gate)
    });
    let items = context.items;
    let mut choice = spec.plan_choice(&app.engine, tenant, items.clone(), gated, SessionRetention::Keep)?;
    choice.reservation = reservation;
    let id =
        InteractionId::parse(in_flight.id.as_str()).ok_or_else(|| ApiError::internal("an id of another dialect"))?;
    let time = rfc3339(now());
    let answer = Interaction {
        id: id.to_string(),
        created: time.clone(),
        updated: time,
        environment_id: environment.clone(),
        ..request.answer
    };
    let linked = links.as_ref().map(|links| FileLinks { base: base.to_owned(), expires_at: links.expires_at() });
    let is_formed = spec.sampling.format.is_some();
    let beginning =
        RendererStart { answer, stop: request.stop, tells_thoughts: request.tells_thoughts, linked, is_formed };
    let own = raw_json(&beginning);
    let render = Box::new(InteractionRenderer::new(beginning, links));
    let mut run = Run::new(&app.engine, tenant, in_flight, vec![choice], render);
    run.survives_restart = survives_restart;
    if request.store {
        let new = NewJournal {
            id: id.clone().into(),
            dialect: NAME,
            expires_at: None,
            session: environment,
            owns_session: false,
            spec: survives_restart.then(|| spec.to_json()),
            own,
            items,
        };
        run = run.with_journal(new).await?;
        let input = serde_json::to_string(&request.input).map_err(ApiError::internal)?;
        run.documents = Some(Box::new(Stored { tenant: tenant.clone(), id, input }));
    }
    Ok(run)
}
