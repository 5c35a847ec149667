//! The control plane: making, finding and ending sandboxes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aludel_engine::sandboxes::{ClientSandbox, KeptPart, NewSandbox};
use aludel_store::program_digest;
use aludel_wire::e2b;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::describe;
use super::error::{refused, unknown};
use crate::app::App;
use crate::client_sandboxes::metadata_query::pairs;
use crate::error::ApiError;
use crate::http::{Caller, Fields, Params};

/// Template names that stand for the usual one.
const TEMPLATES: [&str; 3] = ["base", "code-interpreter-v1", "code-interpreter"];
/// Default lifetime of a sandbox, seconds.
const DEFAULT_TIMEOUT_SECONDS: i64 = 300;
/// Default lifetime of a sandbox on the first generation of paths, seconds.
const V1_TIMEOUT_SECONDS: i64 = 15;
/// Bytes of the host that programs are shown.
const MAX_HOST: usize = 300;
/// Sandboxes on one page of a list.
const PAGE: usize = 100;
const NEXT_TOKEN: HeaderName = HeaderName::from_static("x-next-token");
const TOTAL: HeaderName = HeaderName::from_static("x-total-running");

/// `POST /v2/sandboxes`
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    body: Fields,
) -> Result<Response, ApiError> {
    create_sandbox(&app, &caller, &headers, body, DEFAULT_TIMEOUT_SECONDS).await
}

/// `POST /sandboxes`
pub(super) async fn create_v1(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    body: Fields,
) -> Result<Response, ApiError> {
    create_sandbox(&app, &caller, &headers, body, V1_TIMEOUT_SECONDS).await
}

async fn create_sandbox(
    app: &App,
    Caller(tenant): &Caller,
    headers: &HeaderMap,
    body: Fields,
    timeout: i64,
) -> Result<Response, ApiError> {
    let key = headers.get("idempotency-key").map(|key| key.to_str());
    let key = key.transpose().map_err(|_| ApiError::bad_request("the Idempotency-Key is not in plain characters"))?;
    let repeated = key.map(|key| (key, program_digest(&body.to_json_without(&[]))));
    let asked: e2b::NewSandbox = body.read()?;
    let cannot = |what: &str| Err(ApiError::bad_request(format!("{what} is not supported by this server")));
    // First, because it brings a template of its own.
    if asked.mcp.is_some_and(|servers| !servers.is_empty()) {
        return cannot("mcp: a gateway to MCP servers");
    }
    let name = asked.template_id.split(':').next().unwrap_or_default();
    let template = app.engine.sandboxes.template(name);
    if template.is_none() && !TEMPLATES.contains(&name) {
        let shown: String = asked.template_id.chars().take(64).collect();
        let known = known_templates(app).join(", ");
        return Err(ApiError::not_found(format!("template '{shown}' not found; there are: {known}")));
    }
    let pauses = (asked.auto_pause == Some(true)).then(|| kept(asked.auto_pause_memory));
    if pauses == Some(KeptPart::Everything) && !app.engine.sandboxes.capabilities().pause {
        return cannot("autoPause without autoPauseMemory: false");
    }
    if asked.volume_mounts.is_some_and(|mounts| !mounts.is_empty()) {
        return cannot("volumeMounts");
    }
    let network = asked.network.unwrap_or_default();
    check_network(&network)?;
    let shown_host = network.mask_request_host.filter(|host| !host.is_empty());
    if shown_host.as_ref().is_some_and(|host| host.len() > MAX_HOST || HeaderValue::from_str(host).is_err()) {
        return Err(ApiError::bad_request(format!(
            "network.maskRequestHost: a host of at most {MAX_HOST} bytes is expected"
        )));
    }
    let own = [("E2B_SANDBOX", "true"), ("E2B_TEMPLATE_ID", &asked.template_id)];
    let mut environment: BTreeMap<_, _> = own.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    environment.extend(asked.env_vars.unwrap_or_default());
    let new = NewSandbox {
        metadata: asked.metadata.unwrap_or_default(),
        environment,
        id_variable: Some("E2B_SANDBOX_ID"),
        entrypoint: Vec::new(),
        template_label: asked.template_id,
        template,
        timeout: seconds(asked.timeout.unwrap_or(timeout), 1)?,
        has_unique_name: asked.unique_name == Some(true),
        private: network.allow_public_traffic == Some(false),
        contexts_by_id: true,
        shown_host,
        pauses,
        resumes: asked.auto_resume.is_some_and(|resume| resume.enabled),
        cpus: None,
        memory: None,
    };
    let sandboxes = &app.engine.sandboxes;
    let creating = async { sandboxes.create(tenant, new).await.map_err(refused) };
    let sandbox = match repeated {
        Some((key, request)) => app.repeated_creations.once(sandboxes, (tenant, key), &request, creating).await?,
        None => creating.await?,
    };
    Ok((StatusCode::CREATED, Json(describe::sandbox(&sandbox, describe::domain(headers)))).into_response())
}

