//! The routes of assistants.

use std::sync::Arc;

use aludel_store::{AddOutcome, AssistantId, Tenant, now};
use aludel_wire::assistants::{Assistant, CreateAssistant, ToolDocument};
use aludel_wire::openai::{Deleted, List};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use serde_json::Value;

use super::error::{none_found, too_many};
use super::start::USUAL;
use super::tools::{self, Tools};
use super::{Paging, parse_stored, written};
use crate::app::App;
use crate::dialects::openai::conversations::checked_metadata;
use crate::error::ApiError;
use crate::http::{Caller, Fields, Params};

/// Characters of a name, of a description and of instructions.
const MAX_NAME: usize = 256;
const MAX_DESCRIPTION: usize = 512;
pub(super) const MAX_INSTRUCTIONS: usize = 256_000;

pub(super) async fn create(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    fields: Fields,
) -> Result<(HeaderMap, Json<Assistant>), ApiError> {
    let sent: CreateAssistant = fields.read()?;
    let model = sent.model.clone().ok_or_else(|| ApiError::missing("model"))?;
    let id = AssistantId::new();
    let empty = Assistant {
        id: id.to_string(),
        object: Default::default(),
        created_at: now(),
        name: None,
        description: None,
        model,
        instructions: None,
        tools: Vec::new(),
        tool_resources: Default::default(),
        metadata: Default::default(),
        temperature: Some(USUAL),
        top_p: Some(USUAL),
        response_format: "auto".into(),
        reasoning_effort: None,
    };
    let assistant = changed(&app, &tenant, empty, sent).await?;
    match app.store.add_assistant(&tenant, id, &written(&assistant)).await? {
        AddOutcome::Full { limit } => Err(too_many(limit, "assistants")),
        _ => Ok((tools::notes(&assistant.tools), Json(assistant))),
    }
}

pub(super) async fn retrieve(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<Assistant>, ApiError> {
    Ok(Json(find(&app, &tenant, &id).await?))
}

pub(super) async fn update(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    fields: Fields,
) -> Result<(HeaderMap, Json<Assistant>), ApiError> {
    let before = find(&app, &tenant, &id).await?;
    let assistant = changed(&app, &tenant, before, fields.read()?).await?;
    if !app.store.update_assistant(&tenant, &parse(&id)?, &written(&assistant)).await? {
        return Err(none_found("assistant", &id));
    }
    Ok((tools::notes(&assistant.tools), Json(assistant)))
}

pub(super) async fn delete(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<Deleted>, ApiError> {
    if !app.store.delete_assistant(&tenant, &parse(&id)?).await? {
        return Err(none_found("assistant", &id));
    }
    Ok(Json(Deleted::new(id, "assistant.deleted")))
}

pub(super) async fn list(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    params: Params,
) -> Result<Json<List<Value>>, ApiError> {
    let Paging { query, is_before } = Paging::of(&params)?;
    let page = app.store.assistants(&tenant, query).await?;
    Ok(Json(Paging::list(is_before, page, super::id_of)))
}

/// An assistant of the tenant's.
pub(super) async fn find(app: &App, tenant: &Tenant, id: &str) -> Result<Assistant, ApiError> {
    let found = app.store.assistant(tenant, &parse(id)?).await?;
    parse_stored(found.ok_or_else(|| none_found("assistant", id))?)
}

fn parse(id: &str) -> Result<AssistantId, ApiError> {
    AssistantId::parse(id).ok_or_else(|| none_found("assistant", id))
}

/// The assistant with a client's changes; other fields stay as they are.
async fn changed(app: &App, tenant: &Tenant, before: Assistant, sent: CreateAssistant) -> Result<Assistant, ApiError> {
    tools::check_word("model", sent.model.as_deref())?;
    tools::check_word("reasoning_effort", sent.reasoning_effort.as_deref())?;
    for (name, text, most) in [
        ("name", &sent.name, MAX_NAME),
        ("description", &sent.description, MAX_DESCRIPTION),
        ("instructions", &sent.instructions, MAX_INSTRUCTIONS),
    ] {
        tools::check_length(name, text.as_deref(), most)?;
    }
    let all: Vec<ToolDocument> = sent.tools.unwrap_or(before.tools);
    Tools::read(&all)?;
    tools::check_sampling(sent.temperature, sent.top_p)?;
    let response_format = sent.response_format.unwrap_or(before.response_format);
    tools::answer_format(&response_format)?;
    Ok(Assistant {
        name: sent.name.or(before.name),
        description: sent.description.or(before.description),
        model: sent.model.unwrap_or(before.model),
        instructions: sent.instructions.or(before.instructions),
        tools: all,
        tool_resources: match sent.tool_resources {
            Some(sent) => tools::resources(app, tenant, sent).await?,
            None => before.tool_resources,
        },
        metadata: match sent.metadata {
            Some(sent) => checked_metadata(Some(sent))?,
            None => before.metadata,
        },
        temperature: sent.temperature.or(before.temperature),
        top_p: sent.top_p.or(before.top_p),
        response_format,
        reasoning_effort: sent.reasoning_effort.or(before.reasoning_effort),
        ..before
    })
}
