//! Making, finding and ending sandboxes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aludel_engine::TemplateName;
use aludel_engine::sandboxes::{ClientSandbox, KeptPart, NewSandbox};
use aludel_wire::opensandbox::lifecycle as wire;
use aludel_wire::opensandbox::lifecycle::{
    Action, Endpoint, Expiration, NetworkPolicy, Pagination, PolicyStatus, Sandbox, Sandboxes,
};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::header::{HOST, LOCATION};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

use super::describe;
use super::error::{invalid, refused, unknown};
use super::resources::Resources;
use super::target::{ACCESS_TOKEN, EGRESS, EGRESS_TOKEN, SERVED, TOKEN, TargetSandbox};
use crate::app::App;
use crate::client_sandboxes::metadata_query::pairs;
use crate::error::ApiError;
use crate::http::{Caller, Fields, Params};

/// Last parts of the names of images that stand for the usual template.
const IMAGES: [&str; 3] = ["code-interpreter", "python", "base"];
/// The default number of sandboxes on a page, and the most.
const PAGE: usize = 20;
const MAX_PAGE: usize = 200;
/// The last page that a client can ask for.
const MAX_NUMBER: usize = 1_000_000;

/// `POST /v1/sandboxes`
pub(super) async fn create(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    body: Fields,
) -> Result<Response, ApiError> {
    let asked: wire::NewSandbox = body.read()?;
    check(&asked)?;
    let Some(image) = asked.image else { return Err(invalid("image: a sandbox is made of an image")) };
    let template = template_of(&app, &image.uri)?;
    let lifetime = app.engine.sandboxes.lifetime();
    let timeout = match asked.timeout {
        // Without a timeout it lives as long as a sandbox may.
        None => lifetime,
        Some(seconds @ 1..) => Duration::from_secs(seconds.unsigned_abs()),
        Some(seconds) => return Err(invalid(format!("timeout: {seconds} s is too short for a sandbox"))),
    };
    let Resources { cpus, memory } =
        asked.resource_limits.as_ref().map(Resources::read).transpose().map_err(invalid)?.unwrap_or_default();
    let environment = asked.env.unwrap_or_default().into_iter();
    let new = NewSandbox {
        template_label: image.uri,
        template,
        metadata: asked.metadata.unwrap_or_default(),
        entrypoint: asked.entrypoint.unwrap_or_default(),
        environment: environment.filter_map(|(key, value)| Some((key, value?))).collect(),
        timeout,
        id_variable: None,
        private: asked.secure_access == Some(true),
        shown_host: None,
        cpus,
        memory,
        ..NewSandbox::default()
    };
    let sandbox = app.engine.sandboxes.create(&tenant, new).await.map_err(refused)?;
    let location = [(LOCATION, format!("/v1/sandboxes/{}", sandbox.id()))];
    Ok((StatusCode::ACCEPTED, location, Json(describe::sandbox(&sandbox))).into_response())
}

/// Refuses what sandboxes cannot have here.
fn check(asked: &wire::NewSandbox) -> Result<(), ApiError> {
    let cannot = |what: &str| Err(invalid(format!("{what} is not supported by this server")));
    if asked.snapshot_id.is_some() {
        return cannot("snapshotId");
    }
    if asked.template_id.is_some() {
        return cannot("templateId");
    }
    if asked.volumes.as_ref().is_some_and(|volumes| !volumes.is_empty()) {
        return cannot("volumes");
    }
    if asked.lifecycle.is_some() {
        return cannot("lifecycle");
    }
    if asked.credential_proxy.as_ref().is_some_and(|proxy| proxy.enabled) {
        return cannot("credentialProxy");
    }
    let Some(policy) = &asked.network_policy else { return Ok(()) };
    let rules = policy.egress.iter().flatten();
    if policy.default_action == Some(Action::Allow) || rules.into_iter().any(|rule| rule.action == Action::Allow) {
        return cannot("networkPolicy: sandboxes have no network, and a rule that allows something");
    }
    Ok(())
}

/// The further template that an image stands for; `None` for the usual one.
fn template_of(app: &App, uri: &str) -> Result<Option<TemplateName>, ApiError> {
    let name = uri.split('@').next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
    let name = name.split(':').next().unwrap_or_default();
    let sandboxes = &app.engine.sandboxes;
    let further = sandboxes.template(name);
    if further.is_some() || IMAGES.contains(&name) {
        return Ok(further);
    }
    let shown: String = uri.chars().take(128).collect();
    let known = sandboxes.capabilities().templates.iter().map(|offer| offer.name.as_str());
    let known = IMAGES.into_iter().chain(known).collect::<Vec<_>>().join(", ");
    Err(invalid(format!("image: there is no image '{shown}' here; there are, under any registry and tag: {known}")))
}

