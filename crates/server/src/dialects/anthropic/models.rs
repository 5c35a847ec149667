//! The Models API.

use std::sync::Arc;

use aludel_wire::anthropic::{self, Page};
use axum::Json;
use axum::extract::{Path, State};

use crate::app::App;
use crate::dialects::rfc3339::rfc3339;
use crate::error::ApiError;
use crate::http::Params;

/// The usual number of models of a page, and the most.
const PAGE: usize = 20;
const MAX_PAGE: usize = 1000;

pub(super) async fn list(
    State(app): State<Arc<App>>,
    params: Params,
) -> Result<Json<Page<anthropic::Model>>, ApiError> {
    let limit = params.page(PAGE, MAX_PAGE)?.limit;
    let models = app.engine.models();
    let mut names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
    if let Some(after) = params.get("after_id").or(params.get("page")) {
        names.retain(|name| *name > after);
    }
    let mut has_more = names.len() > limit;
    match params.get("before_id") {
        Some(before) => {
            names.retain(|name| *name < before);
            has_more = names.len() > limit;
            names.drain(..names.len().saturating_sub(limit));
        }
        None => names.truncate(limit),
    }
    let data = names.into_iter().map(|name| render(&app, name)).collect();
    Ok(Json(Page::new(data, has_more, |model: &anthropic::Model| &model.id)))
}

pub(super) async fn retrieve(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<anthropic::Model>, ApiError> {
    Ok(Json(render(&app, &app.engine.models().find(&name)?.name)))
}

fn render(app: &App, name: &str) -> anthropic::Model {
    anthropic::Model {
        id: name.to_owned(),
        display_name: name.to_owned(),
        created_at: rfc3339(app.started),
        max_input_tokens: None,
        max_tokens: None,
        capabilities: None,
        lifecycle: "active".to_owned(),
        line: None,
        deprecated_at: None,
        retires_at: None,
    }
}
