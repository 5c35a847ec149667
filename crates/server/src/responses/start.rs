//! Starting a response: a new one, or one that waited for approval when the server ended.

use std::sync::Arc;

use aludel_agent::{Agent, ApprovalRequest, Call, CodeInterpreter};
use aludel_engine::approvals::{ApprovalMode, Decider, Gate, Origin};
use aludel_store::{ApprovalRecord, ResponseId, ResponseRecord, Tenant};
use aludel_wire::openai::responses::{self, Event, Item, ItemStatus, Response, ResponseError, StreamEvent};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tracing::{Instrument, Span, error, info_span};

use super::ask::Ask;
use super::context::{Context, View};
use super::run::{Keep, Run};
use super::writer::{Writer, read_usage};
use crate::app::App;
use crate::error::ApiError;
use crate::http::Fields;
use crate::telemetry::watched;
use crate::turn::{Fingerprint, Live, Told};

/// Events of one response that are read at once.
pub(super) const EVENTS: usize = 1_000_000;

/// What is needed to read a request again: all but its items, which are stored with the response.
#[derive(Serialize, Deserialize)]
struct Resume {
    #[serde(default)]
    host: String,
    fields: Map<String, Value>,
}

/// The form in which a request is kept while its programs may wait for approval.
pub(super) fn resume_of(app: &App, fields: &Fields, host: &str) -> Option<String> {
    if matches!(app.engine.approvals().mode, ApprovalMode::Never) {
        return None;
    }
    let mut fields = fields.0.clone();
    fields.insert("input".to_owned(), Value::Array(Vec::new()));
    serde_json::to_string(&Resume { host: host.to_owned(), fields }).ok()
}

/// Reads a response as it is stored.
pub(super) fn stored(object: Value) -> Result<Response, ApiError> {
    Response::deserialize(object)
        .map_err(|error| ApiError::internal(format!("a stored response is not whole: {error}")))
}

/// Events as they are stored.
pub(super) fn told(events: Vec<(u64, String)>) -> Vec<Told> {
    let told = events.into_iter().filter_map(|(sequence, text)| {
        let kind = StreamEvent::kind_of(&text)?;
        Some(Told { sequence, kind, text })
    });
    told.collect()
}

/// Checks everything that can be wrong with a request, and starts the turn.
pub(super) async fn new(
    app: &Arc<App>,
    tenant: &Tenant,
    ask: Ask,
    resume: Option<String>,
    live: Arc<Live>,
) -> Result<(), ApiError> {
    let context = Context::collect(app, tenant, &ask).await?;
    let background = ask.background;
    let created_at = aludel_store::now();
    let resume = resume.filter(|_| ask.store);
    let mut run = prepare(app, tenant, ask, context, live, created_at, resume).await?;
    run.begin(background).await?;
    let span = span(&run.live);
    app.tasks.spawn(run.carry_out().instrument(span));
    Ok(())
}

/// Returns the span of a response that is carried out.
fn span(live: &Live) -> Span {
    info_span!("answer", api = "responses", id = %live.id)
}

async fn prepare(
    app: &Arc<App>,
    tenant: &Tenant,
    ask: Ask,
    context: Context,
    live: Arc<Live>,
    created_at: i64,
    resume: Option<String>,
) -> Result<Run, ApiError> {
    let model = app.engine.models().find(&ask.model)?.clone();
    let container = match &ask.interpreter {
        Some(interpreter) => {
            let container = interpreter.open(app, tenant, context.container()).await?;
            context.place_files(app, tenant, &container).await?;
            Some(container)
        }
        None => None,
    };
    let View { instructions: said, items, refused } = context.for_model(app, tenant).await?;
    let instructions = [ask.instructions.clone().unwrap_or_default(), said].join("\n\n").trim().to_owned();
    let mut agent = Agent::builder(watched(&model))
        .instructions(instructions)
        .tool_choice(ask.tool_choice.clone())
        .sampling(ask.sampling.clone());
    if let Some(calls) = ask.max_tool_calls {
        agent = agent.max_programs(calls);
    }
    let mut gate = None;
    if let Some(container) = &container {
        let decider = match &ask.mcp {
            Some(mcp) if mcp.asks => Decider::Client,
            _ => Decider::Operator,
        };
        let (request, at) = (live.id.to_string(), Arc::clone(container));
        let origin = Origin { request, session: at, model: model.name, resume };
        let gated = Gate::new(&app.engine, tenant, origin, decider);
        for (code, reason) in &refused {
            gated.refused_by_client(code, reason).await?;
        }
        // Known now: a request for which there is no room hears so at once.
        container.reserve().await?;
        let interpreter = CodeInterpreter::new(Arc::clone(container) as _).packages(app.engine.packages.clone());
        agent = agent.code_interpreter(gated.guard(interpreter));
        gate = Some(gated);
    }
    for tool in &ask.functions {
        agent = agent.client_tool(tool.clone());
    }
    let base = Response { id: live.id.to_string(), created_at, ..ask.answer };
    let mut writer = Writer::new(base, ask.include, ask.mcp.map(|mcp| mcp.label));
    if let Some(container) = &container {
        writer.set_container(container.id().to_string());
    }
    let keep = match (ask.store, ask.background) {
        (true, _) => Keep::Forever,
        (false, true) => Keep::ForAWhile,
        (false, false) => Keep::Not,
    };
    Ok(Run {
        app: Arc::clone(app),
        tenant: tenant.clone(),
        live,
        agent: agent.build(),
        items,
        truncate: ask.truncate,
        container,
        gate,
        writer,
        keep,
        input: context.into_new(),
        conversation: ask.conversation,
        unsaved: Vec::new(),
        ran_code: false,
        is_waiting: false,
    })
}

