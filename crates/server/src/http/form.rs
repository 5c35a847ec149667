//! Multipart bodies: files go to disk as they come.

use std::borrow::Cow;
use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

use aludel_store::{NewBlob, Tenant};
use axum::RequestExt;
use axum::body::{Bytes, HttpBody};
use axum::extract::multipart::{Field, Multipart, MultipartError};
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use percent_encoding::percent_decode_str;
use tokio::time::timeout;

use super::json::BODY_READ_TIMEOUT;
use super::mime_of;
use super::paced_body::Pace;
use crate::app::App;
use crate::error::ApiError;

/// Parts of one form.
const MAX_PARTS: usize = 64;
/// Bytes of all parts that are no file.
const MAX_TEXT: usize = 64 << 10;
/// Bytes of a part's name.
const MAX_NAME: usize = 256;

/// A form with at most one file.
#[derive(Debug)]
pub(crate) struct MultipartForm {
    /// The file.
    pub(crate) file: Option<Upload>,
    texts: HashMap<String, String>,
}

/// A file on disk that belongs to no object yet. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct Upload {
    /// The client's name for it; a plain relative path.
    pub(crate) name: String,
    /// Its MIME type.
    pub(crate) mime: String,
    /// Its contents.
    pub(crate) blob: NewBlob,
}

impl MultipartForm {
    /// Returns true if a request's body is a form.
    pub(crate) fn is_in(request: &Request) -> bool {
        let said = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        said.trim_start().to_ascii_lowercase().starts_with("multipart/")
    }

    /// Reads a form with a file of at most `max` bytes in the part `file`.
    pub(crate) async fn read(
        app: &Arc<App>,
        tenant: &Tenant,
        request: Request,
        file: &str,
        max: u64,
    ) -> Result<Self, ApiError> {
        let mut form = Self { file: None, texts: HashMap::new() };
        let mut parts = FormParts::of(request, MAX_PARTS).await?;
        let mut left = MAX_TEXT;
        while let Some(part) = parts.next().await? {
            let name = part.name().unwrap_or_default();
            if name.len() > MAX_NAME {
                let message = format!("The name of a part of the form is longer than {MAX_NAME} bytes.");
                return Err(ApiError::bad_request(message));
            }
            let name = name.to_owned();
            if name == file {
                if form.file.is_some() {
                    let message = format!("The form has more than one part '{file}'; send one file at a time.");
                    return Err(ApiError::invalid(file, message));
                }
                form.file = Some(read_file(app, tenant, part, file, max).await?);
            } else {
                let text = read_text(part, &name, left).await?;
                left -= text.len();
                form.texts.insert(name, text);
            }
        }
        Ok(form)
    }

    /// Takes the file; fails if there is none.
    pub(crate) fn take_file(&mut self) -> Result<Upload, ApiError> {
        self.file.take().ok_or_else(|| ApiError::missing("file"))
    }

    /// A part that is no file.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.texts.get(name).map(String::as_str)
    }
}

/// The parts of a form, as they come.
pub(crate) struct FormParts {
    multipart: Multipart,
    pace: Pace,
    /// Bytes of the whole form, from its `Content-Length`.
    announced: u64,
    /// Parts that may still come.
    left: usize,
    most: usize,
}

/// A part of a form.
pub(crate) struct FormPart<'a> {
    field: Field<'a>,
    pace: &'a Pace,
    announced: u64,
}

impl FormParts {
    /// The parts of a request's form, at most `most`.
    pub(crate) async fn of(mut request: Request, most: usize) -> Result<Self, ApiError> {
        // The readers count bytes themselves, because their errors are more precise.
        DefaultBodyLimit::disable().apply(&mut request);
        let pace = Pace::default();
        let announced = request.body().size_hint().exact().unwrap_or_default();
        let request = request.map(|body| pace.body(body));
        let multipart = request.extract::<Multipart, _>().await;
        let multipart = multipart.map_err(|error| ApiError::bad_request(error.body_text()))?;
        Ok(Self { multipart, pace, announced, left: most, most })
    }

    /// The next part.
    pub(crate) async fn next(&mut self) -> Result<Option<FormPart<'_>>, ApiError> {
        let Some(field) = in_time(&self.pace, self.multipart.next_field()).await? else { return Ok(None) };
        self.left = self
            .left
            .checked_sub(1)
            .ok_or_else(|| ApiError::bad_request(format!("The form has more than {} parts.", self.most)))?;
        Ok(Some(FormPart { field, pace: &self.pace, announced: self.announced }))
    }
}

