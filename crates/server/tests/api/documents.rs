//! The documentation that the server serves of itself.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::common::{KEYS_FRESH, listen, settings};

const DIALECTS: [&str; 7] = ["openai", "assistants", "anthropic", "gemini", "mcp", "e2b", "opensandbox"];

/// Collects what the schemas of a document refer to.
fn references(value: &Value, found: &mut HashSet<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|value| references(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| references(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[tokio::test]
async fn every_route_is_described_to_everybody() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings(), Vec::new()).await;
    let _key = server.store.create_key("one", None).await.unwrap();
    tokio::time::sleep(KEYS_FRESH).await;
    let page = server.get("/docs").await;
    assert_eq!(
        (page.status, &page.headers["content-type"]),
        (200.try_into().unwrap(), &"text/html; charset=utf-8".parse().unwrap())
    );
    let page = String::from_utf8(page.bytes.to_vec()).unwrap();
    let own = "/openapi.json".to_owned();
    for path in DIALECTS.iter().map(|name| format!("/openapi/{name}.json")).chain([own]) {
        assert!(page.contains(&path), "{path}");
        let document = server.get(&path).await.ok();
        assert_eq!(document["openapi"], "3.1.0", "{path}");
        let mut ids = HashSet::new();
        for (route, methods) in document["paths"].as_object().unwrap() {
            assert!(page.contains(route.as_str()), "{route}");
            for (method, operation) in methods.as_object().unwrap() {
                let id = operation["operationId"].as_str().unwrap();
                assert!(ids.insert(id.to_owned()), "{path}: {method} {route}: {id} is there twice");
                let parameters = operation["parameters"].as_array().unwrap();
                let named = parameters.iter().filter(|one| one["in"] == "path");
                assert_eq!(named.count(), route.matches('{').count(), "{route}");
            }
        }
        assert!(!ids.is_empty(), "{path}");
        let mut named = HashSet::new();
        references(&document, &mut named);
        for reference in named {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{path}: {reference} leads nowhere");
        }
    }
    let responses = server.get("/openapi/openai.json").await.ok();
    assert_eq!(responses["paths"]["/v1/responses"]["post"]["tags"], json!(["openai"]));
    let create = &responses["paths"]["/v1/responses"]["post"];
    let schema = |reference: &Value| responses.pointer(reference["$ref"].as_str().unwrap().strip_prefix('#').unwrap());
    let request = schema(&create["requestBody"]["content"]["application/json"]["schema"]).unwrap();
    assert_eq!((&request["required"], &request["properties"]["model"]["type"]), (&json!(["model"]), &json!("string")));
    assert_eq!(request["properties"]["instructions"]["description"], "Instructions to the model.");
    let answer = &create["responses"]["2XX"]["content"];
    assert!(schema(&answer["application/json"]["schema"]).unwrap()["properties"]["output"].is_object());
    assert!(answer["text/event-stream"]["schema"]["$ref"].is_string(), "{answer}");
    let error = schema(&create["responses"]["default"]["content"]["application/json"]["schema"]).unwrap();
    assert!(error["properties"]["error"].is_object(), "{error}");
    server.get("/openapi/none.json").await.refused(404, "/docs");
    server.get("/v1/files").await.refused(401, "API key");
    server.stop().await;
}
