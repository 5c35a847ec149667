//! Models that do not chat, such as those of embeddings and speech: requests and answers are handed on.

use std::sync::Arc;

use aludel_agent::upstream::chat::Target;
use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use axum::routing::post;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::app::App;
use crate::dialects::pass::{self, Named, Passage, Passing};
use crate::error::ApiError;
use crate::http::Plain;

/// Methods of OpenAI's API, and one that servers of open models add, whose requests name a model.
const METHODS: [&str; 10] = [
    "audio/speech",
    "audio/transcriptions",
    "audio/translations",
    "completions",
    "embeddings",
    "images/edits",
    "images/generations",
    "images/variations",
    "moderations",
    "rerank",
];

/// The routes.
pub(super) fn routes() -> Router<Arc<App>> {
    METHODS.into_iter().fold(Router::new(), |routes, method| {
        let handler = move |State(app): State<Arc<App>>, headers: HeaderMap, body: Plain| async move {
            hand_on(&app, method, &headers, &body).await
        };
        routes.route(&format!("/v1/{method}"), post(handler))
    })
}

/// As much of a request as tells who is to answer it.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
}

async fn hand_on(app: &App, method: &'static str, headers: &HeaderMap, body: &Plain) -> Result<Response, ApiError> {
    let said = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (name, model) = match boundary(said) {
        Some(boundary) => {
            // A form that readers may take in two ways is taken in none.
            if memchr::memmem::find_iter(&body.bytes, b"name=model").next().is_some()
                || memchr::memmem::find_iter(&body.bytes, b"name=\"model\"").count() > 1
            {
                return Err(ApiError::invalid("model", "The form names 'model' more than once, or without quotes."));
            }
            let name = part(&body.bytes, boundary, "model").ok_or_else(|| ApiError::missing("model"))?;
            (name.to_owned(), Named::Plain(name))
        }
        None if said.to_ascii_lowercase().contains("form") => {
            return Err(ApiError::bad_request("Send a JSON body, or a form as multipart/form-data."));
        }
        None => {
            let head: Head = serde_json::from_slice(&body.bytes).map_err(|error| {
                ApiError::bad_request(format!("We could not parse the JSON body of your request: {error}."))
                    .code("invalid_json")
            })?;
            let model = head.model.ok_or_else(|| ApiError::missing("model"))?;
            let name = serde_json::from_str(model.get())
                .map_err(|error| ApiError::invalid("model", format!("Invalid value for 'model': {error}.")))?;
            (name, Named::Json(model))
        }
    };
    let passage = Passage {
        target: Target::Beside(method),
        to_the_server: &["openai-beta"],
        to_the_client: &["openai-processing-ms", "openai-version", "x-ratelimit-", "content-disposition"],
    };
    let request = Passing { headers, body: &body.bytes, model: Some(model) };
    pass::on(app, &passage, &name, request).await?.ok_or_else(|| {
        let message = format!("The server of the model '{name}' has no /{method}; ask a model of an OpenAI endpoint.");
        ApiError::invalid("model", message)
    })
}

/// The boundary of a form's parts; `None` for any other body.
fn boundary(content_type: &str) -> Option<&str> {
    let mut parameters = content_type.split(';');
    if !parameters.next()?.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let value =
        |parameter: &'_ str| parameter.trim().get(..9).is_some_and(|name| name.eq_ignore_ascii_case("boundary="));
    let boundary = parameters.find(|parameter| value(parameter))?.trim().get(9..)?.trim_matches('"');
    (!boundary.is_empty()).then_some(boundary)
}

/// The text of the first part of this name in a form, where it stands there.
fn part<'a>(form: &'a [u8], boundary: &str, name: &str) -> Option<&'a str> {
    let delimiter = format!("--{boundary}");
    let (quoted, bare) = (format!("name=\"{name}\""), format!("name={name}"));
    let mut rest = after(form, delimiter.as_bytes())?;
    loop {
        let (head, body) = split(rest, b"\r\n\r\n")?;
        let (content, next) = split(body, format!("\r\n{delimiter}").as_bytes())?;
        let is_wanted = String::from_utf8_lossy(head).lines().any(|line| {
            let is_disposition = line.to_ascii_lowercase().starts_with("content-disposition:");
            is_disposition && line.split(';').skip(1).any(|word| word.trim() == quoted || word.trim() == bare)
        });
        if is_wanted {
            return std::str::from_utf8(content).ok();
        }
        rest = next;
    }
}

fn after<'a>(bytes: &'a [u8], mark: &[u8]) -> Option<&'a [u8]> {
    split(bytes, mark).map(|(_, after)| after)
}

fn split<'a>(bytes: &'a [u8], mark: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = memchr::memmem::find(bytes, mark)?;
    Some((bytes.get(..at)?, bytes.get(at + mark.len()..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_found_in_a_form() {
        let form = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"model\"\r\n\r\nname=\"model\"\r\n\
                    --x\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n--x--\r\n";
        let given = boundary("multipart/form-data; charset=utf-8; Boundary=\"x\"").unwrap();
        assert_eq!(part(form.as_bytes(), given, "model"), Some("whisper"));
        assert_eq!(part(form.as_bytes(), given, "language"), None);
        assert_eq!(boundary("application/json; boundary=x"), None);
        for cut in 0..form.len() - 8 {
            // Nothing is taken for the name before it is there as a whole.
            assert!(matches!(part(&form.as_bytes()[..cut], given, "model"), None | Some("whisper")));
        }
    }
}
