//! The Containers API.

use std::sync::Arc;
use std::time::Duration;

use aludel_engine::sessions::{MemoryTier, NewSession, SessionChoice, SessionStatus};
use aludel_engine::{Session, SessionFile};
use aludel_store::{FileId, SessionFileId, SessionFileRecord, SessionId, SessionRecord, Tenant};
use aludel_wire::openai::{
    AddContainerFile, Container as ContainerObject, ContainerFile as ContainerFileObject, CreateContainer, Deleted,
    ExpiresAfter, IdleAnchor, IdleTime, List, MemoryLimit, NetworkPolicy,
};
use axum::Json;
use axum::extract::{FromRequest, Path, Request, State};
use axum::response::Response;

use crate::app::App;
use crate::dialects::openai::environment::environment;
use crate::dialects::openai::files::{MAX_FILE, no_file};
use crate::error::ApiError;
use crate::http::{Caller, Fields, MultipartForm, Params, Upload, attachment};

/// 404, in the words by which clients know it.
pub(crate) fn no_container(id: &str) -> ApiError {
    ApiError::not_found(format!("Container with id '{id}' not found."))
}

/// Reads the protocol's word for the memory of a container.
pub(crate) fn parse_memory(text: &str) -> Option<MemoryLimit> {
    MemoryLimit::ALL.into_iter().find(|limit| tier(*limit).word() == text)
}

/// Refuses more memory than a container may have. The protocol's smallest value stands for the default.
pub(crate) fn check_memory(limit: MemoryLimit, app: &App, param: &str) -> Result<(), ApiError> {
    let fits = |limit: &MemoryLimit| tier(*limit).bytes() <= app.engine.settings.max_memory;
    if limit == MemoryLimit::One || fits(&limit) {
        return Ok(());
    }
    let most = MemoryLimit::ALL.into_iter().rev().find(fits).unwrap_or(MemoryLimit::One);
    let [requested, most] = [limit, most].map(|limit| tier(limit).word());
    let message = format!(
        "Containers here cannot have '{requested}' of memory. The largest possible value is '{most}'; \
         the server's operator can raise it with sandbox.max_memory."
    );
    Err(ApiError::invalid(param, message))
}

/// The engine's word for the memory of a container.
pub(crate) fn tier(limit: MemoryLimit) -> MemoryTier {
    MemoryTier::gib(limit.gib())
}

/// Characters of a container's name.
const MAX_NAME: usize = 256;
/// The longest idle time that a client can set for a container, minutes: a week.
const MAX_MINUTES: u64 = 7 * 24 * 60;

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    fields: Fields,
) -> Result<Json<ContainerObject>, ApiError> {
    let CreateContainer { name, file_ids, memory_limit, network_policy, skills, expires_after, env } = fields.read()?;
    if name.chars().count() > MAX_NAME {
        return Err(ApiError::invalid("name", format!("The 'name' has more than {MAX_NAME} characters.")));
    }
    let file_ids = file_ids.iter().flatten().map(|id| file_id(id)).collect::<Result<_, _>>()?;
    if let Some(limit) = memory_limit {
        check_memory(limit, &app, "memory_limit")?;
    }
    if let Some(policy) = network_policy {
        check_network(&policy)?;
    }
    if skills.is_some_and(|skills| !skills.is_empty()) {
        return Err(ApiError::invalid("skills", "This server has no skills; put the files in with 'file_ids'."));
    }
    let idle = expires_after.as_ref().map(check_idle).transpose()?;
    let environment = environment(env.as_ref(), "env")?;
    let new = NewSession { name, file_ids, memory: memory_limit.map(tier), idle, environment };
    let (_container, record) = app.engine.sessions.create(&tenant, new).await?;
    Ok(Json(render(&app, &record)))
}

