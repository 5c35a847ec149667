//! Plain uploads and downloads of files.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use aludel_engine::sandboxes::files::{CHUNK, FileWriter, Files, PathInfo};
use aludel_wire::e2b::WrittenFile;
use axum::Json;
use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::CONTENT_ENCODING;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use flate2::write::GzDecoder;
use futures_util::StreamExt;
use futures_util::stream::unfold;
use tokio::time::timeout;

use super::sign::FileQuery;
use super::target::TargetSandbox;
use super::user::check_user;
use crate::app::App;
use crate::client_sandboxes::download;
use crate::client_sandboxes::refusal::{refused, refused_file};
use crate::error::ApiError;
use crate::http::{BODY_READ_TIMEOUT, FormParts, MultipartForm};

/// Files of one form.
const MAX_FILES: usize = 1000;
/// Compressed bytes that are decompressed at once: few, because they may expand a thousandfold.
const UNPACK: usize = 1 << 10;
/// The beginning of headers with a client's attributes.
const METADATA: &str = "x-metadata-";
/// Bytes of a client's attributes.
const MAX_METADATA: usize = 4 << 10;
/// Bytes of a packed form, unpacked.
const MAX_UNPACKED: u64 = 1 << 30;

/// `GET /files`
pub(super) async fn download(
    TargetSandbox { sandbox, .. }: TargetSandbox,
    request: Request,
) -> Result<Response, ApiError> {
    let query = FileQuery::of(&request)?;
    check_user(query.username.as_deref())?;
    let path = query.path.unwrap_or_default();
    download::download(&sandbox, &path, request.headers()).await
}

/// `POST /files`
pub(super) async fn upload(State(app): State<Arc<App>>, request: Request) -> Result<Json<Vec<WrittenFile>>, ApiError> {
    let (mut parts, body) = request.into_parts();
    let TargetSandbox { sandbox, .. } = TargetSandbox::from_request_parts(&mut parts, &app).await?;
    let request = Request::from_parts(parts, body);
    let query = FileQuery::of(&request)?;
    check_user(query.username.as_deref())?;
    let metadata = metadata_of(request.headers())?;
    let is_packed = match request.headers().get(CONTENT_ENCODING).map(HeaderValue::as_bytes) {
        None | Some(b"identity") => false,
        Some(b"gzip") => true,
        Some(_) => return Err(ApiError::bad_request("only the content encodings gzip and identity are understood")),
    };
    let files = sandbox.files().await.map_err(refused)?;
    if !MultipartForm::is_in(&request) {
        let Some(path) = query.path.filter(|path| !path.is_empty()) else {
            return Err(ApiError::bad_request("the query has no path"));
        };
        let mut writer = Writer::create(&files, &path, &metadata, is_packed).await?;
        let mut body = request.into_body().into_data_stream();
        while let Some(chunk) = timeout(BODY_READ_TIMEOUT, body.next()).await.map_err(|_| ApiError::too_slow())? {
            let chunk = chunk.map_err(|error| ApiError::bad_request(format!("The body broke off: {error}")))?;
            writer.write(chunk).await?;
        }
        return Ok(Json(vec![writer.finish().await?]));
    }
    let request = if is_packed { unpacked(request) } else { request };
    let (mut form, mut written) = (FormParts::of(request, MAX_FILES).await?, Vec::new());
    while let Some(mut part) = form.next().await? {
        if part.name() != Some("file") {
            continue;
        }
        let path = match (&query.path, part.file_name()?) {
            (Some(path), _) if !path.is_empty() => path.clone(),
            (_, Some(name)) => name.into_owned(),
            _ => return Err(ApiError::bad_request("neither the query nor the part names a path")),
        };
        let mut writer = Writer::create(&files, &path, &metadata, false).await?;
        while let Some(chunk) = part.chunk().await? {
            writer.write(chunk).await?;
        }
        written.push(writer.finish().await?);
    }
    Ok(Json(written))
}

