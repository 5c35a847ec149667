//! The conversation so far: stored items, and their form for the model and the container.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use aludel_agent::upstream::FunctionTool;
use aludel_agent::{Call, CallOutput, CodeInterpreter, ImageDetail, Item, Part, RemoteImage};
use aludel_engine::Session;
use aludel_engine::approvals::Gate;
use aludel_engine::processor_time::end_long_step;
use aludel_engine::sessions::WORKSPACE;
use aludel_store::{ResponseId, ResponseText, SessionId, Tenant};
use aludel_wire::Document;
use aludel_wire::openai::responses::{
    self, CodeInterpreterCall, ContentPart, FunctionCall, FunctionCallOutput, FunctionOutput, InputFile, InputImage,
    ItemDocument, McpApprovalRequest, McpApprovalResponse, McpCall, Message, MessageContent, OutputText, ProgramOutput,
    Reasoning, Response, Role,
};
use serde::de::IgnoredAny;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::request::{ParsedRequest, no_previous};
use crate::app::App;
use crate::dialects::openai::attachment::{check_count, inline_file, stored_file};
use crate::dialects::openai::conversations::no_conversation;
use crate::dialects::openai::program::replayed_output;
use crate::dialects::reasoning::unwrapped;
use crate::dialects::stored::{Length, MAX_CONTEXT, answered, calls_at_answers, too_long};
use crate::error::ApiError;
use crate::http::MemoryCharge;

/// Tokens that a model's template adds to an item, about.
const ITEM_TOKENS: usize = 4;
/// Fields of items whose texts no model reads.
const UNREAD_FIELDS: [&str; 7] = ["id", "type", "status", "role", "call_id", "container_id", "detail"];

/// The conversation that a request builds on, and its additions.
#[derive(Debug)]
pub(super) struct Context {
    /// All items, oldest first, the new ones last.
    items: Vec<ItemDocument>,
    /// The range of `items` that this request adds.
    new: Range<usize>,
    /// Container of the response that contains the last referenced item.
    referred: Option<SessionId>,
    /// Counts all of it, and the images that come to it.
    memory: MemoryCharge,
}

impl Context {
    /// Collects the items that the request refers to.
    pub(super) async fn collect(app: &App, tenant: &Tenant, request: &ParsedRequest) -> Result<Self, ApiError> {
        let memory = MemoryCharge::of(app, tenant)?;
        let mut items = match (&request.previous, &request.conversation) {
            (Some(previous), _) => chain(app, tenant, previous, &memory).await?,
            (None, Some(conversation)) => {
                if app.store.conversation(tenant, conversation).await?.is_none() {
                    return Err(no_conversation(conversation.as_str()));
                }
                // Counted before it is read, and again with all that is made of it.
                let bytes = app.store.bytes_of_items(tenant, conversation).await?;
                if bytes > MAX_CONTEXT {
                    return Err(too_long());
                }
                let _texts = crate::http::memory(app, tenant, usize::try_from(bytes).unwrap_or(usize::MAX))?;
                let items = app.store.all_items(tenant, conversation, MAX_CONTEXT).await?.ok_or_else(too_long)?;
                memory.read(app, items).await?
            }
            (None, None) => Vec::new(),
        };
        let before = items.len();
        let known = items.iter().enumerate().filter_map(|(index, item)| Some((item.id()?.to_owned(), index)));
        let known: HashMap<String, usize> = known.collect();
        let references = request.input.iter().filter(|item| item.kind() == Some("item_reference"));
        let elsewhere = references.filter_map(ItemDocument::id).filter(|id| !known.contains_key(*id));
        let stored = ReferredItems::collect(app, tenant, elsewhere.map(ToOwned::to_owned).collect(), &memory).await?;
        let mut left = MAX_CONTEXT;
        for item in &request.input {
            let item = match item.kind() {
                Some("item_reference") => {
                    let id = item.id().unwrap_or_default();
                    let found = known.get(id).and_then(|index| items.get(*index)).or_else(|| stored.items.get(id));
                    let found = found.ok_or_else(|| no_item(id))?;
                    // A request may reference one long item any number of times.
                    let text = found.to_string();
                    left = left.checked_sub(text.len() as u64).ok_or_else(too_long)?;
                    memory.count_json(&text)?;
                    found
                }
                _ => item,
            };
            items.push(item.clone());
        }
        let new = before..items.len();
        Ok(Self { items, new, referred: stored.container, memory })
    }

