//! The tool `files`.

use std::sync::Arc;

use aludel_agent::{excerpt, size};
use aludel_engine::execution::mime_of;
use aludel_engine::sessions::WORKSPACE;
use aludel_engine::{Arrival, Session};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rmcp::model::{CallToolRequestParams, CallToolResult, ContentBlock};

use super::calls::{MAX_IMAGES, failed, read};
use super::error::ToolError;
use super::resources::{self, Content, MAX_READ};
use super::server::Server;
use super::tools::{Encoding, FilesAction, FilesArguments};
use crate::error::without_stop;
use crate::http::MemoryCharge;
use crate::workspace_path::within_workspace;

/// Files that are listed.
const MAX_LISTED: usize = 200;
/// Bytes of a text that a result holds.
const MAX_TEXT: usize = 30_000;

/// Carries out a call of `files`.
pub(super) async fn call(
    server: &Server,
    request: CallToolRequestParams,
    arrival: Option<Arrival>,
    memory: Option<&MemoryCharge>,
) -> CallToolResult {
    if let Some(arrival) = &arrival {
        arrival.wait().await;
    }
    let done = async {
        let arguments: FilesArguments = read(request.arguments)?;
        match arguments.action {
            FilesAction::List => list(server, &arguments).await,
            FilesAction::Read => read_file(server, &arguments, memory).await,
            FilesAction::Write => write(server, arguments).await,
            FilesAction::Delete => delete(server, &arguments).await,
        }
    };
    match done.await {
        Ok(content) => CallToolResult::success(content),
        Err(error) => failed(&error),
    }
}

async fn list(server: &Server, arguments: &FilesArguments) -> Result<Vec<ContentBlock>, ToolError> {
    let session = server.session(arguments.session.as_deref()).await?;
    let files = session.files().await?;
    let listed = files.iter().take(MAX_LISTED);
    let lines = listed.map(|file| format!("{} ({})", excerpt::path(resources::shown_path(file)), size(file.bytes)));
    let mut text = lines.collect::<Vec<_>>().join("\n");
    if files.is_empty() {
        text.push_str("There are no files.");
    }
    if files.len() > MAX_LISTED {
        text.push_str(&format!("\nand {} more", files.len() - MAX_LISTED));
    }
    Ok(vec![ContentBlock::text(format!("{text}\n(session {})", session.id()))])
}

async fn read_file(
    server: &Server,
    arguments: &FilesArguments,
    memory: Option<&MemoryCharge>,
) -> Result<Vec<ContentBlock>, ToolError> {
    let path = path(arguments)?;
    let session = server.session(arguments.session.as_deref()).await?;
    let id = session.id().to_string();
    let content = resources::content(server, &id, path, MAX_READ, memory).await?.ok_or_else(|| no_file(path))?;
    let Content { bytes, mime } = content;
    if matches!(&*mime, "image/png" | "image/jpeg") && bytes.len() as u64 <= MAX_IMAGES {
        let text = format!("{path}: an image of {}", size(bytes.len() as u64));
        return Ok(vec![ContentBlock::text(text), ContentBlock::image(BASE64_STANDARD.encode(&bytes), mime)]);
    }
    match (Content { bytes, mime }).into_text() {
        Ok(text) => Ok(vec![ContentBlock::text(excerpt::head_and_tail(&text, MAX_TEXT))]),
        Err(bytes) => {
            let uri = resources::uri(&id, path);
            let size = size(bytes.len() as u64);
            let text = format!("{path} has {size} and is no text: read the resource {uri}, or let a program read it.");
            Ok(vec![ContentBlock::text(text)])
        }
    }
}

async fn write(server: &Server, arguments: FilesArguments) -> Result<Vec<ContentBlock>, ToolError> {
    let name = within_workspace(path(&arguments)?).to_owned();
    let content = arguments.content.ok_or_else(|| ToolError("Send the `content` to write.".to_owned()))?;
    let bytes = match arguments.encoding {
        None | Some(Encoding::Text) => content.into_bytes(),
        Some(Encoding::Base64) => BASE64_STANDARD
            .decode(content.trim())
            .map_err(|error| ToolError(format!("The `content` is not valid base64: {}.", without_stop(&error))))?,
    };
    let session = server.session(arguments.session.as_deref()).await?;
    let (store, tenant, into) = (server.mcp.engine.store.clone(), server.tenant.clone(), Arc::clone(&session));
    let writing = async move { into.add_file(&name, mime_of(&name), store.write_blob(&tenant, &bytes).await?).await };
    let file = server.mcp.engine.tasks.finish(writing).await??;
    let text = format!("Wrote {} ({}).\n(session {})", file.path, size(file.bytes), session.id());
    Ok(vec![ContentBlock::text(text), ContentBlock::resource_link(resources::of(session.id().as_str(), &file))])
}

async fn delete(server: &Server, arguments: &FilesArguments) -> Result<Vec<ContentBlock>, ToolError> {
    let path = path(arguments)?;
    let session = server.session(arguments.session.as_deref()).await?;
    let name = path.to_owned();
    if !server.mcp.engine.tasks.finish(async move { delete_from(&session, &name).await }).await?? {
        return Err(no_file(path));
    }
    Ok(vec![ContentBlock::text(format!("Deleted {path}."))])
}

async fn delete_from(session: &Session, path: &str) -> Result<bool, ToolError> {
    let inside = format!("{WORKSPACE}/{}", within_workspace(path));
    let file = session.files().await?.into_iter().find(|file| file.path == inside);
    match file {
        Some(file) => Ok(session.delete_file(&file.id).await?),
        None => Ok(false),
    }
}

fn path(arguments: &FilesArguments) -> Result<&str, ToolError> {
    let path = arguments.path.as_deref().map(str::trim).filter(|path| !path.is_empty());
    path.ok_or_else(|| ToolError("Send the `path` of the file.".to_owned()))
}

fn no_file(path: &str) -> ToolError {
    ToolError(format!("There is no file '{}'. List the files to see what there is.", excerpt::line(path, 200)))
}
