//! OpenAI's API: Responses, Chat Completions, and the files, containers and conversations that they name.
//!
//! `tools` understands the tools of a request, `attachment` finds files that messages bring along, `program` puts programs and their output
//! into words, `services` hands on to models that do not chat, `form` finds the names of these in forms, `error` refuses.

use std::borrow::Cow;
use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use super::Dialect;
use crate::app::App;
use crate::http::bearer;

pub(crate) mod attachment;
pub(crate) mod chat;
pub(crate) mod containers;
pub(crate) mod conversations;
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
    claims: None,
    key: |headers| bearer(headers).map(Cow::Borrowed),
    proof: |_, _| None,
    answers_pages: true,
    request_id: "x-request-id",
    refuse: error::refuse,
    stored: |store| vec![responses::dialect(store)],
};

fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::retrieve))
        .route("/v1/files", get(files::list).post(files::create))
        .route("/v1/files/{file}", get(files::retrieve).delete(files::delete))
        .route("/v1/files/{file}/content", get(files::content))
        .route("/v1/uploads", post(uploads::create))
        .route("/v1/uploads/{upload}/parts", post(uploads::add_part))
        .route("/v1/uploads/{upload}/complete", post(uploads::complete))
        .route("/v1/uploads/{upload}/cancel", post(uploads::cancel))
        .route("/v1/containers", get(containers::list).post(containers::create))
        .route("/v1/containers/{container}", get(containers::retrieve).delete(containers::delete))
        .route("/v1/containers/{container}/files", get(containers::list_files).post(containers::add_file))
        .route(
            "/v1/containers/{container}/files/{file}",
            get(containers::retrieve_file).delete(containers::delete_file),
        )
        .route("/v1/containers/{container}/files/{file}/content", get(containers::file_content))
        .route("/v1/conversations", post(conversations::create))
        .route(
            "/v1/conversations/{conversation}",
            get(conversations::retrieve).post(conversations::update).delete(conversations::delete),
        )
        .route("/v1/conversations/{conversation}/items", get(conversations::list_items).post(conversations::add_items))
        .route(
            "/v1/conversations/{conversation}/items/{item}",
            get(conversations::retrieve_item).delete(conversations::delete_item),
        )
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/input_tokens", post(responses::input_tokens))
        .route("/v1/responses/{response}", get(responses::retrieve).delete(responses::delete))
        .route("/v1/responses/{response}/cancel", post(responses::cancel))
        .route("/v1/responses/{response}/input_items", get(responses::input_items))
        .merge(services::routes())
}