/// Checks that rules for a network let nothing out.
fn check_network(network: &e2b::Network) -> Result<(), ApiError> {
    let is_given = |rules: Option<&Value>| {
        rules.is_some_and(|rules| !(rules.is_null() || *rules == json!([]) || *rules == json!({})))
    };
    let wanted = match network {
        e2b::Network { allow_out: Some(allowed), .. } if !allowed.is_empty() => "allowOut",
        e2b::Network { rules, .. } if is_given(rules.as_ref()) => "rules",
        e2b::Network { egress_proxy, .. } if is_given(egress_proxy.as_ref()) => "egressProxy",
        _ => return Ok(()),
    };
    let message = format!("network.{wanted}: sandboxes have no network, and it is not supported by this server");
    Err(ApiError::bad_request(message))
}

/// `PUT /sandboxes/{id}/network`: rules that let nothing out are in force already.
pub(super) async fn set_network(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    body: Fields,
) -> Result<StatusCode, ApiError> {
    let network: e2b::Network = body.read()?;
    app.engine.sandboxes.get(&tenant, &id).ok_or_else(|| unknown(&id))?;
    if network.allow_internet_access == Some(true) {
        let message = "allow_internet_access: sandboxes have no network, and it is not supported by this server";
        return Err(ApiError::bad_request(message));
    }
    check_network(&network)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Names of all templates, first those of the usual one.
fn known_templates(app: &App) -> Vec<&str> {
    let further = app.engine.sandboxes.capabilities().templates.iter().map(|offer| offer.name.as_str());
    TEMPLATES.into_iter().chain(further).collect()
}

/// A duration of at least `least` seconds.
fn seconds(number: i64, least: i64) -> Result<Duration, ApiError> {
    match u64::try_from(number) {
        Ok(seconds) if number >= least => Ok(Duration::from_secs(seconds)),
        _ => Err(ApiError::bad_request(format!("invalid timeout: {number} s; it must be at least {least} s"))),
    }
}

/// `GET /v2/sandboxes` and `GET /sandboxes`
pub(super) async fn list(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    params: Params,
) -> Result<Response, ApiError> {
    let mut all = app.engine.sandboxes.list(&tenant);
    let total = all.iter().filter(|sandbox| !sandbox.is_paused()).count();
    let states: Vec<&str> = params.all("state").flat_map(|states| states.split(',')).collect();
    if !states.is_empty() {
        all.retain(|sandbox| states.contains(&if sandbox.is_paused() { "paused" } else { "running" }));
    }
    if let Some(metadata) = params.get("metadata") {
        let wanted = pairs(metadata)?;
        let has = |sandbox: &ClientSandbox| {
            let known = sandbox.metadata();
            wanted.iter().all(|(key, value)| known.get(key) == Some(value))
        };
        all.retain(|sandbox| has(sandbox));
    }
    if let Some(template) = params.get("template") {
        all.retain(|sandbox| sandbox.spec().template_label == template);
    }
    if let Some(after) = params.get("startedAfter") {
        let after: jiff::Timestamp =
            after.parse().map_err(|_| ApiError::bad_request("invalid startedAfter: it must be a time (RFC 3339)"))?;
        let after = after.as_microsecond();
        all.retain(|sandbox| micros(sandbox.started()) >= after);
    }
    let ascending = match params.get("order") {
        None | Some("desc") => false,
        Some("asc") => true,
        Some(_) => return Err(ApiError::bad_request("invalid order: it must be asc or desc")),
    };
    if ascending {
        all.reverse();
    }
    let limit = match params.get("limit").map(str::parse) {
        None => PAGE,
        Some(Ok(limit)) if (1..=PAGE).contains(&limit) => limit,
        Some(_) => return Err(ApiError::bad_request(format!("invalid limit: it must be from 1 to {PAGE}"))),
    };
    if let Some(token) = params.get("nextToken") {
        let last: u64 = token.parse().map_err(|_| ApiError::bad_request("invalid nextToken"))?;
        all.retain(|sandbox| if ascending { sandbox.order() > last } else { sandbox.order() < last });
    }
    let next = all.get(limit).and_then(|_| all.get(limit - 1)).map(|last| last.order());
    all.truncate(limit);
    let page: Vec<_> = all.iter().map(|sandbox| describe::listed(sandbox)).collect();
    let mut response = Json(page).into_response();
    response.headers_mut().insert(TOTAL, HeaderValue::from(total));
    if let Some(next) = next {
        response.headers_mut().insert(NEXT_TOKEN, HeaderValue::from(next));
    }
    Ok(response)
}

fn micros(time: SystemTime) -> i64 {
    i64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros()).unwrap_or(i64::MAX)
}

