//! Refusals and failures of a server, with a remedy.

use anyhow::anyhow;
use reqwest::{Response, StatusCode};
use serde::Deserialize;

use crate::exit::{usage, words};
use crate::terminal;

/// Characters of a server's words that are shown.
const MAX_WORDS: usize = 500;

/// A refusal of the server.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct Refusal {
    status: StatusCode,
    message: String,
}

/// The parts of a refusal's body that are shown.
#[derive(Deserialize)]
struct ErrorBody {
    message: String,
}

/// The error for a server that cannot be reached.
pub(super) fn unreachable(place: &str, error: reqwest::Error) -> anyhow::Error {
    if error.is_connect() {
        let remedy = "start one with `aludel serve`, or name another one with --url";
        let cause = words(&error.without_url().into());
        return anyhow!("no server answers at {place} ({cause}); {remedy}");
    }
    anyhow::Error::from(error.without_url()).context(format!("the connection to the server at {place} broke"))
}

/// The error for an answer that refuses.
pub(super) async fn refused(place: &str, mut response: Response) -> anyhow::Error {
    let status = response.status();
    let mut bytes = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await
        && bytes.len() < 64 << 10
    {
        bytes.extend_from_slice(&chunk);
    }
    let message = serde_json::from_slice::<ErrorBody>(&bytes).map(|body| body.message);
    let message = message.map_or_else(|_| format!("it answers {status}"), |text| terminal::excerpt(&text, MAX_WORDS));
    match status {
        StatusCode::UNAUTHORIZED => {
            usage(format!("the server at {place} wants a key: {message} (--key env:NAME or file:PATH)"))
        }
        StatusCode::BAD_REQUEST => usage(message),
        StatusCode::BAD_GATEWAY => usage(format!("{message}; `aludel sandbox ls` lists those that live")),
        status => anyhow!(Refusal { status, message }).context(format!("the server at {place} refused")),
    }
}

/// Returns true for the refusal of something that is not there.
pub(super) fn is_not_found(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.status == StatusCode::NOT_FOUND)
}

/// Returns true for the refusal to make something that is there.
pub(super) fn is_there_already(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.status == StatusCode::CONFLICT)
}
