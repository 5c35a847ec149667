//! The conversation so far: stored items, and what the model and the container get of them.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use aludel_agent::{Call, Item, Output, Part};
use aludel_engine::Session;
use aludel_engine::sessions::WORKSPACE;
use aludel_store::{ContainerId, ResponseId, Tenant};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::ask::{Ask, no_previous};
use crate::app::App;
use crate::conversations::no_conversation;
use crate::error::ApiError;
use crate::turn::{inline_file, replayed, replayed_output, stored_file};

/// Responses that one may build on, one after another.
const MAX_CHAIN: usize = 1000;
/// Bytes of items that make up one context.
const MAX_CONTEXT: u64 = 256 << 20;
/// What marks thoughts that we wrapped, so that clients can send them back.
const WRAPPED: &str = "aludel.";

/// What a request builds on and adds.
#[derive(Debug)]
pub(super) struct Context {
    /// All items, oldest first, the new ones last.
    items: Vec<Value>,
    /// Which of them are new.
    new: Range<usize>,
    /// Whether the new ones were dealt with before a restart.
    is_resumed: bool,
}

impl Context {
    /// Collects what the request refers to.
    pub(super) async fn collect(app: &App, tenant: &Tenant, ask: &Ask) -> Result<Self, ApiError> {
        let mut items = match (&ask.previous, &ask.conversation) {
            (Some(previous), _) => chain(app, tenant, previous).await?,
            (None, Some(conversation)) => {
                if app.store.conversation(tenant, conversation).await?.is_none() {
                    return Err(no_conversation(conversation.as_str()));
                }
                app.store.all_items(tenant, conversation, MAX_CONTEXT).await?.ok_or_else(too_long)?
            }
            (None, None) => Vec::new(),
        };
        let before = items.len();
        let known: HashMap<String, Value> =
            items.iter().filter_map(|item| Some((item.get("id")?.as_str()?.to_owned(), item.clone()))).collect();
        for item in &ask.input {
            items.push(resolved(item, &known)?);
        }
        let new = before..items.len();
        Ok(Self { items, new, is_resumed: false })
    }

    /// The same as it was when the server ended: with the items that were new, and what was answered.
    pub(super) fn resumed(mut self, new: Vec<Value>, answered: &[Value]) -> Self {
        self.new = self.items.len()..self.items.len() + new.len();
        self.items.extend(new);
        self.items.extend_from_slice(answered);
        self.is_resumed = true;
        self
    }

    /// The container that the conversation used last.
    pub(super) fn container(&self) -> Option<ContainerId> {
        let used = self.items.iter().rev().find_map(|item| item.get("container_id")?.as_str());
        used.and_then(ContainerId::parse)
    }

    /// Puts the files of new messages into the container.
    pub(super) async fn place_files(&self, app: &App, tenant: &Tenant, container: &Session) -> Result<(), ApiError> {
        if self.is_resumed {
            return Ok(());
        }
        let new = self.items.get(self.new.clone()).unwrap_or_default();
        let parts: Vec<&Value> = new.iter().filter_map(|item| item.get("content")?.as_array()).flatten().collect();
        for part in parts {
            let kind = part.get("type").and_then(Value::as_str);
            if !matches!(kind, Some("input_file" | "input_image")) {
                continue;
            }
            if let Some(id) = part.get("file_id").and_then(Value::as_str) {
                container.add_stored_file(&stored_file(app, tenant, id).await?).await?;
            } else if let Some((name, mime, bytes)) = inline_file(part)? {
                let mut blob = app.store.new_blob().await?;
                blob.write(&bytes).await?;
                container.add_file(&name, &mime, blob.finish().await?).await?;
            }
        }
        Ok(())
    }

    /// The items as the model gets them, and what goes with them.
    pub(super) async fn for_model(&self, app: &App, tenant: &Tenant) -> Result<View, ApiError> {
        let mut model = ForModel::default();
        for (index, item) in self.items.iter().enumerate() {
            if index == self.new.start {
                model.refused.clear();
            }
            model.add(item, &format!("input[{index}]"), app, tenant).await?;
        }
        if self.is_resumed {
            model.refused.clear();
        }
        let (instructions, refused) = (model.instructions.join("\n\n"), std::mem::take(&mut model.refused));
        Ok(View { instructions, items: model.finish(), refused })
    }

