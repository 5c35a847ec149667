//! Plain uploads and downloads of files.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use aludel_engine::sandboxes::files::{CHUNK, Entry, Files, FilesError, NewFile, OpenFile, Problem};
use aludel_wire::e2b::WrittenFile;
use axum::Json;
use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::{
    ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_SECURITY_POLICY,
    CONTENT_TYPE, RANGE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use flate2::write::GzDecoder;
use futures_util::StreamExt;
use futures_util::stream::unfold;
use tokio::time::timeout;

use super::reach::Reached;
use super::sign::FileQuery;
use crate::app::App;
use crate::error::ApiError;
use crate::http::{Form, Parts, SILENCE, mime_of};

/// Files of one form.
const MAX_FILES: usize = 1000;
/// Compressed bytes that are unpacked at once: few, because they may become a thousand times as many.
const UNPACK: usize = 1 << 10;
/// The beginning of headers with a client's attributes.
const METADATA: &str = "x-metadata-";
/// Bytes of a client's attributes.
const MAX_METADATA: usize = 4 << 10;
/// Bytes of a packed form, unpacked.
const MAX_UNPACKED: u64 = 1 << 30;

/// Puts a failure into words.
fn refused(error: FilesError) -> ApiError {
    match error {
        FilesError::Refused { problem, message } => {
            let status = match problem {
                Problem::NotFound => StatusCode::NOT_FOUND,
                Problem::Full => StatusCode::INSUFFICIENT_STORAGE,
                Problem::Denied => StatusCode::FORBIDDEN,
                Problem::Busy => StatusCode::TOO_MANY_REQUESTS,
                Problem::Exists
                | Problem::IsADirectory
                | Problem::NotADirectory
                | Problem::TooMany
                | Problem::NotSupported
                | Problem::Invalid => StatusCode::BAD_REQUEST,
            };
            ApiError { status, ..ApiError::bad_request(message) }
        }
        FilesError::Sandbox(error) => super::error::refused(error.into()),
    }
}

fn check_user(query: &FileQuery) -> Result<(), ApiError> {
    match query.username.as_deref() {
        None | Some("" | "user") => Ok(()),
        Some(_) => Err(ApiError::unauthorized("everything in this sandbox belongs to the user 'user'")),
    }
}

/// `GET /files`
pub(super) async fn download(Reached { live, .. }: Reached, request: Request) -> Result<Response, ApiError> {
    let query = FileQuery::of(&request)?;
    check_user(&query)?;
    let path = query.path.unwrap_or_default();
    let files = live.files().await.map_err(super::error::refused)?;
    let missing = |error| match error {
        FilesError::Refused { problem: problem @ Problem::NotFound, .. } => {
            FilesError::Refused { problem, message: format!("path '{path}' does not exist") }
        }
        error => error,
    };
    let opened = files.open(&path, 0).await.map_err(missing).map_err(refused)?;
    let size = opened.size;
    let wanted = match request.headers().get(RANGE) {
        // What has no size has no range, and content all the same.
        Some(range) if size > 0 => range_of(range, size)?,
        _ => None,
    };
    let (opened, first, left) = match wanted {
        None => (opened, 0, size),
        Some((first, last)) => (files.open(&path, first).await.map_err(refused)?, first, last - first + 1),
    };
    let name = path.rsplit('/').next().unwrap_or_default();
    let mut response = Response::new(body(opened, (size > 0).then_some(left)));
    let headers = response.headers_mut();
    if size > 0 {
        headers.insert(CONTENT_LENGTH, left.into());
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    }
    let mime = HeaderValue::from_str(&mime_of(name, None));
    headers.insert(CONTENT_TYPE, mime.unwrap_or(HeaderValue::from_static("application/octet-stream")));
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("inline"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // A page that a program wrote is shown, and is nobody's here: it has no scripts and no origin.
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    if wanted.is_some() {
        let range = format!("bytes {first}-{}/{size}", first + left - 1);
        headers.insert(CONTENT_RANGE, HeaderValue::from_str(&range).unwrap_or(HeaderValue::from_static("bytes */*")));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

/// The first and the last byte that are wanted; `None` for all of them. Several ranges are answered by all of it.
fn range_of(range: &HeaderValue, size: u64) -> Result<Option<(u64, u64)>, ApiError> {
    let Some(range) = range.to_str().ok().and_then(|range| range.trim().strip_prefix("bytes=")) else {
        return Ok(None);
    };
    let Some((first, last)) = range.split_once('-').filter(|_| !range.contains(',')) else { return Ok(None) };
    let parsed = match (first.trim(), last.trim()) {
        ("", last) => {
            last.parse().ok().filter(|count| *count > 0).map(|count: u64| (size.saturating_sub(count), size - 1))
        }
        (first, "") => first.parse().ok().map(|first| (first, size - 1)),
        (first, last) => {
            first.parse().ok().zip(last.parse().ok()).map(|(first, last): (u64, u64)| (first, last.min(size - 1)))
        }
    };
    match parsed {
        Some((first, last)) if first <= last => Ok(Some((first, last))),
        _ => {
            let error = ApiError::bad_request(format!("the range is not within the {size} bytes of the file"));
            Err(ApiError { status: StatusCode::RANGE_NOT_SATISFIABLE, ..error })
        }
    }
}

/// The bytes of a file: so many if that is known, and no more. A file that became shorter breaks the answer off.
fn body(opened: OpenFile, left: Option<u64>) -> Body {
    let chunks = unfold(Some((opened, left)), async |state| {
        let (mut opened, left) = state?;
        if left == Some(0) {
            return None;
        }
        match opened.read().await {
            Err(error) => Some((Err(std::io::Error::other(error)), None)),
            Ok(bytes) if bytes.is_empty() => {
                left.map(|_| (Err(std::io::Error::other("the file became shorter while it was read")), None))
            }
            Ok(mut bytes) => {
                let left = left.map(|left| {
                    bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                    left - bytes.len() as u64
                });
                Some((Ok(bytes), Some((opened, left))))
            }
        }
    });
    Body::from_stream(chunks)
}

/// `POST /files`
pub(super) async fn upload(State(app): State<Arc<App>>, request: Request) -> Result<Json<Vec<WrittenFile>>, ApiError> {
    let (mut parts, body) = request.into_parts();
    let Reached { live, .. } = Reached::from_request_parts(&mut parts, &app).await?;
    let request = Request::from_parts(parts, body);
    let query = FileQuery::of(&request)?;
    check_user(&query)?;
    let metadata = metadata_of(request.headers())?;
    let is_packed = match request.headers().get(CONTENT_ENCODING).map(HeaderValue::as_bytes) {
        None | Some(b"identity") => false,
        Some(b"gzip") => true,
        Some(_) => return Err(ApiError::bad_request("only the content encodings gzip and identity are understood")),
    };
    let files = live.files().await.map_err(super::error::refused)?;
    if !Form::is_in(&request) {
        let Some(path) = query.path.filter(|path| !path.is_empty()) else {
            return Err(ApiError::bad_request("the query has no path"));
        };
        let mut writer = Writer::create(&files, &path, &metadata, is_packed).await?;
        let mut body = request.into_body().into_data_stream();
        while let Some(chunk) = timeout(SILENCE, body.next()).await.map_err(|_| ApiError::too_slow())? {
            let chunk = chunk.map_err(|error| ApiError::bad_request(format!("The body broke off: {error}")))?;
            writer.write(chunk).await?;
        }
        return Ok(Json(vec![writer.finish().await?]));
    }
    let request = if is_packed { unpacked(request) } else { request };
    let (mut form, mut written) = (Parts::of(request, MAX_FILES).await?, Vec::new());
    while let Some(mut part) = form.next().await? {
        if part.name() != Some("file") {
            continue;
        }
        let path = match (&query.path, part.file_name()?) {
            (Some(path), _) if !path.is_empty() => path.clone(),
            (_, Some(name)) => name.to_owned(),
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
    let packed = Packed { body: body.into_data_stream(), packed, decoder, ready, size: 0 };
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
struct Packed {
    body: BodyDataStream,
    /// Bytes that are to be unpacked.
    packed: Bytes,
    decoder: GzDecoder<Vec<u8>>,
    /// Bytes that were unpacked and nobody has taken yet.
    ready: Bytes,
    /// Bytes that were unpacked.
    size: u64,
}

impl Packed {
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
    file: NewFile,
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
        let file = files.create(path, metadata.clone()).await.map_err(refused)?;
        let decoder = is_packed.then(|| GzDecoder::new(Vec::new()));
        Ok(Self { file, decoder, metadata: metadata.clone() })
    }

    async fn write(&mut self, chunk: Bytes) -> Result<(), ApiError> {
        let Some(decoder) = &mut self.decoder else { return self.file.write(chunk).await.map_err(refused) };
        for packed in chunk.chunks(UNPACK) {
            decoder.write_all(packed).map_err(|error| broken(&error))?;
            let unpacked = std::mem::take(decoder.get_mut());
            self.file.write(unpacked.into()).await.map_err(refused)?;
        }
        Ok(())
    }

    async fn finish(mut self) -> Result<WrittenFile, ApiError> {
        if let Some(decoder) = self.decoder.take() {
            let rest = decoder.finish().map_err(|error| broken(&error))?;
            self.file.write(rest.into()).await.map_err(refused)?;
        }
        let Entry { path, name, .. } = self.file.finish().await.map_err(refused)?;
        Ok(WrittenFile { path, name, r#type: "file".to_owned(), metadata: self.metadata })
    }
}

fn broken(error: &std::io::Error) -> ApiError {
    ApiError::bad_request(format!("the body cannot be unpacked: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_within_the_file() {
        let range = |text: &'static str| range_of(&HeaderValue::from_static(text), 10).map_err(|error| error.status);
        assert_eq!(range("bytes=0-3"), Ok(Some((0, 3))));
        assert_eq!(range("bytes=4-"), Ok(Some((4, 9))));
        assert_eq!(range("bytes=-3"), Ok(Some((7, 9))));
        assert_eq!(range("bytes=-30"), Ok(Some((0, 9))));
        assert_eq!(range("bytes=8-80"), Ok(Some((8, 9))));
        assert_eq!(range("bytes=0-1,3-4"), Ok(None));
        assert_eq!(range("lines=1-2"), Ok(None));
        for outside in ["bytes=10-", "bytes=5-3", "bytes=-0", "bytes=x-y", "bytes=99999999999999999999-"] {
            assert_eq!(range(outside), Err(StatusCode::RANGE_NOT_SATISFIABLE), "{outside}");
        }
    }
}