    /// The container that the conversation used last.
    pub(super) fn container(&self) -> Option<SessionId> {
        let used = self.items.iter().rev().find_map(ItemDocument::container_id);
        used.and_then(SessionId::parse).or_else(|| self.referred.clone())
    }

    /// Puts the files of new messages into the container, and names those there that have another name than their message says. A client
    /// that stores nothing here sends its earlier messages again: their files are there, and programs may have changed them.
    pub(super) async fn place_files(
        &mut self,
        app: &App,
        tenant: &Tenant,
        container: &Session,
    ) -> Result<(), ApiError> {
        let new = self.items.get_mut(self.new.clone()).unwrap_or_default();
        let (mut placed, mut count) = (HashMap::new(), 0);
        let last_program = new.iter().rposition(|item| item.kind() == Some("code_interpreter_call"));
        let last_program = last_program.unwrap_or_default();
        let mut present: HashSet<String> = match last_program {
            0 => HashSet::new(),
            _ => container.files().await?.into_iter().map(|file| file.path).collect(),
        };
        // Once for each name: of two files that had one, the second was given another.
        let mut is_there = |place, name: &str| place < last_program && present.remove(&format!("{WORKSPACE}/{name}"));
        for (place, item) in new.iter_mut().enumerate() {
            for (index, part) in parts_of(item).into_iter().enumerate() {
                let (id, data, url, said) = match part {
                    ContentPart::InputFile(file) => (file.file_id, file.file_data, None, file.filename),
                    ContentPart::InputImage(image) => (image.file_id, None, image.image_url, image.filename),
                    _ => continue,
                };
                let name = if let Some(id) = id {
                    // A request may name one file any number of times.
                    if !placed.contains_key(&id) {
                        count += 1;
                        check_count(count)?;
                        let file = stored_file(app, tenant, &id, "input").await?;
                        let name = if is_there(place, &file.filename) {
                            file.filename.clone()
                        } else {
                            let blob = app.store.copy_blob(tenant, &file.blob).await?;
                            container.add_attached_file(&file.filename, &file.mime, blob).await?
                        };
                        placed.insert(id.clone(), (file.filename, name));
                    }
                    let known = placed.get(&id);
                    known.filter(|(own, name)| said.as_ref().unwrap_or(own) != name).map(|(_, name)| name.clone())
                } else if let Some((name, mime, bytes)) =
                    inline_file(data.as_deref(), url.as_deref(), said.as_deref(), "input")?
                {
                    count += 1;
                    check_count(count)?;
                    let given = if is_there(place, &name) {
                        name
                    } else {
                        let blob = app.store.write_blob(tenant, &bytes).await?;
                        container.add_attached_file(&name, &mime, blob).await?
                    };
                    Some(given).filter(|given| said.as_ref().is_some_and(|said| said != given))
                } else {
                    None
                };
                if let Some(name) = name {
                    item.name_file(index, &name);
                }
            }
        }
        Ok(())
    }

    /// The memory counted for it; hold it as long as anything made of it.
    pub(super) fn memory(&self) -> MemoryCharge {
        self.memory.clone()
    }

    /// Converts the items for a model that may call these functions, too.
    pub(super) async fn for_model(
        &self,
        app: &App,
        tenant: &Tenant,
        functions: &[FunctionTool],
    ) -> Result<View, ApiError> {
        let tool_name = CodeInterpreter::name_beside(app.engine.kernel(), functions);
        let mut model = ModelView::new(tool_name, self.memory());
        for (index, item) in self.items.iter().enumerate() {
            if index == self.new.start {
                model.refused.clear();
            }
            end_long_step().await;
            model.add(item.item(), &format!("input[{index}]"), app, tenant).await?;
        }
        let (instructions, refused) = (model.instructions.join("\n\n"), std::mem::take(&mut model.refused));
        let approved = model.approved.intersection(&model.open).cloned().collect();
        Ok(View { instructions, items: model.finish(), refused, approved })
    }

