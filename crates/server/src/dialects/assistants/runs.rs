//! The routes of runs.

use std::collections::HashMap;
use std::sync::Arc;

use aludel_engine::turns::{InFlightRequest, RequestFingerprint};
use aludel_ignore::Ignore;
use aludel_store::{Order, PageQuery, QuotaCheck, RunId, RunRecord, RunUpdate, StepId, Tenant, ThreadId, TurnId, now};
use aludel_wire::assistants::{
    Assistant, CreateRun, CreateThreadAndRun, Run, RunStatus, RunStep, StepDetails, StepStatus, SubmitToolOutputs,
    Thread, ToolCall, ToolOutput, ToolResources, Truncation, UpdateMetadata,
};
use aludel_wire::openai::List;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use tracing::error;

use super::assistant::MAX_INSTRUCTIONS;
use super::checked_message::CheckedMessage;
use super::error::none_found;
use super::outcome::{StepEnd, end_of_run, end_of_step, for_client};
use super::render::{RendererStart, owed};
use super::start::{self, LegStart, RunLeg};
use super::threads::MAX_MESSAGES;
use super::tools;
use super::writer::Owed;
use super::{Paging, assistant, parse_stored, threads, written};
use crate::app::App;
use crate::dialects::openai::conversations::checked_metadata;
use crate::error::ApiError;
use crate::http::{Caller, Fields, Params};
use crate::turn::{self, StreamFormat, follow, framed};

/// `POST /threads/{thread}/runs`.
pub(super) async fn create(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(thread): Path<String>,
    fields: Fields,
) -> Result<Response, ApiError> {
    let thread = threads::parse(&thread)?;
    threads::find(&app, &tenant, &thread).await?;
    expire(&app, &tenant, &thread).await?;
    let memory = fields.memory();
    let sent: CreateRun = fields.read()?;
    let found = assistant::find(&app, &tenant, &sent.assistant_id).await?;
    begun(&app, &tenant, memory, found, sent, thread, None).await
}

/// `POST /threads/runs`.
pub(super) async fn create_with_thread(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    fields: Fields,
) -> Result<Response, ApiError> {
    // A thread whose client left is to be removed, if its run is refused.
    let shared = Arc::clone(&app);
    app.tasks.finish(async move { begin_with_thread(&shared, tenant, fields).await }).await?
}

async fn begin_with_thread(app: &Arc<App>, tenant: Tenant, fields: Fields) -> Result<Response, ApiError> {
    let memory = fields.memory();
    let CreateThreadAndRun { thread, tool_resources } = fields.clone().read()?;
    let sent = CreateRun { additional_messages: None, additional_instructions: None, ..fields.read()? };
    let mut found = assistant::find(app, &tenant, &sent.assistant_id).await?;
    if let Some(sent) = tool_resources {
        found.tool_resources = tools::resources(app, &tenant, sent).await?;
    }
    let thread = threads::add(app, &tenant, thread.unwrap_or_default()).await?;
    let id = threads::parse(&thread.id)?;
    let answer = begun(app, &tenant, memory, found, sent, id.clone(), Some(thread)).await;
    if answer.is_err() {
        // The client never got its id.
        threads::remove(app, &tenant, &id).await?;
    }
    answer
}

/// A turn of a run, which holds the memory of its request.
fn begin(
    app: &App,
    tenant: &Tenant,
    id: TurnId,
    memory: impl Send + Sync + 'static,
) -> Result<Arc<InFlightRequest>, ApiError> {
    let in_flight = app.engine.in_flight.begin(tenant, RequestFingerprint::none(), id);
    let in_flight = in_flight.map_err(|_| ApiError::internal("a new turn is known already"))?;
    in_flight.hold(memory);
    Ok(in_flight)
}

/// Begins a run, and answers with it or its stream.
async fn begun(
    app: &Arc<App>,
    tenant: &Tenant,
    memory: impl Send + Sync + 'static,
    assistant: Assistant,
    sent: CreateRun,
    thread: ThreadId,
    created: Option<Thread>,
) -> Result<Response, ApiError> {
    let streams = sent.stream.unwrap_or(false);
    let id = RunId::new();
    let in_flight = begin(app, tenant, id.clone().into(), memory)?;
    let task = {
        let (app, tenant, in_flight) = (Arc::clone(app), tenant.clone(), Arc::clone(&in_flight));
        async move {
            let (leg, run) = new_leg(&app, &tenant, id, assistant, sent, thread, created).await?;
            start::run_leg(app, tenant, leg, in_flight).await?;
            Ok(run)
        }
    };
    let run = started(app, &in_flight, task).await?;
    let notes = tools::notes(&run.tools);
    Ok(answer(in_flight, run, streams, notes))
}

