//! Files of sessions as resources.

use aludel_engine::SessionFile;
use aludel_store::{Order, PageQuery, SessionId};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use percent_encoding::{AsciiSet, percent_decode_str, utf8_percent_encode};
use rmcp::model::{
    ErrorData, ListResourceTemplatesResult, ListResourcesResult, PaginatedRequestParams, ReadResourceResponse,
    ReadResourceResult, Resource, ResourceContents, ResourceTemplate,
};
use serde_json::json;

use super::error::ToolError;
use super::server::Server;
use crate::http::{ENCODED, MemoryCharge};
use crate::workspace_path::within_workspace;

/// The beginning of every address.
const SCHEME: &str = "aludel://sessions/";
/// Characters of a path that an address encodes.
const ENCODED_IN_PATH: &AsciiSet = &ENCODED.remove(b'/');
/// Sessions on one page of the list.
const PAGE: usize = 20;
/// Files of a session that are listed.
const MAX_LISTED: usize = 200;
/// Bytes of a page of the list, about, to which its last session still comes.
const MAX_PAGE: usize = 256 << 10;
/// Bytes of the largest file that is handed out.
pub(super) const MAX_READ: u64 = 16 << 20;
/// The same over a pipe: the official clients for Node end a connection with a message above 10 MiB, and a file goes as base64.
const MAX_READ_FROM_PIPE: u64 = 7 << 20;
/// Bytes of an address that an error repeats.
const MAX_NAMED: usize = 2000;

/// Characters of a text for each control character that it may have.
const CONTROLS_IN_TEXT: usize = 16;

/// The content of a file.
pub(super) struct Content {
    pub(super) bytes: Vec<u8>,
    pub(super) mime: String,
}

impl Content {
    /// The content as text, if it is that. One with many control characters is none: JSON takes six bytes for each, which nobody counted.
    pub(super) fn into_text(self) -> Result<String, Vec<u8>> {
        let controls = self.bytes.iter().filter(|byte| byte.is_ascii_control() && !byte.is_ascii_whitespace()).count();
        if controls > self.bytes.len() / CONTROLS_IN_TEXT {
            return Err(self.bytes);
        }
        String::from_utf8(self.bytes).map_err(std::string::FromUtf8Error::into_bytes)
    }
}

/// The address of a file, which its path inside names.
pub(super) fn uri(session: &str, path: &str) -> String {
    let mut uri = format!("{SCHEME}{session}/files/");
    uri.extend(utf8_percent_encode(within_workspace(path), ENCODED_IN_PATH));
    uri
}

/// The session and the path that an address names.
fn parse(uri: &str) -> Option<(&str, String)> {
    let (session, path) = uri.strip_prefix(SCHEME)?.split_once("/files/")?;
    Some((session, percent_decode_str(path).decode_utf8().ok()?.into_owned()))
}

/// The path of a file inside, or the name alone of a picture that was only shown.
pub(super) fn shown_path(file: &SessionFile) -> &str {
    if file.was_only_shown() { within_workspace(&file.path) } else { &file.path }
}

/// A file as a resource.
pub(super) fn of(session: &str, file: &SessionFile) -> Resource {
    let name = file.path.rsplit('/').next().unwrap_or(&file.path);
    Resource::new(uri(session, &file.path), name)
        .with_description(shown_path(file).to_owned())
        .with_mime_type(file.mime.clone())
        .with_size(file.bytes)
}

/// The bytes of a resource as JSON, which has six for a control character.
pub(super) fn size_of(resource: &Resource) -> usize {
    serde_json::to_vec(resource).map_or(0, |json| json.len())
}

/// Reads a file of a session of the tenant; `None` if there is no such session or file, and an error if it is larger than `limit`. What an
/// answer takes that has all of it is counted in `memory`.
pub(super) async fn content(
    server: &Server,
    session: &str,
    path: &str,
    limit: u64,
    memory: Option<&MemoryCharge>,
) -> Result<Option<Content>, ToolError> {
    let store = &server.mcp.engine.store;
    let Some(session) = SessionId::parse(session) else { return Ok(None) };
    let path = within_workspace(path);
    let files = store.all_session_files(&server.tenant, &session).await?;
    let Some(file) = files.into_iter().find(|file| file.path == path) else { return Ok(None) };
    if file.bytes > limit {
        let size = aludel_agent::size(file.bytes);
        let limit = aludel_agent::size(limit);
        return Err(ToolError(format!("The file has {size}, and at most {limit} can be read; let a program read it.")));
    }
    if let Some(memory) = memory {
        memory.count_file(file.bytes).map_err(|error| ToolError(error.message))?;
    }
    let blob = store.read_blob(&file.blob).await?;
    let bytes = blob.read_whole(limit).await.map_err(aludel_engine::Error::internal)?;
    Ok(Some(Content { bytes, mime: file.mime }))
}