/// `GET /v1/sandboxes`
pub(super) async fn list(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    params: Params,
) -> Result<Json<Sandboxes>, ApiError> {
    let mut all = app.engine.sandboxes.list(&tenant);
    let states: Vec<&str> = params.all("state").flat_map(|states| states.split(',')).collect();
    if !states.is_empty() {
        let wanted = |name: &str| states.iter().any(|state| state.eq_ignore_ascii_case(name));
        all.retain(|sandbox| wanted(describe::state(sandbox).name()));
    }
    if let Some(metadata) = params.get("metadata") {
        let wanted = pairs(metadata)?;
        let has = |known: BTreeMap<String, String>| wanted.iter().all(|(key, value)| known.get(key) == Some(value));
        all.retain(|sandbox| has(sandbox.metadata()));
    }
    let number = |name, default, most| match params.get(name).map(str::parse) {
        None => Ok(default),
        Some(Ok(number)) if (1..=most).contains(&number) => Ok(number),
        Some(_) => Err(invalid(format!("{name}: it must be from 1 to {most}"))),
    };
    let (page, page_size) = (number("page", 1, MAX_NUMBER)?, number("pageSize", PAGE, MAX_PAGE)?);
    let (total_items, total_pages) = (all.len(), all.len().div_ceil(page_size));
    let items = all.iter().skip((page - 1).saturating_mul(page_size)).take(page_size);
    let items = items.map(|sandbox| describe::sandbox(sandbox)).collect();
    let pagination = Pagination { page, page_size, total_items, total_pages, has_next_page: page < total_pages };
    Ok(Json(Sandboxes { items, pagination }))
}

fn find(app: &App, Caller(tenant): &Caller, id: &str) -> Result<Arc<ClientSandbox>, ApiError> {
    app.engine.sandboxes.get(tenant, id).ok_or_else(|| unknown(id))
}

/// `GET /v1/sandboxes/{id}`
pub(super) async fn retrieve(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Sandbox>, ApiError> {
    Ok(Json(describe::sandbox(&*find(&app, &caller, &id)?)))
}

/// `DELETE /v1/sandboxes/{id}`
pub(super) async fn kill(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    if app.engine.sandboxes.kill(&tenant, &id).await { Ok(StatusCode::NO_CONTENT) } else { Err(unknown(&id)) }
}

/// `PATCH /v1/sandboxes/{id}/metadata`
pub(super) async fn change_metadata(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    body: Fields,
) -> Result<Json<Sandbox>, ApiError> {
    let sandbox = find(&app, &caller, &id)?;
    sandbox.change_metadata(body.read()?).map_err(refused)?;
    Ok(Json(describe::sandbox(&sandbox)))
}

/// `POST /v1/sandboxes/{id}/pause`
pub(super) async fn pause(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let sandbox = find(&app, &caller, &id)?;
    app.engine.sandboxes.pause(&sandbox, KeptPart::Everything, None).await.map_err(refused)?;
    Ok(StatusCode::ACCEPTED)
}

/// `POST /v1/sandboxes/{id}/resume`
pub(super) async fn resume(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let sandbox = find(&app, &caller, &id)?;
    app.engine.sandboxes.resume(&sandbox, None).await.map_err(refused)?;
    Ok(StatusCode::ACCEPTED)
}

/// `POST /v1/sandboxes/{id}/renew-expiration`
pub(super) async fn renew(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    body: Fields,
) -> Result<Json<Expiration>, ApiError> {
    let Expiration { expires_at } = body.read()?;
    let timeout = describe::until(&expires_at);
    let timeout = timeout.ok_or_else(|| invalid("expiresAt: it must be a time (RFC 3339) that is not over"))?;
    match app.engine.sandboxes.set_timeout(&tenant, &id, timeout).map_err(refused)? {
        Some(end) => Ok(Json(Expiration { expires_at: describe::time(end) })),
        None => Err(unknown(&id)),
    }
}

/// `GET /v1/sandboxes/{id}/endpoints/{port}`
pub(super) async fn endpoint(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    Path((id, port)): Path<(String, u16)>,
    params: Params,
) -> Result<Json<Endpoint>, ApiError> {
    let sandbox = find(&app, &caller, &id)?;
    if params.get("expires").is_some() {
        return Err(invalid(
            "expires: signed addresses that expire are not supported; the sandbox's own end ends them",
        ));
    }
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    let token = match port {
        SERVED => Some((TOKEN, sandbox.secret())),
        EGRESS => Some((EGRESS_TOKEN, sandbox.secret())),
        _ => sandbox.traffic_secret().map(|secret| (ACCESS_TOKEN, secret)),
    };
    let headers = token.map(|(name, secret)| (name.to_owned(), secret.to_owned())).into_iter().collect();
    Ok(Json(Endpoint { endpoint: format!("{host}/v1/sandboxes/{}/proxy/{port}", sandbox.id()), headers }))
}

/// `GET /policy` at the port of the network's policy.
pub(super) async fn policy(_reached: TargetSandbox) -> Json<PolicyStatus> {
    let policy = NetworkPolicy { default_action: Some(Action::Deny), egress: Some(Vec::new()) };
    let [status, mode, enforcement_mode] = ["ok", "deny_all", "namespace"].map(str::to_owned);
    Json(PolicyStatus { status, mode, enforcement_mode, policy })
}

/// `POST /v1/metrics/events`: metrics of clients, which are ignored.
pub(super) async fn note_event() -> StatusCode {
    StatusCode::NO_CONTENT
}