impl FormPart<'_> {
    /// Its name.
    pub(crate) fn name(&self) -> Option<&str> {
        self.field.name()
    }

    /// The name of its file, if it has one.
    pub(crate) fn file_name(&self) -> Result<Option<Cow<'_, str>>, ApiError> {
        let disposition = self.field.headers().get(CONTENT_DISPOSITION).map(HeaderValue::as_bytes);
        let Ok(disposition) = std::str::from_utf8(disposition.unwrap_or_default()) else {
            let message = "The file's name is not UTF-8. Use a plain name such as data.csv.";
            return Err(ApiError::invalid(self.field.name().unwrap_or("file"), message));
        };
        Ok(encoded_name(disposition).map(Cow::Owned).or_else(|| self.field.file_name().map(Cow::Borrowed)))
    }

    /// Its next bytes.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, ApiError> {
        in_time(self.pace, self.field.chunk()).await
    }
}

async fn read_file(
    app: &App,
    tenant: &Tenant,
    mut part: FormPart<'_>,
    param: &str,
    max: u64,
) -> Result<Upload, ApiError> {
    // Parts of uploads need no name.
    let name = part.file_name()?.map_or(param.to_owned(), Cow::into_owned);
    aludel_engine::sessions::check_name(&name)?;
    let mime = mime_of(&name, part.field.content_type());
    let mut blob = app.store.new_blob(tenant, part.announced.min(max)).await?;
    while let Some(chunk) = part.chunk().await? {
        let more = chunk.len() as u64;
        if blob.bytes() + more > max {
            let message = format!("The file '{name}' is larger than the {} MB that one file may have.", max >> 20);
            return Err(ApiError::too_large(message).param(param));
        }
        blob.write(&chunk).await?;
    }
    Ok(Upload { name, mime, blob: blob.finish().await? })
}

async fn read_text(mut part: FormPart<'_>, name: &str, most: usize) -> Result<String, ApiError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = part.chunk().await? {
        if bytes.len() + chunk.len() > most {
            let most = MAX_TEXT >> 10;
            let message = format!("The part '{name}' and others that are no file have more than {most} KB together.");
            return Err(ApiError::too_large(message));
        }
        bytes.extend_from_slice(&chunk);
    }
    String::from_utf8(bytes).map_err(|_| ApiError::invalid(name, format!("The part '{name}' is not UTF-8.")))
}

/// The name in `filename*`, which .NET's clients send beside a `filename` that servers are not to use (RFC 5987).
fn encoded_name(disposition: &str) -> Option<String> {
    let mut is_quoted = false;
    let parameters = disposition.split(|character| {
        is_quoted ^= character == '"';
        character == ';' && !is_quoted
    });
    let value = parameters.filter_map(|parameter| parameter.split_once('=')).find_map(|(name, value)| {
        name.trim().eq_ignore_ascii_case("filename*").then(|| value.trim().trim_matches('"'))
    })?;
    let mut parts = value.splitn(3, '\'');
    let (charset, _language, name) = (parts.next()?, parts.next()?, parts.next()?);
    if !charset.eq_ignore_ascii_case("utf-8") {
        return None;
    }
    Some(percent_decode_str(name).decode_utf8().ok()?.into_owned())
}

/// Waits for the next part, within the time limit.
async fn in_time<T>(pace: &Pace, next: impl Future<Output = Result<T, MultipartError>>) -> Result<T, ApiError> {
    match timeout(BODY_READ_TIMEOUT, next).await {
        Err(_) => Err(ApiError::too_slow()),
        Ok(Err(error)) => Err(ApiError::bad_request(format!("The multipart body cannot be read: {}.", causes(&error)))),
        Ok(Ok(value)) => {
            pace.progress();
            Ok(value)
        }
    }
}

/// An error with its causes: the parser's own message only says where it was.
fn causes(error: &dyn Error) -> String {
    let (mut text, mut next) = (error.to_string(), error.source());
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.ends_with(&words) {
            text = format!("{text}: {words}");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_name_is_read_and_no_other() {
        let net = "form-data; name=file; filename=\"=?utf-8?B?w7wuY3N2?=\"; filename*=utf-8''%C3%BC%20%22b%22.csv";
        for (disposition, name) in [
            (net, Some("ü \"b\".csv")),
            ("form-data; FILENAME* = \"UTF-8'de'a.csv\"; name=\"file\"", Some("a.csv")),
            ("form-data; name=\"file\"; filename=\"a;filename*=utf-8''b\"", None),
            ("form-data; filename*=iso-8859-1''%fc.csv", None),
            ("form-data; filename*=utf-8''%fc.csv", None),
            ("form-data; filename*=a.csv", None),
            ("form-data; filename=\"a.csv\"", None),
            ("", None),
        ] {
            assert_eq!(encoded_name(disposition).as_deref(), name, "{disposition}");
        }
    }
}
