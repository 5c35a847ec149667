//! The Conversations API.

use std::sync::Arc;

use aludel_store::{ConversationId, ConversationRecord, PageQuery, Tenant, fresh_id};
use aludel_wire::openai::{Conversation, Deleted, List};
use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::http::{Caller, Fields, Params};

/// Items that can be added at once.
const MAX_ITEMS: usize = 20;

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    mut fields: Fields,
) -> Result<Json<Conversation>, ApiError> {
    let metadata = metadata(&mut fields)?.unwrap_or_else(|| json!({}));
    let items = items(fields.optional("items")?.unwrap_or_default())?;
    Ok(Json(render(app.store.add_conversation(&tenant, metadata, items).await?)))
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
    mut fields: Fields,
) -> Result<Json<Conversation>, ApiError> {
    let record = find(&app, &tenant, &id).await?;
    let metadata = metadata(&mut fields)?.unwrap_or_else(|| json!({}));
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
    mut fields: Fields,
) -> Result<Json<List<Value>>, ApiError> {
    let items = items(fields.required("items")?)?;
    let added = items.iter().map(|(_, item)| item.clone()).collect();
    if !app.store.add_items(&tenant, &parse(&id)?, items).await? {
        return Err(no_conversation(&id));
    }
    Ok(Json(List::new(added, false, item_id)))
}

pub(crate) async fn list_items(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    params: Params,
) -> Result<Json<List<Value>>, ApiError> {
    let record = find(&app, &tenant, &id).await?;
    let page: PageQuery = params.page(20, 100)?;
    if let Some(after) = &page.after
        && app.store.item(&tenant, &record.id, after).await?.is_none()
    {
        return Err(no_item(&id, after));
    }
    let page = app.store.items(&tenant, &record.id, page).await?;
    Ok(Json(List::new(page.data, page.has_more, item_id)))
}

pub(crate) async fn retrieve_item(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path((id, item)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let found = app.store.item(&tenant, &parse(&id)?, &item).await?;
    found.map(Json).ok_or_else(|| no_item(&id, &item))
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

/// 404, for a conversation that is not there or somebody else's.
pub(crate) fn no_conversation(id: &str) -> ApiError {
    ApiError::not_found(format!("Conversation with id '{id}' not found."))
}

fn no_item(conversation: &str, item: &str) -> ApiError {
    ApiError::not_found(format!("Item '{item}' not found in conversation '{conversation}'."))
}

/// Sixteen pairs of short texts, as everywhere in the API.
pub(crate) fn metadata(fields: &mut Fields) -> Result<Option<Value>, ApiError> {
    const PAIRS: usize = 16;
    const KEY: usize = 64;
    const VALUE: usize = 512;
    let Some(metadata) = fields.optional::<Map<String, Value>>("metadata")? else { return Ok(None) };
    let fits = |(key, value): (&String, &Value)| {
        key.chars().count() <= KEY && value.as_str().is_some_and(|text| text.chars().count() <= VALUE)
    };
    if metadata.len() > PAIRS || !metadata.iter().all(fits) {
        let message = format!(
            "Invalid 'metadata': at most {PAIRS} pairs, keys of at most {KEY} and texts of at most {VALUE} characters."
        );
        return Err(ApiError::invalid("metadata", message));
    }
    Ok(Some(Value::Object(metadata)))
}

fn items(items: Vec<Value>) -> Result<Vec<(String, Value)>, ApiError> {
    if items.len() > MAX_ITEMS {
        return Err(ApiError::invalid("items", format!("Too many 'items': at most {MAX_ITEMS} can be added at once.")));
    }
    items.into_iter().enumerate().map(|(index, item)| stored_item(item, &format!("items[{index}]"))).collect()
}

/// Brings an item into the form in which it is kept and given back: with a type, an id, and parts instead of plain text. `param` names it
/// in errors.
pub(crate) fn stored_item(item: Value, param: &str) -> Result<(String, Value), ApiError> {
    let Value::Object(mut item) = item else {
        return Err(ApiError::invalid(param, format!("Invalid '{param}': it must be an object.")));
    };
    let kind = match item.get("type") {
        Some(Value::String(kind)) => kind.clone(),
        None | Some(Value::Null) if item.contains_key("role") => "message".to_owned(),
        _ => return Err(ApiError::missing(format!("{param}.type"))),
    };
    let id = match item.get("id") {
        Some(Value::String(id)) if (1..=64).contains(&id.len()) => id.clone(),
        None | Some(Value::Null) => fresh_id(prefix(&kind)),
        Some(_) => {
            let message = format!("Invalid '{param}.id': it must be a text of at most 64 characters.");
            return Err(ApiError::invalid(format!("{param}.id"), message));
        }
    };
    if kind == "message" {
        complete_message(&mut item, param)?;
    }
    item.insert("type".to_owned(), kind.into());
    item.insert("id".to_owned(), id.clone().into());
    Ok((id, Value::Object(item)))
}

fn complete_message(message: &mut Map<String, Value>, param: &str) -> Result<(), ApiError> {
    let role = message.get("role").and_then(Value::as_str).ok_or_else(|| ApiError::missing(format!("{param}.role")))?;
    let is_answer = role == "assistant";
    match message.get_mut("content") {
        Some(content @ Value::String(_)) => {
            let text = content.take();
            *content = if is_answer {
                json!([{ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }])
            } else {
                json!([{ "type": "input_text", "text": text }])
            };
        }
        Some(Value::Array(_)) => {}
        _ => return Err(ApiError::missing(format!("{param}.content"))),
    }
    message.entry("status").or_insert_with(|| "completed".into());
    Ok(())
}

/// What ids of items of a kind begin with.
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

fn item_id(item: &Value) -> String {
    item.get("id").and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn render(record: ConversationRecord) -> Conversation {
    Conversation {
        id: record.id.into(),
        object: Default::default(),
        created_at: record.created_at,
        metadata: record.metadata,
    }
}
