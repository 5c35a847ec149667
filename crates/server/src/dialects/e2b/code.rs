//! The code interpreter of a sandbox: programs and their contexts.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aludel_engine::execution::{CHART, MimeBundle, MimeData, TABLE};
use aludel_engine::executions::{DirectEnd, DirectEvent, DirectExecution};
use aludel_engine::sandboxes;
use aludel_engine::turns::{OutputPiece, RichValue};
use aludel_engine::{Error, ErrorKind};
use aludel_wire::e2b::code::{Context, CreateContext, ExecuteRequest, Line, ResultLine, Text};
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures_util::stream::unfold;
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::describe;
use super::error::Refusal;
use super::target::TargetSandbox;
use crate::app::App;
use crate::client_sandboxes::ascii_json::line;
use crate::client_sandboxes::programs::{self, ContextChoice, ProgramFailure, StartedProgram};
use crate::client_sandboxes::refusal;
use crate::http::Fields;

/// Pause after which a silent stream sends a keep-alive, which also detects a client that is gone.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// The name of these clients, for people who decide about their programs.
const SENDER: &str = "E2B";

fn render(context: &sandboxes::Context) -> Context {
    let language = programs::language(context).to_owned();
    Context { id: context.id().to_owned(), language, cwd: context.directory().to_owned() }
}

/// An error about a context, in plain text.
fn refused(refusal: Error) -> Refusal {
    match refusal {
        Error::NotFound(aludel_engine::Missing::Context(id)) => {
            let id: String = id.chars().take(64).collect();
            Refusal::Plain(StatusCode::NOT_FOUND, format!("Context {id} not found"))
        }
        Error::Invalid { reason, .. } => Refusal::Plain(StatusCode::BAD_REQUEST, reason),
        refusal if refusal.kind() == ErrorKind::Full => {
            Refusal::Plain(StatusCode::TOO_MANY_REQUESTS, refusal.to_string())
        }
        refusal => refusal::refused(refusal).into(),
    }
}

/// `GET /contexts`: clients expect JavaScript to have a context if it is available.
pub(super) async fn list_contexts(TargetSandbox { sandbox, .. }: TargetSandbox) -> Json<Vec<Context>> {
    sandbox.contexts().list_further().await;
    Json(sandbox.contexts().list().await.iter().map(|context| render(context)).collect())
}

/// `POST /contexts`
pub(super) async fn create_context(
    State(app): State<Arc<App>>,
    TargetSandbox { sandbox, .. }: TargetSandbox,
    body: Fields,
) -> Result<Json<Context>, Refusal> {
    let request: CreateContext = body.read()?;
    let contexts = sandbox.contexts();
    // They are listed before the last one.
    contexts.list_further().await;
    let language = request.language.as_deref().map(|name| contexts.language(name)).transpose().map_err(refused)?;
    let directory = request.cwd.as_deref();
    let made = programs::create_context(&app, &sandbox, directory, language.flatten()).await;
    let context = made.map_err(refused)?;
    Ok(Json(render(&context)))
}

/// `DELETE /contexts/{id}`
pub(super) async fn remove_context(
    TargetSandbox { sandbox, .. }: TargetSandbox,
    Path(id): Path<String>,
) -> Result<Json<()>, Refusal> {
    sandbox.contexts().remove(&id).await.map_err(refused)?;
    Ok(Json(()))
}

/// `POST /contexts/{id}/restart`
pub(super) async fn restart_context(
    State(app): State<Arc<App>>,
    TargetSandbox { sandbox, .. }: TargetSandbox,
    Path(id): Path<String>,
) -> Result<Json<()>, Refusal> {
    programs::restart_context(&app, &sandbox, &id).await.map_err(refused)?;
    Ok(Json(()))
}

/// `POST /execute`
pub(super) async fn execute(
    State(app): State<Arc<App>>,
    TargetSandbox { sandbox, .. }: TargetSandbox,
    body: Fields,
) -> Result<Response, Refusal> {
    let request: ExecuteRequest = body.read()?;
    if request.context_id.is_some() && request.language.is_some() {
        let message = "Only one of context_id or language can be provided".to_owned();
        return Err(Refusal::Plain(StatusCode::BAD_REQUEST, message));
    }
    let ExecuteRequest { code, context_id, env_vars, language } = request;
    let choice = context_id.as_deref().map_or(ContextChoice::Language(language.as_deref()), ContextChoice::Context);
    let begun = programs::start(&app, &sandbox, SENDER, choice, env_vars.unwrap_or_default(), code).await;
    let StartedProgram { number, execution, context, .. } = begun.map_err(refused)?;
    let telling = ProgramStream { execution, context, number: Some(number), raised: None, has_ended: false };
    let lines = unfold(telling, async |mut telling| {
        let lines = telling.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(lines)), telling))
    });
    let mut response = Body::from_stream(lines).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// A program whose events are streamed.
