//! Contents of files, streamed from disk.

use aludel_store::{BlobName, BlobReader, Store};
use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{
    CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::Response;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::io::AsyncReadExt;
use tokio_util::io::ReaderStream;

use crate::error::ApiError;

/// Characters of names that addresses and headers encode (RFC 3986, section 2.3).
pub(crate) const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Pictures that browsers show without running anything of them.
const PICTURES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// Answers with the content of a blob. It may be anything, so browsers save it instead of showing it.
pub(crate) async fn download(
    store: &Store,
    blob: &BlobName,
    bytes: u64,
    mime: &str,
    path: &str,
) -> Result<Response, ApiError> {
    Ok(attachment(store.read_blob(blob).await?, bytes, mime, path))
}

/// Answers with the content of an open blob.
pub(crate) fn attachment(content: BlobReader, bytes: u64, mime: &str, path: &str) -> Response {
    let mut response = Response::new(Body::from_stream(ReaderStream::with_capacity(content.take(bytes), 64 << 10)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, bytes.into());
    let mime = HeaderValue::from_str(mime).unwrap_or(HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_TYPE, mime);
    headers.insert(CONTENT_DISPOSITION, disposition("attachment", path));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Answers with the content of an open blob for people: pictures that cannot contain scripts are shown.
pub(crate) fn show(content: BlobReader, bytes: u64, mime: &str, path: &str) -> Response {
    let mut response = attachment(content, bytes, mime, path);
    if PICTURES.contains(&mime) {
        let headers = response.headers_mut();
        headers.insert(CONTENT_DISPOSITION, disposition("inline", path));
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; sandbox"));
    }
    response
}

/// The name to save under: the last part of the path, encoded so that any character is allowed (RFC 6266).
fn disposition(kind: &str, path: &str) -> HeaderValue {
    let name = path.rsplit('/').next().unwrap_or(path);
    let text = format!("{kind}; filename*=UTF-8''{}", utf8_percent_encode(name, ENCODED));
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("attachment"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_becomes_a_header() {
        assert_eq!(disposition("attachment", "sub/a b.csv"), "attachment; filename*=UTF-8''a%20b.csv");
        assert_eq!(disposition("attachment", "é\"\n\r.txt"), "attachment; filename*=UTF-8''%C3%A9%22%0A%0D.txt");
    }
}
