//! Rounds with both programs and calls of the client's own functions.
//!
//! The client answers its functions in a new request that repeats the conversation. Our programs are in an extension field of the repeated
//! message, which clients drop that keep only known fields. So they are stored for a day under the id of the call, which every client
//! repeats.

use aludel_engine::turns::ItemId;
use aludel_store::{QuotaCheck, ResponseId, ResponseRecord, Tenant, now};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::http::MemoryCharge;

/// Time that a client may take to answer, seconds.
const ROUND_LIFE_SECONDS: i64 = 24 * 3600;
const CALL: &str = "call_";

/// The id of a call of a client's function, under which a round can be stored.
pub(super) fn call_id(item: &ItemId) -> String {
    item.with_prefix(CALL)
}

/// Keeps the programs of the rounds of a completion in which the client's functions were called.
pub(super) async fn keep_all(app: &App, tenant: &Tenant, completion: &RawValue) -> Result<(), aludel_store::Error> {
    let list = |value: &Value, name: &str| value.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    for choice in list(&serde_json::from_str(completion.get())?, "choices") {
        let message = choice.get("message").cloned().unwrap_or_default();
        let programs = list(&message, "code_interpreter_calls");
        for call in list(&message, "tool_calls").iter().filter(|_| !programs.is_empty()) {
            if let Some(id) = call.get("id").and_then(Value::as_str).and_then(record_id) {
                keep(app, tenant, id, &programs).await?;
            }
        }
    }
    Ok(())
}

async fn keep(app: &App, tenant: &Tenant, id: ResponseId, programs: &[Value]) -> Result<(), aludel_store::Error> {
    let object =
        json!({ "id": id.as_str(), "object": "chat.completion.round", "code_interpreter_calls": programs }).to_string();
    let record = ResponseRecord { id, object, input: "[]".to_owned(), expires_at: Some(now() + ROUND_LIFE_SECONDS) };
    app.store.put_response(tenant, record, QuotaCheck::Checked).await
}

/// The programs of the round with this call; none if it is unknown.
pub(super) async fn recall(
    app: &App,
    tenant: &Tenant,
    call_id: &str,
    memory: &MemoryCharge,
) -> Result<Vec<Value>, ApiError> {
    let Some(id) = record_id(call_id) else { return Ok(Vec::new()) };
    let Some(text) = app.store.response_text(tenant, &id).await? else { return Ok(Vec::new()) };
    let rounds: Vec<Round> = memory.read(app, vec![text.object]).await?;
    Ok(rounds.into_iter().flat_map(|round| round.code_interpreter_calls).collect())
}

/// A round as it is stored.
#[derive(Deserialize)]
struct Round {
    code_interpreter_calls: Vec<Value>,
}

/// Derived from the digits of the call's id, so ids made elsewhere match no record.
fn record_id(call_id: &str) -> Option<ResponseId> {
    ResponseId::parse(&format!("resp_{}", call_id.strip_prefix(CALL)?))
}