    /// The new items.
    pub(super) fn into_new(mut self) -> Vec<Value> {
        self.items.drain(self.new.clone()).collect()
    }

    /// About as many tokens as the items are.
    pub(super) fn tokens(&self) -> usize {
        self.items.iter().map(|item| item.to_string().len()).sum::<usize>().div_ceil(4)
    }
}

/// A conversation as the model gets it.
#[derive(Debug)]
pub(super) struct View {
    /// What system and developer messages say.
    pub(super) instructions: String,
    pub(super) items: Vec<Item>,
    /// Programs that the new items refuse, each with the reason.
    pub(super) refused: Vec<(String, String)>,
}

/// The items of a response and of all that it builds on, oldest first.
async fn chain(app: &App, tenant: &Tenant, last: &ResponseId) -> Result<Vec<Value>, ApiError> {
    let mut links: Vec<Vec<Value>> = Vec::new();
    let (mut next, mut bytes) = (Some(last.clone()), 0);
    while let Some(id) = next {
        let Some(record) = app.store.response(tenant, &id).await? else {
            if id == *last {
                return Err(no_previous(id.as_str()));
            }
            // An earlier one was deleted: what is left goes on without it.
            break;
        };
        let mut items = record.input;
        items.extend(record.object.get("output").and_then(Value::as_array).cloned().unwrap_or_default());
        bytes += items.iter().map(|item| item.to_string().len() as u64).sum::<u64>();
        if links.len() >= MAX_CHAIN || bytes > MAX_CONTEXT {
            return Err(too_long());
        }
        links.push(items);
        next = record.object.get("previous_response_id").and_then(Value::as_str).and_then(ResponseId::parse);
    }
    Ok(links.into_iter().rev().flatten().collect())
}

fn too_long() -> ApiError {
    let message = format!("The conversation is longer than {} MB; begin a new one.", MAX_CONTEXT >> 20);
    ApiError::bad_request(message).code("context_length_exceeded")
}

fn resolved(item: &Value, known: &HashMap<String, Value>) -> Result<Value, ApiError> {
    if item.get("type").is_some_and(|kind| kind == "item_reference") {
        let id = item.get("id").and_then(Value::as_str).unwrap_or_default();
        return known.get(id).cloned().ok_or_else(|| {
            ApiError::not_found(format!(
                "Item with id '{id}' not found. Items are not persisted when `store` is set to false."
            ))
            .param("input")
        });
    }
    Ok(item.clone())
}

/// Builds the model's view, in which every call has exactly one output.
#[derive(Default)]
struct ForModel {
    instructions: Vec<String>,
    items: Vec<Item>,
    open: HashSet<String>,
    /// Programs that may run now.
    approved: HashSet<String>,
    /// Programs that were refused, each with the reason.
    refused: Vec<(String, String)>,
}

