//! Rounds in which programs ran and the client's own functions were called as well.
//!
//! The client answers its functions in a new request, and sends the conversation along. What our programs did is in an extension field of
//! the message that it repeats; clients that keep only the fields they know lose it. So it is kept for a day under the id of the call, of
//! which the client has to repeat at least that.

use aludel_store::{ResponseId, ResponseRecord, Tenant, fresh_id, now};
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;

/// How long a client may take to answer, seconds.
const KEPT: i64 = 24 * 3600;
const CALL: &str = "call_";

/// An id for a call of a client's function, under which a round can be kept.
pub(super) fn new_call_id() -> String {
    fresh_id(CALL)
}

/// Keeps the programs of a round.
pub(super) async fn keep(app: &App, tenant: &Tenant, call_id: &str, programs: &[Value]) -> Result<(), ApiError> {
    let Some(id) = record_id(call_id) else { return Ok(()) };
    let object = json!({ "id": id.as_str(), "object": "chat.completion.round", "code_interpreter_calls": programs });
    let record = ResponseRecord { id, object, input: Vec::new(), expires_at: Some(now() + KEPT) };
    Ok(app.store.put_response(tenant, record).await?)
}

/// The programs of the round in which a function was called; none if it is not known.
pub(super) async fn recall(app: &App, tenant: &Tenant, call_id: &str) -> Result<Vec<Value>, ApiError> {
    let Some(id) = record_id(call_id) else { return Ok(Vec::new()) };
    let record = app.store.response(tenant, &id).await?;
    let programs = record.and_then(|record| record.object.get("code_interpreter_calls")?.as_array().cloned());
    Ok(programs.unwrap_or_default())
}

/// The digits of the call's id make it up, so ids that others made name nothing.
fn record_id(call_id: &str) -> Option<ResponseId> {
    ResponseId::parse(&format!("resp_{}", call_id.strip_prefix(CALL)?))
}
