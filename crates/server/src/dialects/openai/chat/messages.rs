//! The conversation of a request, in the form for the model and the container.

use std::collections::HashSet;

use aludel_agent::{Call, CallOutput, CodeInterpreter, ImageDetail, Item, Part, RemoteImage, text_of};
use aludel_engine::Session;
use aludel_engine::execution::ending_of;
use aludel_engine::sessions::{WORKSPACE, free_name};
use aludel_store::{BlobName, FileId, SessionId, Tenant};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::markdown::{self, AnswerPart};
use super::request::ParsedRequest;
use super::rounds;
use crate::app::App;
use crate::dialects::openai::attachment::{check_count, inline_file, stored_file};
use crate::dialects::openai::program::{replayed, replayed_program};
use crate::error::ApiError;
use crate::http::MemoryCharge;
use crate::links;

/// The most rounds, from the newest, that are looked up for one request.
const MAX_RECALLED: usize = 64;

/// A conversation.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    /// The text of system and developer messages.
    pub(super) instructions: String,
    pub(super) items: Vec<Item>,
    /// The container that it used last.
    pub(super) container: Option<SessionId>,
    files: Vec<AttachedFile>,
    /// The number of files that come before the model's last message.
    old_files: usize,
    /// Calls of the client's functions that are not answered yet.
    open: HashSet<String>,
    /// True if there is a container for files.
    has_container: bool,
    /// True if answers of ours have their programs in their text.
    in_text: bool,
    /// The name of the tool that runs programs.
    tool_name: String,
}

/// A file of a message.
#[derive(Debug)]
struct AttachedFile {
    /// Its name in the message.
    said: String,
    /// Its name in the container: the same, unless an earlier file has it.
    name: String,
    mime: String,
    content: FileContent,
}

#[derive(Debug, PartialEq, Eq)]
enum FileContent {
    Stored { id: FileId, blob: BlobName },
    Inline(Vec<u8>),
}

impl AttachedFile {
    fn new(name: String, mime: String, content: FileContent) -> Self {
        Self { said: name.clone(), name, mime, content }
    }
}

impl FileContent {
    fn has_id(&self, other: &str) -> bool {
        matches!(self, Self::Stored { id, .. } if id.as_str() == other)
    }
}

impl Conversation {
    /// Parses the messages of a request; `memory` counts the programs of earlier rounds, and pictures.
    pub(super) async fn read(
        app: &App,
        tenant: &Tenant,
        request: &ParsedRequest,
        memory: &MemoryCharge,
    ) -> Result<Self, ApiError> {
        let (has_container, in_text) = (request.interpreter.is_some(), request.shown.is_some());
        let tool_name = CodeInterpreter::name_beside(app.engine.kernel(), &request.functions);
        let mut conversation = Self { has_container, in_text, tool_name, ..Self::default() };
        let messages = &request.messages;
        let mut recallable = messages.iter().filter(|message| first_call(message).is_some()).count();
        for (index, message) in messages.iter().enumerate() {
            let param = format!("messages[{index}]");
            let message = message
                .as_object()
                .ok_or_else(|| ApiError::invalid(&param, format!("Invalid type for '{param}': expected an object.")))?;
            let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
            match role {
                "system" | "developer" => {
                    let parts = conversation.parts(app, tenant, message.get("content"), &param).await?;
                    let separator = if conversation.instructions.is_empty() { "" } else { "\n\n" };
                    conversation.instructions.extend([separator, &text_of(&parts)]);
                }
                "user" => {
                    let parts = conversation.parts(app, tenant, message.get("content"), &param).await?;
                    let parts = conversation.with_pictures(parts, memory)?;
                    conversation.items.push(Item::User(parts));
                }
                "assistant" => {
                    conversation.old_files = conversation.files.len();
                    let repeated = message.get("code_interpreter_calls").and_then(Value::as_array);
                    let mut programs: Vec<Value> =
                        repeated.into_iter().flatten().filter(|program| is_whole(program)).cloned().collect();
                    if let (true, Some(call_id)) = (programs.is_empty(), first_call(&messages[index])) {
                        if recallable <= MAX_RECALLED {
                            programs = rounds::recall(app, tenant, call_id, memory).await?;
                        }
                        recallable -= 1;
                    }
                    conversation.assistant(app, tenant, message, programs, &param).await?;
                }
                "tool" => {
                    let call_id = message.get("tool_call_id").and_then(Value::as_str);
                    let call_id = call_id.ok_or_else(|| ApiError::missing(format!("{param}.tool_call_id")))?;
                    if !conversation.open.remove(call_id) {
                        let message = format!(
                            "'{param}' with role 'tool' must be a response to a preceding message with 'tool_calls'; \
                             there is no unanswered call '{call_id}'."
                        );
                        return Err(ApiError::bad_request(message).param(param));
                    }
                    let parts = conversation.parts(app, tenant, message.get("content"), &param).await?;
                    conversation.items.push(Item::Output(CallOutput { call_id: call_id.to_owned(), parts }));
                }
                other => {
                    let message = format!(
                        "Invalid value: '{other}'. Supported values are: 'system', 'developer', 'user', 'assistant', \
                         and 'tool'."
                    );
                    return Err(ApiError::invalid(format!("{param}.role"), message));
                }
            }
        }
        if let Some(call_id) = conversation.open.iter().next() {
            let message = format!(
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each \
                 'tool_call_id'. The following tool_call_ids did not have response messages: {call_id}."
            );
            return Err(ApiError::bad_request(message).param("messages"));
        }
        Ok(conversation)
    }