struct ProgramStream {
    execution: DirectExecution,
    context: Arc<sandboxes::Context>,
    /// Its number, until that is sent.
    number: Option<u64>,
    /// The traceback of the program's own error.
    raised: Option<String>,
    has_ended: bool,
}

impl ProgramStream {
    /// The next lines; `None` after the last one.
    async fn next(&mut self) -> Option<Vec<u8>> {
        if let Some(execution_count) = self.number.take() {
            return Some(line(&Line::NumberOfExecutions { execution_count }));
        }
        loop {
            if self.has_ended {
                return None;
            }
            let Ok(event) = timeout(KEEPALIVE, self.execution.next()).await else {
                return Some(line(&Line::Keepalive));
            };
            match event {
                Some(DirectEvent::ApprovalRequested(_) | DirectEvent::Started) => {}
                Some(DirectEvent::Output(output)) => {
                    if let OutputPiece::Error { traceback, .. } = &output {
                        self.raised = Some(traceback.clone());
                    }
                    return Some(line(&rendered(output)));
                }
                Some(DirectEvent::Ended(end)) => {
                    self.has_ended = true;
                    let loss = programs::note_loss(&self.context, &end);
                    let loss = loss.map(|words| rendered(OutputPiece::Stderr(words.to_owned())));
                    let mut lines = loss.map(|told| line(&told)).unwrap_or_default();
                    lines.extend(ending(end, self.raised.take()).map(|error| line(&error)).unwrap_or_default());
                    lines.extend(line(&Line::EndOfExecution));
                    return Some(lines);
                }
                None => return None,
            }
        }
    }
}

fn rendered(output: OutputPiece) -> Line {
    let text = |text| Text { text, timestamp: describe::time(SystemTime::now()) };
    match output {
        OutputPiece::Stdout(printed) => Line::Stdout(text(printed)),
        OutputPiece::Stderr(printed) => Line::Stderr(text(printed)),
        OutputPiece::Display(rich) => Line::Result(Box::new(result(&rich, false))),
        OutputPiece::Result(rich) => Line::Result(Box::new(result(&rich, true))),
        OutputPiece::Error { name, value, traceback } => Line::Error { name, value, traceback },
    }
}

/// The error of an end that says more than the program's own.
fn ending(end: DirectEnd, raised: Option<String>) -> Option<Line> {
    let ProgramFailure { name, value, traceback } = programs::failure(end, raised)?;
    Some(Line::Error { name: name.to_owned(), value, traceback })
}

/// A value in the forms that clients know.
fn result(rich: &RichValue, is_main_result: bool) -> ResultLine {
    let MimeBundle(forms) = rich.bundle();
    let mut line = ResultLine { is_main_result, ..ResultLine::default() };
    for (mime, data) in forms {
        let text = match data {
            MimeData::Text(text) => text,
            MimeData::Binary(bytes) => BASE64_STANDARD.encode(bytes),
        };
        match mime.as_str() {
            "text/plain" => line.text = Some(unquoted(text)),
            "text/html" => line.html = Some(text),
            "text/markdown" => line.markdown = Some(text),
            "image/svg+xml" => line.svg = Some(text),
            "image/png" => line.png = Some(text),
            "image/jpeg" => line.jpeg = Some(text),
            "application/pdf" => line.pdf = Some(text),
            "text/latex" => line.latex = Some(text),
            "application/javascript" => line.javascript = Some(text),
            // Invalid JSON is not passed on as JSON.
            "application/json" => line.json = RawValue::from_string(text).ok(),
            TABLE => line.data = RawValue::from_string(text).ok(),
            CHART => line.chart = RawValue::from_string(text).ok(),
            _ => {
                line.extra.insert(mime, text);
            }
        }
    }
    line
}

/// Text without the quotes around it.
fn unquoted(text: String) -> String {
    let inner = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    inner('\'').or_else(|| inner('"')).map(str::to_owned).unwrap_or(text)
}
