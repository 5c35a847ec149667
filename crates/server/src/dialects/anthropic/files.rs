//! The Files API: files of clients, and files that programs made.

use std::sync::Arc;

use aludel_engine::sessions::SessionChoice;
use aludel_store::{
    BlobName, FileId, FileRecord, NewFile, Order, PageQuery, SessionFileId, SessionFileRecord, SessionId, Tenant, now,
};
use aludel_wire::anthropic::{DeletedFile, File, Page};
use axum::Json;
use axum::extract::{Path, Request, State};
use axum::response::Response;

use super::error::{no_file, of_engine};
use crate::app::App;
use crate::dialects::rfc3339::rfc3339;
use crate::error::ApiError;
use crate::http::{Caller, MultipartForm, Params, Upload, download};

/// Bytes of one file.
const MAX_FILE: u64 = 512 << 20;
/// The usual number of files of a page, and the most.
const PAGE: usize = 20;
const MAX_PAGE: usize = 1000;
/// Files that can be asked for by their ids.
const MAX_IDS: usize = 100;
/// The range of a file's lifetime, seconds: from an hour to ninety days.
const LIVES: std::ops::RangeInclusive<i64> = 3600..=90 * 24 * 3600;
/// The purpose under which OpenAI's clients see these files.
const PURPOSE: &str = "user_data";

/// A file that a client can name.
#[derive(Debug, Clone)]
pub(super) enum Stored {
    /// A client's own.
    Uploaded(FileRecord),
    /// A file that a program made in this container.
    Made(SessionId, SessionFileRecord),
}

impl Stored {
    /// Finds a file of the tenant's.
    pub(super) async fn find(app: &App, tenant: &Tenant, id: &str) -> Result<Self, ApiError> {
        let found = if let Some(id) = FileId::parse(id) {
            app.store.file(tenant, &id).await?.map(Self::Uploaded)
        } else if let Some(id) = SessionFileId::parse(id) {
            app.store.file_of_any_session(tenant, &id).await?.map(|(container, file)| Self::Made(container, file))
        } else {
            None
        };
        found.ok_or_else(|| no_file(id))
    }

    /// Its id.
    pub(super) fn id(&self) -> &str {
        match self {
            Self::Uploaded(file) => file.id.as_str(),
            Self::Made(_, file) => file.id.as_str(),
        }
    }

    /// Its name: no directories.
    pub(super) fn name(&self) -> &str {
        let path = match self {
            Self::Uploaded(file) => &file.filename,
            Self::Made(_, file) => &file.path,
        };
        path.rsplit('/').next().unwrap_or(path)
    }

    /// Its MIME type.
    pub(super) fn mime(&self) -> &str {
        match self {
            Self::Uploaded(file) => &file.mime,
            Self::Made(_, file) => &file.mime,
        }
    }

    /// The blob that holds its content.
    pub(super) fn blob(&self) -> &BlobName {
        match self {
            Self::Uploaded(file) => &file.blob,
            Self::Made(_, file) => &file.blob,
        }
    }

    /// Its size.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Uploaded(file) => file.bytes,
            Self::Made(_, file) => file.bytes,
        }
    }

    fn render(&self) -> File {
        let (created_at, expires_at) = match self {
            Self::Uploaded(file) => (file.created_at, file.expires_at),
            Self::Made(_, file) => (file.created_at, None),
        };
        File {
            id: self.id().to_owned(),
            filename: self.name().to_owned(),
            mime_type: self.mime().to_owned(),
            size_bytes: self.bytes(),
            created_at: rfc3339(created_at),
            downloadable: true,
            expires_at: expires_at.map(rfc3339),
        }
    }
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    request: Request,
) -> Result<Json<File>, ApiError> {
    if !MultipartForm::is_in(&request) {
        return Err(ApiError::bad_request("Send the file as multipart/form-data, in the part 'file'."));
    }
    let mut form = MultipartForm::read(&app, &tenant, request, "file", MAX_FILE).await?;
    let expires_at = form.text("expires_in_seconds").map(life).transpose()?.map(|seconds| now() + seconds);
    let Upload { name, mime, blob } = form.take_file()?;
    let filename = name.rsplit('/').next().unwrap_or(&name).to_owned();
    let file = NewFile { filename, purpose: PURPOSE.to_owned(), mime, expires_at };
    Ok(Json(Stored::Uploaded(app.store.add_file(&tenant, file, blob).await?).render()))
}

