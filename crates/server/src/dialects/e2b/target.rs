//! The data plane: the sandbox and port of a request, and its token.

use std::sync::Arc;
use std::time::Duration;

use aludel_engine::processor_time::ProcessorShare;
use aludel_engine::sandboxes::{ClientSandbox, KeptPart, Sandboxes};
use aludel_ignore::Ignore;
use aludel_store::Tenant;
use axum::extract::{FromRequestParts, Request};
use axum::http::header::HOST;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::{error, sign};
use crate::app::App;
use crate::client_sandboxes::secrets::brings;
use crate::client_sandboxes::{alive, ports};
use crate::error::ApiError;
use crate::http::{DescribeArgument, ProgramTraffic};

/// The least time of a sandbox that a request resumed, as E2B's documentation of `autoResume` gives it.
const MIN_RESUMED: Duration = Duration::from_secs(300);
/// The port of commands and files.
const ENVD: u16 = 49983;
/// The port of the code interpreter.
pub(super) const INTERPRETER: u16 = 49999;

/// Paths on the port of commands and files, and those below them.
const ENVD_PATHS: [&str; 6] = ["/health", "/files", "/envs", "/metrics", "/process.Process", "/filesystem.Filesystem"];
/// Paths on the port of the code interpreter, and those below them.
const INTERPRETER_PATHS: [&str; 3] = ["/health", "/execute", "/contexts"];

/// The sandbox that a request is for.
#[derive(Debug, Clone)]
pub(super) struct TargetSandbox {
    pub(super) sandbox: Arc<ClientSandbox>,
    pub(super) port: u16,
    /// The registry that has it.
    sandboxes: Sandboxes,
}

impl DescribeArgument for TargetSandbox {}

impl FromRequestParts<Arc<App>> for TargetSandbox {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &Arc<App>) -> Result<Self, ApiError> {
        let message = "The request names no sandbox: send E2b-Sandbox-Id and E2b-Sandbox-Port.";
        parts.extensions.get::<Self>().cloned().ok_or_else(|| ApiError::bad_request(message))
    }
}

/// Returns true for a request to the data plane, judged by its headers alone.
pub(super) fn names_a_sandbox(request: &Request) -> bool {
    named(request.headers()).is_some()
}

/// The sandbox and the port in the headers or the host's name.
fn named(headers: &HeaderMap) -> Option<(&str, u16)> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(id) = text("e2b-sandbox-id") {
        // An invalid port still means a sandbox, on which nothing listens: the control plane must not answer.
        let port = headers.get("e2b-sandbox-port");
        let port = port.map_or(ENVD, |port| port.to_str().ok().and_then(|port| port.parse().ok()).unwrap_or(0));
        return Some((id, port));
    }
    // `49983-i0123.example.com`
    let (label, _domain) = headers.get(HOST)?.to_str().ok()?.split_once('.')?;
    let (port, id) = label.split_once('-')?;
    let is_id = id.starts_with('i') && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    Some((id, port.parse().ok().filter(|_| is_id)?))
}

/// The tenant of a request to the data plane, which has its sandbox's token instead of a key. Adds the sandbox for the handlers.
pub(super) fn authenticate(app: &App, request: &mut Request) -> Option<Result<Tenant, ApiError>> {
    let reached = match named(request.headers()) {
        Some((id, port)) => check(app, request, id, port).map(|sandbox| (sandbox, port)),
        // A signed address does not name a sandbox; its signature belongs to one.
        None if request.uri().path() == "/files" => sign::find(app, request).map(|sandbox| (sandbox, ENVD)),
        None => return None,
    };
    Some(reached.map(|(sandbox, port)| {
        let tenant = sandbox.tenant().clone();
        if !matches!(port, ENVD | INTERPRETER) {
            request.extensions_mut().insert(ProgramTraffic(Arc::clone(&sandbox)));
        }
        request.extensions_mut().insert(TargetSandbox { sandbox, port, sandboxes: app.engine.sandboxes.clone() });
        tenant
    }))
}

/// Returns true for a path that is served at a port of a sandbox. Other routes of the dialect belong to the control plane, which requires a
/// key; here the token, or for some paths just the sandbox's id, makes the client act as the sandbox's tenant.
fn is_served(port: u16, path: &str) -> bool {
    let paths: &[&str] = match port {
        ENVD => &ENVD_PATHS,
        INTERPRETER => &INTERPRETER_PATHS,
        _ => return true,
    };
    let is_below =
        |start: &&str| path.strip_prefix(*start).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    paths.iter().any(is_below)
}

