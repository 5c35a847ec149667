//! OpenAI's API: Responses, Chat Completions, files, containers and conversations.
//!
//! `azure` renames requests of clients for Azure, `tools` parses the tools of a request, `attachment` finds the files of messages,
//! `program` renders programs and their output, `services` forwards to models other than chat models, `form` finds the model's name in
//! forms, `error` renders refusals.

use std::borrow::Cow;

use super::{Dialect, Manual};
use crate::http::{BYTES, FORM, JSON, MediaType, PAGE, Routes, bearer};
use aludel_wire::openai::responses::{ItemDocument, Request, Response, StreamEvent};
use aludel_wire::openai::{
    AddContainerFile, AddItems, CompleteUpload, CreateContainer, CreateConversation, CreateUpload, List,
    UpdateConversation,
};

pub(crate) mod attachment;
pub(crate) mod azure;
pub(crate) mod chat;
pub(crate) mod containers;
pub(crate) mod conversations;
pub(crate) mod environment;
pub(crate) mod error;
pub(crate) mod files;
mod form;
pub(crate) mod models;
pub(crate) mod program;
pub(crate) mod responses;
mod services;
pub(crate) mod tools;
pub(crate) mod uploads;

/// The dialect.
pub(crate) const OPENAI: Dialect = Dialect {
    routes,
    manual: Manual {
        name: "openai",
        title: "OpenAI",
        reference: "https://platform.openai.com/docs/api-reference",
        key: "authorization",
        error: Some(MediaType::json::<aludel_wire::openai::ErrorEnvelope>(JSON)),
    },
    claims: None,
    key: |headers| bearer(headers).map(Cow::Borrowed),
    authenticate: |_, _| None,
    answers_pages: true,
    request_id: "x-request-id",
    keeps_request_ids: false,
    refuse: error::refuse,
    stored: |store| vec![responses::stored_requests(store)],
};

fn routes() -> Routes {
    Routes::new()
        .get("/v1/models", models::list, "List models")
        .get("/v1/models/{*name}", models::retrieve, "Retrieve a model")
        .get("/v1/files", files::list, "List files")
        .asks(PAGE)
        .asks(&["purpose"])
        .post("/v1/files", files::create, "Upload a file")
        .takes_any(FORM)
        .get("/v1/files/{file}", files::retrieve, "Retrieve a file")
        .delete("/v1/files/{file}", files::delete, "Delete a file")
        .get("/v1/files/{file}/content", files::content, "Download a file")
        .gives_any(BYTES)
        .post("/v1/uploads", uploads::create, "Begin an upload in parts")
        .takes::<CreateUpload>()
        .post("/v1/uploads/{upload}/parts", uploads::add_part, "Add a part to an upload")
        .takes_any(FORM)
        .post("/v1/uploads/{upload}/complete", uploads::complete, "Make a file of an upload")
        .takes::<CompleteUpload>()
        .post("/v1/uploads/{upload}/cancel", uploads::cancel, "Cancel an upload")
        .takes_nothing()
        .get("/v1/containers", containers::list, "List containers")
        .asks(PAGE)
        .asks(&["name"])
        .post("/v1/containers", containers::create, "Create a container")
        .takes::<CreateContainer>()
        .get("/v1/containers/{container}", containers::retrieve, "Retrieve a container")
        .delete("/v1/containers/{container}", containers::delete, "Delete a container")
        .get("/v1/containers/{container}/files", containers::list_files, "List the files of a container")
        .asks(PAGE)
        .post("/v1/containers/{container}/files", containers::add_file, "Put a file into a container")
        .takes_any(FORM)
        .takes::<AddContainerFile>()
        .get("/v1/containers/{container}/files/{file}", containers::retrieve_file, "Retrieve a file of a container")
        .delete("/v1/containers/{container}/files/{file}", containers::delete_file, "Delete a file of a container")
        .get(
            "/v1/containers/{container}/files/{file}/content",
            containers::file_content,
            "Download a file of a container",
        )
        .gives_any(BYTES)
        .post("/v1/conversations", conversations::create, "Create a conversation")
        .takes::<CreateConversation>()
        .get("/v1/conversations/{conversation}", conversations::retrieve, "Retrieve a conversation")
        .post("/v1/conversations/{conversation}", conversations::update, "Change a conversation")
        .takes::<UpdateConversation>()
        .delete("/v1/conversations/{conversation}", conversations::delete, "Delete a conversation")
        .get("/v1/conversations/{conversation}/items", conversations::list_items, "List the items of a conversation")
        .asks(PAGE)
        .gives::<List<ItemDocument>>()
        .post("/v1/conversations/{conversation}/items", conversations::add_items, "Add items to a conversation")
        .takes::<AddItems>()
        .get(
            "/v1/conversations/{conversation}/items/{item}",
            conversations::retrieve_item,
            "Retrieve an item of a conversation",
        )
        .gives::<serde_json::Value>()
        .delete(
            "/v1/conversations/{conversation}/items/{item}",
            conversations::delete_item,
            "Delete an item of a conversation",
        )
        .post("/v1/chat/completions", chat::create, "Answer a chat, with programs where the tool is given")
        .takes::<aludel_wire::chat::Request>()
        .gives::<aludel_wire::chat::Response>()
        .streams::<aludel_wire::chat::Chunk>("text/event-stream")
        .post("/v1/responses", responses::create, "Answer, with programs where the tool is given")
        .takes::<Request>()
        .gives::<Response>()
        .streams::<StreamEvent>("text/event-stream")
        .get("/v1/responses", responses::connect, "Answer over a WebSocket")
        .takes_nothing()
        .streams::<StreamEvent>(JSON)
        .post("/v1/responses/input_tokens", responses::input_tokens, "Estimate the tokens of an input")
        .takes::<Request>()
        .refuse("/v1/responses/compact", responses::no_compaction)
        .get("/v1/responses/{response}", responses::retrieve, "Retrieve a response")
        .asks(&["stream", "starting_after", "include"])
        .gives::<Response>()
        .streams::<StreamEvent>("text/event-stream")
        .delete("/v1/responses/{response}", responses::delete, "Delete a response")
        .post("/v1/responses/{response}/cancel", responses::cancel, "Cancel a response in the background")
        .takes_nothing()
        .gives::<Response>()
        .get("/v1/responses/{response}/input_items", responses::input_items, "List the input of a response")
        .asks(PAGE)
        .asks(&["include"])
        .gives::<List<ItemDocument>>()
        .merge(services::routes())
}
