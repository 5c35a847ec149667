//! The Files API.

use std::sync::Arc;

use aludel_store::{FileId, FileRecord, Order, PageQuery, Tenant};
use aludel_wire::gemini::{File, FileList, FileSource, FileState};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::app::App;
use crate::dialects::rfc3339::rfc3339;
use crate::error::ApiError;
use crate::http::{Caller, Params, download};
use crate::links;

/// The usual number of files of a page, and the most.
const PAGE: usize = 10;
const MAX_PAGE: usize = 100;
/// Characters of an id that a client chooses, the vendor's limit.
const MAX_CHOSEN: usize = 40;
/// The method of a file that gives its content.
const DOWNLOAD: &str = ":download";

/// Finds a file of the tenant by its id, its name or its address.
pub(super) async fn find(app: &App, tenant: &Tenant, name: &str) -> Result<FileRecord, ApiError> {
    let id = name_of(name).unwrap_or(name);
    let id = id.strip_prefix("files/").unwrap_or(id);
    let file = find_id(app, tenant, id).await?;
    file.ok_or_else(|| ApiError::not_found(format!("The file '{name}' does not exist; it may have expired.")))
}

/// Finds a file of the tenant by its id, which the server made or a client chose.
pub(super) async fn find_id(app: &App, tenant: &Tenant, id: &str) -> Result<Option<FileRecord>, ApiError> {
    if let Some(id) = FileId::parse(&format!("{}{id}", FileId::PREFIX))
        && let Some(file) = app.store.file(tenant, &id).await?
    {
        return Ok(Some(file));
    }
    Ok(app.store.file_named(tenant, id).await?)
}

/// Returns true for an id that a client may choose for a file.
pub(super) fn may_be_chosen(id: &str) -> bool {
    (1..=MAX_CHOSEN).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !id.starts_with('-')
        && !id.ends_with('-')
}

/// Returns the name of the file at an address of any host.
pub(super) fn name_of(uri: &str) -> Option<&str> {
    match uri.strip_prefix("files/") {
        Some(_) => Some(uri),
        None if uri.starts_with("http://") || uri.starts_with("https://") => {
            let paths = ["/v1beta/files/", "/v1/files/", "/v1alpha/files/"];
            let end = paths.iter().find_map(|path| uri.rfind(path).map(|start| start + path.len()));
            Some(&uri[end? - "files/".len()..])
        }
        None => None,
    }
}

/// A file in the form of the protocol; addresses are below `base`.
pub(super) fn render(file: FileRecord, base: &str) -> File {
    let own = || file.id.as_str().strip_prefix(FileId::PREFIX).unwrap_or(file.id.as_str());
    let name = format!("files/{}", file.name.as_deref().unwrap_or_else(own));
    let uri = format!("{base}/v1beta/{name}");
    File {
        download_uri: format!("{uri}{DOWNLOAD}?alt=media"),
        name,
        display_name: file.filename,
        mime_type: file.mime,
        size_bytes: file.bytes.to_string(),
        create_time: rfc3339(file.created_at),
        update_time: rfc3339(file.created_at),
        expiration_time: file.expires_at.map(rfc3339),
        sha256_hash: file.sha256.map(|digits| BASE64_STANDARD.encode(digits)),
        uri,
        state: FileState::Active,
        source: FileSource::Uploaded,
    }
}

/// `GET /v1/files`.
pub(super) async fn list(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    params: Params,
    headers: HeaderMap,
) -> Result<Json<FileList>, ApiError> {
    let limit = params.get("pageSize").map_or(Ok(PAGE), str::parse).ok();
    let limit = limit
        .filter(|limit| (1..=MAX_PAGE).contains(limit))
        .ok_or_else(|| ApiError::invalid("pageSize", format!("'pageSize' must be from 1 to {MAX_PAGE}.")))?;
    let after = params.get("pageToken").map(str::to_owned);
    let page = app.store.files(&tenant, None, PageQuery { after, limit, order: Order::Descending }).await?;
    let next_page_token = page.data.last().filter(|_| page.has_more).map(|file| file.id.to_string());
    let base = links::base(&app, &headers);
    let files = page.data.into_iter().map(|file| render(file, &base)).collect();
    Ok(Json(FileList { files, next_page_token }))
}

/// `GET /v1/files/{id}` and `GET /v1/files/{id}:download`. Some clients have a file's address where its id should be.
pub(super) async fn retrieve(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    if let Some(id) = id.strip_suffix(DOWNLOAD) {
        let file = find(&app, &tenant, id).await?;
        return download(&app.store, &file.blob, file.bytes, &file.mime, &file.filename).await;
    }
    let file = find(&app, &tenant, &id).await?;
    Ok(Json(render(file, &links::base(&app, &headers))).into_response())
}

/// `DELETE /v1/files/{id}`. Its clients take no status but 200.
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let file = find(&app, &tenant, &id).await?;
    app.store.delete_file(&tenant, &file.id).await?;
    Ok(Json(json!({})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_ids_are_short_lowercase_words() {
        for id in ["report-2026", "a", &"a".repeat(MAX_CHOSEN)] {
            assert!(may_be_chosen(id), "{id}");
        }
        for id in ["", "-a", "a-", "A", "a b", "ä", "a/b", &"a".repeat(MAX_CHOSEN + 1)] {
            assert!(!may_be_chosen(id), "{id}");
        }
    }

    #[test]
    fn addresses_of_files_are_ours_and_no_others() {
        for (uri, name) in [
            ("files/abc", Some("files/abc")),
            ("http://localhost:8080/v1beta/files/abc", Some("files/abc")),
            ("https://a.example/gemini/v1/files/abc", Some("files/abc")),
            ("https://a.example/v1alpha/files/abc", Some("files/abc")),
            ("gs://bucket/files/abc", None),
            ("https://youtube.example/watch", None),
            ("abc", None),
        ] {
            assert_eq!(name_of(uri), name, "{uri}");
        }
    }
}
