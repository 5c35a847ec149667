//! Uploads and downloads of files.

use std::collections::BTreeMap;
use std::sync::Arc;

use aludel_engine::sandboxes::files::OpenFile;
use aludel_wire::opensandbox::files::UploadMetadata;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::{CONTENT_TYPE, RANGE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use futures_util::stream::unfold;

use super::files::{failed, files, permit};
use super::target::TargetSandbox;
use crate::app::App;
use crate::client_sandboxes::download;
use crate::error::ApiError;
use crate::http::{FormParts, Params};

/// Parts of one form: two for each file.
const MAX_PARTS: usize = 2000;
/// Bytes of a part with the destination of the next one.
const MAX_METADATA: usize = 16 << 10;

/// `POST /files/upload`
pub(super) async fn upload(State(app): State<Arc<App>>, request: Request) -> Result<StatusCode, ApiError> {
    let (mut head, body) = request.into_parts();
    let reached = TargetSandbox::from_request_parts(&mut head, &app).await?;
    let files = files(&reached).await?;
    let mut form = FormParts::of(Request::from_parts(head, body), MAX_PARTS).await?;
    let mut target: Option<UploadMetadata> = None;
    while let Some(mut part) = form.next().await? {
        match part.name() {
            Some("metadata") => {
                let mut text = Vec::new();
                while let Some(chunk) = part.chunk().await? {
                    if text.len() + chunk.len() > MAX_METADATA {
                        return Err(invalid_metadata(&format!("it has at most {} KB", MAX_METADATA >> 10)));
                    }
                    text.extend_from_slice(&chunk);
                }
                target = Some(serde_json::from_slice(&text).map_err(|error| invalid_metadata(&error.to_string()))?);
            }
            Some("file") => {
                let Some(UploadMetadata { path, permission }) = target.take() else {
                    return Err(invalid_metadata("each file follows a part that names its path"));
                };
                let mut file = files.create(&path, BTreeMap::new()).await.map_err(failed)?;
                while let Some(chunk) = part.chunk().await? {
                    file.write(chunk).await.map_err(failed)?;
                }
                file.finish().await.map_err(failed)?;
                permit(&files, &path, &permission).await?;
            }
            _ => {}
        }
    }
    Ok(StatusCode::OK)
}

fn invalid_metadata(reason: &str) -> ApiError {
    ApiError::bad_request(format!("invalid metadata: {reason}")).code("INVALID_FILE_METADATA")
}

/// `GET /files/download`
pub(super) async fn download(reached: TargetSandbox, params: Params, headers: HeaderMap) -> Result<Response, ApiError> {
    let missing = || ApiError::bad_request("missing query parameter 'path'").code("MISSING_QUERY");
    let path = params.get("path").ok_or_else(missing)?;
    let number = |name| match params.get(name).map(str::parse::<u64>) {
        None => Ok(None),
        Some(Ok(number)) if number > 0 => Ok(Some(number)),
        Some(_) => Err(ApiError::bad_request(format!("invalid query parameter '{name}'"))),
    };
    let (first, count) = (number("offset")?, number("limit")?);
    if first.is_none() && count.is_none() {
        let answered = download::download(&reached.sandbox, path, &headers).await;
        let is_missing = |error: &ApiError| error.status == StatusCode::NOT_FOUND;
        return answered.map_err(|error| if is_missing(&error) { error.code("FILE_NOT_FOUND") } else { error });
    }
    if headers.contains_key(RANGE) {
        return Err(ApiError::bad_request("lines (offset, limit) and a range of bytes exclude each other"));
    }
    let opened = files(&reached).await?.open(path, 0).await.map_err(failed)?;
    let lines = Lines { skip: first.unwrap_or(1) - 1, left: count, has_ended: false };
    let chunks = unfold(Some((opened, lines)), async |state| {
        let (mut opened, mut lines) = state?;
        match read(&mut opened, &mut lines).await {
            Ok(None) => None,
            Ok(Some(bytes)) => Some((Ok(bytes), Some((opened, lines)))),
            Err(error) => Some((Err(error), None)),
        }
    });
    let mut response = Response::new(Body::from_stream(chunks));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    Ok(response)
}

/// The next bytes of the requested lines; `None` at their end.
async fn read(opened: &mut OpenFile, lines: &mut Lines) -> std::io::Result<Option<Bytes>> {
    loop {
        let chunk = match lines.left {
            Some(0) => return Ok(None),
            _ => opened.read().await.map_err(std::io::Error::other)?,
        };
        if chunk.is_empty() {
            return Ok(None);
        }
        let wanted = lines.take(&chunk);
        if !wanted.is_empty() {
            return Ok(Some(wanted.into()));
        }
    }
}

/// The requested lines of a file, without the end of the last one.
struct Lines {
    /// Lines that come before.
    skip: u64,
    /// Lines that are left; `None` for all.
    left: Option<u64>,
    /// True if the last line has ended. Its end is sent once another line follows.
    has_ended: bool,
}

impl Lines {
    fn take(&mut self, chunk: &[u8]) -> Vec<u8> {
        let mut wanted = Vec::with_capacity(chunk.len() + 1);
        for byte in chunk {
            if self.left == Some(0) {
                break;
            }
            match byte {
                b'\n' if self.skip > 0 => self.skip -= 1,
                _ if self.skip > 0 => {}
                byte => {
                    if std::mem::take(&mut self.has_ended) {
                        wanted.push(b'\n');
                    }
                    if *byte == b'\n' {
                        self.has_ended = true;
                        self.left = self.left.map(|left| left - 1);
                    } else {
                        wanted.push(*byte);
                    }
                }
            }
        }
        wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_gives_no_more_than_it_has() {
        let mut lines = Lines { skip: 0, left: None, has_ended: false };
        for _ in 0..1000 {
            assert!(lines.take(&[b'\n'; 1000]).len() <= 1000);
        }
        assert!(lines.take(b"x").len() <= 2);
    }

    #[test]
    fn lines_are_those_that_were_asked_for() {
        let take = |skip, left, size: usize| {
            let mut lines = Lines { skip, left, has_ended: false };
            let text = b"1\n2\n\n4\n5".chunks(size).flat_map(|chunk| lines.take(chunk)).collect();
            String::from_utf8(text).unwrap()
        };
        for size in [1, 2, 100] {
            assert_eq!(take(0, None, size), "1\n2\n\n4\n5");
            assert_eq!(take(1, Some(3), size), "2\n\n4");
            assert_eq!(take(3, None, size), "4\n5");
            assert_eq!(take(9, None, size), "");
            assert_eq!(take(0, Some(2), size), "1\n2");
            assert_eq!(take(1, Some(2), size), "2\n");
        }
    }
}
