//! The code interpreter of a sandbox: programs and their contexts.

use std::collections::BTreeMap;
use std::sync::Arc;

use aludel_engine::execution::{CHART, MimeBundle, MimeData, TABLE};
use aludel_engine::executions::{DirectEnd, DirectEvent, DirectExecution};
use aludel_engine::sandboxes::{self, RunningProgram};
use aludel_engine::turns::{OutputPiece, RichValue};
use aludel_engine::{Error, Language, Missing};
use aludel_wire::opensandbox::code::{Context, EventKind, Failure, NewContext, RunCode};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::time::Instant;

use super::events::{Source, stream};
use super::target::TargetSandbox;
use crate::app::App;
use crate::client_sandboxes::programs::{self, ContextChoice, StartedProgram};
use crate::client_sandboxes::refusal;
use crate::error::ApiError;
use crate::http::{Fields, Params};

/// The name of these clients, for people who decide about their programs.
const SENDER: &str = "OpenSandbox";

/// An error about a context or a program.
fn refused(error: Error) -> ApiError {
    match error {
        Error::NotFound(Missing::Context(id)) => {
            let id: String = id.chars().take(64).collect();
            ApiError::not_found(format!("context {id} not found")).code("CONTEXT_NOT_FOUND")
        }
        error @ Error::Invalid { field: "language", .. } => refusal::refused(error).code("NOT_SUPPORTED"),
        error => refusal::refused(error),
    }
}

fn render(context: &sandboxes::Context) -> Context {
    Context { id: context.id().to_owned(), language: programs::language(context).to_owned() }
}

/// `POST /code/context`
pub(super) async fn create_context(
    State(app): State<Arc<App>>,
    TargetSandbox { sandbox, .. }: TargetSandbox,
    body: Fields,
) -> Result<Json<Context>, ApiError> {
    let NewContext { language, cwd } = body.read()?;
    let contexts = sandbox.contexts();
    let named = language.as_deref().filter(|name| !name.is_empty());
    let language = named.map(|name| contexts.language(name)).transpose().map_err(refused)?;
    let directory = cwd.filter(|directory| !directory.is_empty());
    let made = programs::create_context(&app, &sandbox, directory.as_deref(), language.flatten()).await;
    let context = made.map_err(refused)?;
    Ok(Json(render(&context)))
}

/// `GET /code/contexts`: those that were created, so without the default one.
pub(super) async fn list_contexts(
    TargetSandbox { sandbox, .. }: TargetSandbox,
    params: Params,
) -> Result<Json<Vec<Context>>, ApiError> {
    let made = sandbox.contexts().list().await.into_iter().skip(1);
    Ok(Json(made.filter(|context| is_wanted(context, &params)).map(|context| render(&context)).collect()))
}

/// Returns true for a context of the query's language; for all if it names none.
fn is_wanted(context: &sandboxes::Context, params: &Params) -> bool {
    let named = params.get("language").filter(|name| !name.is_empty());
    named.is_none_or(|name| name.parse::<Language>().is_ok_and(|named| named.as_str() == programs::language(context)))
}

/// `DELETE /code/contexts`: the default context exists again on its next use.
pub(super) async fn remove_contexts(
    TargetSandbox { sandbox, .. }: TargetSandbox,
    params: Params,
) -> Result<StatusCode, ApiError> {
    for context in sandbox.contexts().list().await.into_iter().filter(|context| is_wanted(context, &params)) {
        match sandbox.contexts().remove(context.id()).await {
            // Another request removed it.
            Ok(()) | Err(Error::NotFound(_)) => {}
            Err(error) => return Err(refused(error)),
        }
    }
    Ok(StatusCode::OK)
}

/// `GET /code/contexts/{context}`
pub(super) async fn retrieve_context(
    TargetSandbox { sandbox, .. }: TargetSandbox,
    Path((_, id)): Path<(String, String)>,
) -> Result<Json<Context>, ApiError> {
    Ok(Json(render(&*sandbox.contexts().get(Some(&id)).await.map_err(refused)?)))
}

