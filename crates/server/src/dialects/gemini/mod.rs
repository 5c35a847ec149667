//! Google's Gemini API: `generateContent`, whole and streamed, with code execution; files, models and the token counter; interactions.
//!
//! `request` parses a request, `conversation` its messages; `generate` starts the turn, `render` and `writer` render it; `files` has the
//! routes of files, `upload` receives them in pieces, `attachments` finds them for a request; `inputs` are the files of a conversation,
//! `program_output` is the output of a program; `interactions` is a separate protocol; `error` renders refusals.

use std::borrow::Cow;

use aludel_wire::gemini::interactions::{CreateInteraction, Interaction, StreamEvent};
use aludel_wire::gemini::{File, GenerateContentRequest, GenerateContentResponse, UploadedFile};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, Uri};

use super::{Dialect, Manual};
use crate::http::{BYTES, JSON, MediaType, Routes, bearer};

mod attachments;
mod conversation;
mod error;
mod files;
mod generate;
mod inputs;
mod interactions;
mod models;
mod program_output;
mod render;
mod request;
mod upload;
mod writer;

pub(crate) use upload::Ticket;

/// The header that the official clients send their key in.
const API_KEY: &str = "x-goog-api-key";

/// Files of one conversation.
const MAX_FILES: usize = 100;

/// The dialect.
pub(crate) const GEMINI: Dialect = Dialect {
    routes,
    manual: Manual {
        name: "gemini",
        title: "Gemini",
        reference: "https://ai.google.dev/api/generate-content",
        key: "x-goog-api-key",
        error: Some(MediaType::json::<aludel_wire::gemini::ErrorEnvelope>(JSON)),
    },
    claims: Some(claims),
    key,
    authenticate: |_, request| {
        move_key(request);
        None
    },
    answers_pages: true,
    request_id: "x-request-id",
    keeps_request_ids: false,
    refuse: error::refuse,
    stored: |store| vec![interactions::stored_requests(store)],
};

fn routes() -> Routes {
    let routes = || {
        Routes::new()
            .get("/files", files::list, "List files")
            .asks(&["pageSize", "pageToken"])
            .get("/files/{*id}", files::retrieve, "Retrieve a file, or with :download after its id its content")
            .gives::<File>()
            .gives_any(BYTES)
            .delete("/files/{*id}", files::delete, "Delete a file")
            .post("/interactions", interactions::create, "Create an interaction")
            .takes::<CreateInteraction>()
            .gives::<Interaction>()
            .streams::<StreamEvent>("text/event-stream")
            .get(
                "/interactions/{id}",
                interactions::retrieve,
                "Retrieve an interaction or, by ?stream=true, its events",
            )
            .asks(&["stream", "last_event_id", "include_input"])
            .gives::<Interaction>()
            .streams::<StreamEvent>("text/event-stream")
            .delete("/interactions/{id}", interactions::delete, "Delete an interaction")
            .post("/interactions/{id}/cancel", interactions::cancel, "Cancel an interaction")
            .takes_nothing()
            .gives::<Interaction>()
            .get("/models", models::list, "List models")
            .asks(&["pageSize", "pageToken"])
            .get("/models/{*call}", models::retrieve, "Retrieve a model")
            .post(
                "/models/{*call}",
                generate::call,
                "Answer (generateContent, streamGenerateContent) or count tokens (countTokens), by the end of the path",
            )
            .asks(&["alt"])
            .takes::<GenerateContentRequest>()
            .gives::<GenerateContentResponse>()
            .streams::<GenerateContentResponse>("text/event-stream")
    };
    let uploads = || {
        Routes::new()
            .post("/files", upload::upload, "Begin an upload in pieces, or go on with it")
            .takes_any(JSON)
            .takes_any(BYTES)
            .gives::<UploadedFile>()
    };
    Routes::new()
        .nest("/v1", routes())
        .nest("/v1beta", routes())
        .nest("/v1alpha", routes())
        .nest("/upload/v1", uploads())
        .nest("/upload/v1beta", uploads())
        .nest("/upload/v1alpha", uploads())
}

/// Prefix of the paths of interactions, which no other dialect has.
const INTERACTIONS: &str = "/v1/interactions";

/// The methods of models.
const METHODS: [&str; 3] = ["generateContent", "streamGenerateContent", "countTokens"];

/// Paths such as `/v1/models` are OpenAI's, too.
fn claims(request: &Request) -> bool {
    let path = request.uri().path();
    // Names of models have colons, too, such as `qwen3:8b`.
    let calls = |path: &str| path.rsplit_once(':').is_some_and(|(_, method)| METHODS.contains(&method));
    path.starts_with("/v1beta/")
        || path.starts_with("/v1alpha/")
        || path.starts_with(upload::PATHS)
        || path.strip_prefix(INTERACTIONS).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        || (path.starts_with("/v1/") && (request.headers().contains_key(API_KEY) || query_key(request.uri()).is_some()))
        || (path.starts_with("/v1/models/") && request.method() == Method::POST && calls(path))
}

/// Moves the key of a query, where examples for `curl` have it, to the header in which clients send it.
fn move_key(request: &mut Request) {
    let key = query_key(request.uri()).and_then(|key| HeaderValue::from_str(key).ok());
    if let Some(key) = key.filter(|_| !request.headers().contains_key(API_KEY)) {
        request.headers_mut().insert(API_KEY, key);
    }
}

fn query_key(uri: &Uri) -> Option<&str> {
    uri.query()?.split('&').find_map(|pair| pair.strip_prefix("key="))
}

fn key(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    let key = headers.get(API_KEY).and_then(|key| key.to_str().ok()).map(str::trim);
    key.filter(|key| !key.is_empty()).or_else(|| bearer(headers)).map(Cow::Borrowed)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn requests_of_its_clients_are_its_own_and_no_others() {
        for (path, has_key, expected) in [
            ("/v1/models", false, false),
            ("/v1/models", true, true),
            ("/v1/models/m", false, false),
            ("/v1/models/qwen3:8b", false, false),
            ("/v1/models/qwen3:8b", true, true),
            ("/v1/models/m:generateContent", false, false),
            ("/v1beta/models", false, true),
            ("/v1/files", true, true),
            ("/v1/models?pageSize=1&key=k", false, true),
            ("/v1/models?monkey=k", false, false),
            ("/upload/v1/files", false, true),
            ("/v1/interactions", false, true),
            ("/v1/interactions/int_1/cancel", false, true),
            ("/v1/interactionsx", false, false),
            ("/sandboxes", true, false),
        ] {
            let request = Request::get(path);
            let request = if has_key { request.header(API_KEY, "k") } else { request };
            assert_eq!(claims(&request.body(Body::empty()).unwrap()), expected, "{path} {has_key}");
        }
        for (path, expected) in [
            ("/v1/models/qwen3:8b:generateContent", true),
            ("/v1/models/m:streamGenerateContent", true),
            ("/v1/models/m:countTokens", true),
            ("/v1/models/qwen3:8b", false),
        ] {
            assert_eq!(claims(&Request::post(path).body(Body::empty()).unwrap()), expected, "{path}");
        }
    }

    #[test]
    fn the_key_of_a_query_counts_unless_a_header_has_one() {
        for (header, expected) in [(None, "of-query"), (Some("of-header"), "of-header")] {
            let request = Request::get("/v1beta/models?alt=sse&key=of-query");
            let request = if let Some(header) = header { request.header(API_KEY, header) } else { request };
            let mut request = request.body(Body::empty()).unwrap();
            move_key(&mut request);
            assert_eq!(key(request.headers()).as_deref(), Some(expected));
        }
    }
}