/// Starts a run in a task, and waits for its first result.
async fn started(
    app: &Arc<App>,
    in_flight: &Arc<InFlightRequest>,
    starting: impl Future<Output = Result<Run, ApiError>> + Send + 'static,
) -> Result<Run, ApiError> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    turn::launch(app, in_flight, async move {
        let run = starting.await?;
        sender.send(run).ignore("the client may be gone");
        Ok(())
    })
    .await?;
    receiver.await.map_err(ApiError::internal)
}

fn answer(in_flight: Arc<InFlightRequest>, run: Run, streams: bool, notes: HeaderMap) -> Response {
    match streams {
        true => (notes, follow(in_flight, None, None, StreamFormat::of(framed))).into_response(),
        false => (notes, Json(for_client(run))).into_response(),
    }
}

/// Checks a request for a run.
async fn new_leg(
    app: &App,
    tenant: &Tenant,
    id: RunId,
    assistant: Assistant,
    sent: CreateRun,
    thread: ThreadId,
    created: Option<Thread>,
) -> Result<(RunLeg, Run), ApiError> {
    tools::check_sampling(sent.temperature, sent.top_p)?;
    tools::check_word("model", sent.model.as_deref())?;
    tools::check_word("reasoning_effort", sent.reasoning_effort.as_deref())?;
    let additional = sent.additional_messages.unwrap_or_default();
    if additional.len() > MAX_MESSAGES {
        let message = format!("Too many 'additional_messages': at most {MAX_MESSAGES}.");
        return Err(ApiError::invalid("additional_messages", message));
    }
    let (mut messages, mut files) = (Vec::with_capacity(additional.len()), Vec::new());
    for (index, sent) in additional.into_iter().enumerate() {
        let at = format!("additional_messages[{index}].");
        let CheckedMessage { id, message, files: attached } =
            CheckedMessage::of(app, tenant, &thread, sent, &at).await?;
        messages.push((id, written(&message)));
        files.extend(attached);
    }
    let instructions = [sent.instructions.or(assistant.instructions), sent.additional_instructions];
    let instructions: Vec<String> = instructions.into_iter().flatten().filter(|text| !text.is_empty()).collect();
    let instructions = instructions.join("\n");
    tools::check_length("instructions", Some(&instructions), 2 * MAX_INSTRUCTIONS)?;
    let created_at = now();
    let lifetime = i64::try_from(app.run_lifetime.as_secs().max(1)).unwrap_or(i64::MAX);
    let run = Run {
        id: id.to_string(),
        object: Default::default(),
        created_at,
        assistant_id: assistant.id,
        thread_id: thread.to_string(),
        status: RunStatus::Queued,
        started_at: None,
        expires_at: Some(created_at.saturating_add(lifetime)),
        cancelled_at: None,
        failed_at: None,
        completed_at: None,
        required_action: None,
        last_error: None,
        model: sent.model.unwrap_or(assistant.model),
        instructions,
        tools: sent.tools.unwrap_or(assistant.tools),
        metadata: checked_metadata(sent.metadata)?,
        temperature: sent.temperature.or(assistant.temperature),
        top_p: sent.top_p.or(assistant.top_p),
        max_completion_tokens: sent.max_completion_tokens,
        max_prompt_tokens: sent.max_prompt_tokens,
        truncation_strategy: checked_truncation(sent.truncation_strategy)?,
        incomplete_details: None,
        usage: None,
        response_format: sent.response_format.unwrap_or(assistant.response_format),
        tool_choice: sent.tool_choice.unwrap_or_else(|| "auto".into()),
        parallel_tool_calls: sent.parallel_tool_calls.unwrap_or(true),
        tool_resources: ToolResources { file_search: None, ..assistant.tool_resources },
        reasoning_effort: sent.reasoning_effort.or(assistant.reasoning_effort),
    };
    let start = RendererStart { run: run.clone(), thread: created, answered: None, owed: Owed::default() };
    Ok((RunLeg { thread, id, start, from: LegStart::Nothing { messages, files } }, run))
}

