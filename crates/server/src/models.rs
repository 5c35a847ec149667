//! The Models API.

use std::sync::Arc;

use aludel_wire::openai::{List, Model};
use axum::Json;
use axum::extract::{Path, State};

use crate::app::App;
use crate::error::ApiError;

pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<List<Model>> {
    let models = app.models.values().map(|model| render(&app, model)).collect();
    Json(List::new(models, false, |model: &Model| model.id.clone()))
}

pub(crate) async fn retrieve(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Json<Model>, ApiError> {
    Ok(Json(render(&app, app.model(&name)?)))
}

fn render(app: &App, model: &crate::app::Model) -> Model {
    Model::new(&model.name, app.started, &model.owner)
}
