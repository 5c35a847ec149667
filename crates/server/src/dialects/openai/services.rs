//! Models other than chat models, such as those for embeddings and speech: requests and answers are forwarded.

use std::sync::Arc;

use aludel_agent::upstream::http::ForwardTarget;
use aludel_store::Tenant;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::form;
use crate::app::App;
use crate::dialects::forward::{self, ForwardProtocol, ForwardRequest, ModelName};
use crate::error::ApiError;
use crate::http::{BYTES, Caller, FORM, JSON, RawBody, Routes};

/// Methods of OpenAI's API whose requests name a model, and one that servers of open models add.
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
pub(super) fn routes() -> Routes {
    METHODS.into_iter().fold(Routes::new(), |routes, method| {
        let handler = move |State(app): State<Arc<App>>, Caller(tenant): Caller, headers: HeaderMap, body: RawBody| async move {
            hand_on(&app, &tenant, method, &headers, &body).await
        };
        let routes = routes.post(&format!("/v1/{method}"), handler, "Hand a request on to the model's server");
        routes.takes_any(JSON).takes_any(FORM).gives_any(JSON).gives_any(BYTES)
    })
}

/// The fields of a request that decide who answers it.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
}

async fn hand_on(
    app: &App,
    tenant: &Tenant,
    method: &'static str,
    headers: &HeaderMap,
    body: &RawBody,
) -> Result<Response, ApiError> {
    let (name, model) = model(headers, &body.bytes)?;
    let protocol = ForwardProtocol {
        target: ForwardTarget::Beside(method),
        to_the_server: &["openai-beta"],
        to_the_client: &["openai-processing-ms", "openai-version", "x-ratelimit-", "content-disposition"],
    };
    let request = ForwardRequest { headers, body: &body.bytes, model: Some(model) };
    forward::on(app, tenant, &protocol, &name, request).await?.ok_or_else(|| {
        let message = format!("The server of the model '{name}' has no /{method}; ask a model of an OpenAI endpoint.");
        ApiError::invalid("model", message)
    })
}

/// The name of the requested model, and its place in the body.
fn model<'a>(headers: &HeaderMap, body: &'a [u8]) -> Result<(String, ModelName<'a>), ApiError> {
    let mut types = headers.get_all(CONTENT_TYPE).iter().map(|value| value.to_str().unwrap_or("?"));
    let said = types.next().unwrap_or_default();
    // The model's server relies on the type: both must take the body for the same.
    let kind = said.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = kind.is_empty() || kind == "application/json" || kind.ends_with("+json");
    match form::boundary(said) {
        _ if types.next().is_some() => Err(ApiError::bad_request("The request has more than one Content-Type.")),
        Some(boundary) => {
            let found = boundary.and_then(|boundary| form::find(body, boundary, "model"));
            let refused = |reason| ApiError::bad_request(format!("The form is not handed on: {reason}."));
            let name = found.map_err(refused)?.ok_or_else(|| ApiError::missing("model"))?;
            Ok((name.to_owned(), ModelName::Plain(name)))
        }
        None if is_json => {
            let head: Head = serde_json::from_slice(body).map_err(|error| {
                let message = format!("We could not parse the JSON body of your request: {error}.");
                ApiError::bad_request(message).code("invalid_json")
            })?;
            let model = head.model.ok_or_else(|| ApiError::missing("model"))?;
            let name = serde_json::from_str(model.get())
                .map_err(|error| ApiError::invalid("model", format!("Invalid value for 'model': {error}.")))?;
            Ok((name, ModelName::Json(model)))
        }
        None => Err(ApiError::bad_request(format!("Send JSON or a form (multipart/form-data), not {kind}."))),
    }
}