/// The sandbox of this id, if a request may reach it at this port.
fn check(app: &App, request: &Request, id: &str, port: u16) -> Result<Arc<ClientSandbox>, ApiError> {
    let sandbox = app.engine.sandboxes.of_any_tenant(id).ok_or_else(|| error::no_sandbox(id))?;
    if !is_served(port, request.uri().path()) {
        return Err(error::not_served(port, request.uri().path()));
    }
    let headers = request.headers();
    let brings = |name: &str, secret: &str| brings(headers, name, secret) == Some(true);
    let path = request.uri().path();
    let forbidden = || Err(ApiError::forbidden("The traffic access token of the sandbox is missing or wrong."));
    let brings_traffic_token =
        || sandbox.traffic_secret().is_none_or(|secret| brings("e2b-traffic-access-token", secret));
    let may = match port {
        ENVD if path == "/health" => true,
        ENVD if path == "/files" && !headers.contains_key("x-access-token") => {
            return sign::check(&sandbox, request).map(|()| sandbox);
        }
        ENVD => brings("x-access-token", sandbox.secret()),
        INTERPRETER if path != "/execute" && !brings_traffic_token() => return forbidden(),
        INTERPRETER if path == "/health" => true,
        // Some SDKs send no token for contexts. Of OpenSandbox's sandboxes the id stands in every address.
        INTERPRETER if path != "/execute" && sandbox.spec().contexts_by_id => true,
        INTERPRETER => brings("x-access-token", sandbox.secret()),
        _ if !brings_traffic_token() => return forbidden(),
        _ => true,
    };
    if !may {
        return Err(ApiError::unauthorized("The access token of the sandbox is missing or wrong."));
    }
    Ok(sandbox)
}

/// The layer around the dialect's routes: resumes paused sandboxes, forwards requests to the ports of their programs, and cuts answers off
/// when they end.
pub(super) async fn sandbox_middleware(
    Extension(share): Extension<ProcessorShare>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(TargetSandbox { sandbox, port, sandboxes }) = request.extensions().get::<TargetSandbox>().cloned() else {
        return next.run(request).await;
    };
    if !resume_if_paused(&sandboxes, &sandbox).await {
        return error::no_sandbox(sandbox.id()).into_response();
    }
    let answer = async {
        match port {
            ENVD | INTERPRETER => next.run(request).await,
            port => {
                if let Some(host) = &sandbox.spec().shown_host {
                    request.headers_mut().insert(HOST, host_at(host, port));
                }
                let answered = ports::hand_on(&sandbox, &share, port, request).await;
                answered.unwrap_or_else(|error| error::closed_port(sandbox.id(), port, error))
            }
        }
    };
    let answered = alive::while_alive(&sandbox, answer).await;
    answered.unwrap_or_else(|| error::no_sandbox(sandbox.id()).into_response())
}

/// The name that programs see as their host at a port, which stands for `${PORT}` in it.
fn host_at(host: &str, port: u16) -> HeaderValue {
    // It was checked when the sandbox was made.
    HeaderValue::try_from(host.replace("${PORT}", &port.to_string())).unwrap_or(HeaderValue::from_static("localhost"))
}

/// Resumes a sandbox for a request, if its client wants that and its pause kept its processes. Returns true if it runs.
async fn resume_if_paused(sandboxes: &Sandboxes, sandbox: &Arc<ClientSandbox>) -> bool {
    let spec = sandbox.spec();
    if sandbox.paused() == Some(KeptPart::Everything) && spec.resumes {
        sandboxes.resume(sandbox, Some(spec.timeout.max(MIN_RESUMED))).await.ignore("on failure it stays paused");
    }
    !sandbox.is_paused()
}

/// `GET /health`: of the control plane, of a sandbox's commands and files, or of its code interpreter.
pub(super) async fn health(request: Request) -> Response {
    match request.extensions().get::<TargetSandbox>() {
        Some(TargetSandbox { port: INTERPRETER, .. }) => Json("OK").into_response(),
        _ => StatusCode::NO_CONTENT.into_response(),
    }
}