/// `DELETE /code/contexts/{context}`
pub(super) async fn remove_context(
    TargetSandbox { sandbox, .. }: TargetSandbox,
    Path((_, id)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    sandbox.contexts().remove(&id).await.map_err(refused)?;
    Ok(StatusCode::OK)
}

/// `POST /code`
pub(super) async fn run(
    State(app): State<Arc<App>>,
    TargetSandbox { sandbox, .. }: TargetSandbox,
    body: Fields,
) -> Result<Response, ApiError> {
    let RunCode { code, context } = body.read()?;
    let context = context.unwrap_or_default();
    let (id, language) = (context.id.filter(|id| !id.is_empty()), context.language.filter(|name| !name.is_empty()));
    let choice = id.as_deref().map_or(ContextChoice::Language(language.as_deref()), ContextChoice::Context);
    let started = programs::start(&app, &sandbox, SENDER, choice, BTreeMap::new(), code).await;
    let StartedProgram { id, context, number, execution } = started.map_err(refused)?;
    let first = vec![EventKind::Init { text: id.clone() }, EventKind::ExecutionCount { execution_count: number }];
    let running = sandbox.programs().add(&id, context.id(), execution.canceller());
    Ok(stream(first, ProgramStream { execution, context, _running: running, began: Instant::now(), raised: None }))
}

/// `DELETE /code`
pub(super) async fn interrupt(
    TargetSandbox { sandbox, .. }: TargetSandbox,
    params: Params,
) -> Result<StatusCode, ApiError> {
    let id = named(&params)?;
    if sandbox.programs().interrupt(id) { Ok(StatusCode::OK) } else { Err(nothing_runs(id)) }
}

/// The id that a query names.
pub(super) fn named(params: &Params) -> Result<&str, ApiError> {
    params.get("id").ok_or_else(|| ApiError::bad_request("missing query parameter 'id'").code("MISSING_QUERY"))
}

fn nothing_runs(id: &str) -> ApiError {
    let id: String = id.chars().take(64).collect();
    ApiError::not_found(format!("Nothing runs under the id {id}.")).code("CONTEXT_NOT_FOUND")
}

/// A program whose events are streamed.
struct ProgramStream {
    execution: DirectExecution,
    context: Arc<sandboxes::Context>,
    _running: RunningProgram,
    began: Instant,
    /// The traceback of the program's own error once that was sent, which is its end.
    raised: Option<String>,
}

impl Source for ProgramStream {
    fn next(&mut self) -> BoxFuture<'_, Option<Vec<EventKind>>> {
        async {
            loop {
                match self.execution.next().await? {
                    DirectEvent::ApprovalRequested(_) | DirectEvent::Started => {}
                    DirectEvent::Output(output) => {
                        if let OutputPiece::Error { traceback, .. } = &output {
                            self.raised = Some(traceback.clone());
                        }
                        return Some(vec![rendered(output)]);
                    }
                    DirectEvent::Ended(end) => return Some(self.ending(end)),
                }
            }
        }
        .boxed()
    }
}

impl ProgramStream {
    fn ending(&mut self, end: DirectEnd) -> Vec<EventKind> {
        let loss = programs::note_loss(&self.context, &end);
        let loss = loss.map(|words| EventKind::Stderr { text: words.to_owned() });
        loss.into_iter().chain(self.last(end)).collect()
    }

    fn last(&mut self, end: DirectEnd) -> Vec<EventKind> {
        let has_failed = self.raised.is_some();
        if let Some(programs::ProgramFailure { name, value, traceback }) = programs::failure(end, self.raised.take()) {
            let traceback = traceback.lines().map(str::to_owned).collect();
            return vec![EventKind::Error { error: Failure { ename: name.to_owned(), evalue: value, traceback } }];
        }
        if has_failed {
            return Vec::new();
        }
        let execution_time = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        vec![EventKind::ExecutionComplete { execution_time }]
    }
}

fn rendered(output: OutputPiece) -> EventKind {
    match output {
        OutputPiece::Stdout(text) => EventKind::Stdout { text },
        OutputPiece::Stderr(text) => EventKind::Stderr { text },
        OutputPiece::Display(rich) | OutputPiece::Result(rich) => EventKind::Result { results: forms(&rich) },
        OutputPiece::Error { name, value, traceback } => {
            let traceback = traceback.lines().map(str::to_owned).collect();
            EventKind::Error { error: Failure { ename: name, evalue: value, traceback } }
        }
    }
}

/// The forms of a value, without those that only other clients know.
fn forms(rich: &RichValue) -> BTreeMap<String, Value> {
    let MimeBundle(forms) = rich.bundle();
    let forms = forms.into_iter().filter(|(mime, _)| mime != CHART && mime != TABLE);
    let forms = forms.map(|(mime, data)| {
        let text = match data {
            MimeData::Text(text) => text,
            MimeData::Binary(bytes) => BASE64_STANDARD.encode(bytes),
        };
        match mime.as_str() {
            "text/plain" => ("text".to_owned(), Value::String(text)),
            // Invalid JSON is passed on as text.
            "application/json" => (mime, serde_json::from_str(&text).unwrap_or(Value::String(text))),
            _ => (mime, Value::String(text)),
        }
    });
    forms.collect()
}