impl ForModel {
    async fn add(&mut self, item: &Value, param: &str, app: &App, tenant: &Tenant) -> Result<(), ApiError> {
        let text = |name: &str| item.get(name).and_then(Value::as_str).unwrap_or_default();
        match text("type") {
            "message" => self.message(item, param, app, tenant).await?,
            "reasoning" => {
                let thoughts = thoughts_of(item);
                if !thoughts.is_empty() {
                    self.items.push(Item::Reasoning(thoughts));
                }
            }
            "code_interpreter_call" => self.program(item),
            "function_call" => {
                let id = text("call_id").to_owned();
                self.open.insert(id.clone());
                let arguments = text("arguments");
                let arguments = if serde_json::from_str::<Value>(arguments).is_ok() { arguments } else { "{}" };
                self.items.push(Item::Call(Call { id, name: text("name").into(), arguments: arguments.into() }));
            }
            "function_call_output" => {
                let id = text("call_id");
                if !self.open.remove(id) {
                    let message = format!("No tool call found for function call output with call_id {id}.");
                    return Err(ApiError::bad_request(message).param("input"));
                }
                let parts = match item.get("output") {
                    Some(Value::Array(parts)) => self.parts(parts, param, app, tenant).await?,
                    Some(Value::String(text)) => vec![Part::Text(text.clone())],
                    other => vec![Part::Text(other.map(Value::to_string).unwrap_or_default())],
                };
                self.items.push(Item::Output(Output { call_id: id.to_owned(), parts }));
            }
            "mcp_approval_request" => self.approval_request(item)?,
            "mcp_approval_response" => self.approval(item)?,
            "mcp_call" => {
                let id =
                    item.get("approval_request_id").and_then(Value::as_str).unwrap_or_else(|| text("id")).to_owned();
                if !self.open.remove(&id) {
                    let arguments = text("arguments").to_owned();
                    self.items.push(Item::Call(Call { id: id.clone(), name: "python".into(), arguments }));
                }
                self.approved.remove(&id);
                self.items.push(Item::output(id, replayed_output(text("output"))));
            }
            other => {
                let message = format!("Items of type '{other}' are not understood here.");
                return Err(ApiError::invalid(format!("{param}.type"), message));
            }
        }
        Ok(())
    }

    async fn message(&mut self, item: &Value, param: &str, app: &App, tenant: &Tenant) -> Result<(), ApiError> {
        let content = item.get("content").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let role = item.get("role").and_then(Value::as_str).unwrap_or_default();
        let parts = self.parts(content, &format!("{param}.content"), app, tenant).await?;
        match role {
            "user" => self.items.push(Item::User(parts)),
            "assistant" => self.items.push(Item::Assistant(aludel_agent::text_of(&parts))),
            "system" | "developer" => self.instructions.push(aludel_agent::text_of(&parts)),
            other => {
                let message = format!(
                    "Invalid value: '{other}'. Supported values are: 'assistant', 'system', 'developer', and 'user'."
                );
                return Err(ApiError::invalid(format!("{param}.role"), message));
            }
        }
        Ok(())
    }

    async fn parts(&self, content: &[Value], param: &str, app: &App, tenant: &Tenant) -> Result<Vec<Part>, ApiError> {
        let mut parts = Vec::new();
        for (index, part) in content.iter().enumerate() {
            let text = |name: &str| part.get(name).and_then(Value::as_str);
            parts.push(match text("type") {
                Some("input_text" | "output_text" | "text") => Part::Text(text("text").unwrap_or_default().to_owned()),
                Some("refusal") => Part::Text(text("refusal").unwrap_or_default().to_owned()),
                Some("input_image") => image(part, app, tenant).await?,
                Some("input_file") => Part::Text(self.file(part, app, tenant).await?),
                other => {
                    let message = format!("Parts of type '{}' are not understood here.", other.unwrap_or_default());
                    return Err(ApiError::invalid(format!("{param}[{index}].type"), message));
                }
            });
        }
        Ok(parts)
    }

    /// A file is told by its name; programs can read it.
    async fn file(&self, part: &Value, app: &App, tenant: &Tenant) -> Result<String, ApiError> {
        let name = match part.get("file_id").and_then(Value::as_str) {
            Some(id) => stored_file(app, tenant, id).await?.filename,
            None => match part.get("filename").and_then(Value::as_str) {
                Some(name) => name.to_owned(),
                None => {
                    let message = "Files are taken by 'file_id', or as 'file_data' with a 'filename'.";
                    return Err(ApiError::invalid("input", message));
                }
            },
        };
        Ok(format!("[The user attached a file: {WORKSPACE}/{name}]"))
    }

    /// A program that waits. Its id vouches for it: what was shown is what will run.
    fn approval_request(&mut self, item: &Value) -> Result<(), ApiError> {
        let text = |name: &str| item.get(name).and_then(Value::as_str).unwrap_or_default();
        let (id, arguments) = (text("id"), text("arguments"));
        if !id.ends_with(&digest_of(arguments)) {
            let message = format!("The program of the approval request '{id}' is not the one that was shown.");
            return Err(ApiError::bad_request(message).param("input").code("approval_request_changed"));
        }
        self.open.insert(id.to_owned());
        let call = Call { id: id.to_owned(), name: "python".into(), arguments: arguments.to_owned() };
        self.items.push(Item::Call(call));
        Ok(())
    }