    async fn assistant(
        &mut self,
        app: &App,
        tenant: &Tenant,
        message: &Map<String, Value>,
        programs: Vec<Value>,
        param: &str,
    ) -> Result<(), ApiError> {
        let container_in = |value: Option<&Value>| value.and_then(Value::as_str).and_then(SessionId::parse);
        self.container = container_in(message.get("container_id")).or(self.container.take());
        for program in &programs {
            self.container = container_in(program.get("container_id")).or(self.container.take());
            self.items.extend(replayed(program, &self.tool_name));
        }
        if let Some(reasoning) =
            message.get("reasoning_content").and_then(Value::as_str).filter(|text| !text.is_empty())
        {
            self.items.push(Item::Reasoning(reasoning.to_owned()));
        }
        let text = match message.get("content") {
            None | Some(Value::Null) => message.get("refusal").and_then(Value::as_str).unwrap_or_default().to_owned(),
            content => text_of(&self.parts(app, tenant, content, param).await?),
        };
        if self.in_text {
            self.answered(app, tenant, &text, param).await?;
        } else if !text.is_empty() {
            self.items.push(Item::Assistant(text));
        }
        let calls = message.get("tool_calls").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        for (index, call) in calls.iter().enumerate() {
            let param = format!("{param}.tool_calls[{index}]");
            let text = |path: &str| call.pointer(path).and_then(Value::as_str);
            let id = text("/id").ok_or_else(|| ApiError::missing(format!("{param}.id")))?;
            let name = text("/function/name").ok_or_else(|| ApiError::missing(format!("{param}.function.name")))?;
            let arguments = text("/function/arguments").unwrap_or_default();
            let arguments = if serde_json::from_str::<Value>(arguments).is_ok() { arguments } else { "{}" };
            if !self.open.insert(id.to_owned()) {
                return Err(ApiError::invalid(
                    format!("{param}.id"),
                    format!("There are two calls with the id '{id}'."),
                ));
            }
            let call = Call { id: id.to_owned(), name: name.to_owned(), arguments: arguments.to_owned() };
            self.items.push(Item::Call(call));
        }
        Ok(())
    }

