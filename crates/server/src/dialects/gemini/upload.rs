//! `POST /upload/v1/files`: uploads in pieces, controlled by the headers `X-Goog-Upload-…`.
//!
//! The pieces have no key; their address is signed.

use std::sync::Arc;

use aludel_engine::execution::ending_of;
use aludel_engine::sessions::check_name;
use aludel_store::{FileRecord, NewBlob, NewUpload, PartRecord, Tenant, UploadId, UploadRecord, UploadStatus, now};
use aludel_wire::gemini::{FileMetadata, UploadedFile};
use axum::body::HttpBody;
use axum::extract::{FromRequest, Query, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures_util::StreamExt;
use serde_json::json;
use tokio::time::timeout;

use super::error::ALREADY_EXISTS;
use super::files::{find_id, may_be_chosen, render};
use crate::app::App;
use crate::dialects::openai::uploads::{MAX_PART, MAX_PARTS, UPLOAD_LIFE_SECONDS, join};
use crate::error::ApiError;
use crate::http::{BODY_READ_TIMEOUT, Caller, Fields, mime_of};
use crate::links;

/// The beginning of the paths of uploads.
pub(super) const PATHS: &str = "/upload/";
/// Bytes of one file, the vendor's limit.
const MAX_FILE: u64 = 2 << 30;
/// The lifetime of a file, seconds, as at the vendor's.
const FILE_LIFE_SECONDS: i64 = 48 * 3600;
/// The purpose under which OpenAI's clients see these files.
const PURPOSE: &str = "user_data";
/// The parameter of an upload's address that holds its ticket.
const TICKET: &str = "upload_id";
const COMMAND: &str = "x-goog-upload-command";
const OFFSET: &str = "x-goog-upload-offset";
const STATUS: HeaderName = HeaderName::from_static("x-goog-upload-status");
const RECEIVED: HeaderName = HeaderName::from_static("x-goog-upload-size-received");
const ADDRESS: HeaderName = HeaderName::from_static("x-goog-upload-url");

/// The right to continue one upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ticket {
    tenant: Tenant,
    upload: UploadId,
}

impl Ticket {
    /// Parses the ticket of an address, if it is that of an upload.
    pub(crate) async fn read(app: &App, uri: &Uri) -> Result<Option<Self>, ApiError> {
        if !uri.path().starts_with(PATHS) {
            return Ok(None);
        }
        let pairs = Query::<Vec<(String, String)>>::try_from_uri(uri).map(|Query(pairs)| pairs).unwrap_or_default();
        let Some((_, token)) = pairs.into_iter().find(|(name, _)| name == TICKET) else { return Ok(None) };
        let ticket = Self::of_token(&app.link_secret().await?, &token);
        let unknown = || ApiError::not_found(format!("'{TICKET}' is not of an upload of this server's."));
        ticket.map(Some).ok_or_else(unknown)
    }

    /// The tenant that began the upload.
    pub(crate) fn caller(&self) -> Caller {
        Caller(self.tenant.clone())
    }

    fn token(&self, secret: &str) -> String {
        links::sign(secret, &format!("{}\n{}", self.tenant.as_str(), self.upload))
    }

    fn of_token(secret: &str, token: &str) -> Option<Self> {
        let text = links::signed(secret, token)?;
        let (tenant, upload) = text.split_once('\n')?;
        Some(Self { tenant: Tenant::of_signed(tenant), upload: UploadId::parse(upload)? })
    }
}

/// A request about an upload that was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Command {
    /// Bytes follow. With the last ones the file is made.
    Upload { is_last: bool },
    /// No bytes follow, and the file is made.
    Finalize,
    /// The client asks for the number of bytes that came.
    Query,
    /// The client gives the upload up.
    Cancel,
}

impl Command {
    fn of(headers: &HeaderMap) -> Result<Self, ApiError> {
        let said = text(headers, COMMAND).unwrap_or_default().to_ascii_lowercase();
        let words: Vec<&str> = said.split(',').map(str::trim).collect();
        match words.as_slice() {
            ["upload"] => Ok(Self::Upload { is_last: false }),
            ["upload", "finalize"] => Ok(Self::Upload { is_last: true }),
            ["finalize"] => Ok(Self::Finalize),
            ["query"] => Ok(Self::Query),
            ["cancel"] => Ok(Self::Cancel),
            _ => {
                let message =
                    format!("'{COMMAND}' must be 'upload', 'upload, finalize', 'finalize', 'query' or 'cancel'.");
                Err(ApiError::invalid(COMMAND, message))
            }
        }
    }
}