fn checked_truncation(sent: Option<Truncation>) -> Result<Truncation, ApiError> {
    let truncation = sent.unwrap_or_else(|| Truncation { r#type: "auto".to_owned(), last_messages: None });
    match (truncation.r#type.as_str(), truncation.last_messages) {
        ("auto", _) => Ok(Truncation { last_messages: None, ..truncation }),
        ("last_messages", Some(1..)) => Ok(truncation),
        _ => {
            let message =
                "Invalid 'truncation_strategy': it must be of the type 'auto', or 'last_messages' with their number.";
            Err(ApiError::invalid("truncation_strategy", message))
        }
    }
}

/// `GET /threads/{thread}/runs`.
pub(super) async fn list(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(thread): Path<String>,
    params: Params,
) -> Result<Json<List<Run>>, ApiError> {
    let thread = threads::parse(&thread)?;
    threads::find(&app, &tenant, &thread).await?;
    expire(&app, &tenant, &thread).await?;
    let Paging { query, is_before } = Paging::of(&params)?;
    let page = app.store.runs(&tenant, &thread, query).await?;
    let data = page.data.into_iter().map(|record| current(&app, &tenant, record)).collect::<Result<_, _>>()?;
    let page = aludel_store::Page { data, has_more: page.has_more };
    Ok(Json(Paging::list(is_before, page, |run: &Run| run.id.clone())))
}

/// `GET /threads/{thread}/runs/{run}`.
pub(super) async fn retrieve(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path((thread, id)): Path<(String, String)>,
) -> Result<Json<Run>, ApiError> {
    let record = find(&app, &tenant, &threads::parse(&thread)?, &parse(&id)?).await?;
    Ok(Json(current(&app, &tenant, record)?))
}

/// `POST /threads/{thread}/runs/{run}`.
pub(super) async fn update(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path((thread, id)): Path<(String, String)>,
    fields: Fields,
) -> Result<Json<Run>, ApiError> {
    let record = find(&app, &tenant, &threads::parse(&thread)?, &parse(&id)?).await?;
    let UpdateMetadata { metadata: Some(metadata) } = fields.read()? else {
        return Ok(Json(current(&app, &tenant, record)?));
    };
    let metadata = checked_metadata(Some(metadata))?;
    if !app.store.set_run_metadata(&tenant, &record.id, &metadata.clone().into()).await? {
        return Err(none_found("run", &id));
    }
    Ok(Json(Run { metadata, ..current(&app, &tenant, record)? }))
}

/// `POST /threads/{thread}/runs/{run}/cancel`.
pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path((thread, id)): Path<(String, String)>,
) -> Result<Json<Run>, ApiError> {
    let (thread, id) = (threads::parse(&thread)?, parse(&id)?);
    let record = find(&app, &tenant, &thread, &id).await?;
    if record.is_active {
        if let Some(in_flight) = underway(&app, &tenant, &record) {
            in_flight.cancel.cancel();
            let cancelling = current(&app, &tenant, record)?;
            let shared = Arc::clone(&app);
            app.tasks.spawn(async move {
                in_flight.ended().await;
                if let Err(error) = cancel_waiting(&shared, &tenant, &thread, &id).await {
                    error!("cannot cancel {id}: {}", error.message);
                }
            });
            return Ok(Json(cancelling));
        }
        end(&app, &tenant, record, RunStatus::Cancelled, &StepEnd::Cancelled).await?;
        let record = find(&app, &tenant, &thread, &id).await?;
        return Ok(Json(current(&app, &tenant, record)?));
    }
    let status = current(&app, &tenant, record)?.status.word();
    Err(ApiError::bad_request(format!("Cannot cancel run with status '{status}'.")))
}

/// Cancels a run whose turn stored that it waits for its client just before the cancellation.
async fn cancel_waiting(app: &App, tenant: &Tenant, thread: &ThreadId, id: &RunId) -> Result<(), ApiError> {
    let record = find(app, tenant, thread, id).await?;
    if record.is_active && underway(app, tenant, &record).is_none() {
        end(app, tenant, record, RunStatus::Cancelled, &StepEnd::Cancelled).await?;
    }
    Ok(())
}

/// `POST /threads/{thread}/runs/{run}/submit_tool_outputs`.
pub(super) async fn submit(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path((thread, id)): Path<(String, String)>,
    fields: Fields,
) -> Result<Response, ApiError> {
    let (thread, id) = (threads::parse(&thread)?, parse(&id)?);
    let record = find(&app, &tenant, &thread, &id).await?;
    let memory = fields.memory();
    let SubmitToolOutputs { tool_outputs, stream } = fields.read()?;
    let run: Run = parse_stored(record.object.clone())?;
    if run.status != RunStatus::RequiresAction {
        let status = current(&app, &tenant, record)?.status.word();
        return Err(ApiError::bad_request(format!("Runs in status \"{status}\" do not accept tool outputs.")));
    }
    let step = open_step(&app, &tenant, &id).await?.ok_or_else(|| ApiError::internal("a run waits for no step"))?;
    let answered = answered(step.clone(), tool_outputs)?;
    let run = Run { status: RunStatus::Queued, required_action: None, ..run };
    let start = RendererStart { run: run.clone(), thread: None, answered: Some(answered), owed: owed(&record.object)? };
    let leg = RunLeg { thread, id, start, from: LegStart::Waiting { record, step: Box::new(step) } };
    let in_flight = begin(&app, &tenant, TurnId::new(), memory)?;
    turn::launch(&app, &in_flight, start::run_leg(Arc::clone(&app), tenant, leg, Arc::clone(&in_flight))).await?;
    let notes = tools::notes(&run.tools);
    Ok(answer(in_flight, run, stream.unwrap_or(false), notes))
}

/// The step with the outputs of all its calls.
fn answered(mut step: RunStep, outputs: Vec<ToolOutput>) -> Result<RunStep, ApiError> {
    let given: Vec<String> = outputs.iter().map(|output| output.tool_call_id.clone()).collect();
    let mut by_id: HashMap<String, String> =
        outputs.into_iter().map(|output| (output.tool_call_id, output.output.unwrap_or_default())).collect();
    let StepDetails::ToolCalls { tool_calls } = &mut step.step_details else {
        return Err(ApiError::internal("a run waits for a message"));
    };
    let mut asked = Vec::new();
    let mut is_whole = by_id.len() == given.len();
    for call in tool_calls.iter_mut() {
        if let ToolCall::Function { id, function } = call {
            asked.push(id.clone());
            let output = by_id.remove(id);
            is_whole &= output.is_some();
            function.output = Some(output);
        }
    }
    if !is_whole || !by_id.is_empty() {
        let message = format!("Expected tool outputs for call_ids {asked:?}, got {given:?}");
        return Err(ApiError::bad_request(message).param("tool_outputs"));
    }
    end_of_step(&mut step, &StepEnd::Completed, now());
    Ok(step)
}

/// Finds a run of the tenant. If its time is over, it is expired first.
pub(super) async fn find(app: &App, tenant: &Tenant, thread: &ThreadId, id: &RunId) -> Result<RunRecord, ApiError> {
    let find = async || {
        let found = app.store.thread_run(tenant, thread, id).await?;
        found.ok_or_else(|| none_found("run", id.as_str()))
    };
    let record = find().await?;
    if is_over(app, tenant, &record) {
        end(app, tenant, record, RunStatus::Expired, &StepEnd::Expired).await?;
        return find().await;
    }
    Ok(record)
}

/// Ends the active run of a thread if its time is over.
pub(super) async fn expire(app: &App, tenant: &Tenant, thread: &ThreadId) -> Result<(), ApiError> {
    match app.store.active_run(tenant, thread).await? {
        Some(record) if is_over(app, tenant, &record) => {
            end(app, tenant, record, RunStatus::Expired, &StepEnd::Expired).await
        }
        _ => Ok(()),
    }
}

/// Returns true for an expired run that no turn will end.
fn is_over(app: &App, tenant: &Tenant, record: &RunRecord) -> bool {
    record.is_active && record.expires_at <= now() && underway(app, tenant, record).is_none()
}

/// The turn of a run, as long as it goes on.
fn underway(app: &App, tenant: &Tenant, record: &RunRecord) -> Option<Arc<InFlightRequest>> {
    app.engine.in_flight.find(tenant, &record.turn).filter(|in_flight| !in_flight.has_ended())
}

/// Ends a run that no turn carries out.
async fn end(
    app: &App,
    tenant: &Tenant,
    record: RunRecord,
    status: RunStatus,
    step_end: &StepEnd,
) -> Result<(), ApiError> {
    let RunRecord { id, turn, object, .. } = record;
    let mut run: Run = parse_stored(object)?;
    end_of_run(&mut run, status, None, now());
    let step = open_step(app, tenant, &id).await?.map(|mut step| {
        end_of_step(&mut step, step_end, now());
        step
    });
    let steps = step.iter().filter_map(|step| Some((StepId::parse(&step.id)?, written(step)))).collect();
    let update = RunUpdate { object: Some(written(&run)), has_ended: true, steps, ..RunUpdate::default() };
    // If two requests end it, the second finds it ended.
    app.store.update_run(tenant, &id, &turn, update, QuotaCheck::Reserved).await?;
    Ok(())
}

/// The step that a run's client is to answer.
async fn open_step(app: &App, tenant: &Tenant, run: &RunId) -> Result<Option<RunStep>, ApiError> {
    let newest = PageQuery { after: None, limit: 1, order: Order::Descending };
    let step = app.store.steps(tenant, run, newest).await?.data.pop();
    let step: Option<RunStep> = step.map(parse_stored).transpose()?;
    Ok(step.filter(|step| step.status == StepStatus::InProgress))
}

/// The run as its client sees it now.
fn current(app: &App, tenant: &Tenant, record: RunRecord) -> Result<Run, ApiError> {
    let is_cancelled = underway(app, tenant, &record).is_some_and(|in_flight| in_flight.cancel.is_cancelled());
    let is_active = record.is_active;
    let mut run: Run = parse_stored(record.object)?;
    if is_active && is_cancelled {
        run.status = RunStatus::Cancelling;
    }
    Ok(for_client(run))
}

fn parse(id: &str) -> Result<RunId, ApiError> {
    RunId::parse(id).ok_or_else(|| none_found("run", id))
}