    /// An answer of ours that has its programs in its text.
    async fn answered(&mut self, app: &App, tenant: &Tenant, text: &str, param: &str) -> Result<(), ApiError> {
        let (said, container) = markdown::read(text, app.engine.kernel().fence());
        let container = match container {
            Some(container) => Some(container),
            None => links::container_in(app, tenant, text).await?,
        };
        self.container = container.or(self.container.take());
        for (index, said) in said.into_iter().enumerate() {
            match said {
                AnswerPart::Text(text) => self.items.push(Item::Assistant(text)),
                AnswerPart::Program { code, logs } => {
                    let replayed = replayed_program(format!("{param}-{index}"), &code, &logs, &self.tool_name);
                    self.items.extend(replayed);
                }
            }
        }
        Ok(())
    }

    async fn parts(
        &mut self,
        app: &App,
        tenant: &Tenant,
        content: Option<&Value>,
        param: &str,
    ) -> Result<Vec<Part>, ApiError> {
        let content = match content {
            None | Some(Value::Null) => return Err(ApiError::missing(format!("{param}.content"))),
            Some(Value::String(text)) => return Ok(vec![Part::Text(text.clone())]),
            Some(Value::Array(content)) => content,
            Some(_) => {
                let message = format!("Invalid type for '{param}.content': expected a text or a list of parts.");
                return Err(ApiError::invalid(format!("{param}.content"), message));
            }
        };
        let mut parts = Vec::with_capacity(content.len());
        for (index, part) in content.iter().enumerate() {
            let param = format!("{param}.content[{index}]");
            let text = |path: &str| part.pointer(path).and_then(Value::as_str);
            parts.push(match text("/type") {
                Some("text") => Part::Text(text("/text").unwrap_or_default().to_owned()),
                Some("refusal") => Part::Text(text("/refusal").unwrap_or_default().to_owned()),
                Some("image_url") => {
                    let url = text("/image_url/url");
                    let url = url.ok_or_else(|| ApiError::missing(format!("{param}.image_url.url")))?.to_owned();
                    Part::ImageUrl(RemoteImage { url, detail: ImageDetail::of_word(text("/image_url/detail")) })
                }
                Some("file") => {
                    let file = part.get("file").unwrap_or(&Value::Null);
                    let id = file.get("file_id").and_then(Value::as_str);
                    let known = id.and_then(|id| self.files.iter().find(|known| known.content.has_id(id)));
                    match known {
                        Some(known) => mention(&known.name),
                        None => mention(self.attach(attached(app, tenant, file, &param).await?)?),
                    }
                }
                other => {
                    let message = format!("Parts of type '{}' are not understood here.", other.unwrap_or_default());
                    return Err(ApiError::invalid(format!("{param}.type"), message));
                }
            });
        }
        Ok(parts)
    }

    /// Adds a file, and returns its name in the container. A request may bring one file along any number of times.
    fn attach(&mut self, file: AttachedFile) -> Result<&str, ApiError> {
        let is_same = |known: &AttachedFile| known.said == file.said && known.content == file.content;
        let index = match self.files.iter().position(is_same) {
            Some(known) => known,
            None => {
                check_count(self.files.len() + 1)?;
                let taken = self.files.iter().map(|known| known.name.clone()).collect();
                self.files.push(AttachedFile { name: free_name(&file.said, &taken), ..file });
                self.files.len() - 1
            }
        };
        Ok(self.files.get(index).map_or("", |file| &file.name))
    }

