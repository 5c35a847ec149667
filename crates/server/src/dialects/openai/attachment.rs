//! Files that messages bring along.

use aludel_store::{FileId, FileRecord, Tenant};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::app::App;
use crate::error::ApiError;

/// Files that one request may bring along, each once.
const MAX_FILES: usize = 200;

/// Refuses more files than a request may bring along.
pub(crate) fn check_count(count: usize) -> Result<(), ApiError> {
    if count <= MAX_FILES {
        return Ok(());
    }
    Err(ApiError::bad_request(format!("A request may bring at most {MAX_FILES} files along; this one has more.")))
}

/// A file of the Files API, by the id in a part of a message. `param` is its place in the request.
pub(crate) async fn stored_file(app: &App, tenant: &Tenant, id: &str, param: &str) -> Result<FileRecord, ApiError> {
    let file = match FileId::parse(id) {
        Some(file) => app.store.file(tenant, &file).await?,
        None => None,
    };
    file.ok_or_else(|| crate::dialects::openai::files::no_file(id).param(param))
}

/// Decodes a file inside a request: its name, type and contents. `data` is base64, plain or in a `data:` URL; any other URL contains no
/// file. `param` is its place in the request.
pub(crate) fn inline_file(
    data: Option<&str>,
    url: Option<&str>,
    name: Option<&str>,
    param: &str,
) -> Result<Option<(String, String, Vec<u8>)>, ApiError> {
    let data = data.map(|data| data.strip_prefix("data:").unwrap_or(data));
    let Some(data) = data.or_else(|| url?.strip_prefix("data:")) else { return Ok(None) };
    let (mime, encoded) = data.split_once(";base64,").unwrap_or(("application/octet-stream", data));
    let bytes = BASE64_STANDARD.decode(encoded.trim()).map_err(|error| ApiError::not_base64(param, &error))?;
    let name = match name {
        Some(name) => name.to_owned(),
        None => format!("{}.{}", aludel_store::fresh_id("input_"), mime.rsplit(['/', '+']).next().unwrap_or("bin")),
    };
    aludel_engine::sessions::check_name(&name)?;
    Ok(Some((name, mime.to_owned(), bytes)))
}
