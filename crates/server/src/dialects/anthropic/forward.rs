//! Requests without our tool to a model whose server speaks this protocol: they are forwarded.

use aludel_agent::upstream::http::{ForwardTarget, Protocol};
use aludel_store::Tenant;
use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::app::App;
use crate::dialects::forward::{self, ForwardProtocol, ForwardRequest, ModelName};
use crate::error::ApiError;

/// The headers of requests that are handed on.
const MESSAGES: ForwardProtocol = ForwardProtocol {
    target: ForwardTarget::Answers(Protocol::ANTHROPIC),
    to_the_server: &["anthropic-version", "anthropic-beta"],
    to_the_client: &["anthropic-ratelimit-"],
};
/// Beginning of the types of our tool.
const CODE_EXECUTION: &str = "code_execution_";
/// Types of blocks that only this server understands, as they appear in a body.
const OUR_BLOCKS: [&str; 2] = ["code_execution_tool_result\"", "\"container_upload\""];

/// The fields of a request that decide who answers it.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
}

impl Head<'_> {
    /// Returns true if the conversation has or had our tools.
    fn is_ours(&self) -> bool {
        let asks = forward::has_tool(self.tools, |kind| kind.starts_with(CODE_EXECUTION));
        let has = |messages: &RawValue| OUR_BLOCKS.iter().any(|kind| messages.get().contains(kind));
        asks || self.messages.is_some_and(has)
    }
}

/// Forwards a request; `None` if this server has to answer or refuse it.
pub(super) async fn on(
    app: &App,
    tenant: &Tenant,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Option<Response>, ApiError> {
    let Ok(head) = serde_json::from_slice::<Head>(body) else { return Ok(None) };
    let Some(name) = head.model.and_then(|model| serde_json::from_str::<String>(model.get()).ok()) else {
        return Ok(None);
    };
    if head.is_ours() {
        return Ok(None);
    }
    forward::on(app, tenant, &MESSAGES, &name, ForwardRequest { headers, body, model: head.model.map(ModelName::Json) })
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_tool_and_our_blocks_make_a_request_ours() {
        let is_ours = |body: &str| serde_json::from_str::<Head>(body).unwrap().is_ours();
        assert!(is_ours(r#"{"tools": [{"name": "f"}, {"type": "code_execution_20260120"}]}"#));
        assert!(is_ours(r#"{"tools": [{"type": "code\u005fexecution_20990101"}]}"#));
        assert!(is_ours(r#"{"messages": [{"content": [{"type": "bash_code_execution_tool_result"}]}]}"#));
        assert!(is_ours(r#"{"messages": [{"content": [{"type":"container_upload"}]}]}"#));
        for other in [
            r#"{"tools": [{"type": "web_search_20250305"}, {"name": "code_execution_"}]}"#,
            r#"{"tools": "code_execution_20260120"}"#,
            r#"{"messages": [{"content": [{"type": "server_tool_use", "name": "web_search"}]}], "thread": {}}"#,
            r#"{"messages": "code_execution"}"#,
            "{}",
        ] {
            assert!(!is_ours(other), "{other}");
        }
    }
}
