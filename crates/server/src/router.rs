//! The routes.

use std::sync::Arc;

use aludel_engine::BackendStatus;
use axum::Router;
use axum::extract::State;
use axum::http::{Method, Uri};
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};

use crate::app::App;
use crate::dialects::openai::{chat, containers, conversations, files, models, responses, uploads};
use crate::error::ApiError;
use crate::{approvals, http, telemetry};

pub(crate) fn routes(app: Arc<App>) -> Router {
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
        .route("/v1/approvals", get(approvals::list))
        .route("/v1/approvals/{approval}", get(approvals::retrieve).post(approvals::decide))
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/input_tokens", post(responses::input_tokens))
        .route("/v1/responses/{response}", get(responses::retrieve).delete(responses::delete))
        .route("/v1/responses/{response}/cancel", post(responses::cancel))
        .route("/v1/responses/{response}/input_items", get(responses::input_items))
        .route(http::HEALTH, get(async || "ok\n"))
        .route(http::READY, get(ready))
        .route(telemetry::METRICS, get(telemetry::scrape))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn_with_state(Arc::clone(&app), http::around))
        .with_state(app)
}

/// `GET /readyz`.
async fn ready(State(app): State<Arc<App>>) -> Result<&'static str, ApiError> {
    if let Some(cause) = app.unrecovered.get() {
        let reason = "The server could not take up what an earlier one left; its log says why. Start it again.";
        return Err(ApiError { cause: Some(cause.clone()), ..ApiError::unavailable(reason) });
    }
    match app.engine.backend_health().status {
        BackendStatus::Ready => Ok("ready\n"),
        BackendStatus::Degraded { reason } | BackendStatus::Over { reason } => Err(ApiError::unavailable(reason)),
    }
}

async fn no_route(method: Method, uri: Uri) -> ApiError {
    let path = uri.path();
    let advice = if path.starts_with("/v1/") { "There is no such API here." } else { "The API is under /v1." };
    ApiError::not_found(format!("Unknown request URL: {method} {path}. {advice}")).code("unknown_url")
}

async fn no_method(method: Method, uri: Uri) -> ApiError {
    ApiError::method_not_allowed(format!("{} cannot be asked with {method}.", uri.path())).code("method_not_allowed")
}
