//! Starting a run, and continuing it after its client's answer.

use std::sync::Arc;
use std::time::Duration;

use aludel_agent::CodeInterpreter;
use aludel_agent::upstream::{AnswerFormat, Sampling, ToolChoice};
use aludel_engine::Session;
use aludel_engine::sessions::SessionReservation;
use aludel_engine::turns::{self, InFlightRequest, NewJournal, SessionRetention, TurnSpec};
use aludel_store::{MessageId, NewRun, QuotaCheck, RunId, RunRecord, RunUpdate, StepId, Tenant, ThreadId, now_ms};
use aludel_wire::assistants::{Run, RunStatus, RunStep};
use serde_json::Value;
use tokio::time::sleep;
use tracing::{error, info_span};

use super::context::Context;
use super::error::begun;
use super::render::{NAME, RendererStart, RunRenderer, Stored};
use super::tools::{Tools, answer_format};
use super::workspace::{FilePaths, open};
use super::written;
use crate::app::App;
use crate::error::ApiError;
use crate::raw_json::raw_json;

/// The purpose of files that programs make.
const PURPOSE: &str = "assistants_output";
/// Default temperature and `top_p` of an assistant.
pub(super) const USUAL: f64 = 1.0;
/// Time for which the log of a run is kept after its expiry, seconds.
const LOG_LIFE_SECONDS: i64 = 600;

/// A leg of a run: all of it, or the rest after its client's answer.
pub(super) struct RunLeg {
    pub(super) thread: ThreadId,
    pub(super) id: RunId,
    pub(super) start: RendererStart,
    pub(super) from: LegStart,
}

/// The state in which a leg takes its run.
pub(super) enum LegStart {
    /// None: the leg creates the run, and adds these messages to the thread.
    Nothing { messages: Vec<(MessageId, Value)>, files: Vec<String> },
    /// It waits for its client, which has to answer this step.
    Waiting { record: RunRecord, step: Box<RunStep> },
}

/// A checked request for a turn.
struct Asked {
    tools: Tools,
    choice: ToolChoice,
    format: Option<AnswerFormat>,
}

/// Validates a run, and starts its turn.
pub(super) async fn run_leg(
    app: Arc<App>,
    tenant: Tenant,
    leg: RunLeg,
    in_flight: Arc<InFlightRequest>,
) -> Result<(), ApiError> {
    let run = &leg.start.run;
    app.engine.models().find(&run.model)?;
    let tools = Tools::read(&run.tools)?;
    let choice = match &leg.from {
        LegStart::Nothing { .. } => tools.choice(&run.tool_choice, app.engine.kernel())?,
        // The tool that the model had to call was called.
        LegStart::Waiting { .. } => ToolChoice::Auto,
    };
    let asked = Asked { choice, format: answer_format(&run.response_format)?, tools };
    let session = match asked.tools.runs_code {
        true => Some(open(&app, &tenant, &leg.thread).await?),
        false => None,
    };
    let reserved = match session {
        Some(session) => {
            // Reserved now, so that a lack of room is reported at once.
            let reservation = session.reserve().await?;
            Some((session, reservation))
        }
        None => None,
    };
    enter(&app, &tenant, &leg, asked, &in_flight, reserved).await
}

/// Makes the run the active one of its thread, and carries it out. On failure, undoes that.
async fn enter(
    app: &Arc<App>,
    tenant: &Tenant,
    leg: &RunLeg,
    asked: Asked,
    in_flight: &Arc<InFlightRequest>,
    reserved: Option<(Arc<Session>, SessionReservation)>,
) -> Result<(), ApiError> {
    let run = &leg.start.run;
    let object = written(&Run { status: RunStatus::InProgress, started_at: Some(run.created_at), ..run.clone() });
    let expires_at = run.expires_at.unwrap_or_default();
    match &leg.from {
        LegStart::Nothing { messages, .. } => {
            let (id, thread, turn, messages) =
                (leg.id.clone(), leg.thread.clone(), in_flight.id.clone(), messages.clone());
            let new = NewRun { id, thread, turn, expires_at, object, messages };
            begun(app.store.begin_run(tenant, new).await?, &leg.thread)?;
        }
        LegStart::Waiting { record, .. } => {
            let steps = leg.start.answered.as_ref().and_then(row).into_iter().collect();
            let next = Some(in_flight.id.clone());
            let update = RunUpdate { object: Some(object), next, steps, ..RunUpdate::default() };
            if !app.store.update_run(tenant, &leg.id, &record.turn, update, QuotaCheck::Checked).await? {
                let message =
                    "The run does not wait for tool outputs any more: they were submitted already, or it was ended.";
                return Err(ApiError::bad_request(message));
            }
        }
    }
    let mut files = Vec::new();
    let carried = carry(app, tenant, leg, asked, in_flight, reserved, &mut files).await;
    if carried.is_err()
        && let Err(error) = undo(app, tenant, leg, in_flight, &files).await
    {
        error!("cannot take {} back: {}", leg.id, error.message);
    }
    carried
}

fn row(step: &RunStep) -> Option<(StepId, Value)> {
    Some((StepId::parse(&step.id)?, written(step)))
}