/// Goes on with the responses that wait for approval, and says of all others that a server left unfinished that they failed.
pub(crate) async fn after_restart(app: &Arc<App>) -> Result<(), ApiError> {
    let mut resumed = Vec::new();
    for (tenant, id) in app.store.responses_with_status(&["in_progress", "queued"]).await? {
        let Some(record) = app.store.response(&tenant, &id).await? else { continue };
        if let Some((asked, request)) = app.store.resumable(id.as_str()).await? {
            let going_on = resume(app, &tenant, record.clone(), asked, &request);
            match going_on.instrument(info_span!("go on after a restart")).await {
                Ok(()) => {
                    resumed.push(id.to_string());
                    continue;
                }
                Err(error) => error!("{id} cannot go on: {}", error.cause.unwrap_or(error.message)),
            }
        }
        fail(app, &tenant, &id, record).await?;
    }
    Ok(app.store.expire_approvals_except(resumed).await?)
}

/// Takes a response up where it waits for somebody to decide about a program.
async fn resume(
    app: &Arc<App>,
    tenant: &Tenant,
    record: ResponseRecord,
    asked: ApprovalRecord,
    request: &str,
) -> Result<(), ApiError> {
    let broken = |what: &str| ApiError::internal(format!("what was kept of it is not whole: {what}"));
    let Resume { host, fields } = serde_json::from_str(request).map_err(|_| broken("its request"))?;
    let mut ask = Ask::read(Fields(fields), &host)?;
    if let Some(most) = &mut ask.max_tool_calls {
        *most = most.saturating_sub(app.store.programs_started(tenant, record.id.as_str()).await?);
    }
    let Response { mut output, created_at, usage, .. } = stored(record.object)?;
    let waits = |item: &Item| match item {
        Item::CodeInterpreterCall(call) => {
            call.status == Some(ItemStatus::InProgress) && call.code.as_ref() == Some(&asked.code)
        }
        _ => false,
    };
    let place = output.iter().rposition(waits).ok_or_else(|| broken("its program"))?;
    // What the model began after it is begun anew.
    output.truncate(place + 1);
    let usage = usage.as_ref().map(read_usage).unwrap_or_default();
    let context = Context::collect(app, tenant, &ask).await?;
    let context = context.resumed(record.input, output.get(..place).unwrap_or_default());
    let tool = CodeInterpreter::name_beside(&ask.functions);
    let live = app.live.begin(tenant, Fingerprint::none(), record.id.clone());
    let live = live.map_err(|_| broken("it goes on already"))?;
    let told = told(app.store.events(tenant, &record.id, None, EVENTS).await?);
    let next = told.last().map_or(0, |told| told.sequence + 1);
    live.tell(&told);
    let prepared = prepare(app, tenant, ask, context, Arc::clone(&live), created_at, Some(request.to_owned())).await;
    let mut run = match prepared {
        Ok(run) => run,
        Err(error) => {
            app.live.forget(&record.id);
            return Err(error);
        }
    };
    let (call_id, code) = (asked.call_id, asked.code);
    run.writer.restore(output, usage, next, &call_id);
    let arguments = aludel_agent::arguments_of(&code);
    run.items.push(aludel_agent::Item::Call(Call { id: call_id.clone(), name: tool, arguments }));
    let going = run.carry_on(Some(ApprovalRequest { call_id, code }));
    app.tasks.spawn(going.instrument(span(&live)));
    Ok(())
}

async fn fail(app: &App, tenant: &Tenant, id: &ResponseId, mut record: ResponseRecord) -> Result<(), ApiError> {
    let next = app.store.events(tenant, id, None, EVENTS).await?.last().map_or(0, |(sequence, _)| sequence + 1);
    let response = match stored(record.object) {
        Ok(response) => response,
        Err(error) => {
            error!("{id} was stopped and stays so: {}", error.cause.unwrap_or_default());
            return Ok(());
        }
    };
    let message = "The server was stopped before the response was done.".to_owned();
    let error = Some(ResponseError { code: "server_error".to_owned(), message });
    let response = Response { status: responses::Status::Failed, error, ..response };
    record.object = response.json();
    let event = StreamEvent { event: Event::Failed { response: Box::new(response) }, sequence_number: next };
    app.store.append_events(tenant, id, vec![(next, event.json())]).await?;
    app.store.put_response(tenant, record).await?;
    Ok(())
}
