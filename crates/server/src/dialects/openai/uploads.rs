//! The Uploads API: files in parts.

use std::sync::Arc;

use aludel_store::{NewBlob, NewUpload, PartRecord, Tenant, UploadId, UploadRecord, UploadStatus, now};
use aludel_wire::openai::{CompleteUpload, CreateUpload, Upload, UploadPart};
use axum::Json;
use axum::extract::{Path, Request, State};
use md5::{Digest, Md5};
use tokio::io::AsyncReadExt;

use crate::app::App;
use crate::dialects::openai::files::{check_life, check_purpose};
use crate::error::ApiError;
use crate::http::{Caller, Fields, MultipartForm};

/// Bytes of one upload.
const MAX_UPLOAD: u64 = 8 << 30;
/// Bytes of one part.
pub(crate) const MAX_PART: u64 = 64 << 20;
/// Parts of one upload.
pub(crate) const MAX_PARTS: usize = 1000;
/// Seconds until an upload must be complete.
pub(crate) const UPLOAD_LIFE_SECONDS: i64 = 3600;

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    fields: Fields,
) -> Result<Json<Upload>, ApiError> {
    let CreateUpload { filename, purpose, bytes, mime_type, expires_after } = fields.read()?;
    aludel_engine::sessions::check_name(&filename)?;
    let purpose = check_purpose(&purpose)?;
    if bytes > MAX_UPLOAD {
        return Err(ApiError::too_large(format!("An upload may have at most {} GB.", MAX_UPLOAD >> 30)).param("bytes"));
    }
    app.store.check_room(&tenant, bytes).await?;
    let mime = crate::http::mime_of(&filename, Some(&mime_type));
    let file_lives = expires_after.map(|life| check_life(Some(&life.anchor), Some(life.seconds))).transpose()?;
    let new =
        NewUpload { bytes, filename, purpose, mime, expires_at: now() + UPLOAD_LIFE_SECONDS, file_lives, name: None };
    let upload = app.store.add_upload(&tenant, new).await?;
    render(&app, &tenant, upload).await
}

pub(crate) async fn add_part(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<UploadPart>, ApiError> {
    let upload = find_pending(&app, &tenant, &id).await?;
    if !MultipartForm::is_in(&request) {
        return Err(ApiError::bad_request("Send the part as multipart/form-data, in the part 'data'."));
    }
    if app.store.parts(&tenant, &upload.id).await?.len() >= MAX_PARTS {
        return Err(ApiError::bad_request(format!("An upload may have at most {MAX_PARTS} parts.")));
    }
    let form = MultipartForm::read(&app, &tenant, request, "data", MAX_PART).await?;
    let data = form.file.ok_or_else(|| ApiError::missing("data"))?;
    let part = app.store.add_part(&tenant, &upload.id, data.blob).await?.ok_or_else(|| not_pending(&id))?;
    Ok(Json(UploadPart { id: part.id.into(), object: Default::default(), created_at: part.created_at, upload_id: id }))
}

pub(crate) async fn complete(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    fields: Fields,
) -> Result<Json<Upload>, ApiError> {
    let upload = find_pending(&app, &tenant, &id).await?;
    let CompleteUpload { part_ids, md5 } = fields.read()?;
    let parts = choose(app.store.parts(&tenant, &upload.id).await?, &part_ids)?;
    let bytes: u64 = parts.iter().map(|part| part.bytes).sum();
    if bytes != upload.bytes {
        let message = format!("The parts have {bytes} bytes, but the upload was announced with {}.", upload.bytes);
        return Err(ApiError::invalid("part_ids", message));
    }
    let mut digest = md5.is_some().then(Md5::new);
    let blob = join(&app, &tenant, &parts, digest.as_mut()).await?;
    if let (Some(said), Some(digest)) = (md5, digest) {
        let found: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        if !found.eq_ignore_ascii_case(&said) {
            let message = format!("The parts have the MD5 digest '{found}', not '{said}'. Send them again.");
            return Err(ApiError::invalid("md5", message));
        }
    }
    let file = app.store.complete_upload(&tenant, &upload, blob).await?;
    file.ok_or_else(|| not_pending(&id))?;
    render(&app, &tenant, find(&app, &tenant, &id).await?).await
}

/// Joins the parts into one blob, and adds them to a digest. The parts stay until the file exists, so both need room.
pub(crate) async fn join(
    app: &App,
    tenant: &Tenant,
    parts: &[PartRecord],
    mut digest: Option<&mut Md5>,
) -> Result<NewBlob, ApiError> {
    let mut blob = app.store.new_blob(tenant, parts.iter().map(|part| part.bytes).sum()).await?;
    let mut buffer = vec![0; 256 << 10];
    for part in parts {
        let mut file = app.store.read_blob(&part.blob).await?;
        loop {
            let count = file.read(&mut buffer).await.map_err(ApiError::internal)?;
            let Some(read) = buffer.get(..count).filter(|read| !read.is_empty()) else { break };
            if let Some(digest) = &mut digest {
                digest.update(read);
            }
            blob.write(read).await?;
        }
    }
    Ok(blob.finish().await?)
}

/// The parts in the client's order, each once.
fn choose(mut parts: Vec<PartRecord>, wanted: &[String]) -> Result<Vec<PartRecord>, ApiError> {
    let mut chosen = Vec::new();
    for id in wanted {
        let Some(index) = parts.iter().position(|part| part.id.as_str() == id) else {
            let message = format!("The upload has no part '{id}', or it is listed twice.");
            return Err(ApiError::invalid("part_ids", message));
        };
        chosen.push(parts.swap_remove(index));
    }
    Ok(chosen)
}

pub(crate) async fn cancel(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<Upload>, ApiError> {
    let upload = find_pending(&app, &tenant, &id).await?;
    if !app.store.cancel_upload(&tenant, &upload.id).await? {
        return Err(not_pending(&id));
    }
    render(&app, &tenant, find(&app, &tenant, &id).await?).await
}

async fn find(app: &App, tenant: &Tenant, id: &str) -> Result<UploadRecord, ApiError> {
    let missing = || ApiError::not_found(format!("No such Upload object: {id}")).param("upload_id");
    let parsed = UploadId::parse(id).ok_or_else(missing)?;
    app.store.upload(tenant, &parsed).await?.ok_or_else(missing)
}

async fn find_pending(app: &App, tenant: &Tenant, id: &str) -> Result<UploadRecord, ApiError> {
    let upload = find(app, tenant, id).await?;
    if upload.status != UploadStatus::Pending || upload.expires_at <= now() {
        return Err(not_pending(id));
    }
    Ok(upload)
}

fn not_pending(id: &str) -> ApiError {
    ApiError::bad_request(format!(
        "The upload {id} takes nothing any more: it was completed, cancelled, or it expired."
    ))
}

async fn render(app: &App, tenant: &Tenant, upload: UploadRecord) -> Result<Json<Upload>, ApiError> {
    let file = match &upload.file {
        Some(file) => app.store.file(tenant, file).await?.map(crate::dialects::openai::files::render),
        None => None,
    };
    Ok(Json(Upload {
        id: upload.id.into(),
        object: Default::default(),
        bytes: upload.bytes,
        created_at: upload.created_at,
        expires_at: upload.expires_at,
        filename: upload.filename,
        purpose: upload.purpose,
        status: match upload.status {
            UploadStatus::Pending if upload.expires_at <= now() => "expired",
            UploadStatus::Pending => "pending",
            UploadStatus::Completed => "completed",
            UploadStatus::Cancelled => "cancelled",
        },
        file,
    }))
}