fn find(app: &App, Caller(tenant): &Caller, id: &str) -> Result<Arc<ClientSandbox>, ApiError> {
    app.engine.sandboxes.get(tenant, id).ok_or_else(|| unknown(id))
}

/// `GET /sandboxes/{id}`
pub(super) async fn retrieve(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Result<Json<e2b::SandboxDetail>, ApiError> {
    Ok(Json(describe::detail(&*find(&app, &caller, &id)?, describe::domain(&headers))))
}

/// `DELETE /sandboxes/{id}`
pub(super) async fn kill(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    if app.engine.sandboxes.kill(&tenant, &id).await { Ok(StatusCode::NO_CONTENT) } else { Err(unknown(&id)) }
}

/// `POST /sandboxes/{id}/timeout`
pub(super) async fn set_timeout(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    body: Fields,
) -> Result<StatusCode, ApiError> {
    let timeout = seconds(body.read::<e2b::Timeout>()?.timeout, 0)?;
    match app.engine.sandboxes.set_timeout(&tenant, &id, timeout).map_err(refused)? {
        Some(_end) => Ok(StatusCode::NO_CONTENT),
        None => Err(unknown(&id)),
    }
}

/// `POST /sandboxes/{id}/refreshes`
pub(super) async fn refresh(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    body: Fields,
) -> Result<StatusCode, ApiError> {
    let sandbox = find(&app, &caller, &id)?;
    extend(&app, &sandbox, body.read::<e2b::Refresh>()?.duration)?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /v2/sandboxes/{id}/connect` and `POST /sandboxes/{id}/connect`
pub(super) async fn connect(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    Path(id): Path<String>,
    body: Fields,
) -> Result<Response, ApiError> {
    let sandbox = find(&app, &caller, &id)?;
    let timeout = body.read::<e2b::Connect>()?.timeout;
    let awake = seconds(timeout.unwrap_or(DEFAULT_TIMEOUT_SECONDS), 0)?.min(app.engine.sandboxes.lifetime());
    let resumed = async { app.engine.sandboxes.resume(&sandbox, Some(awake)).await.map_err(refused) };
    let status = if sandbox.is_paused() && resumed.await? {
        StatusCode::CREATED
    } else {
        extend(&app, &sandbox, timeout)?;
        StatusCode::OK
    };
    Ok((status, Json(describe::sandbox(&sandbox, describe::domain(&headers)))).into_response())
}

/// `POST /sandboxes/{id}/resume`
pub(super) async fn resume(
    app: State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    id: Path<String>,
    body: Fields,
) -> Result<Response, ApiError> {
    let mut response = connect(app, caller, headers, id, body).await?;
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

/// Lets a sandbox live for so many seconds from now on at least.
fn extend(app: &App, sandbox: &ClientSandbox, timeout: Option<i64>) -> Result<(), ApiError> {
    let Some(timeout) = timeout else { return Ok(()) };
    sandbox.extend(seconds(timeout, 0)?.min(app.engine.sandboxes.lifetime()));
    Ok(())
}

/// `POST /sandboxes/{id}/pause`
pub(super) async fn pause(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    body: Fields,
) -> Result<StatusCode, ApiError> {
    let sandbox = find(&app, &caller, &id)?;
    let kept = kept(body.read::<e2b::Pause>()?.memory);
    let lifetime = app.engine.sandboxes.lifetime();
    if app.engine.sandboxes.pause(&sandbox, kept, Some(lifetime)).await.map_err(refused)? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::conflict(format!("Sandbox \"{id}\" is paused already")))
    }
}

/// The part that a pause keeps, by the request's field `memory`.
fn kept(memory: Option<bool>) -> KeptPart {
    if memory == Some(false) { KeptPart::Files } else { KeptPart::Everything }
}

/// `POST /sandboxes/{id}/fork`
pub(super) async fn fork(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    find(&app, &caller, &id)?;
    Err(ApiError::bad_request("forking a sandbox is not supported by this server"))
}

/// `POST /sandboxes/{id}/snapshots`
pub(super) async fn snapshot(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    find(&app, &caller, &id)?;
    Err(ApiError::bad_request("snapshots are not supported by this server; pause the sandbox, or copy its files"))
}

/// `GET /snapshots`: there are none.
pub(super) async fn snapshots() -> Json<[(); 0]> {
    Json([])
}

/// `GET /templates/aliases/{alias}`
pub(super) async fn template(
    State(app): State<Arc<App>>,
    Path(alias): Path<String>,
) -> Result<Json<e2b::TemplateAlias>, ApiError> {
    if !known_templates(&app).contains(&alias.as_str()) {
        let shown: String = alias.chars().take(64).collect();
        return Err(ApiError::not_found(format!("template '{shown}' not found")));
    }
    Ok(Json(e2b::TemplateAlias { template_id: alias, public: false }))
}

/// `GET /sandboxes/{id}/metrics`
pub(super) async fn metrics(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    params: Params,
) -> Result<Json<Vec<e2b::Metric>>, ApiError> {
    let sandbox = find(&app, &caller, &id)?;
    let metric = describe::metric(&sandbox).await;
    let bound = |name| params.get(name).map(str::parse::<i64>).transpose();
    let (Ok(start), Ok(end)) = (bound("start"), bound("end")) else {
        return Err(ApiError::bad_request("invalid start or end: seconds since 1970"));
    };
    let now = metric.timestamp_unix;
    let is_wanted = start.is_none_or(|start| start <= now) && end.is_none_or(|end| end >= now);
    Ok(Json(if is_wanted { vec![metric] } else { Vec::new() }))
}

/// `GET /sandboxes/metrics`
pub(super) async fn all_metrics(
    State(app): State<Arc<App>>,
    caller: Caller,
    params: Params,
) -> Result<Json<BTreeMap<String, BTreeMap<String, e2b::Metric>>>, ApiError> {
    let mut metrics = BTreeMap::new();
    for id in params.all("sandbox_ids").flat_map(|ids| ids.split(',')).take(PAGE) {
        if let Ok(sandbox) = find(&app, &caller, id) {
            metrics.insert(id.to_owned(), describe::metric(&sandbox).await);
        }
    }
    Ok(Json(BTreeMap::from([("sandboxes".to_owned(), metrics)])))
}

/// `GET /v2/sandboxes/{id}/logs` and `GET /sandboxes/{id}/logs`
pub(super) async fn logs(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<e2b::Logs>, ApiError> {
    find(&app, &caller, &id)?;
    Ok(Json(e2b::Logs::default()))
}