/// Leaves the thread as it was before, without these files.
async fn undo(
    app: &App,
    tenant: &Tenant,
    leg: &RunLeg,
    in_flight: &InFlightRequest,
    files: &[String],
) -> Result<(), ApiError> {
    match &leg.from {
        LegStart::Nothing { messages, .. } => {
            app.store.delete_run(tenant, &leg.id).await?;
            for (id, _) in messages {
                app.store.delete_message(tenant, &leg.thread, id).await?;
            }
        }
        LegStart::Waiting { record, step } => {
            let (object, next) = (Some(record.object.clone()), Some(record.turn.clone()));
            let update = RunUpdate { object, next, steps: row(step).into_iter().collect(), ..RunUpdate::default() };
            app.store.update_run(tenant, &leg.id, &in_flight.id, update, QuotaCheck::Reserved).await?;
        }
    }
    super::threads::take_files(app, tenant, &leg.thread, files).await
}

/// Carries out the active run of its thread. `added` gets the files that the thread has from its messages.
async fn carry(
    app: &Arc<App>,
    tenant: &Tenant,
    leg: &RunLeg,
    asked: Asked,
    in_flight: &Arc<InFlightRequest>,
    reserved: Option<(Arc<Session>, SessionReservation)>,
    added: &mut Vec<String>,
) -> Result<(), ApiError> {
    let RunLeg { start, id, thread, .. } = leg;
    let (session, reservation) = reserved.unzip();
    let run = &start.run;
    if let LegStart::Nothing { files, .. } = &leg.from {
        *added = super::threads::add_files(app, tenant, thread, files).await?;
    }
    let context = Context::of(app, tenant, thread, run.truncation_strategy.last_messages).await?;
    in_flight.hold(context.memory());
    let placed = match &session {
        Some(session) => {
            let of_thread = super::threads::files(app, tenant, thread).await?;
            let ids = run.tool_resources.file_ids().iter().cloned().chain(of_thread).chain(context.attached());
            FilePaths::copy_into(app, tenant, session, ids).await?
        }
        None => FilePaths::default(),
    };
    let tool = CodeInterpreter::name_beside(app.engine.kernel(), &asked.tools.functions);
    let items = context.items(app, tenant, &tool, &placed.paths()).await?;
    let instructions = [Some(run.instructions.clone()), placed.words()].into_iter().flatten();
    let instructions: Vec<String> = instructions.filter(|text| !text.is_empty()).collect();
    let used = run.usage.unwrap_or_default();
    let left = |most: Option<u32>, used: u64| Some(u64::from(most?).saturating_sub(used));
    let spec = TurnSpec {
        functions: asked.tools.functions,
        tool_choice: asked.choice,
        sampling: Sampling {
            // The default is not sent: some models do not accept the parameter.
            temperature: run.temperature.filter(|value| *value != USUAL),
            top_p: run.top_p.filter(|value| *value != USUAL),
            max_output_tokens: run.max_completion_tokens,
            reasoning_effort: run.reasoning_effort.clone(),
            format: asked.format,
            parallel_calls: (!run.parallel_tool_calls).then_some(false),
            ..Sampling::default()
        },
        max_input_tokens: left(run.max_prompt_tokens, used.prompt_tokens),
        max_output_tokens: left(run.max_completion_tokens, used.completion_tokens),
        ..TurnSpec::new(run.model.clone(), instructions.join("\n\n"))
    };
    let container = session.as_ref().map(|session| session.id().to_string());
    let gated = session.map(|session| {
        let gate = spec.gate(&app.engine, tenant, id.to_string(), &session, false);
        (session, gate)
    });
    let mut choice = spec.plan_choice(&app.engine, tenant, items, gated, SessionRetention::Keep)?;
    choice.reservation = reservation;
    choice.publish_as = Some(PURPOSE);
    let render = Box::new(RunRenderer::new(start.clone()));
    let turn = turns::Run::new(&app.engine, tenant, Arc::clone(in_flight), vec![choice], render);
    let new = NewJournal {
        id: in_flight.id.clone(),
        dialect: NAME,
        expires_at: Some(run.expires_at.unwrap_or_default() + LOG_LIFE_SECONDS),
        session: container,
        owns_session: false,
        spec: None,
        own: raw_json(start),
        items: Vec::new(),
    };
    let mut turn = turn.with_journal(new).await?;
    turn.truncate = run.truncation_strategy.last_messages.is_none();
    turn.documents = Some(Box::new(Stored { tenant: tenant.clone(), run: id.clone(), turn: in_flight.id.clone() }));
    let span = info_span!("answer", api = "assistants", id = %id);
    crate::turn::spawn_run(app, tenant, turn, false, span).await?;
    app.tasks.spawn(expire(Arc::clone(in_flight), run.expires_at.unwrap_or_default()));
    Ok(())
}

/// Ends a run when its time is over. `expires_at` is in seconds since 1970.
async fn expire(in_flight: Arc<InFlightRequest>, expires_at: i64) {
    let left = expires_at.saturating_mul(1000).saturating_sub(now_ms());
    tokio::select! {
        _ = in_flight.ended() => {}
        () = sleep(Duration::from_millis(u64::try_from(left).unwrap_or_default())) => in_flight.cancel.cancel(),
    }
}
