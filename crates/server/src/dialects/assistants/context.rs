//! A thread as the model gets it.

use std::collections::HashMap;
use std::sync::Arc;

use aludel_agent::{Call, ImageDetail, Item, Part, RemoteImage};
use aludel_store::{FileId, Tenant, ThreadId};
use aludel_wire::assistants::{
    CodeOutput, Content, ImageFile, ImageUrl, Message, Role, RunStep, StepDetails, ToolCall,
};

use crate::app::App;
use crate::dialects::openai::attachment::inline_file;
use crate::dialects::openai::program::replayed_program;
use crate::error::{ApiError, CONTEXT_EXCEEDED};
use crate::http::MemoryCharge;

/// Bytes of a thread's messages and steps for a model.
const MAX_CONTEXT: u64 = 64 << 20;
/// Bytes of a thread's images for a model; older ones are left out.
const MAX_IMAGES: u64 = 64 << 20;

/// The messages of a thread and the calls between them, oldest first.
#[derive(Debug)]
pub(super) struct Context {
    entries: Vec<Entry>,
    /// Counts all of it, and the images that come to it.
    memory: MemoryCharge,
}

#[derive(Debug)]
enum Entry {
    Message(Box<Message>),
    Calls(Vec<ToolCall>),
}

impl Context {
    /// Reads a thread, or its last messages with the calls after the first of those.
    pub(super) async fn of(
        app: &App,
        tenant: &Tenant,
        thread: &ThreadId,
        last_messages: Option<u32>,
    ) -> Result<Self, ApiError> {
        let contents = app.store.thread_contents(tenant, thread, MAX_CONTEXT).await?;
        let (messages, steps) = contents.ok_or_else(|| {
            let message = format!("The thread is longer than {} MB; begin a new one.", MAX_CONTEXT >> 20);
            ApiError::bad_request(message).code(CONTEXT_EXCEEDED)
        })?;
        let mut entries: Vec<(String, Entry)> = Vec::with_capacity(messages.len() + steps.len());
        let memory = MemoryCharge::of(app, tenant)?;
        for message in memory.read::<Message>(app, messages).await? {
            entries.push((order_of(&message.id), Entry::Message(Box::new(message))));
        }
        for step in memory.read::<RunStep>(app, steps).await? {
            if let StepDetails::ToolCalls { tool_calls } = step.step_details {
                entries.push((order_of(&step.id), Entry::Calls(tool_calls)));
            }
        }
        entries.sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut entries: Vec<Entry> = entries.into_iter().map(|(_, entry)| entry).collect();
        if let Some(count) = last_messages.and_then(|count| usize::try_from(count).ok()) {
            let messages = entries.iter().enumerate().filter(|(_, entry)| matches!(entry, Entry::Message(_)));
            let first = messages.map(|(index, _)| index).rev().nth(count.saturating_sub(1));
            entries.drain(..first.unwrap_or_default());
        }
        Ok(Self { entries, memory })
    }

    /// The memory counted for it; hold it as long as anything made of it.
    pub(super) fn memory(&self) -> MemoryCharge {
        self.memory.clone()
    }

    /// The ids of files that come with messages.
    pub(super) fn attached(&self) -> Vec<String> {
        let messages = self.entries.iter().filter_map(|entry| match entry {
            Entry::Message(message) if message.role == Role::User => Some(&**message),
            _ => None,
        });
        messages.flat_map(|message| &message.attachments).map(|attached| attached.file_id.clone()).collect()
    }

    /// The conversation for the model. `tool` is the name of our tool, `paths` are those of files by id.
    pub(super) async fn items(
        self,
        app: &App,
        tenant: &Tenant,
        tool: &str,
        paths: &HashMap<&str, &str>,
    ) -> Result<Vec<Item>, ApiError> {
        let mut items = Vec::new();
        let mut remaining = MAX_IMAGES;
        // The newest images matter most.
        for entry in self.entries.into_iter().rev() {
            let mut parts = match entry {
                Entry::Message(message) => vec![match message.role {
                    Role::User => {
                        Item::User(user_parts((app, tenant, &self.memory), *message, paths, &mut remaining).await?)
                    }
                    Role::Assistant => Item::Assistant(text_of(&message.content)),
                }],
                Entry::Calls(calls) => called(calls, tool),
            };
            parts.reverse();
            items.extend(parts);
        }
        items.reverse();
        Ok(items)
    }
}

