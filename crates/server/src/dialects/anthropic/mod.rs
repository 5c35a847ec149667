//! Anthropic's API: Messages with code execution, files and models.
//!
//! `request` parses a request, `conversation` its messages, `container` opens the session of its programs; `messages` starts the turn,
//! `resume` finds one that waits for answers to its program's calls, `render` and `writer` render the turn, `program` the output of a
//! program; `forward` forwards requests, `error` renders refusals.

use std::borrow::Cow;

use aludel_wire::anthropic::{CountTokens, Event, Message};
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;

use super::{Dialect, Manual};
use crate::http::{BYTES, FORM, JSON, MediaType, Routes, bearer};

mod container;
mod conversation;
mod error;
mod files;
mod forward;
mod messages;
mod models;
mod program;
mod render;
mod request;
mod resume;
mod tokens;
mod writer;

/// The header that all clients of this protocol send, and only they.
const VERSION: &str = "anthropic-version";
const API_KEY: &str = "x-api-key";

/// The dialect.
pub(crate) const ANTHROPIC: Dialect = Dialect {
    routes,
    manual: Manual {
        name: "anthropic",
        title: "Anthropic Messages",
        reference: "https://docs.anthropic.com/en/api/messages",
        key: "x-api-key",
        error: Some(MediaType::json::<aludel_wire::anthropic::ErrorEnvelope>(JSON)),
    },
    claims: Some(claims),
    key,
    authenticate: |_, _| None,
    answers_pages: true,
    request_id: "request-id",
    keeps_request_ids: false,
    refuse: error::refuse,
    stored: |_| Vec::new(),
};

fn routes() -> Routes {
    Routes::new()
        .post("/v1/messages", messages::create, "Answer, with programs where the tool is given")
        .takes::<aludel_wire::anthropic::Request>()
        .gives::<Message>()
        .streams::<Event>("text/event-stream")
        .post("/v1/messages/count_tokens", tokens::count, "Estimate the tokens of messages")
        .takes::<CountTokens>()
        .get("/v1/models", models::list, "List models")
        .asks(&["limit", "after_id", "before_id"])
        .get("/v1/models/{*name}", models::retrieve, "Retrieve a model")
        .get("/v1/files", files::list, "List files")
        .asks(&["limit", "page", "ids", "scope_id", "after_id", "before_id"])
        .post("/v1/files", files::create, "Upload a file")
        .takes_any(FORM)
        .get("/v1/files/{file}", files::retrieve, "Retrieve a file")
        .delete("/v1/files/{file}", files::delete, "Delete a file")
        .get("/v1/files/{file}/content", files::content, "Download a file")
        .gives_any(BYTES)
}

/// Paths such as `/v1/files` are OpenAI's, too.
fn claims(request: &Request) -> bool {
    let (headers, path) = (request.headers(), request.uri().path());
    let has_own_key = headers.contains_key(API_KEY) && !headers.contains_key(AUTHORIZATION);
    headers.contains_key(VERSION)
        || path == "/v1/messages"
        || path.starts_with("/v1/messages/")
        || (path.starts_with("/v1/") && has_own_key)
}

/// Clients before the autumn of 2026 send `x-api-key`, later ones `Authorization`; with both, the first one counts.
fn key(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    let key = headers.get(API_KEY).and_then(|key| key.to_str().ok()).map(str::trim);
    key.filter(|key| !key.is_empty()).or_else(|| bearer(headers)).map(Cow::Borrowed)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn request(path: &str, headers: &[(&str, &str)]) -> Request {
        let request = headers.iter().fold(Request::get(path), |request, (name, value)| request.header(*name, *value));
        request.body(Body::empty()).unwrap()
    }

    #[test]
    fn requests_of_its_clients_are_its_own_and_no_others() {
        for (path, headers, expected) in [
            ("/v1/files", &[][..], false),
            ("/v1/files", &[("anthropic-version", "2023-06-01")], true),
            ("/v1/files", &[("x-api-key", "k")], true),
            ("/v1/files", &[("x-api-key", "k"), ("authorization", "Bearer k")], false),
            ("/sandboxes", &[("x-api-key", "k")], false),
            ("/v1/messages", &[], true),
            ("/v1/messages/batches", &[], true),
            ("/v1/messagesx", &[], false),
            ("/messages", &[("anthropic-version", "2023-06-01")], true),
        ] {
            assert_eq!(claims(&request(path, headers)), expected, "{path} {headers:?}");
        }
    }

    #[test]
    fn a_key_is_found_in_both_headers() {
        for (headers, expected) in [
            (&[][..], None),
            (&[("x-api-key", "a")], Some("a")),
            (&[("authorization", "Bearer b")], Some("b")),
            (&[("x-api-key", "a"), ("authorization", "Bearer b")], Some("a")),
            (&[("x-api-key", " "), ("authorization", "Bearer b")], Some("b")),
        ] {
            assert_eq!(key(request("/", headers).headers()).as_deref(), expected, "{headers:?}");
        }
    }
}
