//! The Models API.

use std::sync::Arc;

use aludel_engine::Model;
use aludel_wire::openai::{self, List};
use axum::Json;
use axum::extract::{Path, State};

use crate::app::App;
use crate::error::ApiError;

pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<List<openai::Model>> {
    let models = app.engine.models().iter().map(|model| render(&app, model)).collect();
    Json(List::new(models, false, |model: &openai::Model| model.id.clone()))
}

pub(crate) async fn retrieve(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<openai::Model>, ApiError> {
    Ok(Json(render(&app, app.engine.models().find(&name)?)))
}

fn render(app: &App, model: &Model) -> openai::Model {
    openai::Model::new(&model.name, app.started, &model.owner)
}