/// Checks the idle time after which a container expires, and returns it.
fn check_idle(idle: &IdleTime) -> Result<Duration, ApiError> {
    let IdleTime { anchor: IdleAnchor::LastActiveAt, minutes } = *idle;
    if !(1..=MAX_MINUTES).contains(&minutes) {
        let message = format!("Invalid 'expires_after.minutes': it must be from 1 to {MAX_MINUTES}.");
        return Err(ApiError::invalid("expires_after.minutes", message));
    }
    Ok(Duration::from_secs(minutes * 60))
}

/// Checks the network policy of a container.
pub(crate) fn check_network(policy: &NetworkPolicy) -> Result<(), ApiError> {
    match policy {
        NetworkPolicy::Disabled => Ok(()),
        NetworkPolicy::Allowlist { .. } => {
            let message = "This server's containers have no network, so 'allowlist' cannot be granted; use {\"type\": \"disabled\"}.";
            Err(ApiError::invalid("network_policy", message))
        }
    }
}

pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    params: Params,
) -> Result<Json<List<ContainerObject>>, ApiError> {
    let page = params.page(20, 100)?;
    let page = app.store.sessions(&tenant, params.get("name").map(str::to_owned), page).await?;
    let data = page.data.iter().map(|record| render(&app, record)).collect();
    Ok(Json(List::new(data, page.has_more, |container: &ContainerObject| container.id.clone())))
}

