//! The Conversations API.

use std::sync::Arc;

use aludel_store::{ConversationId, ConversationRecord, PageQuery, QuotaCheck, Tenant, fresh_id};
use aludel_wire::openai::responses::{ContentPart, ItemDocument, ItemStatus};
use aludel_wire::openai::{AddItems, Conversation, CreateConversation, Deleted, List, ListObject, UpdateConversation};
use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::responses::include::{Include, shown_document};
use crate::app::App;
use crate::error::ApiError;
use crate::http::{Caller, Fields, Params};

/// Items that can be added at once.
const MAX_ITEMS: usize = 20;

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    fields: Fields,
) -> Result<Json<Conversation>, ApiError> {
    let CreateConversation { metadata, items } = fields.read()?;
    let metadata = checked_metadata(metadata)?;
    let items = stored_items(items.unwrap_or_default())?;
    Ok(Json(render(app.store.add_conversation(&tenant, metadata.into(), in_json(items)).await?)))
}

pub(crate) async fn retrieve(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<Conversation>, ApiError> {
    Ok(Json(render(find(&app, &tenant, &id).await?)))
}

pub(crate) async fn update(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    fields: Fields,
) -> Result<Json<Conversation>, ApiError> {
    let record = find(&app, &tenant, &id).await?;
    let UpdateConversation { metadata } = fields.read()?;
    let metadata = checked_metadata(metadata)?.into();
    if !app.store.update_conversation(&tenant, &record.id, &metadata).await? {
        return Err(no_conversation(&id));
    }
    Ok(Json(render(ConversationRecord { metadata, ..record })))
}

pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<Deleted>, ApiError> {
    if !app.store.delete_conversation(&tenant, &parse(&id)?).await? {
        return Err(no_conversation(&id));
    }
    Ok(Json(Deleted::new(id, "conversation.deleted")))
}

pub(crate) async fn add_items(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    fields: Fields,
) -> Result<Json<List<ItemDocument>>, ApiError> {
    let AddItems { items } = fields.read()?;
    let items = stored_items(items)?;
    let added = items.iter().map(|(_, item)| item.clone()).collect();
    if !app.store.add_items(&tenant, &parse(&id)?, in_json(items), QuotaCheck::Checked).await? {
        return Err(no_conversation(&id));
    }
    Ok(Json(List::new(added, false, item_id)))
}

pub(crate) async fn list_items(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    params: Params,
) -> Result<Response, ApiError> {
    let record = find(&app, &tenant, &id).await?;
    let page: PageQuery = params.page(20, 100)?;
    let after = page.after.clone().unwrap_or_default();
    let page = app.store.items(&tenant, &record.id, page).await?.ok_or_else(|| no_item(&id, &after))?;
    let (ids, items): (Vec<String>, Vec<String>) = page.data.into_iter().unzip();
    let (first_id, last_id) = (ids.first().cloned(), ids.last().cloned());
    // As they are stored, without a tree for each.
    let include = Include::of(params.all("include"));
    let data = items.into_iter().map(|item| shown(item, include)).collect::<Result<Vec<_>, _>>()?;
    let list = List { object: ListObject::It, data, first_id, last_id, has_more: page.has_more };
    Ok(Json(list).into_response())
}

pub(crate) async fn retrieve_item(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path((id, item)): Path<(String, String)>,
    params: Params,
) -> Result<Response, ApiError> {
    let found = app.store.item(&tenant, &parse(&id)?, &item).await?.ok_or_else(|| no_item(&id, &item))?;
    Ok(Json(shown(found, Include::of(params.all("include")))?).into_response())
}

/// A stored item for a client: with programs' output and encrypted reasoning only on request.
fn shown(item: String, include: Include) -> Result<Box<RawValue>, ApiError> {
    let broken = |error| ApiError::internal(format!("stored JSON is not whole: {error}"));
    let may_hide = ["\"code_interpreter_call\"", "\"reasoning\""].iter().any(|kind| item.contains(kind));
    if !may_hide {
        return RawValue::from_string(item).map_err(broken);
    }
    let item: ItemDocument = serde_json::from_str(&item).map_err(broken)?;
    serde_json::value::to_raw_value(&shown_document(item, include)).map_err(broken)
}

pub(crate) async fn delete_item(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path((id, item)): Path<(String, String)>,
) -> Result<Json<Conversation>, ApiError> {
    let record = find(&app, &tenant, &id).await?;
    if !app.store.delete_item(&tenant, &record.id, &item).await? {
        return Err(no_item(&id, &item));
    }
    Ok(Json(render(record)))
}

async fn find(app: &App, tenant: &Tenant, id: &str) -> Result<ConversationRecord, ApiError> {
    app.store.conversation(tenant, &parse(id)?).await?.ok_or_else(|| no_conversation(id))
}

fn parse(id: &str) -> Result<ConversationId, ApiError> {
    ConversationId::parse(id).ok_or_else(|| no_conversation(id))
}

/// 404, for a conversation that does not exist or belongs to another tenant.
pub(crate) fn no_conversation(id: &str) -> ApiError {
    ApiError::not_found(format!("Conversation with id '{id}' not found."))
}

fn no_item(conversation: &str, item: &str) -> ApiError {
    ApiError::not_found(format!("Item '{item}' not found in conversation '{conversation}'."))
}

/// Checks metadata: at most sixteen pairs of short texts, as everywhere in the API.
pub(crate) fn checked_metadata(metadata: Option<Map<String, Value>>) -> Result<Map<String, Value>, ApiError> {
    const PAIRS: usize = 16;
    const KEY: usize = 64;
    const VALUE: usize = 512;
    let metadata = metadata.unwrap_or_default();
    let fits = |(key, value): (&String, &Value)| {
        key.chars().count() <= KEY && value.as_str().is_some_and(|text| text.chars().count() <= VALUE)
    };
    if metadata.len() > PAIRS || !metadata.iter().all(fits) {
        let message = format!(
            "Invalid 'metadata': at most {PAIRS} pairs, keys of at most {KEY} and texts of at most {VALUE} characters."
        );
        return Err(ApiError::invalid("metadata", message));
    }
    Ok(metadata)
}

fn stored_items(items: Vec<ItemDocument>) -> Result<Vec<(String, ItemDocument)>, ApiError> {
    if items.len() > MAX_ITEMS {
        return Err(ApiError::invalid("items", format!("Too many 'items': at most {MAX_ITEMS} can be added at once.")));
    }
    items.into_iter().enumerate().map(|(index, item)| stored_item(item, &format!("items[{index}]"))).collect()
}

fn in_json(items: Vec<(String, ItemDocument)>) -> Vec<(String, Value)> {
    items.into_iter().map(|(id, item)| (id, item.into_json())).collect()
}

/// Converts an item into its stored form: with a type, an id, and parts instead of plain text. Returns its id as well. `param` names it in
/// errors.
pub(crate) fn stored_item(mut item: ItemDocument, param: &str) -> Result<(String, ItemDocument), ApiError> {
    if !item.is_object() {
        return Err(ApiError::invalid(param, format!("Invalid '{param}': it must be an object.")));
    }
    let kind = match item.kind() {
        Some(kind) => kind.to_owned(),
        None if item.lacks("type") && item.has("role") => "message".to_owned(),
        None => return Err(ApiError::missing(format!("{param}.type"))),
    };
    let id = match item.id() {
        Some(id) if (1..=64).contains(&id.len()) => id.to_owned(),
        None if item.lacks("id") => fresh_id(prefix(&kind)),
        _ => {
            let message = format!("Invalid '{param}.id': it must be a text of at most 64 characters.");
            return Err(ApiError::invalid(format!("{param}.id"), message));
        }
    };
    if kind == "message" {
        complete_message(&mut item, param)?;
    }
    item.identify(&kind, &id);
    Ok((id, item))
}

fn complete_message(message: &mut ItemDocument, param: &str) -> Result<(), ApiError> {
    let role = message.text("role").ok_or_else(|| ApiError::missing(format!("{param}.role")))?;
    match message.text("content") {
        Some(text) if role == "assistant" => message.set_content(&[ContentPart::output_text(text)]),
        Some(text) => message.set_content(&[ContentPart::input_text(text)]),
        None if message.is_list("content") => {}
        None => return Err(ApiError::missing(format!("{param}.content"))),
    }
    message.default_status(ItemStatus::Completed);
    Ok(())
}

/// Returns the beginning of the ids of items of a kind.
fn prefix(kind: &str) -> &'static str {
    match kind {
        "message" => "msg_",
        "reasoning" => "rs_",
        "code_interpreter_call" => "ci_",
        "function_call" => "fc_",
        "function_call_output" => "fco_",
        "mcp_approval_request" => "mcpr_",
        _ => "item_",
    }
}

fn item_id(item: &ItemDocument) -> String {
    item.id().unwrap_or_default().to_owned()
}

fn render(record: ConversationRecord) -> Conversation {
    Conversation {
        id: record.id.into(),
        object: Default::default(),
        created_at: record.created_at,
        metadata: record.metadata,
    }
}