/// The client's attributes, from the headers.
fn metadata_of(headers: &HeaderMap) -> Result<BTreeMap<String, String>, ApiError> {
    let mut metadata = BTreeMap::new();
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix(METADATA) else { continue };
        let value =
            value.to_str().map_err(|_| ApiError::bad_request(format!("invalid value of the metadata '{key}'")))?;
        metadata.insert(key.to_owned(), value.to_owned());
    }
    if metadata.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() > MAX_METADATA {
        return Err(ApiError::bad_request(format!("the metadata of a file has at most {MAX_METADATA} bytes")));
    }
    Ok(metadata)
}

/// A form whose body was packed.
fn unpacked(request: Request) -> Request {
    let (parts, body) = request.into_parts();
    let decoder = GzDecoder::new(Vec::new());
    let (packed, ready) = (Bytes::new(), Bytes::new());
    let packed = GzipBody { body: body.into_data_stream(), packed, decoder, ready, size: 0 };
    let chunks = unfold(Some(packed), async |packed| {
        let mut packed = packed?;
        match packed.next().await {
            Ok(bytes) => bytes.map(|bytes| (Ok(bytes), Some(packed))),
            Err(error) => Some((Err(error), None)),
        }
    });
    Request::from_parts(parts, Body::from_stream(chunks))
}

/// A packed body.
struct GzipBody {
    body: BodyDataStream,
    /// Bytes to decompress.
    packed: Bytes,
    decoder: GzDecoder<Vec<u8>>,
    /// Decompressed bytes that have not been read.
    ready: Bytes,
    /// Bytes that were unpacked.
    size: u64,
}

impl GzipBody {
    /// The next unpacked bytes; `None` at the end.
    async fn next(&mut self) -> std::io::Result<Option<Bytes>> {
        let mut is_over = false;
        loop {
            if !self.ready.is_empty() {
                return Ok(Some(self.ready.split_to(self.ready.len().min(CHUNK))));
            }
            if is_over {
                return Ok(None);
            }
            if !self.packed.is_empty() {
                self.decoder.write_all(&self.packed.split_to(self.packed.len().min(UNPACK)))?;
            } else if let Some(chunk) = self.body.next().await {
                self.packed = chunk.map_err(std::io::Error::other)?;
            } else {
                self.decoder.try_finish()?;
                is_over = true;
            }
            self.ready = std::mem::take(self.decoder.get_mut()).into();
            self.size += self.ready.len() as u64;
            if self.size > MAX_UNPACKED {
                return Err(std::io::Error::other("it is too large"));
            }
        }
    }
}

/// A file that is being uploaded.
struct Writer {
    file: FileWriter,
    /// The decoder of a packed one.
    decoder: Option<GzDecoder<Vec<u8>>>,
    metadata: BTreeMap<String, String>,
}

impl Writer {
    async fn create(
        files: &Files,
        path: &str,
        metadata: &BTreeMap<String, String>,
        is_packed: bool,
    ) -> Result<Self, ApiError> {
        let file = files.create(path, metadata.clone()).await.map_err(refused_file)?;
        let decoder = is_packed.then(|| GzDecoder::new(Vec::new()));
        Ok(Self { file, decoder, metadata: metadata.clone() })
    }

    async fn write(&mut self, chunk: Bytes) -> Result<(), ApiError> {
        let Some(decoder) = &mut self.decoder else { return self.file.write(chunk).await.map_err(refused_file) };
        for packed in chunk.chunks(UNPACK) {
            decoder.write_all(packed).map_err(|error| broken(&error))?;
            let unpacked = std::mem::take(decoder.get_mut());
            self.file.write(unpacked.into()).await.map_err(refused_file)?;
        }
        Ok(())
    }

    async fn finish(mut self) -> Result<WrittenFile, ApiError> {
        if let Some(decoder) = self.decoder.take() {
            let rest = decoder.finish().map_err(|error| broken(&error))?;
            self.file.write(rest.into()).await.map_err(refused_file)?;
        }
        let PathInfo { path, name, .. } = self.file.finish().await.map_err(refused_file)?;
        Ok(WrittenFile { path, name, r#type: "file".to_owned(), metadata: self.metadata })
    }
}

fn broken(error: &std::io::Error) -> ApiError {
    ApiError::bad_request(format!("the body cannot be unpacked: {error}"))
}
