//! The ports of a sandbox: the port and token of a request, and forwarding to programs.

use std::sync::Arc;

use aludel_engine::processor_time::ProcessorShare;
use aludel_engine::sandboxes::ClientSandbox;
use aludel_store::Tenant;
use axum::Extension;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_SECURITY_POLICY, COOKIE, SET_COOKIE, STRICT_TRANSPORT_SECURITY};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error;
use crate::app::App;
use crate::client_sandboxes::ports::PortError;
use crate::client_sandboxes::refusal::{paused, refused, refused_file};
use crate::client_sandboxes::secrets::brings;
use crate::client_sandboxes::{alive, ports};
use crate::error::ApiError;
use crate::http::{Caller, DescribeArgument, ProgramTraffic};

/// The port of programs, commands and files.
pub(super) const SERVED: u16 = 44772;
/// The port of the network's policy.
pub(super) const EGRESS: u16 = 18080;
/// The port of the code interpreter, inside.
const INTERPRETER: u16 = 44771;
/// The header with the key of clients.
pub(super) const API_KEY: &str = "open-sandbox-api-key";
/// The header with the token of [`SERVED`].
pub(super) const TOKEN: &str = "x-execd-access-token";
/// The header with the token of [`EGRESS`].
pub(super) const EGRESS_TOKEN: &str = "opensandbox-egress-auth";
/// The header with the token of a private sandbox's programs.
pub(super) const ACCESS_TOKEN: &str = "opensandbox-secure-access";

/// Response headers that a browser applies to the whole host.
const OF_THE_HOST: [HeaderName; 9] = [
    SET_COOKIE,
    STRICT_TRANSPORT_SECURITY,
    HeaderName::from_static("accept-ch"),
    HeaderName::from_static("alt-svc"),
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("critical-ch"),
    HeaderName::from_static("nel"),
    HeaderName::from_static("report-to"),
    HeaderName::from_static("service-worker-allowed"),
];

/// The sandbox and the port that a request is for.
#[derive(Debug, Clone)]
pub(super) struct TargetSandbox {
    pub(super) sandbox: Arc<ClientSandbox>,
    port: u16,
    /// True if the request has the sandbox's token; false if it needs the key of the sandbox's tenant.
    is_authenticated: bool,
}

impl DescribeArgument for TargetSandbox {}

impl FromRequestParts<Arc<App>> for TargetSandbox {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &Arc<App>) -> Result<Self, ApiError> {
        // Only a route outside of the layer below would lack it.
        parts.extensions.get::<Self>().cloned().ok_or_else(|| ApiError::internal("a route that names no sandbox"))
    }
}

/// The sandbox, the port and the path of a request below `/proxy/`.
fn named(uri: &Uri) -> Option<(&str, u16, &str)> {
    let (id, rest) = uri.path().strip_prefix("/v1/sandboxes/")?.split_once("/proxy/")?;
    let (port, path) = rest.split_once('/').unwrap_or((rest, ""));
    Some((id, port.parse().ok().filter(|port| *port > 0)?, path))
}

/// The tenant of a request that has its sandbox's token instead of a key. Adds the sandbox for the handlers.
pub(super) fn authenticate(app: &App, request: &mut Request) -> Option<Result<Tenant, ApiError>> {
    let (id, port, _) = named(request.uri())?;
    let Some(sandbox) = app.engine.sandboxes.of_any_tenant(id) else { return Some(Err(error::unknown(id))) };
    let headers = request.headers();
    let is_authenticated = match port {
        SERVED => brings(headers, TOKEN, sandbox.secret()),
        EGRESS => brings(headers, EGRESS_TOKEN, sandbox.secret()),
        _ => match sandbox.traffic_secret() {
            Some(secret) => brings(headers, ACCESS_TOKEN, secret),
            // Only its owner tells the id of a sandbox.
            None => Some(true),
        },
    };
    let tenant = sandbox.tenant().clone();
    if !matches!(port, SERVED | EGRESS) {
        request.extensions_mut().insert(ProgramTraffic(Arc::clone(&sandbox)));
    }
    request.extensions_mut().insert(TargetSandbox { sandbox, port, is_authenticated: is_authenticated == Some(true) });
    match is_authenticated {
        Some(true) => Some(Ok(tenant)),
        Some(false) => Some(Err(ApiError::unauthorized("The access token of the sandbox is wrong."))),
        None => None,
    }
}

/// The layer around the dialect's routes: forwards requests to the ports of a sandbox's programs, and cuts answers off when it ends.
pub(super) async fn sandbox_middleware(
    Extension(share): Extension<ProcessorShare>,
    request: Request,
    next: Next,
) -> Response {
    let Some(TargetSandbox { sandbox, port, is_authenticated }) = request.extensions().get::<TargetSandbox>().cloned()
    else {
        return next.run(request).await;
    };
    let is_owner = |Caller(tenant): &Caller| tenant == sandbox.tenant();
    if !is_authenticated && !request.extensions().get::<Caller>().is_some_and(is_owner) {
        return error::unknown(sandbox.id()).into_response();
    }
    if sandbox.is_paused() {
        return paused().into_response();
    }
    let answer = async {
        match port {
            SERVED | EGRESS => next.run(request).await,
            port => {
                let mut request = request;
                if !is_authenticated && !request.headers().contains_key(API_KEY) {
                    // The key of the sandbox's owner, which its programs must not learn.
                    request.headers_mut().remove(AUTHORIZATION);
                }
                forward_to_port(&sandbox, &share, port, request).await
            }
        }
    };
    alive::while_alive(&sandbox, answer).await.unwrap_or_else(|| {
        if sandbox.is_paused() { paused().into_response() } else { error::unknown(sandbox.id()).into_response() }
    })
}

/// Forwards a request to a program. Its answer must get no origin, because it has the same host as this server.
async fn forward_to_port(
    sandbox: &Arc<ClientSandbox>,
    share: &ProcessorShare,
    port: u16,
    mut request: Request,
) -> Response {
    let path = named(request.uri()).map_or("", |(_, _, path)| path);
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let below = format!("/{path}{query}").parse();
    *request.uri_mut() = below.unwrap_or_else(|_| Uri::from_static("/"));
    request.headers_mut().remove(COOKIE);
    match ports::hand_on(sandbox, share, port, request).await {
        Ok(mut response) => {
            let headers = response.headers_mut();
            for name in OF_THE_HOST {
                headers.remove(name);
            }
            headers.append(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox allow-scripts allow-forms"));
            response
        }
        Err(failure) => {
            let message = match failure {
                PortError::Closed => format!("Nothing listens on port {port} of the sandbox."),
                PortError::NoHttp => format!("The program at port {port} of the sandbox did not answer in HTTP."),
                PortError::Silent => return ApiError::too_slow().into_response(),
            };
            ApiError { status: StatusCode::BAD_GATEWAY, ..ApiError::bad_request(message) }.into_response()
        }
    }
}

/// `GET /ping`: the sandbox is ready once clients find its code interpreter, which they look for on a port of its loopback device.
pub(super) async fn ping(
    State(app): State<Arc<App>>,
    TargetSandbox { sandbox, .. }: TargetSandbox,
) -> Result<StatusCode, ApiError> {
    if app.engine.sandboxes.capabilities().processes {
        sandbox.files().await.map_err(refused)?.listen(INTERPRETER).await.map_err(refused_file)?;
    }
    Ok(StatusCode::OK)
}