/// `POST /upload/v1/files`.
pub(super) async fn upload(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    ticket: Option<Extension<Ticket>>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, ApiError> {
    match ticket {
        Some(Extension(ticket)) => go_on(&app, &ticket, &headers, request).await,
        None => {
            let fields = Fields::from_request(request, &app).await?;
            begin(&app, tenant, &headers, fields).await
        }
    }
}

async fn begin(app: &App, tenant: Tenant, headers: &HeaderMap, mut fields: Fields) -> Result<Response, ApiError> {
    if text(headers, COMMAND) != Some("start") {
        let message = "Begin an upload with 'X-Goog-Upload-Protocol: resumable' and 'X-Goog-Upload-Command: start'.";
        return Err(ApiError::invalid(COMMAND, message));
    }
    let FileMetadata { name, display_name, mime_type, size_bytes } = fields.optional("file")?.unwrap_or_default();
    let name = match name.filter(|name| !name.is_empty()) {
        Some(name) => Some(chosen_id(app, &tenant, &name).await?),
        None => None,
    };
    let announced = || text(headers, "x-goog-upload-header-content-length")?.parse().ok();
    let bytes: u64 = size_bytes.or_else(announced).ok_or_else(|| ApiError::missing("file.sizeBytes"))?;
    if bytes > MAX_FILE {
        let message = format!("A file may have at most {} GB.", MAX_FILE >> 30);
        return Err(ApiError::too_large(message).param("file.sizeBytes"));
    }
    let said = mime_type.as_deref().or_else(|| text(headers, "x-goog-upload-header-content-type"));
    let given = display_name.as_deref().filter(|name| !name.is_empty());
    let given = given.or_else(|| text(headers, "x-goog-upload-file-name"));
    let filename = match given.and_then(|name| name.rsplit('/').next()).filter(|name| !name.is_empty()) {
        Some(name) => name.to_owned(),
        None => format!("file.{}", said.and_then(ending_of).unwrap_or("bin")),
    };
    check_name(&filename)?;
    app.store.check_room(&tenant, bytes).await?;
    let mime = mime_of(&filename, said);
    let (purpose, expires_at) = (PURPOSE.to_owned(), now() + UPLOAD_LIFE_SECONDS);
    let new = NewUpload { bytes, filename, purpose, mime, expires_at, file_lives: Some(FILE_LIFE_SECONDS), name };
    let upload = app.store.add_upload(&tenant, new).await?.id;
    let token = Ticket { tenant, upload }.token(&app.link_secret().await?);
    let address =
        format!("{}/upload/v1beta/files?{TICKET}={token}&upload_protocol=resumable", links::base(app, headers));
    let address = HeaderValue::try_from(address).map_err(ApiError::internal)?;
    let status = HeaderValue::from_static("active");
    Ok(([(ADDRESS, address), (STATUS, status)], Json(json!({}))).into_response())
}

/// The id that a client chooses for its file, which no other file of its may have.
async fn chosen_id(app: &App, tenant: &Tenant, name: &str) -> Result<String, ApiError> {
    let id = name.strip_prefix("files/").unwrap_or(name);
    if !may_be_chosen(id) {
        let message = "'file.name' must be 'files/' and up to 40 lowercase letters, digits and dashes, without a dash at its ends.";
        return Err(ApiError::invalid("file.name", message));
    }
    if find_id(app, tenant, id).await?.is_some() {
        let message = format!("The file 'files/{id}' exists already; delete it first.");
        return Err(ApiError::conflict(message).code(ALREADY_EXISTS));
    }
    Ok(id.to_owned())
}

async fn go_on(app: &App, ticket: &Ticket, headers: &HeaderMap, request: Request) -> Result<Response, ApiError> {
    let Ticket { tenant, upload: id } = ticket;
    let command = Command::of(headers)?;
    let gone = || ApiError::not_found("The upload does not exist any more.");
    let upload = app.store.upload(tenant, id).await?.ok_or_else(gone)?;
    let base = links::base(app, headers);
    let may_be_last = matches!(command, Command::Query | Command::Finalize | Command::Upload { is_last: true });
    if let Some(file) = upload.file.as_ref().filter(|_| may_be_last) {
        // The client did not receive the end of the upload.
        let file = app.store.file(tenant, file).await?.ok_or_else(gone)?;
        return Ok(ended(file, &base));
    }
    if upload.status != UploadStatus::Pending || upload.expires_at <= now() {
        return Err(over());
    }
    let parts = app.store.parts(tenant, id).await?;
    let received: u64 = parts.iter().map(|part| part.bytes).sum();
    match command {
        Command::Query => Ok(active(received)),
        Command::Cancel => {
            app.store.cancel_upload(tenant, id).await?;
            Ok(([(STATUS, HeaderValue::from_static("cancelled"))], Json(json!({}))).into_response())
        }
        Command::Upload { is_last } => {
            let offset = text(headers, OFFSET).and_then(|offset| offset.parse::<u64>().ok());
            if offset != Some(received) {
                return Err(wrong_offset(received));
            }
            if parts.len() == MAX_PARTS {
                return Err(ApiError::bad_request(format!("An upload may have at most {MAX_PARTS} pieces.")));
            }
            // A file in one piece needs to be stored only once.
            let is_whole = is_last && parts.is_empty();
            let most = upload.bytes - received.min(upload.bytes);
            let most = if is_whole { most } else { most.min(MAX_PART) };
            let blob = receive(app, tenant, request, most).await?;
            if is_whole {
                return complete(app, tenant, &upload, blob, &base).await;
            }
            let end = received + blob.bytes();
            if app.store.add_part_at(tenant, id, Some(received), blob).await?.is_none() {
                // Its client may have sent the piece twice, because the first time took long.
                let there: u64 = app.store.parts(tenant, id).await?.iter().map(|part| part.bytes).sum();
                return Err(if there == received { over() } else { wrong_offset(there) });
            }
            if !is_last {
                return Ok(active(end));
            }
            let parts = app.store.parts(tenant, id).await?;
            complete(app, tenant, &upload, joined(app, tenant, &upload, &parts).await?, &base).await
        }
        Command::Finalize => complete(app, tenant, &upload, joined(app, tenant, &upload, &parts).await?, &base).await,
    }
}

/// Reads a body of at most so many bytes to disk.
async fn receive(app: &App, tenant: &Tenant, request: Request, most: u64) -> Result<NewBlob, ApiError> {
    let body = request.into_body();
    // Reserved at once: of several concurrent uploads, those that fit succeed.
    let mut blob = app.store.new_blob(tenant, body.size_hint().lower().min(most)).await?;
    let mut body = body.into_data_stream();
    while let Some(chunk) = timeout(BODY_READ_TIMEOUT, body.next()).await.map_err(|_| ApiError::too_slow())? {
        let chunk = chunk.map_err(|error| ApiError::bad_request(format!("The body broke off: {error}")))?;
        if blob.bytes() + chunk.len() as u64 > most {
            let message = format!("The body has more than the {most} bytes that may follow in one piece.");
            return Err(ApiError::too_large(message));
        }
        blob.write(&chunk).await?;
    }
    Ok(blob.finish().await?)
}

/// Joins the pieces of a complete upload. An incomplete one is refused before it is copied, however often a client asks.
async fn joined(app: &App, tenant: &Tenant, upload: &UploadRecord, parts: &[PartRecord]) -> Result<NewBlob, ApiError> {
    check_bytes(upload, parts.iter().map(|part| part.bytes).sum())?;
    join(app, tenant, parts, None).await
}

fn check_bytes(upload: &UploadRecord, bytes: u64) -> Result<(), ApiError> {
    if bytes != upload.bytes {
        let message = format!("{bytes} bytes came, but {} were announced.", upload.bytes);
        return Err(ApiError::bad_request(message));
    }
    Ok(())
}

async fn complete(
    app: &App,
    tenant: &Tenant,
    upload: &UploadRecord,
    blob: NewBlob,
    base: &str,
) -> Result<Response, ApiError> {
    check_bytes(upload, blob.bytes())?;
    let file = app.store.complete_upload(tenant, upload, blob).await?.ok_or_else(over)?;
    Ok(ended(file, base))
}

fn ended(file: FileRecord, base: &str) -> Response {
    let answer = UploadedFile { file: render(file, base) };
    ([(STATUS, HeaderValue::from_static("final"))], Json(answer)).into_response()
}

fn active(received: u64) -> Response {
    let headers = [(STATUS, HeaderValue::from_static("active")), (RECEIVED, HeaderValue::from(received))];
    (headers, Json(json!({}))).into_response()
}

fn over() -> ApiError {
    let message =
        "The upload takes nothing any more: it was completed, cancelled, it expired, or another file got its name.";
    ApiError::bad_request(message)
}

fn wrong_offset(received: u64) -> ApiError {
    ApiError::invalid(OFFSET, format!("'{OFFSET}' must be {received}: so many bytes came before."))
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_for_one_upload_and_no_link_is_one() {
        let ticket = Ticket { tenant: Tenant::local(), upload: UploadId::new() };
        assert_eq!(Ticket::of_token("secret", &ticket.token("secret")), Some(ticket.clone()));
        assert_eq!(Ticket::of_token("secret", &ticket.token("another")), None);
        let link = format!("local\n{}\n{}\n7", aludel_store::SessionId::new(), aludel_store::SessionFileId::new());
        assert_eq!(Ticket::of_token("secret", &links::sign("secret", &link)), None);
        assert_eq!(links::FileLink::of_token(&ticket.token("secret"), "secret"), None);
    }
}
