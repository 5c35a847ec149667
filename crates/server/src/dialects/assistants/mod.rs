//! OpenAI's Assistants API, version 2: assistants, threads, messages, runs and steps.
//!
//! A thread is a conversation with one session, a run is one turn on it, or several where its client answers functions in between.
//! `assistant`, `threads`, `messages`, `runs` and `steps` are the routes; `tools` parses tools, `workspace` copies the files of a run into
//! its session, `context` is the thread in the form for the model, `start` begins a turn, `render` and `writer` render it.

use std::borrow::Cow;

use aludel_store::{Order, Page, PageQuery};
use aludel_wire::assistants::{
    CreateAssistant, CreateMessage, CreateRun, CreateThread, CreateThreadAndRun, Run, SubmitToolOutputs,
    UpdateMetadata, UpdateThread,
};
use aludel_wire::openai::List;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Dialect, Manual};
use crate::error::ApiError;
use crate::http::{JSON, MediaType, PAGE, Params, Routes, bearer};

mod annotations;
mod assistant;
mod checked_message;
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

/// The header that names the version of the API.
const BETA: &str = "openai-beta";
/// The header with the time after which clients poll again, whole milliseconds: without it some wait for five seconds.
const POLL_AFTER: HeaderName = HeaderName::from_static("openai-poll-after-ms");
/// Time after which to poll again, milliseconds.
const POLL_AFTER_MS: HeaderValue = HeaderValue::from_static("100");

/// The dialect.
pub(crate) const ASSISTANTS: Dialect = Dialect {
    routes,
    manual: Manual {
        name: "assistants",
        title: "OpenAI Assistants",
        reference: "https://platform.openai.com/docs/api-reference/assistants",
        key: "authorization",
        error: Some(MediaType::json::<aludel_wire::openai::ErrorEnvelope>(JSON)),
    },
    claims: None,
    key: |headers| bearer(headers).map(Cow::Borrowed),
    authenticate: |_, _| None,
    answers_pages: true,
    request_id: "x-request-id",
    keeps_request_ids: false,
    refuse: super::openai::error::refuse,
    stored: |store| vec![render::stored_requests(store)],
};

fn routes() -> Routes {
    Routes::new().nest("/v1", api()).layer(from_fn(versioned))
}

fn api() -> Routes {
    Routes::new()
        .get("/assistants", assistant::list, "List assistants")
        .asks(PAGE)
        .asks(&["before"])
        .post("/assistants", assistant::create, "Create an assistant")
        .takes::<CreateAssistant>()
        .get("/assistants/{assistant}", assistant::retrieve, "Retrieve an assistant")
        .post("/assistants/{assistant}", assistant::update, "Change an assistant")
        .takes::<CreateAssistant>()
        .delete("/assistants/{assistant}", assistant::delete, "Delete an assistant")
        .post("/threads", threads::create, "Create a thread")
        .takes::<CreateThread>()
        .post("/threads/runs", runs::create_with_thread, "Create a thread and run it")
        .takes::<CreateThreadAndRun>()
        .gives::<Run>()
        .streams::<Value>("text/event-stream")
        .get("/threads/{thread}", threads::retrieve, "Retrieve a thread")
        .post("/threads/{thread}", threads::update, "Change a thread")
        .takes::<UpdateThread>()
        .delete("/threads/{thread}", threads::delete, "Delete a thread")
        .get("/threads/{thread}/messages", messages::list, "List messages")
        .asks(PAGE)
        .asks(&["before", "run_id"])
        .post("/threads/{thread}/messages", messages::create, "Create a message")
        .takes::<CreateMessage>()
        .get("/threads/{thread}/messages/{message}", messages::retrieve, "Retrieve a message")
        .post("/threads/{thread}/messages/{message}", messages::update, "Change a message")
        .takes::<UpdateMetadata>()
        .delete("/threads/{thread}/messages/{message}", messages::delete, "Delete a message")
        .get("/threads/{thread}/runs", runs::list, "List runs")
        .asks(PAGE)
        .asks(&["before"])
        .post("/threads/{thread}/runs", runs::create, "Create a run")
        .takes::<CreateRun>()
        .gives::<Run>()
        .streams::<Value>("text/event-stream")
        .get("/threads/{thread}/runs/{run}", runs::retrieve, "Retrieve a run")
        .post("/threads/{thread}/runs/{run}", runs::update, "Change a run")
        .takes::<UpdateMetadata>()
        .post("/threads/{thread}/runs/{run}/cancel", runs::cancel, "Cancel a run")
        .takes_nothing()
        .post(
            "/threads/{thread}/runs/{run}/submit_tool_outputs",
            runs::submit,
            "Answer the functions that a run waits for",
        )
        .takes::<SubmitToolOutputs>()
        .gives::<Run>()
        .streams::<Value>("text/event-stream")
        .get("/threads/{thread}/runs/{run}/steps", steps::list, "List steps")
        .asks(PAGE)
        .asks(&["before"])
        .get("/threads/{thread}/runs/{run}/steps/{step}", steps::retrieve, "Retrieve a step")
        .refuse("/vector_stores", error::no_vector_stores)
        .refuse("/vector_stores/{*rest}", error::no_vector_stores)
}

/// The layer around all routes: refuses the first version of the API, and tells clients when to poll.
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
fn parse_stored<T: DeserializeOwned>(object: Value) -> Result<T, ApiError> {
    T::deserialize(object).map_err(|error| ApiError::internal(format!("a stored object is not whole: {error}")))
}

/// Writes an object.
fn written(object: &impl Serialize) -> Value {
    // Plain data with texts for keys can always be written.
    serde_json::to_value(object).unwrap_or_default()
}

/// The id of a stored object.
fn id_of(object: &Value) -> String {
    aludel_wire::Document::<Value>::from(object.clone()).text("id").unwrap_or_default().to_owned()
}
