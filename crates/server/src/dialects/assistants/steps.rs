//! The routes of steps.

use std::sync::Arc;

use aludel_store::{RunId, StepId};
use aludel_wire::openai::List;
use axum::Json;
use axum::extract::{Path, State};
use serde_json::Value;

use super::error::none_found;
use super::{Paging, id_of, runs, threads};
use crate::app::App;
use crate::error::ApiError;
use crate::http::{Caller, Params};

pub(super) async fn list(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path((thread, run)): Path<(String, String)>,
    params: Params,
) -> Result<Json<List<Value>>, ApiError> {
    let run = runs::find(&app, &tenant, &threads::parse(&thread)?, &parse(&run)?).await?;
    let Paging { query, is_before } = Paging::of(&params)?;
    let page = app.store.steps(&tenant, &run.id, query).await?;
    Ok(Json(Paging::list(is_before, page, id_of)))
}

pub(super) async fn retrieve(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path((thread, run, step)): Path<(String, String, String)>,
) -> Result<Json<Value>, ApiError> {
    let run = runs::find(&app, &tenant, &threads::parse(&thread)?, &parse(&run)?).await?;
    let found = match StepId::parse(&step) {
        Some(id) => app.store.step(&tenant, &run.id, &id).await?,
        None => None,
    };
    found.map(Json).ok_or_else(|| none_found("run step", &step))
}

fn parse(run: &str) -> Result<RunId, ApiError> {
    RunId::parse(run).ok_or_else(|| none_found("run", run))
}
