//! A message of a client's, checked.

use aludel_store::{MessageId, Tenant, ThreadId, now};
use aludel_wire::assistants::{
    Attachment, Content, ContentPart, CreateMessage, ImageFile, ImageUrl, Message, MessageContent, MessageStatus, Text,
};

use super::tools;
use crate::app::App;
use crate::dialects::openai::attachment::{inline_file, stored_file};
use crate::dialects::openai::conversations::checked_metadata;
use crate::error::ApiError;

/// Characters of one text.
const MAX_TEXT: usize = 256_000;
/// Parts of one message.
const MAX_PARTS: usize = 100;
/// Attachments of one message.
const MAX_ATTACHMENTS: usize = 20;

/// A message of a client's, checked.
pub(super) struct CheckedMessage {
    pub(super) id: MessageId,
    pub(super) message: Message,
    /// Files that its thread gets with it.
    pub(super) files: Vec<String>,
}

impl CheckedMessage {
    /// Checks a message; `at` is its place in the request.
    pub(super) async fn of(
        app: &App,
        tenant: &Tenant,
        thread: &ThreadId,
        sent: CreateMessage,
        at: &str,
    ) -> Result<Self, ApiError> {
        let CreateMessage { role, content, attachments, metadata } = sent;
        let parts = match content {
            MessageContent::Text(text) => vec![checked_text(text, at)?],
            MessageContent::Parts(parts) if parts.is_empty() || parts.len() > MAX_PARTS => {
                let message = format!("Invalid '{at}content': it needs a text, or from 1 to {MAX_PARTS} parts.");
                return Err(ApiError::invalid(format!("{at}content"), message));
            }
            MessageContent::Parts(parts) => {
                let mut checked = Vec::with_capacity(parts.len());
                for part in parts {
                    checked.push(checked_part(app, tenant, part, at).await?);
                }
                checked
            }
        };
        let attachments = attachments.unwrap_or_default();
        if attachments.len() > MAX_ATTACHMENTS {
            let message = format!("Too many '{at}attachments': at most {MAX_ATTACHMENTS}.");
            return Err(ApiError::invalid(format!("{at}attachments"), message));
        }
        for Attachment { file_id, tools: sent } in &attachments {
            stored_file(app, tenant, file_id, &format!("{at}attachments")).await?;
            tools::Tools::read(sent)?;
        }
        let id = MessageId::new();
        let files = attachments.iter().map(|attachment| attachment.file_id.clone()).collect();
        let created_at = now();
        let message = Message {
            id: id.to_string(),
            object: Default::default(),
            created_at,
            thread_id: thread.to_string(),
            status: MessageStatus::Completed,
            incomplete_details: None,
            completed_at: Some(created_at),
            incomplete_at: None,
            role,
            content: parts,
            assistant_id: None,
            run_id: None,
            attachments,
            metadata: checked_metadata(metadata)?,
        };
        Ok(Self { id, message, files })
    }
}

fn checked_text(value: String, at: &str) -> Result<Content, ApiError> {
    if value.is_empty() {
        let message = format!("Invalid '{at}content': a text must not be empty.");
        return Err(ApiError::invalid(format!("{at}content"), message));
    }
    tools::check_length(&format!("{at}content"), Some(&value), MAX_TEXT)?;
    Ok(Content::Text { text: Text { value, annotations: Vec::new() } })
}

async fn checked_part(app: &App, tenant: &Tenant, part: ContentPart, at: &str) -> Result<Content, ApiError> {
    let param = || format!("{at}content");
    match part {
        ContentPart::Text { text } => checked_text(text.into_text(), at),
        ContentPart::ImageFile { image_file: ImageFile { file_id, detail } } => {
            let file = stored_file(app, tenant, &file_id, &param()).await?;
            if !file.mime.starts_with("image/") {
                let message = format!("The file {file_id} is no image; attach it to code_interpreter instead.");
                return Err(ApiError::invalid(param(), message));
            }
            Ok(Content::ImageFile { image_file: ImageFile { file_id, detail } })
        }
        ContentPart::ImageUrl { image_url: ImageUrl { url, detail } } => {
            if !url.starts_with("https://") && !url.starts_with("http://") {
                // Any other URL contains the bytes.
                let inline = inline_file(None, Some(&url), None, &param())?;
                inline.ok_or_else(|| ApiError::invalid(param(), "Images are taken by 'https:' or 'data:' URLs."))?;
            }
            Ok(Content::ImageUrl { image_url: ImageUrl { url, detail } })
        }
    }
}
