//! Files of a sandbox: descriptions and operations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aludel_engine::sandboxes::files::{Files, FilesError, PathInfo, Problem};
use aludel_wire::opensandbox::files::{FileInfo, FileType, Move, Permission, Replaced, Replacement};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::describe;
use super::target::TargetSandbox;
use crate::app::App;
use crate::client_sandboxes::commands::USER;
use crate::client_sandboxes::listing::listing;
use crate::client_sandboxes::refusal::{refused, refused_file};
use crate::error::ApiError;
use crate::http::{Fields, Params, RawBody};

/// Levels of directories that are listed at once.
const MAX_DEPTH: u32 = 64;
/// Files of one request.
const MAX_PATHS: usize = 1000;
/// Type and permissions (`st_mode`) by their meaning.
const TYPE: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// Puts a failure into words.
pub(super) fn failed(error: FilesError) -> ApiError {
    let is_missing = matches!(error, FilesError::Refused { problem: Problem::NotFound, .. });
    let error = refused_file(error);
    if is_missing { error.code("FILE_NOT_FOUND") } else { error }
}

pub(super) async fn files(reached: &TargetSandbox) -> Result<Files, ApiError> {
    reached.sandbox.files().await.map_err(refused)
}

/// The permissions of a request: octal digits that are sent as a decimal number. `None` for no change.
fn mode(digits: Option<u32>) -> Result<Option<u32>, ApiError> {
    let Some(digits) = digits.filter(|digits| *digits > 0) else { return Ok(None) };
    let mode = u32::from_str_radix(&digits.to_string(), 8).ok().filter(|mode| *mode <= 0o7777);
    let invalid = || ApiError::bad_request(format!("invalid mode {digits}: it is written as in 644"));
    mode.map(Some).ok_or_else(invalid)
}

/// Gives a file the requested permissions. Its owner cannot change.
pub(super) async fn permit(files: &Files, path: &str, asked: &Permission) -> Result<(), ApiError> {
    for name in [&asked.owner, &asked.group].into_iter().flatten() {
        if !name.is_empty() && name != USER {
            let message = format!("everything in this sandbox belongs to the user '{USER}', and so will {path}");
            return Err(ApiError::bad_request(message).code("NOT_SUPPORTED"));
        }
    }
    if let Some(mode) = mode(asked.mode)? {
        files.set_mode(path, mode).await.map_err(failed)?;
    }
    Ok(())
}

fn file_info(entry: PathInfo) -> FileInfo {
    let r#type = match entry.mode & TYPE {
        DIRECTORY => FileType::Directory,
        REGULAR => FileType::File,
        LINK => FileType::Symlink,
        _ => FileType::Other,
    };
    let modified = SystemTime::UNIX_EPOCH + Duration::from_nanos(entry.modified.max(0).cast_unsigned());
    let modified = describe::time(modified);
    FileInfo {
        path: entry.path,
        r#type,
        size: entry.size,
        // Files of a sandbox have no other time.
        created_at: modified.clone(),
        modified_at: modified,
        owner: entry.owner,
        group: entry.group,
        mode: format!("{:o}", entry.mode & 0o7777).parse().unwrap_or_default(),
    }
}

fn path(params: &Params) -> Result<&str, ApiError> {
    params.get("path").ok_or_else(|| ApiError::bad_request("missing query parameter 'path'").code("MISSING_QUERY"))
}

fn paths(params: &Params) -> Result<Vec<&str>, ApiError> {
    let paths: Vec<&str> = params.all("path").collect();
    check_count(paths.len())?;
    Ok(paths)
}

fn check_count(count: usize) -> Result<(), ApiError> {
    if count > MAX_PATHS {
        return Err(ApiError::bad_request(format!("a request names at most {MAX_PATHS} files")));
    }
    Ok(())
}

/// `GET /files/info`
pub(super) async fn info(reached: TargetSandbox, params: Params) -> Result<Json<BTreeMap<String, FileInfo>>, ApiError> {
    let (files, mut found) = (files(&reached).await?, BTreeMap::new());
    for path in paths(&params)? {
        found.insert(path.to_owned(), file_info(files.stat(path).await.map_err(failed)?));
    }
    Ok(Json(found))
}

