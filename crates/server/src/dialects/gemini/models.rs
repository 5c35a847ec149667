//! The models, in the form of this protocol.

use std::sync::Arc;

use aludel_wire::gemini::{Model, ModelList};
use axum::Json;
use axum::extract::{Path, State};

use crate::app::App;
use crate::error::ApiError;
use crate::http::Params;

/// The usual number of models of a page, and the most.
const PAGE: usize = 50;
const MAX_PAGE: usize = 1000;

/// `GET /v1/models`.
pub(super) async fn list(State(app): State<Arc<App>>, params: Params) -> Result<Json<ModelList>, ApiError> {
    let size = params.get("pageSize").map_or(Ok(PAGE), |text| text.parse().map_err(|_| ()));
    let size = size.ok().filter(|size| (1..=MAX_PAGE).contains(size));
    let size =
        size.ok_or_else(|| ApiError::invalid("pageSize", format!("'pageSize' must be from 1 to {MAX_PAGE}.")))?;
    let models = app.engine.models();
    let after = params.get("pageToken").unwrap_or_default();
    let mut names: Vec<&str> = models.iter().map(|model| model.name.as_str()).filter(|name| *name > after).collect();
    let has_more = names.len() > size;
    names.truncate(size);
    let next_page_token = names.last().filter(|_| has_more).map(|name| (*name).to_owned());
    Ok(Json(ModelList { models: names.into_iter().map(render).collect(), next_page_token }))
}

/// `GET /v1/models/{name}`.
pub(super) async fn retrieve(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Json<Model>, ApiError> {
    Ok(Json(render(&app.engine.models().find(plain(&name))?.name)))
}

/// A model's name without the word before it.
pub(super) fn plain(name: &str) -> &str {
    name.strip_prefix("models/").unwrap_or(name)
}

fn render(name: &str) -> Model {
    Model {
        name: format!("models/{name}"),
        display_name: name.to_owned(),
        version: "1".to_owned(),
        supported_generation_methods: vec!["generateContent".to_owned(), "countTokens".to_owned()],
    }
}