/// `resources/list`: files of the tenant's sessions, newest sessions first.
pub(super) async fn list(
    server: &Server,
    page: Option<PaginatedRequestParams>,
    memory: Option<&MemoryCharge>,
) -> Result<ListResourcesResult, ErrorData> {
    let store = &server.mcp.engine.store;
    let after = page.and_then(|page| page.cursor);
    if after.as_ref().is_some_and(|after| SessionId::parse(after).is_none()) {
        return Err(ErrorData::invalid_params("The cursor is none of this server's.", None));
    }
    let query = PageQuery { after, limit: PAGE, order: Order::Descending };
    let sessions = store.sessions(&server.tenant, None, query).await.map_err(internal)?;
    let (mut resources, mut bytes, mut last) = (Vec::new(), 0, None);
    for session in &sessions.data {
        if bytes > MAX_PAGE {
            break;
        }
        let files = store.all_session_files(&server.tenant, &session.id).await.map_err(internal)?;
        for file in files.into_iter().take(MAX_LISTED).map(SessionFile::from) {
            let resource = of(session.id.as_str(), &file);
            let size = size_of(&resource);
            bytes += size;
            if let Some(memory) = memory {
                memory.count_file(size as u64).map_err(|error| ErrorData::internal_error(error.message, None))?;
            }
            resources.push(resource);
        }
        last = Some(&session.id);
    }
    let is_whole = !sessions.has_more && last == sessions.data.last().map(|session| &session.id);
    let mut result = ListResourcesResult::with_all_items(resources);
    result.next_cursor = last.filter(|_| !is_whole).map(ToString::to_string);
    Ok(result)
}

/// `resources/templates/list`.
pub(super) fn templates() -> ListResourceTemplatesResult {
    let template = ResourceTemplate::new(format!("{SCHEME}{{session}}/files/{{+path}}"), "file")
        .with_title("File of a session")
        .with_description("A file that the user gave or a program made in a session.");
    ListResourceTemplatesResult::with_all_items(vec![template])
}

/// `resources/read`.
pub(super) async fn read(
    server: &Server,
    uri: &str,
    memory: Option<&MemoryCharge>,
) -> Result<ReadResourceResponse, ErrorData> {
    let unknown = || {
        let named = aludel_agent::excerpt::line(uri, MAX_NAMED);
        ErrorData::resource_not_found(format!("There is no resource {named}"), Some(json!({ "uri": named })))
    };
    let (session, path) = parse(uri).ok_or_else(unknown)?;
    // Only requests over HTTP have a charge.
    let limit = memory.map_or(MAX_READ_FROM_PIPE, |_| MAX_READ);
    let content = content(server, session, &path, limit, memory).await;
    let content = content.map_err(|error| ErrorData::invalid_params(error.0, None))?.ok_or_else(unknown)?;
    let mime = content.mime.clone();
    let contents = match content.into_text() {
        Ok(text) => ResourceContents::text(text, uri),
        Err(bytes) => ResourceContents::blob(BASE64_STANDARD.encode(bytes), uri),
    };
    Ok(ReadResourceResult::new(vec![contents.with_mime_type(mime)]).into())
}

fn internal(error: aludel_store::Error) -> ErrorData {
    ErrorData::internal_error(ToolError::from(error).0, None)
}

#[cfg(test)]
mod tests {
    use aludel_engine::sessions::WORKSPACE;

    use super::*;

    #[test]
    fn many_control_characters_are_no_text() {
        let content = |bytes: &[u8]| Content { bytes: bytes.to_vec(), mime: String::new() };
        for text in ["", "a\tb\r\n", "\u{1b}[31mred, and much more\u{1b}[0m of it to read"] {
            assert_eq!(content(text.as_bytes()).into_text().as_deref(), Ok(text));
        }
        for bytes in [&b"\x01\x02 a few words of text"[..], b"\0", b"\xff"] {
            assert_eq!(content(bytes).into_text().unwrap_err(), bytes);
        }
    }

    #[test]
    fn every_path_has_an_address_that_leads_back() {
        for path in ["a.csv", "sub/a b.txt", "é漢%20#?.x", "100%"] {
            let uri = uri("cntr_1", &format!("{WORKSPACE}/{path}"));
            assert_eq!(parse(&uri), Some(("cntr_1", path.to_owned())), "{uri}");
            assert!(uri.is_ascii() && !uri.contains(['#', '?', ' ']), "{uri}");
        }
        assert_eq!(parse("aludel://sessions/x/files/100%"), Some(("x", "100%".to_owned())));
        for uri in ["", "file:///etc/passwd", "aludel://sessions/x", "aludel://sessions/x/files/%ff"] {
            assert_eq!(parse(uri), None, "{uri}");
        }
    }
}
