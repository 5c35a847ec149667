//! `POST /v1/messages/count_tokens`: an estimate, since only the model's own server could count.

use std::sync::Arc;

use aludel_wire::anthropic::{CountTokens, TokenCount};
use axum::Json;
use axum::extract::State;

use crate::app::App;
use crate::error::ApiError;
use crate::http::Fields;

/// Average bytes of JSON in a token.
const BYTES_PER_TOKEN: usize = 4;

pub(super) async fn count(State(app): State<Arc<App>>, fields: Fields) -> Result<Json<TokenCount>, ApiError> {
    let asked: CountTokens = fields.read()?;
    app.engine.models().find(&asked.model)?;
    if asked.messages.is_empty() {
        return Err(ApiError::invalid("messages", "There must be at least one message."));
    }
    let messages: usize = asked.messages.iter().map(|message| message.to_string().len()).sum();
    let tools: usize = asked.tools.iter().flatten().map(|tool| tool.to_string().len()).sum();
    let system = asked.system.map_or(0, |system| serde_json::to_string(&system).unwrap_or_default().len());
    let input_tokens = (messages + tools + system).div_ceil(BYTES_PER_TOKEN) as u64;
    Ok(Json(TokenCount { input_tokens }))
}