pub(crate) async fn retrieve(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<ContainerObject>, ApiError> {
    let record = find(&app, &tenant, &id).await?;
    if app.engine.sessions.status(&record) == SessionStatus::Running {
        // A client that retrieves a container still needs it.
        app.engine.sessions.open(&tenant, SessionChoice::Explicit(record.id.clone())).await?;
    }
    Ok(Json(render(&app, &find(&app, &tenant, &id).await?)))
}

pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<Deleted>, ApiError> {
    let parsed = SessionId::parse(&id).ok_or_else(|| no_container(&id))?;
    let engine = Arc::clone(&app.engine);
    if !app.tasks.finish(async move { engine.sessions.delete(&tenant, &parsed).await }).await?? {
        return Err(no_container(&id));
    }
    Ok(Json(Deleted::new(id, "container.deleted")))
}

pub(crate) async fn add_file(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<ContainerFileObject>, ApiError> {
    let container = use_container(&app, &tenant, &id).await?;
    let file = if MultipartForm::is_in(&request) {
        let mut form = MultipartForm::read(&app, &tenant, request, "file", MAX_FILE).await?;
        // Some clients send the id in a form.
        match form.text("file_id").map(str::to_owned) {
            Some(id) if form.file.is_none() => add_by_id(&app, &tenant, &container, &id).await?,
            _ => {
                let Upload { name, mime, blob } = form.take_file()?;
                let container = Arc::clone(&container);
                app.tasks.finish(async move { container.add_file(&name, &mime, blob).await }).await??
            }
        }
    } else {
        let AddContainerFile { file_id } = Fields::from_request(request, &app).await?.read()?;
        add_by_id(&app, &tenant, &container, &file_id).await?
    };
    Ok(Json(render_file(&container, file)))
}

async fn add_by_id(app: &App, tenant: &Tenant, container: &Arc<Session>, id: &str) -> Result<SessionFile, ApiError> {
    let file = app.store.file(tenant, &file_id(id)?).await?;
    let file = file.ok_or_else(|| no_file(id).param("file_id"))?;
    let container = Arc::clone(container);
    Ok(app.tasks.finish(async move { container.add_stored_file(&file).await }).await??)
}

pub(crate) async fn list_files(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    params: Params,
) -> Result<Json<List<ContainerFileObject>>, ApiError> {
    let record = find(&app, &tenant, &id).await?;
    let page = app.store.session_files(&tenant, &record.id, params.page(20, 100)?).await?;
    let data = page.data.into_iter().map(|file| render_stored(&record.id, file.into())).collect();
    Ok(Json(List::new(data, page.has_more, |file: &ContainerFileObject| file.id.clone())))
}

pub(crate) async fn retrieve_file(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path((container, file)): Path<(String, String)>,
) -> Result<Json<ContainerFileObject>, ApiError> {
    let (id, file) = find_file(&app, &tenant, &container, &file).await?;
    Ok(Json(render_stored(&id, file.into())))
}

/// The contents of files can be read after the container's end, until it is removed.
pub(crate) async fn file_content(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path((container, file)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let (id, found) = find_file(&app, &tenant, &container, &file).await?;
    let open = app.store.open_session_file(&tenant, &id, &found.id).await?;
    let (file, content) = open.ok_or_else(|| no_file_in(&id, &file))?;
    Ok(attachment(content, file.bytes, &file.mime, &file.path))
}

pub(crate) async fn delete_file(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path((container, file)): Path<(String, String)>,
) -> Result<Json<Deleted>, ApiError> {
    let (id, record) = find_file(&app, &tenant, &container, &file).await?;
    let is_removed = if app.engine.sessions.status(&find(&app, &tenant, &container).await?) == SessionStatus::Running {
        let container = app.engine.sessions.open(&tenant, SessionChoice::Reuse(id.clone())).await?;
        app.tasks.finish(async move { container.delete_file(&record.id).await }).await??
    } else {
        // It stays expired.
        app.store.delete_session_files(&tenant, &id, vec![record.id]).await? > 0
    };
    if !is_removed {
        return Err(no_file_in(&id, &file));
    }
    Ok(Json(Deleted::new(file, "container.file.deleted")))
}

/// The container of this id, for use.
async fn use_container(app: &App, tenant: &Tenant, id: &str) -> Result<Arc<Session>, ApiError> {
    let parsed = SessionId::parse(id).ok_or_else(|| no_container(id))?;
    Ok(app.engine.sessions.open(tenant, SessionChoice::Explicit(parsed)).await?)
}

/// Returns the container of this id, expired or not.
async fn find(app: &App, tenant: &Tenant, id: &str) -> Result<SessionRecord, ApiError> {
    let parsed = SessionId::parse(id).ok_or_else(|| no_container(id))?;
    app.store.session(tenant, &parsed).await?.ok_or_else(|| no_container(id))
}

async fn find_file(
    app: &App,
    tenant: &Tenant,
    container: &str,
    file: &str,
) -> Result<(SessionId, SessionFileRecord), ApiError> {
    let record = find(app, tenant, container).await?;
    let missing = || no_file_in(&record.id, file);
    let id = SessionFileId::parse(file).ok_or_else(missing)?;
    let file = app.store.session_file(tenant, &record.id, &id).await?.ok_or_else(missing)?;
    Ok((record.id, file))
}

fn no_file_in(container: &SessionId, file: &str) -> ApiError {
    ApiError::not_found(format!("File {file} not found on container {container}."))
}

fn file_id(text: &str) -> Result<FileId, ApiError> {
    FileId::parse(text).ok_or_else(|| no_file(text).param("file_ids"))
}

fn render(app: &App, record: &SessionRecord) -> ContainerObject {
    ContainerObject {
        id: record.id.to_string(),
        object: Default::default(),
        created_at: record.created_at,
        status: match app.engine.sessions.status(record) {
            SessionStatus::Running => "running",
            SessionStatus::Expired => "expired",
        },
        name: record.name.clone(),
        last_active_at: record.last_active_ms / 1000,
        // The server's setting may be less than a minute.
        expires_after: ExpiresAfter { anchor: Default::default(), minutes: record.idle.as_secs().div_ceil(60) },
        memory_limit: record.memory_limit.clone().unwrap_or_else(|| tier(MemoryLimit::One).word()),
        network_policy: NetworkPolicy::Disabled,
    }
}

fn render_file(container: &Session, file: SessionFile) -> ContainerFileObject {
    render_stored(container.id(), file)
}

fn render_stored(container: &SessionId, file: SessionFile) -> ContainerFileObject {
    ContainerFileObject {
        id: file.id.to_string(),
        object: Default::default(),
        container_id: container.to_string(),
        created_at: file.created_at,
        bytes: file.bytes,
        path: file.path,
        source: file.source.word(),
    }
}
