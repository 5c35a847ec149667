//! The routes of messages.

use std::sync::Arc;

use aludel_store::{MessageId, RunId, Tenant, ThreadId};
use aludel_wire::assistants::{Message, UpdateMetadata};
use aludel_wire::openai::{Deleted, List};
use axum::Json;
use axum::extract::{Path, State};
use serde_json::Value;

use super::checked_message::CheckedMessage;
use super::error::{added_message, none_found};
use super::{Paging, id_of, parse_stored, runs, threads, written};
use crate::app::App;
use crate::dialects::openai::conversations::checked_metadata;
use crate::error::ApiError;
use crate::http::{Caller, Fields, Params};

pub(super) async fn create(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(thread): Path<String>,
    fields: Fields,
) -> Result<Json<Message>, ApiError> {
    let thread = threads::parse(&thread)?;
    threads::find(&app, &tenant, &thread).await?;
    runs::expire(&app, &tenant, &thread).await?;
    // Counted until everything made of it is gone.
    let _memory = fields.memory();
    let CheckedMessage { id, message, files } = CheckedMessage::of(&app, &tenant, &thread, fields.read()?, "").await?;
    let (shared, text) = (Arc::clone(&app), written(&message));
    let adding = async move {
        let files = threads::add_files(&shared, &tenant, &thread, &files).await?;
        let added = shared.store.add_message(&tenant, &thread, id, &text).await.map_err(ApiError::from);
        let added = added.and_then(|added| added_message(added, &thread));
        if added.is_err() {
            threads::take_files(&shared, &tenant, &thread, &files).await?;
        }
        added
    };
    app.tasks.finish(adding).await??;
    Ok(Json(message))
}

pub(super) async fn list(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(thread): Path<String>,
    params: Params,
) -> Result<Json<List<Value>>, ApiError> {
    let thread = threads::parse(&thread)?;
    threads::find(&app, &tenant, &thread).await?;
    let run = match params.get("run_id") {
        Some(run) => Some(RunId::parse(run).ok_or_else(|| none_found("run", run))?),
        None => None,
    };
    let Paging { query, is_before } = Paging::of(&params)?;
    let page = app.store.messages(&tenant, &thread, run, query).await?;
    Ok(Json(Paging::list(is_before, page, id_of)))
}

pub(super) async fn retrieve(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path((thread, id)): Path<(String, String)>,
) -> Result<Json<Message>, ApiError> {
    Ok(Json(find(&app, &tenant, &threads::parse(&thread)?, &parse(&id)?).await?))
}

pub(super) async fn update(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path((thread, id)): Path<(String, String)>,
    fields: Fields,
) -> Result<Json<Message>, ApiError> {
    let (thread, id) = (threads::parse(&thread)?, parse(&id)?);
    let before = find(&app, &tenant, &thread, &id).await?;
    let UpdateMetadata { metadata: Some(metadata) } = fields.read()? else { return Ok(Json(before)) };
    let message = Message { metadata: checked_metadata(Some(metadata))?, ..before };
    if !app.store.update_message(&tenant, &thread, &id, &written(&message)).await? {
        return Err(none_found("message", id.as_str()));
    }
    Ok(Json(message))
}

pub(super) async fn delete(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path((thread, id)): Path<(String, String)>,
) -> Result<Json<Deleted>, ApiError> {
    if !app.store.delete_message(&tenant, &threads::parse(&thread)?, &parse(&id)?).await? {
        return Err(none_found("message", &id));
    }
    Ok(Json(Deleted::new(id, "thread.message.deleted")))
}

async fn find(app: &App, tenant: &Tenant, thread: &ThreadId, id: &MessageId) -> Result<Message, ApiError> {
    let found = app.store.message(tenant, thread, id).await?;
    parse_stored(found.ok_or_else(|| none_found("message", id.as_str()))?)
}

fn parse(id: &str) -> Result<MessageId, ApiError> {
    MessageId::parse(id).ok_or_else(|| none_found("message", id))
}