/// `DELETE /files`
pub(super) async fn remove(reached: TargetSandbox, params: Params) -> Result<StatusCode, ApiError> {
    let files = files(&reached).await?;
    for path in paths(&params)? {
        match files.stat(path).await {
            Ok(entry) if entry.mode & TYPE == DIRECTORY => {
                return Err(ApiError::bad_request(format!("{path} is a directory; delete it as one")));
            }
            Ok(_) => files.remove(path).await.map_err(failed)?,
            Err(FilesError::Refused { problem: Problem::NotFound, .. }) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(StatusCode::OK)
}

/// `DELETE /directories`
pub(super) async fn remove_directories(reached: TargetSandbox, params: Params) -> Result<StatusCode, ApiError> {
    let files = files(&reached).await?;
    for path in paths(&params)? {
        files.remove(path).await.map_err(failed)?;
    }
    Ok(StatusCode::OK)
}

/// `POST /directories`
pub(super) async fn make_directories(reached: TargetSandbox, body: Fields) -> Result<StatusCode, ApiError> {
    let asked: BTreeMap<String, Permission> = body.read()?;
    check_count(asked.len())?;
    let files = files(&reached).await?;
    for (path, permission) in &asked {
        match files.make_directory(path).await {
            Ok(_) | Err(FilesError::Refused { problem: Problem::Exists, .. }) => {}
            Err(error) => return Err(failed(error)),
        }
        permit(&files, path, permission).await?;
    }
    Ok(StatusCode::OK)
}

/// `GET /directories/list`
pub(super) async fn list(
    State(app): State<Arc<App>>,
    reached: TargetSandbox,
    params: Params,
) -> Result<Response, ApiError> {
    let path = path(&params)?;
    let depth = match params.get("depth").map(str::parse::<u32>) {
        None => 1,
        Some(Ok(depth)) => depth.min(MAX_DEPTH),
        Some(Err(_)) => return Err(ApiError::bad_request("invalid query parameter 'depth'")),
    };
    let files = files(&reached).await?;
    if files.stat(path).await.map_err(failed)?.mode & TYPE != DIRECTORY {
        return Err(ApiError::bad_request(format!("path is not a directory: {path}")));
    }
    let list = async {
        let entries = if depth == 0 { Vec::new() } else { files.list(path, depth).await.map_err(failed)? };
        Ok::<Vec<FileInfo>, ApiError>(entries.into_iter().map(file_info).collect())
    };
    listing(&app, &reached.sandbox, list).await
}

/// `GET /files/search`
pub(super) async fn search(
    State(app): State<Arc<App>>,
    reached: TargetSandbox,
    params: Params,
) -> Result<Response, ApiError> {
    let (path, pattern) = (path(&params)?, params.get("pattern").unwrap_or("*"));
    let files = files(&reached).await?;
    let list = async {
        let found = files.search(path, pattern).await.map_err(failed)?;
        Ok::<Vec<FileInfo>, ApiError>(found.into_iter().map(file_info).collect())
    };
    listing(&app, &reached.sandbox, list).await
}

/// `POST /files/permissions`
pub(super) async fn set_permissions(reached: TargetSandbox, body: Fields) -> Result<StatusCode, ApiError> {
    let asked: BTreeMap<String, Permission> = body.read()?;
    check_count(asked.len())?;
    let files = files(&reached).await?;
    for (path, permission) in &asked {
        permit(&files, path, permission).await?;
    }
    Ok(StatusCode::OK)
}

/// `POST /files/mv`
pub(super) async fn rename(
    State(app): State<Arc<App>>,
    reached: TargetSandbox,
    body: RawBody,
) -> Result<StatusCode, ApiError> {
    let bytes = body.bytes.clone();
    let asked: Vec<Move> = body.json(&app, bytes).await?;
    check_count(asked.len())?;
    let files = files(&reached).await?;
    for Move { src, dest } in &asked {
        files.rename(src, dest).await.map_err(failed)?;
    }
    Ok(StatusCode::OK)
}

/// `POST /files/replace`
pub(super) async fn replace(reached: TargetSandbox, params: Params, body: Fields) -> Result<Response, ApiError> {
    let asked: BTreeMap<String, Replacement> = body.read()?;
    check_count(asked.len())?;
    let (files, mut counts) = (files(&reached).await?, BTreeMap::new());
    for (path, Replacement { old, new }) in asked {
        let replaced_count = files.replace(&path, &old, &new).await.map_err(failed)?;
        counts.insert(path, Replaced { replaced_count });
    }
    let is_verbose = params.get("verbose") == Some("true");
    Ok(if is_verbose { Json(counts).into_response() } else { StatusCode::OK.into_response() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal_numbers_in_decimal_digits() {
        let mode = |digits| mode(digits).map_err(|error| error.status);
        assert_eq!(mode(Some(755)), Ok(Some(0o755)));
        assert_eq!(mode(Some(4755)), Ok(Some(0o4755)));
        assert_eq!((mode(Some(0)), mode(None)), (Ok(None), Ok(None)));
        for wrong in [8, 799, 17_777, u32::MAX] {
            assert_eq!(mode(Some(wrong)), Err(StatusCode::BAD_REQUEST), "{wrong}");
        }
    }
}
