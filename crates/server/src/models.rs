//! Which models there are, and the Models API.

use std::collections::BTreeMap;
use std::sync::Arc;

use aludel_agent::upstream::Upstream;
use aludel_agent::upstream::chat::Chat;
use aludel_wire::openai::{self, List};
use axum::Json;
use axum::extract::{Path, State};

use crate::app::App;
use crate::error::ApiError;

/// A model that clients can ask.
#[derive(Clone)]
pub struct Model {
    /// What clients call it.
    pub name: String,
    /// Who offers it, for people.
    pub owner: String,
    /// The model itself.
    pub upstream: Arc<dyn Upstream>,
    /// The endpoint that takes requests of Chat Completions as they are, if it has one.
    pub endpoint: Option<Arc<Chat>>,
    /// The models that step in for it, in order, by name.
    pub fallback: Vec<String>,
}

/// All models, by name.
#[derive(Clone)]
pub(crate) struct Models(BTreeMap<String, Model>);

impl Models {
    pub(crate) fn new(models: impl IntoIterator<Item = Model>) -> Self {
        Self(models.into_iter().map(|model| (model.name.clone(), model)).collect())
    }

    /// The model of this name, if there is one.
    pub(crate) fn get(&self, name: &str) -> Option<&Model> {
        self.0.get(name)
    }

    /// The model that a client asks for.
    pub(crate) fn find(&self, name: &str) -> Result<&Model, ApiError> {
        self.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.0.keys().map(String::as_str).collect();
            let message = format!("The model '{name}' does not exist here; there are: {}.", names.join(", "));
            ApiError::not_found(message).param("model").code("model_not_found")
        })
    }
}

pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<List<openai::Model>> {
    let models = app.models().0.values().map(|model| render(&app, model)).collect();
    Json(List::new(models, false, |model: &openai::Model| model.id.clone()))
}

pub(crate) async fn retrieve(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<openai::Model>, ApiError> {
    Ok(Json(render(&app, app.models().find(&name)?)))
}

fn render(app: &App, model: &Model) -> openai::Model {
    openai::Model::new(&model.name, app.started, &model.owner)
}
