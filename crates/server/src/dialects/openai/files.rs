//! The Files API.

use std::sync::Arc;

use aludel_store::{FileId, FileRecord, NewFile, Tenant, now};
use aludel_wire::openai::{Deleted, File, List};
use axum::Json;
use axum::extract::{Path, Request, State};
use axum::response::Response;

use crate::app::App;
use crate::error::ApiError;
use crate::http::{Caller, MultipartForm, Params, Upload, download};

/// Bytes of one file.
pub(crate) const MAX_FILE: u64 = 512 << 20;
/// The most files on one page, which is also the default.
const MAX_PAGE: usize = 10_000;
/// The range of a file's lifetime, seconds: from an hour to thirty days.
const LIVES: std::ops::RangeInclusive<i64> = 3600..=30 * 24 * 3600;

/// The purposes that a client can upload files for.
const PURPOSES: [&str; 6] = ["assistants", "batch", "fine-tune", "vision", "user_data", "evals"];

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    request: Request,
) -> Result<Json<File>, ApiError> {
    if !MultipartForm::is_in(&request) {
        return Err(ApiError::bad_request(
            "Send the file as multipart/form-data, with the parts 'file' and 'purpose'.",
        ));
    }
    let mut form = MultipartForm::read(&app, &tenant, request, "file", MAX_FILE).await?;
    let Upload { name, mime, blob } = form.take_file()?;
    let purpose = check_purpose(form.text("purpose").ok_or_else(|| ApiError::missing("purpose"))?)?;
    let lives = match form.text("expires_after[seconds]") {
        None => None,
        Some(seconds) => Some(check_life(form.text("expires_after[anchor]"), seconds.parse().ok())?),
    };
    let expires_at = lives.map(|seconds| now() + seconds);
    let file = NewFile { filename: name, purpose, mime, expires_at };
    Ok(Json(render(app.store.add_file(&tenant, file, blob).await?)))
}

pub(crate) fn check_purpose(purpose: &str) -> Result<String, ApiError> {
    if PURPOSES.contains(&purpose) {
        return Ok(purpose.to_owned());
    }
    let message = format!("Invalid 'purpose': it must be one of {}.", PURPOSES.join(", "));
    Err(ApiError::invalid("purpose", message))
}

/// Returns the life of a file, seconds.
pub(crate) fn check_life(anchor: Option<&str>, seconds: Option<i64>) -> Result<i64, ApiError> {
    if anchor.is_some_and(|anchor| anchor != "created_at") {
        return Err(ApiError::invalid(
            "expires_after.anchor",
            "Invalid 'expires_after.anchor': it must be 'created_at'.",
        ));
    }
    seconds.filter(|seconds| LIVES.contains(seconds)).ok_or_else(|| {
        let message = format!("Invalid 'expires_after.seconds': it must be from {} to {}.", LIVES.start(), LIVES.end());
        ApiError::invalid("expires_after.seconds", message)
    })
}

pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    params: Params,
) -> Result<Json<List<File>>, ApiError> {
    let page = params.page(MAX_PAGE, MAX_PAGE)?;
    let page = app.store.files(&tenant, params.get("purpose").map(str::to_owned), page).await?;
    let data = page.data.into_iter().map(render).collect();
    Ok(Json(List::new(data, page.has_more, |file: &File| file.id.clone())))
}

pub(crate) async fn retrieve(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<File>, ApiError> {
    Ok(Json(render(find(&app, &tenant, &id).await?)))
}

pub(crate) async fn content(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let file = find(&app, &tenant, &id).await?;
    download(&app.store, &file.blob, file.bytes, &file.mime, &file.filename).await
}

pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<Deleted>, ApiError> {
    let file = find(&app, &tenant, &id).await?;
    if !app.store.delete_file(&tenant, &file.id).await? {
        return Err(no_file(&id));
    }
    Ok(Json(Deleted::new(id, "file")))
}

async fn find(app: &App, tenant: &Tenant, id: &str) -> Result<FileRecord, ApiError> {
    let parsed = FileId::parse(id).ok_or_else(|| no_file(id))?;
    app.store.file(tenant, &parsed).await?.ok_or_else(|| no_file(id))
}

/// 404, for a file that does not exist or belongs to another tenant.
pub(crate) fn no_file(id: &str) -> ApiError {
    ApiError::not_found(format!("No such File object: {id}")).param("id")
}

pub(crate) fn render(file: FileRecord) -> File {
    File {
        id: file.id.into(),
        object: Default::default(),
        bytes: file.bytes,
        created_at: file.created_at,
        expires_at: file.expires_at,
        filename: file.filename,
        purpose: file.purpose,
        status: Default::default(),
        status_details: None,
    }
}