/// The part of an id that orders.
fn order_of(id: &str) -> String {
    id.split_once('_').map_or(id, |(_, rest)| rest).to_owned()
}

fn text_of(content: &[Content]) -> String {
    let texts = content.iter().filter_map(|part| match part {
        Content::Text { text } => Some(text.value.as_str()),
        Content::ImageFile { .. } | Content::ImageUrl { .. } => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// The parts of a user's message.
async fn user_parts(
    (app, tenant, memory): (&App, &Tenant, &MemoryCharge),
    message: Message,
    paths: &HashMap<&str, &str>,
    remaining: &mut u64,
) -> Result<Vec<Part>, ApiError> {
    let mut parts = Vec::new();
    for part in message.content {
        parts.push(match part {
            Content::Text { text } => Part::Text(text.value),
            Content::ImageFile { image_file } => match image((app, tenant, memory), &image_file, remaining).await? {
                Some(image) => image,
                None => Part::Text("[an image that is not there any more]".to_owned()),
            },
            Content::ImageUrl { image_url: ImageUrl { url, detail } } => {
                let detail = ImageDetail::of_word(detail.as_deref());
                match inline_file(None, Some(&url), None, "content")? {
                    Some((_, mime, bytes)) => Part::Image { mime, data: Arc::from(bytes), detail },
                    None => Part::ImageUrl(RemoteImage { url, detail }),
                }
            }
        });
    }
    for attached in message.attachments {
        if let Some(path) = paths.get(attached.file_id.as_str()) {
            parts.push(Part::Text(format!("[The user attached a file: {path}]")));
        }
    }
    Ok(parts)
}

/// An image of the Files API, unless it was deleted or is larger than the rest of the allowance.
async fn image(
    (app, tenant, memory): (&App, &Tenant, &MemoryCharge),
    image: &ImageFile,
    remaining: &mut u64,
) -> Result<Option<Part>, ApiError> {
    let Some(id) = FileId::parse(&image.file_id) else { return Ok(None) };
    let Some(file) = app.store.file(tenant, &id).await? else { return Ok(None) };
    let Some(rest) = remaining.checked_sub(file.bytes) else { return Ok(None) };
    *remaining = rest;
    memory.count_file(file.bytes)?;
    let content = app.store.read_blob(&file.blob).await?;
    let data = content.read_whole(file.bytes).await.map_err(ApiError::internal)?;
    let detail = ImageDetail::of_word(image.detail.as_deref());
    Ok(Some(Part::Image { mime: file.mime, data: data.into(), detail }))
}

/// Calls of tools with their outputs.
fn called(calls: Vec<ToolCall>, tool: &str) -> Vec<Item> {
    let (mut items, mut outputs) = (Vec::new(), Vec::new());
    for call in calls {
        match call {
            ToolCall::CodeInterpreter { id, code_interpreter } => {
                let shown = code_interpreter.outputs.into_iter().map(|output| match output {
                    CodeOutput::Logs { logs } => logs,
                    CodeOutput::Image { .. } => "\n[an image was shown to the user]\n".to_owned(),
                });
                let [call, output] = replayed_program(id, &code_interpreter.input, &shown.collect::<String>(), tool);
                items.push(call);
                outputs.push(output);
            }
            ToolCall::Function { id, function } => {
                let output = function.output.flatten().unwrap_or_else(|| "(the call was not answered)".to_owned());
                outputs.push(Item::output(&id, output));
                items.push(Item::Call(Call { id, name: function.name, arguments: function.arguments }));
            }
        }
    }
    items.extend(outputs);
    items
}