    /// The new items.
    pub(super) fn into_new(mut self) -> Vec<ItemDocument> {
        self.items.drain(self.new.clone()).collect()
    }

    /// Estimates the tokens of the items from their texts. Ids, most of which are ours, and names of fields are not for the model.
    pub(super) fn tokens(&self) -> usize {
        let texts = self.items.iter().map(|item| serde_json::to_value(item).map_or(0, |item| text_bytes(&item)));
        texts.sum::<usize>().div_ceil(4) + ITEM_TOKENS * self.items.len()
    }
}

/// The bytes of the texts in an item.
fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(text_bytes).sum(),
        Value::Object(fields) => {
            let texts = fields.iter().filter(|(name, _)| !UNREAD_FIELDS.contains(&name.as_str()));
            texts.map(|(_, value)| text_bytes(value)).sum()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// A conversation as the model gets it.
#[derive(Debug)]
pub(super) struct View {
    /// The text of system and developer messages.
    pub(super) instructions: String,
    pub(super) items: Vec<Item>,
    /// Programs that the new items refuse, each with the reason.
    pub(super) refused: Vec<(String, String)>,
    /// Ids of the calls to run now, since the client approved them.
    pub(super) approved: HashSet<String>,
}

impl View {
    /// Passes the approved programs to the gate. One that must not run gets an answer that says so. Without a gate, or if the client asks
    /// for no approvals, none runs.
    pub(super) async fn take_approvals(&mut self, gate: Option<&Gate>) -> Result<(), ApiError> {
        let mut items = Vec::with_capacity(self.items.len());
        for item in std::mem::take(&mut self.items) {
            let refused = match &item {
                Item::Call(call) if self.approved.contains(&call.id) => {
                    let reason = match (gate, aludel_agent::code_of(&call.arguments)) {
                        (Some(gate), Ok(code)) => gate.take_approval(&code).await?,
                        _ => Some("approvals are taken with the tool 'mcp' alone".to_owned()),
                    };
                    reason.map(|reason| Item::output(call.id.clone(), aludel_agent::denied(&reason)))
                }
                _ => None,
            };
            items.push(item);
            items.extend(refused);
        }
        self.items = items;
        Ok(())
    }
}

/// The items of a response and of the chain before it, oldest first.
async fn chain(
    app: &App,
    tenant: &Tenant,
    last: &ResponseId,
    memory: &MemoryCharge,
) -> Result<Vec<ItemDocument>, ApiError> {
    let mut links: Vec<Vec<ItemDocument>> = Vec::new();
    let (mut next, mut length) = (Some(last.clone()), Length::default());
    while let Some(id) = next {
        let Some(text) = app.store.response_text(tenant, &id).await? else {
            if id == *last {
                return Err(no_previous(id.as_str()));
            }
            // An earlier one was deleted: the conversation goes on without it.
            break;
        };
        length.add(text.object.len() + text.input.len())?;
        let (items, previous) = link(app, text, memory).await?;
        links.push(items);
        next = previous.as_deref().and_then(ResponseId::parse);
    }
    Ok(links.into_iter().rev().flatten().collect())
}

/// The items of a response, and the id of the one before it.
async fn link(
    app: &App,
    text: ResponseText,
    memory: &MemoryCharge,
) -> Result<(Vec<ItemDocument>, Option<String>), ApiError> {
    let mut items: Vec<ItemDocument> =
        memory.read::<Vec<ItemDocument>>(app, vec![text.input]).await?.into_iter().flatten().collect();
    let mut previous = None;
    for response in memory.read::<Response>(app, vec![text.object]).await? {
        items.extend(response.output.iter().map(responses::Item::document));
        previous = response.previous_response_id;
    }
    Ok((items, previous))
}

/// Stored items that are referred to by their ids.
#[derive(Debug, Default)]
struct ReferredItems {
    items: HashMap<String, ItemDocument>,
    /// The last container of the newest of their responses.
    container: Option<SessionId>,
}

impl ReferredItems {
    /// Finds items of a tenant among its responses and its conversations.
    async fn collect(
        app: &App,
        tenant: &Tenant,
        ids: HashSet<String>,
        memory: &MemoryCharge,
    ) -> Result<Self, ApiError> {
        let mut referred = Self::default();
        if ids.is_empty() {
            return Ok(referred);
        }
        let wanted = |item: &ItemDocument| item.id().filter(|id| ids.contains(*id)).map(ToOwned::to_owned);
        let texts = app.store.responses_of_items(tenant, ids.iter().cloned().collect(), MAX_CONTEXT).await?;
        for text in texts.ok_or_else(too_long)? {
            let (items, _) = link(app, text, memory).await?;
            if referred.container.is_none() {
                let used = items.iter().rev().find_map(ItemDocument::container_id);
                referred.container = used.and_then(SessionId::parse);
            }
            for item in items {
                if let Some(id) = wanted(&item) {
                    referred.items.entry(id).or_insert(item);
                }
            }
        }
        let left: Vec<String> = ids.iter().filter(|id| !referred.items.contains_key(*id)).cloned().collect();
        if !left.is_empty() {
            let items = app.store.items_of_ids(tenant, left, MAX_CONTEXT).await?.ok_or_else(too_long)?;
            for item in memory.read::<ItemDocument>(app, items).await? {
                if let Some(id) = wanted(&item) {
                    referred.items.insert(id, item);
                }
            }
        }
        Ok(referred)
    }
}

fn no_item(id: &str) -> ApiError {
    let message = format!("Item with id '{id}' not found. Items are not persisted when `store` is set to false.");
    ApiError::not_found(message).param("input")
}

/// The parts of a message.
fn parts_of(item: &ItemDocument) -> Vec<ContentPart> {
    if item.kind() != Some("message") {
        return Vec::new();
    }
    match item.item() {
        responses::Item::Message(Message { content: Some(MessageContent::Parts(parts)), .. }) => parts,
        _ => Vec::new(),
    }
}

/// Builds the model's view, in which every call has exactly one output.
struct ModelView {
    /// The name of our tool.
    tool: String,
    instructions: Vec<String>,
    items: Vec<Item>,
    open: HashSet<String>,
    /// Programs that may run now.
    approved: HashSet<String>,
    /// Programs that were refused, each with the reason.
    refused: Vec<(String, String)>,
    /// Names of the tenant's files, which a request may mention any number of times, by their ids.
    file_names: HashMap<String, String>,
    /// Counts the images.
    memory: MemoryCharge,
}

impl ModelView {
    fn new(tool: String, memory: MemoryCharge) -> Self {
        Self {
            tool,
            instructions: Vec::new(),
            items: Vec::new(),
            open: HashSet::new(),
            approved: HashSet::new(),
            refused: Vec::new(),
            file_names: HashMap::new(),
            memory,
        }
    }

    async fn add(&mut self, item: responses::Item, param: &str, app: &App, tenant: &Tenant) -> Result<(), ApiError> {
        use responses::Item as Sent;
        match item {
            Sent::Message(message) => self.message(message, param, app, tenant).await?,
            Sent::Reasoning(reasoning) => {
                let reasoning = reasoning_text(&reasoning);
                if !reasoning.is_empty() {
                    self.items.push(Item::Reasoning(reasoning));
                }
            }
            Sent::CodeInterpreterCall(call) => self.program(call),
            Sent::FunctionCall(FunctionCall { call_id: id, name, mut arguments, .. }) => {
                if serde_json::from_str::<IgnoredAny>(&arguments).is_err() {
                    arguments = "{}".to_owned();
                }
                self.open.insert(id.clone());
                self.items.push(Item::Call(Call { id, name, arguments }));
            }
            Sent::FunctionCallOutput(FunctionCallOutput { call_id, output, .. }) => {
                if !self.open.remove(&call_id) {
                    let message = format!("No tool call found for function call output with call_id {call_id}.");
                    return Err(ApiError::bad_request(message).param("input"));
                }
                let parts = match output {
                    FunctionOutput::Parts(parts) => self.parts(parts, param, app, tenant).await?,
                    FunctionOutput::Text(text) => vec![Part::Text(text)],
                    FunctionOutput::Other(other) => vec![Part::Text(other.to_string())],
                };
                self.items.push(Item::Output(CallOutput { call_id, parts }));
            }
            Sent::McpApprovalRequest(request) => self.approval_request(request)?,
            Sent::McpApprovalResponse(response) => self.approval(response)?,
            Sent::McpCall(McpCall { id, arguments, output, approval_request_id, .. }) => {
                let id = approval_request_id.unwrap_or(id);
                if !self.open.remove(&id) {
                    self.items.push(Item::Call(Call { id: id.clone(), name: self.tool.clone(), arguments }));
                }
                self.approved.remove(&id);
                self.items.push(Item::output(id, replayed_output(&output.unwrap_or_default())));
            }
            Sent::ItemReference(_) => return Err(unknown_item("item_reference", param)),
            Sent::Other(other) => {
                let kind = ItemDocument::from(other);
                return Err(unknown_item(kind.kind().unwrap_or_default(), param));
            }
        }
        Ok(())
    }

    async fn message(&mut self, message: Message, param: &str, app: &App, tenant: &Tenant) -> Result<(), ApiError> {
        let content = match message.content {
            Some(MessageContent::Parts(parts)) => parts,
            Some(MessageContent::Text(_)) | None => Vec::new(),
        };
        let parts = self.parts(content, &format!("{param}.content"), app, tenant).await?;
        let other = match message.role {
            Some(Role::User) => {
                self.items.push(Item::User(parts));
                return Ok(());
            }
            Some(Role::Assistant) => {
                self.items.push(Item::Assistant(aludel_agent::text_of(&parts)));
                return Ok(());
            }
            Some(Role::System | Role::Developer) => {
                self.instructions.push(aludel_agent::text_of(&parts));
                return Ok(());
            }
            Some(Role::Other(other)) => other,
            None => String::new(),
        };
        let message =
            format!("Invalid value: '{other}'. Supported values are: 'assistant', 'system', 'developer', and 'user'.");
        Err(ApiError::invalid(format!("{param}.role"), message))
    }

    async fn parts(
        &mut self,
        content: Vec<ContentPart>,
        param: &str,
        app: &App,
        tenant: &Tenant,
    ) -> Result<Vec<Part>, ApiError> {
        let mut parts = Vec::new();
        for (index, part) in content.into_iter().enumerate() {
            parts.push(match part {
                ContentPart::InputText { text } | ContentPart::Text { text } => Part::Text(text),
                ContentPart::OutputText(OutputText { text, .. }) => Part::Text(text),
                ContentPart::Refusal { refusal } => Part::Text(refusal),
                ContentPart::InputImage(sent) => image(&sent, app, tenant, &self.memory).await?,
                ContentPart::InputFile(sent) => Part::Text(self.file(sent, app, tenant).await?),
                ContentPart::Other(other) => {
                    let kind = Document::<ContentPart>::from(other);
                    let kind = kind.text("type").unwrap_or_default();
                    let message = format!("Parts of type '{kind}' are not understood here.");
                    return Err(ApiError::invalid(format!("{param}[{index}].type"), message));
                }
            });
        }
        Ok(parts)
    }

    /// Converts a file to its name, since programs can read it.
    async fn file(&mut self, file: InputFile, app: &App, tenant: &Tenant) -> Result<String, ApiError> {
        let name = match (file.file_id, file.filename) {
            (_, Some(name)) => name,
            (Some(id), None) => match self.file_names.get(&id) {
                Some(name) => name.clone(),
                None => {
                    let name = stored_file(app, tenant, &id, "input").await?.filename;
                    self.file_names.insert(id, name.clone());
                    name
                }
            },
            (None, None) => {
                let message = "Files are taken by 'file_id', or as 'file_data' with a 'filename'.";
                return Err(ApiError::invalid("input", message));
            }
        };
        Ok(format!("[The user attached a file: {WORKSPACE}/{name}]"))
    }

    /// Adds a waiting program. Its id contains a hash, so the program that was shown is the one that runs.
    fn approval_request(&mut self, request: McpApprovalRequest) -> Result<(), ApiError> {
        let McpApprovalRequest { id, arguments, .. } = request;
        if !id.ends_with(&digest_of(&arguments)) {
            let message = format!("The program of the approval request '{id}' is not the one that was shown.");
            return Err(ApiError::bad_request(message).param("input").code("approval_request_changed"));
        }
        self.open.insert(id.clone());
        self.items.push(Item::Call(Call { id, name: self.tool.clone(), arguments }));
        Ok(())
    }

    fn approval(&mut self, decision: McpApprovalResponse) -> Result<(), ApiError> {
        let McpApprovalResponse { approval_request_id: id, approve, reason, .. } = decision;
        if !self.open.contains(&id) || self.approved.contains(&id) {
            let message = format!("There is no undecided approval request '{id}' in the conversation.");
            return Err(ApiError::bad_request(message).param("input"));
        }
        if approve {
            self.approved.insert(id);
        } else {
            self.open.remove(&id);
            let reason = reason.as_deref().unwrap_or("no reason was given");
            if let Some(code) = self.code_of(&id) {
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
        aludel_agent::code_of(arguments?).ok()
    }

    /// A program that was run, as a call of our tool.
    fn program(&mut self, call: CodeInterpreterCall) {
        let outputs = call.outputs.unwrap_or_default();
        let mut text: String = outputs.iter().filter_map(ProgramOutput::logs).collect();
        let images = outputs.iter().filter(|output| output.is_image()).count();
        if images > 0 {
            text.push_str(&format!("\n[{images} images were shown to the user]"));
        }
        let arguments = aludel_agent::arguments_of(&call.code.unwrap_or_default());
        self.items.push(Item::Call(Call { id: call.id.clone(), name: self.tool.clone(), arguments }));
        self.items.push(Item::output(call.id, replayed_output(&text)));
    }

    /// The items, where every call has an answer.
    fn finish(self) -> Vec<Item> {
        let Self { items, open, approved, .. } = self;
        answered(calls_at_answers(items), |id| open.contains(id) && !approved.contains(id))
    }
}

fn unknown_item(kind: &str, param: &str) -> ApiError {
    ApiError::invalid(format!("{param}.type"), format!("Items of type '{kind}' are not understood here."))
}

async fn image(image: &InputImage, app: &App, tenant: &Tenant, memory: &MemoryCharge) -> Result<Part, ApiError> {
    let detail = ImageDetail::of_word(image.detail.as_deref());
    if let Some(id) = &image.file_id {
        let file = stored_file(app, tenant, id, "input").await?;
        memory.count_file(file.bytes)?;
        let content = app.store.read_blob(&file.blob).await?;
        let data = content.read_whole(file.bytes).await.map_err(ApiError::internal)?;
        return Ok(Part::Image { mime: file.mime, data: data.into(), detail });
    }
    let Some(url) = &image.image_url else {
        return Err(ApiError::invalid("input", "An 'input_image' needs an 'image_url' or a 'file_id'."));
    };
    match inline_file(None, Some(url), image.filename.as_deref(), "input")? {
        Some((_, mime, bytes)) => Ok(Part::Image { mime, data: Arc::from(bytes), detail }),
        None => Ok(Part::ImageUrl(RemoteImage { url: url.clone(), detail })),
    }
}

/// Returns the last part of an approval request's id, a hash of the arguments.
pub(super) fn digest_of(arguments: &str) -> String {
    let digest = Sha256::digest(arguments);
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn reasoning_text(reasoning: &Reasoning) -> String {
    if let Some(reasoning) = reasoning.encrypted_content.as_deref().and_then(unwrapped) {
        return reasoning;
    }
    let parts = reasoning.content.iter().flatten().chain(&reasoning.summary);
    parts.map(|part| part.text.as_str()).collect()
}
