//! Responses in the background.

use crate::common::{listen, model, settings};
use aludel_testkit::{Scripted, ScriptedUpstream};
use serde_json::json;

#[tokio::test]
async fn a_response_in_the_background_is_in_progress_while_it_runs() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start(vec![Scripted::Hang]).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let begun = server.post("/v1/responses", json!({ "model": "m", "input": "Wait.", "background": true })).await.ok();
    let path = format!("/v1/responses/{}", begun["id"].as_str().unwrap());
    let found = server.get(&path).await.ok();
    let cancelled = server.post(&format!("{path}/cancel"), json!({})).await.ok();
    let seen = [begun, found, cancelled].map(|response| response["status"].clone());
    assert_eq!(seen, ["queued", "in_progress", "cancelled"]);
    server.stop().await;
}