    /// Adds the names under which programs find the pictures of a message. One that comes again has the same name, and those that are too
    /// many are only shown.
    fn with_pictures(&mut self, parts: Vec<Part>, memory: &MemoryCharge) -> Result<Vec<Part>, ApiError> {
        if !self.has_container {
            return Ok(parts);
        }
        let mut all = Vec::with_capacity(parts.len());
        for part in parts {
            // Whatever is no picture in base64 is for the model to understand.
            let picture = match &part {
                Part::ImageUrl(RemoteImage { url, .. }) => {
                    inline_file(None, Some(url), None, "messages").ok().flatten()
                }
                _ => None,
            };
            all.push(part);
            let Some((_, mime, bytes)) = picture else { continue };
            let digest: String = Sha256::digest(&bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            let name = format!("input_{digest}.{}", ending_of(&mime).unwrap_or("bin"));
            if !self.files.iter().any(|file| file.name == name) {
                if check_count(self.files.len() + 1).is_err() {
                    continue;
                }
                memory.count_file(bytes.len() as u64)?;
                self.files.push(AttachedFile::new(name.clone(), mime, FileContent::Inline(bytes)));
            }
            all.push(mention(&name));
        }
        Ok(all)
    }

    /// Bytes of its texts and images.
    pub(super) fn bytes(&self) -> u64 {
        let of_parts = |parts: &[Part]| -> usize {
            let of_part = |part: &Part| match part {
                Part::Text(text) => text.len(),
                Part::ImageUrl(image) => image.url.len(),
                Part::Image { data, .. } => data.len(),
            };
            parts.iter().map(of_part).sum()
        };
        let of_item = |item: &Item| match item {
            Item::User(parts) => of_parts(parts),
            Item::Assistant(text) | Item::Reasoning(text) => text.len(),
            Item::Call(call) => call.arguments.len(),
            Item::Output(output) => of_parts(&output.parts),
        };
        self.items.iter().map(of_item).sum::<usize>() as u64
    }

    /// Copies the files of the messages into the container. Every request repeats the old ones: they are there unless the container is new.
    pub(super) async fn place_files(&self, app: &App, container: &Session) -> Result<(), ApiError> {
        if self.files.is_empty() {
            return Ok(());
        }
        let tenant = container.tenant();
        let present: HashSet<String> = container.files().await?.into_iter().map(|file| file.path).collect();
        for (index, file) in self.files.iter().enumerate() {
            if index < self.old_files && present.contains(&format!("{WORKSPACE}/{}", file.name)) {
                continue;
            }
            let blob = match &file.content {
                FileContent::Stored { blob, .. } => app.store.copy_blob(tenant, blob).await?,
                FileContent::Inline(bytes) => app.store.write_blob(tenant, bytes).await?,
            };
            container.add_file(&file.name, &file.mime, blob).await?;
        }
        Ok(())
    }
}

async fn attached(app: &App, tenant: &Tenant, file: &Value, param: &str) -> Result<AttachedFile, ApiError> {
    if let Some(id) = file.get("file_id").and_then(Value::as_str) {
        let file = stored_file(app, tenant, id, &format!("{param}.file.file_id")).await?;
        let content = FileContent::Stored { id: file.id, blob: file.blob };
        return Ok(AttachedFile::new(file.filename, file.mime, content));
    }
    if file.get("filename").and_then(Value::as_str).is_none() {
        let message = "Files are taken by 'file_id', or as 'file_data' with a 'filename'.";
        return Err(ApiError::invalid(format!("{param}.file"), message));
    }
    let text = |name: &str| file.get(name).and_then(Value::as_str);
    let param = format!("{param}.file.file_data");
    let inline = inline_file(text("file_data"), None, text("filename"), &param)?;
    let inline = inline.ok_or_else(|| ApiError::missing(param))?;
    let (name, mime, bytes) = inline;
    Ok(AttachedFile::new(name, mime, FileContent::Inline(bytes)))
}

/// The note by which the model learns of a file.
fn mention(name: &str) -> Part {
    Part::Text(format!("[The user attached a file: {WORKSPACE}/{name}]"))
}

/// Returns true if a program came back whole: of a stream, OpenAI's Node client keeps the last piece of a field that it does not know.
fn is_whole(program: &Value) -> bool {
    ["id", "code"]
        .into_iter()
        .all(|field| program.get(field).and_then(Value::as_str).is_some_and(|text| !text.is_empty()))
}

/// The id of the first function call in an assistant's message.
fn first_call(message: &Value) -> Option<&str> {
    message
        .pointer("/tool_calls/0/id")?
        .as_str()
        .filter(|_| message.get("role").is_some_and(|role| role == "assistant"))
}
