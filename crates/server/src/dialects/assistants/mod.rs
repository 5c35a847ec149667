//! OpenAI's Assistants API, version 2: assistants, threads, messages, runs and steps; also on the paths of Azure's.
//!
//! A thread is a conversation with one session, a run is one turn on it, or several where its client answers functions in between.
//! `assistant`, `threads`, `messages`, `runs` and `steps` are the routes; `tools` understands tools, `workspace` brings the files of a run to
//! its session, `context` is the thread as the model gets it, `start` begins a turn, `render` and `writer` put what happens into the words
//! of the protocol.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use aludel_store::{Order, Page, PageQuery};
use aludel_wire::openai::List;
use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Dialect;
use super::openai::files;
use crate::app::App;
use crate::error::ApiError;
use crate::http::{Params, bearer};

mod annotations;
mod assistant;
mod context;
mod error;
mod messages;
mod outcome;
mod render;
mod runs;
mod start;
mod steps;
mod threads;
mod tools;
mod workspace;
mod writer;

/// The header in which Azure's clients send their key.
const API_KEY: &str = "api-key";
/// The header that names the version of the API.
const BETA: &str = "openai-beta";
/// The header that tells clients when to poll again, whole milliseconds: without it some wait for five seconds.
const POLL_AFTER: HeaderName = HeaderName::from_static("openai-poll-after-ms");
/// Time after which to poll again, milliseconds.
const POLL_AFTER_MS: HeaderValue = HeaderValue::from_static("100");

/// Time after which a run expires.
pub(crate) const RUN_LIFETIME: Duration = Duration::from_secs(600);

/// The dialect.
pub(crate) const ASSISTANTS: Dialect = Dialect {
    routes,
    claims: None,
    key,
    proof: |_, _| None,
    answers_pages: true,
    request_id: "x-request-id",
    refuse: super::openai::error::refuse,
    stored: |store| vec![render::dialect(store)],
};

fn routes() -> Router<Arc<App>> {
    // OpenAI's clients find files beside these.
    let azure = || api().merge(file_routes());
    let routes = Router::new().nest("/v1", api()).nest("/openai", azure()).nest("/openai/v1", azure());
    routes.layer(from_fn(versioned))
}

fn api() -> Router<Arc<App>> {
    Router::new()
        .route("/assistants", get(assistant::list).post(assistant::create))
        .route("/assistants/{assistant}", get(assistant::retrieve).post(assistant::update).delete(assistant::delete))
        .route("/threads", post(threads::create))
        .route("/threads/runs", post(runs::create_with_thread))
        .route("/threads/{thread}", get(threads::retrieve).post(threads::update).delete(threads::delete))
        .route("/threads/{thread}/messages", get(messages::list).post(messages::create))
        .route(
            "/threads/{thread}/messages/{message}",
            get(messages::retrieve).post(messages::update).delete(messages::delete),
        )
        .route("/threads/{thread}/runs", get(runs::list).post(runs::create))
        .route("/threads/{thread}/runs/{run}", get(runs::retrieve).post(runs::update))
        .route("/threads/{thread}/runs/{run}/cancel", post(runs::cancel))
        .route("/threads/{thread}/runs/{run}/submit_tool_outputs", post(runs::submit))
        .route("/threads/{thread}/runs/{run}/steps", get(steps::list))
        .route("/threads/{thread}/runs/{run}/steps/{step}", get(steps::retrieve))
        .route("/vector_stores", any(error::no_vector_stores))
        .route("/vector_stores/{*rest}", any(error::no_vector_stores))
}

fn file_routes() -> Router<Arc<App>> {
    Router::new()
        .route("/files", get(files::list).post(files::create))
        .route("/files/{file}", get(files::retrieve).delete(files::delete))
        .route("/files/{file}/content", get(files::content))
}

fn key(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    let key = headers.get(API_KEY).and_then(|key| key.to_str().ok()).map(str::trim);
    key.filter(|key| !key.is_empty()).or_else(|| bearer(headers)).map(Cow::Borrowed)
}

/// The layer around all routes: the first version of the API is refused, and clients are told when to poll.
async fn versioned(request: Request, next: Next) -> Response {
    let beta = request.headers().get(BETA).and_then(|beta| beta.to_str().ok());
    if beta.is_some_and(|beta| beta.split(',').any(|beta| beta.trim() == "assistants=v1")) {
        return error::first_version().into_response();
    }
    let mut response = next.run(request).await;
    response.headers_mut().insert(POLL_AFTER, POLL_AFTER_MS);
    response
}

/// A page that a client asks for.
struct Paging {
    query: PageQuery,
    /// True for the page before an entry, which is read backwards.
    is_before: bool,
}

impl Paging {
    fn of(params: &Params) -> Result<Self, ApiError> {
        let mut query = params.page(20, 100)?;
        let is_before = query.after.is_none() && params.get("before").is_some();
        if is_before {
            query.after = params.get("before").map(str::to_owned);
            query.order = match query.order {
                Order::Ascending => Order::Descending,
                Order::Descending => Order::Ascending,
            };
        }
        Ok(Self { query, is_before })
    }

    /// The page as its client reads it.
    fn list<T>(is_before: bool, page: Page<T>, id: impl Fn(&T) -> String) -> List<T> {
        let Page { mut data, has_more } = page;
        if is_before {
            data.reverse();
        }
        List::new(data, has_more, id)
    }
}

/// Reads an object that we stored.
fn stored<T: DeserializeOwned>(object: Value) -> Result<T, ApiError> {
    T::deserialize(object).map_err(|error| ApiError::internal(format!("a stored object is not whole: {error}")))
}

/// Writes an object.
fn written(object: &impl Serialize) -> Value {
    // Plain data with texts for keys: this cannot fail.
    serde_json::to_value(object).unwrap_or_default()
}

/// The id of a stored object.
fn id_of(object: &Value) -> String {
    aludel_wire::Document::<Value>::from(object.clone()).text("id").unwrap_or_default().to_owned()
}