    fn approval(&mut self, item: &Value) -> Result<(), ApiError> {
        let id = item.get("approval_request_id").and_then(Value::as_str).unwrap_or_default();
        if !self.open.contains(id) || self.approved.contains(id) {
            let message = format!("There is no undecided approval request '{id}' in the conversation.");
            return Err(ApiError::bad_request(message).param("input"));
        }
        if item.get("approve") == Some(&Value::Bool(true)) {
            self.approved.insert(id.to_owned());
        } else {
            self.open.remove(id);
            let reason = item.get("reason").and_then(Value::as_str).unwrap_or("no reason was given");
            if let Some(code) = self.code_of(id) {
                self.refused.push((code, reason.to_owned()));
            }
            self.items.push(Item::output(id, aludel_agent::denied(reason)));
        }
        Ok(())
    }

    /// The program of a call.
    fn code_of(&self, id: &str) -> Option<String> {
        let arguments = self.items.iter().find_map(|item| match item {
            Item::Call(call) if call.id == id => Some(&call.arguments),
            _ => None,
        });
        Some(serde_json::from_str::<Value>(arguments?).ok()?.get("code")?.as_str()?.to_owned())
    }

    /// A program that was run, as a call of our tool.
    fn program(&mut self, item: &Value) {
        self.items.extend(replayed(item));
    }

    /// What was called and never answered gets an answer that says so: models are told of no call without one.
    fn finish(self) -> Vec<Item> {
        let Self { items, open, approved, .. } = self;
        let mut finished = Vec::with_capacity(items.len());
        for item in items {
            let unanswered = match &item {
                Item::Call(call) if open.contains(&call.id) && !approved.contains(&call.id) => Some(call.id.clone()),
                _ => None,
            };
            finished.push(item);
            finished.extend(unanswered.map(|id| Item::output(id, "(the call was not answered)")));
        }
        finished
    }
}

async fn image(part: &Value, app: &App, tenant: &Tenant) -> Result<Part, ApiError> {
    if let Some(id) = part.get("file_id").and_then(Value::as_str) {
        let file = stored_file(app, tenant, id).await?;
        let path = app.store.blob_path(&file.blob);
        let data = tokio::fs::read(&path).await.map_err(ApiError::internal)?;
        return Ok(Part::Image { mime: file.mime, data: data.into() });
    }
    let url = part.get("image_url").and_then(Value::as_str);
    let url = url.ok_or_else(|| ApiError::invalid("input", "An 'input_image' needs an 'image_url' or a 'file_id'."))?;
    match inline_file(part)? {
        Some((_, mime, bytes)) => Ok(Part::Image { mime, data: Arc::from(bytes) }),
        None => Ok(Part::ImageUrl(url.to_owned())),
    }
}

/// What an approval request's id ends with: it stands for the arguments.
pub(super) fn digest_of(arguments: &str) -> String {
    let digest = Sha256::digest(arguments);
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Thoughts in a form that a client can keep and send back: opaque to it, but no secret from it.
pub(super) fn wrapped(thoughts: &str) -> String {
    format!("{WRAPPED}{}", BASE64_STANDARD.encode(thoughts))
}

fn thoughts_of(item: &Value) -> String {
    let wrapped = item.get("encrypted_content").and_then(Value::as_str).and_then(|text| text.strip_prefix(WRAPPED));
    if let Some(bytes) = wrapped.and_then(|text| BASE64_STANDARD.decode(text).ok()) {
        return String::from_utf8_lossy(&bytes).into_owned();
    }
    let parts = ["content", "summary"].into_iter().filter_map(|name| item.get(name)?.as_array()).flatten();
    parts.filter_map(|part| part.get("text")?.as_str()).collect()
}
