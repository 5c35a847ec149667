//! Routes to list and decide waiting programs. Not part of OpenAI's API.

use std::sync::Arc;

use aludel_engine::approvals::{OperatorDecision, describe};
use aludel_store::{ApprovalId, ApprovalStatus, ApprovalUpdate, DecisionOutcome, Tenant};
use aludel_wire::openai::List;
use axum::Json;
use axum::extract::{Path, State};
use serde_json::Value;

use crate::app::App;
use crate::error::ApiError;
use crate::http::{Caller, Fields, Params};

/// The longest reason, bytes.
const MAX_REASON: usize = 4096;

/// `GET /v1/approvals`.
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    params: Params,
) -> Result<Json<List<Value>>, ApiError> {
    let status = match params.get("status") {
        None => None,
        Some(word) => Some(ApprovalStatus::parse(word).ok_or_else(|| {
            let words = ApprovalStatus::ALL.map(ApprovalStatus::word).join(", ");
            ApiError::invalid("status", format!("Invalid 'status': it must be one of {words}."))
        })?),
    };
    let page = app.store.approvals(Some(&tenant), status, params.page(20, 100)?).await?;
    let approvals = page.data.iter().map(describe).collect();
    let id_of = |approval: &Value| approval.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(Json(List::new(approvals, page.has_more, id_of)))
}

/// `GET /v1/approvals/{id}`.
pub(crate) async fn retrieve(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let approval = app.store.approval(Some(&tenant), &parse(&id)?).await?;
    Ok(Json(describe(&approval.ok_or_else(|| unknown(&id))?)))
}

/// `POST /v1/approvals/{id}`: `decision` is `approve` or `refuse`, `sha256` identifies the program that was seen, `reason` is for the
/// model.
pub(crate) async fn decide(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    mut fields: Fields,
) -> Result<Json<Value>, ApiError> {
    // Without keys, every client is the operator.
    if tenant != Tenant::local() && !app.engine.approvals().by_key {
        let message = "Only the operator decides here (approval.decided_by): see `aludel approvals`.";
        return Err(ApiError::forbidden(message).code("operator_decides"));
    }
    let verdict: OperatorDecision = fields.required("decision")?;
    let sha256: String = fields.required("sha256")?;
    let reason: Option<String> = fields.optional("reason")?;
    if reason.as_ref().is_some_and(|reason| reason.len() > MAX_REASON) {
        return Err(ApiError::invalid("reason", format!("The 'reason' is longer than {MAX_REASON} bytes.")));
    }
    let by = format!("the API as {}", tenant.as_str());
    let decision = ApprovalUpdate { sha256: sha256.to_lowercase(), status: verdict.into(), by, reason };
    match app.store.decide(Some(&tenant), &parse(&id)?, decision).await? {
        DecisionOutcome::Now(approval) => Ok(Json(describe(&approval))),
        DecisionOutcome::Unknown => Err(unknown(&id)),
        DecisionOutcome::OtherProgram => {
            let message = format!("The program of '{id}' is not the one whose SHA-256 was sent; look at it again.");
            Err(ApiError::conflict(message).param("sha256").code("other_program"))
        }
        DecisionOutcome::Before(approval) => {
            let message = format!("The program of '{id}' is {} already.", approval.status.word());
            Err(ApiError::conflict(message).code("already_decided"))
        }
    }
}

fn parse(id: &str) -> Result<ApprovalId, ApiError> {
    ApprovalId::parse(id).ok_or_else(|| unknown(id))
}

fn unknown(id: &str) -> ApiError {
    ApiError::not_found(format!("Approval with id '{id}' not found."))
}
