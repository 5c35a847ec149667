//! Downloads of a sandbox's files, whole or in part.

use aludel_engine::sandboxes::ClientSandbox;
use aludel_engine::sandboxes::files::{FilesError, OpenFile, Problem};
use axum::body::Body;
use axum::http::header::{
    ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_SECURITY_POLICY, CONTENT_TYPE, RANGE,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use futures_util::stream::unfold;

use super::refusal::{refused, refused_file};
use crate::error::ApiError;
use crate::http::mime_of;

/// Answers a request with these headers for a file.
pub(crate) async fn download(sandbox: &ClientSandbox, path: &str, headers: &HeaderMap) -> Result<Response, ApiError> {
    let files = sandbox.files().await.map_err(refused)?;
    let missing = |error| match error {
        FilesError::Refused { problem: problem @ Problem::NotFound, .. } => {
            FilesError::Refused { problem, message: format!("path '{path}' does not exist") }
        }
        error => error,
    };
    let opened = files.open(path, 0).await.map_err(missing).map_err(refused_file)?;
    let size = opened.size;
    let wanted = match headers.get(RANGE) {
        // Files of size 0, such as those in /proc, have content but no ranges.
        Some(range) if size > 0 => range_of(range, size)?,
        _ => None,
    };
    let (opened, first, left) = match wanted {
        None => (opened, 0, size),
        Some((first, last)) => (files.open(path, first).await.map_err(refused_file)?, first, last - first + 1),
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
    // A browser would show a page that a program wrote. It gets no scripts and no origin.
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    if wanted.is_some() {
        let range = format!("bytes {first}-{}/{size}", first + left - 1);
        headers.insert(CONTENT_RANGE, HeaderValue::from_str(&range).unwrap_or(HeaderValue::from_static("bytes */*")));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

/// The first and last byte of a range; `None` for the whole file, also if several ranges are requested.
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

/// The bytes of a file, at most `left` if its size is known. If the file became shorter, the answer breaks off.
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