fn life(text: &str) -> Result<i64, ApiError> {
    let seconds = text.parse().ok().filter(|seconds| LIVES.contains(seconds));
    seconds.ok_or_else(|| {
        let message = format!("It must be a number of seconds from {} to {}.", LIVES.start(), LIVES.end());
        ApiError::invalid("expires_in_seconds", message)
    })
}

/// Files of clients or, with a container as `scope_id`, those in it.
pub(super) async fn list(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    params: Params,
) -> Result<Json<Page<File>>, ApiError> {
    let ids: Vec<&str> = params.all("ids").take(MAX_IDS + 1).collect();
    if ids.len() > MAX_IDS {
        return Err(ApiError::invalid("ids", format!("At most {MAX_IDS} ids can be asked for at once.")));
    }
    if !ids.is_empty() {
        let mut data = Vec::new();
        for id in ids {
            match Stored::find(&app, &tenant, id).await {
                Ok(file) => data.push(file.render()),
                Err(error) if error.status == axum::http::StatusCode::NOT_FOUND => {}
                Err(error) => return Err(error),
            }
        }
        return Ok(Json(page(data, false)));
    }
    let limit = params.page(PAGE, MAX_PAGE)?.limit;
    let before = params.get("before_id");
    let after = params.get("after_id").or(params.get("page"));
    let order = if before.is_some() { Order::Ascending } else { Order::Descending };
    let query = PageQuery { after: before.or(after).map(str::to_owned), limit, order };
    let (found, has_more) = match params.get("scope_id") {
        Some(scope) => in_container(&app, &tenant, scope, query).await?,
        None => {
            let found = app.store.files(&tenant, None, query).await?;
            (found.data.into_iter().map(Stored::Uploaded).collect(), found.has_more)
        }
    };
    let mut data: Vec<File> = found.iter().map(Stored::render).collect();
    if before.is_some() {
        data.reverse();
    }
    Ok(Json(page(data, has_more)))
}

/// A page of the files in a container, and true if there are more; none if there is no such container.
async fn in_container(
    app: &App,
    tenant: &Tenant,
    scope: &str,
    query: PageQuery,
) -> Result<(Vec<Stored>, bool), ApiError> {
    let Some(container) = SessionId::parse(scope) else { return Ok((Vec::new(), false)) };
    let found = app.store.session_files(tenant, &container, query).await?;
    let made = found.data.into_iter().map(|file| Stored::Made(container.clone(), file));
    Ok((made.collect(), found.has_more))
}

fn page(data: Vec<File>, has_more: bool) -> Page<File> {
    Page::new(data, has_more, |file| &file.id)
}

pub(super) async fn retrieve(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<File>, ApiError> {
    Ok(Json(Stored::find(&app, &tenant, &id).await?.render()))
}

pub(super) async fn content(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let file = Stored::find(&app, &tenant, &id).await?;
    download(&app.store, file.blob(), file.bytes(), file.mime(), file.name()).await
}

pub(super) async fn delete(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<DeletedFile>, ApiError> {
    let deleted = match Stored::find(&app, &tenant, &id).await? {
        Stored::Uploaded(file) => app.store.delete_file(&tenant, &file.id).await?,
        Stored::Made(container, file) => {
            let choice = SessionChoice::Reuse(container);
            let session = app.engine.sessions.open(&tenant, choice).await.map_err(of_engine)?;
            app.tasks.finish(async move { session.delete_file(&file.id).await }).await??
        }
    };
    if deleted { Ok(Json(DeletedFile { id })) } else { Err(no_file(&id)) }
}
