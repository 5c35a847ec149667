//! `POST /v1/chat/completions`.

use std::sync::Arc;

use aludel_agent::{Agent, CodeInterpreter};
use aludel_engine::Model;
use aludel_engine::approvals::{Decider, Gate, Origin};
use aludel_store::{ResponseId, Tenant, fresh_id};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use tokio::time::timeout;
use tracing::{Instrument, info_span};

use super::ask::{Ask, Head};
use super::messages::Conversation;
use super::pass;
use super::run::{Answer, Run};
use super::writer::{IncludeUsage, Writer};
use crate::app::App;
use crate::error::ApiError;
use crate::http::{Caller, Raw};
use crate::telemetry::watched;
use crate::turn::{Fingerprint, Interpreter, Live, SILENCE, Told, follow, leash, wait};

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    headers: HeaderMap,
    body: Raw,
) -> Result<Response, ApiError> {
    let head: Head = serde_json::from_slice(&body.bytes).map_err(|error| {
        let message = format!("We could not parse the JSON body of your request: {error}.");
        ApiError::bad_request(message).code("invalid_json")
    })?;
    if !head.is_ours()
        && let Some(response) = pass::on(&app, &head, &headers, &body.bytes).await?
    {
        return Ok(response);
    }
    let fields = body.fields()?;
    let fingerprint = Fingerprint::of(&headers, &fields);
    let ask = Ask::read(fields)?;
    let stream = ask.stream;
    let live = match app.live.begin(&tenant, fingerprint, ResponseId::new()) {
        Err(same) => same,
        Ok(live) => {
            let id = live.id.clone();
            if let Err(error) = start(&app, &tenant, ask, Arc::clone(&live)).await {
                app.live.forget(&id);
                return Err(error);
            }
            live
        }
    };
    let leash = Some(leash(&live, stream));
    if !stream {
        return wait(live, leash, |object| object).await;
    }
    // What fails before the first word is an error like any other.
    if let Ok(None) = timeout(SILENCE, live.event(0)).await
        && let Some(error) = live.ended().await.and_then(|end| end.error)
    {
        return Err(error);
    }
    Ok(follow(live, 0, leash, framed))
}

/// A chunk as it stands in a stream: this protocol's frames have no names.
fn framed(told: &Told) -> String {
    format!("data: {}\n\n", told.text)
}

/// Checks everything that can be wrong with a request, and starts the turns.
async fn start(app: &Arc<App>, tenant: &Tenant, ask: Ask, live: Arc<Live>) -> Result<(), ApiError> {
    let models = app.engine.models();
    let model = models.find(&ask.model)?;
    let conversation = Conversation::read(app, tenant, &ask.messages).await?;
    let id = fresh_id("chatcmpl-");
    let mut answers = Vec::new();
    for _ in 0..ask.choices {
        match prepare(app, tenant, &id, &ask, model, &conversation).await {
            Ok(answer) => answers.push(answer),
            Err(error) => {
                for answer in answers {
                    answer.abandon(app, tenant).await;
                }
                return Err(error);
            }
        }
    }
    let containers: Vec<Option<String>> =
        answers.iter().map(|answer| answer.container.as_ref().map(|container| container.id().to_string())).collect();
    let stream = ask.stream.then_some(IncludeUsage(ask.include_usage));
    let writer = Writer::new(id, ask.model, stream, &containers, &ask.stop, ask.sampling.format.is_some());
    let run = Run {
        app: Arc::clone(app),
        tenant: tenant.clone(),
        live,
        items: conversation.items,
        answers,
        writer,
        ran_code: false,
    };
    let span = info_span!("answer", api = "chat", id = run.writer.id());
    app.tasks.spawn(run.carry_out().instrument(span));
    Ok(())
}

/// A model and a container for one answer.
async fn prepare(
    app: &Arc<App>,
    tenant: &Tenant,
    id: &str,
    ask: &Ask,
    model: &Model,
    conversation: &Conversation,
) -> Result<Answer, ApiError> {
    let mut agent = Agent::builder(watched(model))
        .instructions(conversation.instructions.clone())
        .tool_choice(ask.tool_choice.clone())
        .sampling(ask.sampling.clone());
    for tool in &ask.functions {
        agent = agent.client_tool(tool.clone());
    }
    let Some(interpreter) = &ask.interpreter else {
        return Ok(Answer { agent: agent.build(), gate: None, container: None, is_own: false, lingers: false });
    };
    let used = conversation.container.clone();
    let is_own = used.is_none() && matches!(interpreter, Interpreter::Auto { session: None, .. });
    let lingers = !matches!(interpreter, Interpreter::Auto { session: Some(_), .. });
    let container = interpreter.open(app, tenant, used).await?;
    let placed = async {
        conversation.place_files(app, &container).await?;
        // Known now: a request for which there is no room hears so at once.
        Ok(container.reserve().await?)
    };
    match placed.await {
        Ok(()) => {
            let (request, at) = (id.to_owned(), Arc::clone(&container));
            let origin = Origin { request, session: at, model: model.name.clone(), resume: None };
            let gate = Gate::new(&app.engine, tenant, origin, Decider::Operator);
            let interpreter = CodeInterpreter::new(Arc::clone(&container) as _).packages(app.engine.packages.clone());
            let agent = agent.code_interpreter(gate.guard(interpreter)).build();
            Ok(Answer { agent, gate: Some(gate), container: Some(container), is_own, lingers })
        }
        Err(error) => {
            Answer { agent: agent.build(), gate: None, container: Some(container), is_own, lingers }
                .abandon(app, tenant)
                .await;
            Err(error)
        }
    }
}
