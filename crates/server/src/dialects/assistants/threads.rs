//! The routes of threads.

use std::sync::Arc;

use aludel_store::{MessageId, RemovedThread, Tenant, ThreadId, ThreadRecord, now};
use aludel_wire::assistants::{CreateThread, Thread, ToolResources, UpdateThread};
use aludel_wire::openai::Deleted;
use axum::Json;
use axum::extract::{Path, State};
use serde_json::Value;
use tracing::error;

use super::checked_message::CheckedMessage;
use super::error::{check, none_found};
use super::{parse_stored, tools, written};
use crate::app::App;
use crate::dialects::openai::conversations::checked_metadata;
use crate::error::ApiError;
use crate::http::{Caller, Fields};
use crate::turn;

/// Files of one thread, including those of its messages.
const MAX_FILES: usize = 200;
/// Attempts to change a thread while others change it. Each failed attempt means that another change succeeded.
const MAX_TRIES: usize = 300;
/// Messages of one request.
pub(super) const MAX_MESSAGES: usize = 1000;

pub(super) async fn create(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    fields: Fields,
) -> Result<Json<Thread>, ApiError> {
    // Counted until everything made of it is gone.
    let _memory = fields.memory();
    Ok(Json(add(&app, &tenant, fields.read()?).await?))
}

pub(super) async fn retrieve(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<Thread>, ApiError> {
    Ok(Json(parse_stored(find(&app, &tenant, &parse(&id)?).await?.object)?))
}

pub(super) async fn update(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    fields: Fields,
) -> Result<Json<Thread>, ApiError> {
    let id = parse(&id)?;
    find(&app, &tenant, &id).await?;
    let UpdateThread { tool_resources, metadata } = fields.read()?;
    let resources = match tool_resources {
        Some(sent) => Some(tools::resources(&app, &tenant, sent).await?),
        None => None,
    };
    let metadata = if metadata.is_some() { Some(checked_metadata(metadata)?) } else { None };
    let changed = change(&app, &tenant, &id, |thread| {
        if let Some(resources) = &resources {
            thread.tool_resources = resources.clone();
        }
        if let Some(metadata) = &metadata {
            thread.metadata = metadata.clone();
        }
        Ok(())
    });
    Ok(Json(changed.await?))
}

pub(super) async fn delete(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<Deleted>, ApiError> {
    let thread = parse(&id)?;
    let shared = Arc::clone(&app);
    app.tasks.finish(async move { remove(&shared, &tenant, &thread).await }).await??;
    Ok(Json(Deleted::new(id, "thread.deleted")))
}

/// Removes a thread with everything that belongs to it.
pub(super) async fn remove(app: &App, tenant: &Tenant, id: &ThreadId) -> Result<(), ApiError> {
    let removed = app.store.delete_thread(tenant, id).await?;
    let RemovedThread { session, turn } = removed.ok_or_else(|| none_found("thread", id.as_str()))?;
    if let Some(in_flight) = turn.and_then(|turn| app.engine.in_flight.find(tenant, &turn)) {
        turn::stop(&in_flight).await;
    }
    if let Some(session) = session
        && let Err(error) = app.engine.sessions.delete(tenant, &session).await
    {
        // The session will expire.
        error!("cannot remove the session of {id}: {error}");
    }
    Ok(())
}

/// Makes a thread.
pub(super) async fn add(app: &App, tenant: &Tenant, sent: CreateThread) -> Result<Thread, ApiError> {
    let CreateThread { messages, tool_resources, metadata } = sent;
    let messages = messages.unwrap_or_default();
    if messages.len() > MAX_MESSAGES {
        return Err(ApiError::invalid("messages", format!("Too many 'messages': at most {MAX_MESSAGES}.")));
    }
    let id = ThreadId::new();
    let mut tool_resources = match tool_resources {
        Some(sent) => tools::resources(app, tenant, sent).await?,
        None => Default::default(),
    };
    let (mut rows, mut attached) = (Vec::<(MessageId, Value)>::with_capacity(messages.len()), Vec::new());
    for (index, sent) in messages.into_iter().enumerate() {
        let CheckedMessage { id, message, files } =
            CheckedMessage::of(app, tenant, &id, sent, &format!("messages[{index}].")).await?;
        attached.extend(files);
        rows.push((id, written(&message)));
    }
    tool_resources.add_files(attached);
    check_files(&tool_resources)?;
    let metadata = checked_metadata(metadata)?;
    let thread = Thread { id: id.to_string(), object: Default::default(), created_at: now(), metadata, tool_resources };
    check(&app.store.add_thread(tenant, id.clone(), &written(&thread), rows).await?, &id, "threads")?;
    Ok(thread)
}

/// Gives a thread more files.
pub(super) async fn add_files(
    app: &App,
    tenant: &Tenant,
    id: &ThreadId,
    files: &[String],
) -> Result<Vec<String>, ApiError> {
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let mut added = Vec::new();
    let add = |thread: &mut Thread| {
        let before = thread.tool_resources.file_ids().len();
        thread.tool_resources.add_files(files.to_vec());
        let all = thread.tool_resources.file_ids();
        added = all.get(before..).unwrap_or_default().to_vec();
        check_files(&thread.tool_resources)
    };
    change(app, tenant, id, add).await?;
    Ok(added)
}

/// Takes files out of a thread again.
pub(super) async fn take_files(app: &App, tenant: &Tenant, id: &ThreadId, files: &[String]) -> Result<(), ApiError> {
    if files.is_empty() {
        return Ok(());
    }
    let take = |thread: &mut Thread| {
        thread.tool_resources.take_files(files);
        Ok(())
    };
    change(app, tenant, id, take).await.map(drop)
}

fn check_files(resources: &ToolResources) -> Result<(), ApiError> {
    if resources.file_ids().len() > MAX_FILES {
        let message =
            format!("The thread would have more than {MAX_FILES} files; take some out of its 'tool_resources'.");
        return Err(ApiError::invalid("attachments", message));
    }
    Ok(())
}

/// Changes a thread. If others change it meanwhile, the change is applied again to their result.
async fn change(
    app: &App,
    tenant: &Tenant,
    id: &ThreadId,
    mut change: impl FnMut(&mut Thread) -> Result<(), ApiError>,
) -> Result<Thread, ApiError> {
    for _ in 0..MAX_TRIES {
        let was = find(app, tenant, id).await?.object;
        let mut thread: Thread = parse_stored(was.clone())?;
        change(&mut thread)?;
        if app.store.update_thread(tenant, id, &was, &written(&thread)).await? {
            return Ok(thread);
        }
    }
    Err(ApiError::unavailable("Many requests change this thread at once; try again in a moment."))
}

/// A thread of the tenant's.
pub(super) async fn find(app: &App, tenant: &Tenant, id: &ThreadId) -> Result<ThreadRecord, ApiError> {
    app.store.thread(tenant, id).await?.ok_or_else(|| none_found("thread", id.as_str()))
}

pub(super) fn parse(id: &str) -> Result<ThreadId, ApiError> {
    ThreadId::parse(id).ok_or_else(|| none_found("thread", id))
}

/// The ids of a thread's files.
pub(super) async fn files(app: &App, tenant: &Tenant, id: &ThreadId) -> Result<Vec<String>, ApiError> {
    let thread: Thread = parse_stored(find(app, tenant, id).await?.object)?;
    Ok(thread.tool_resources.file_ids().to_vec())
}
