//! Messages of Anthropic's API, read and written again.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use aludel_wire::anthropic::{
    Block, BlockDocument, ErrorEnvelope, Event, InputMessage, MessageDocument, Request, ToolDocument, ToolKind,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The entries of a fixture: one JSON value a line.
fn fixture(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/anthropic").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!lines.is_empty(), "{name} is empty");
    lines
}

/// Reads a value as a `T` and asserts that it is written as it was.
fn round_trip<T: DeserializeOwned + Serialize>(value: &Value) -> T {
    let read: T = serde_json::from_str(&value.to_string()).unwrap_or_else(|error| panic!("{error}: {value}"));
    assert_eq!(serde_json::to_value(&read).unwrap(), *value);
    read
}

#[test]
fn requests_round_trip() {
    for value in fixture("requests.jsonl") {
        let request: Request = round_trip(&value);
        for tool in request.tools.iter().flatten() {
            let read = tool.read().unwrap();
            assert!(!matches!(read.kind, Some(ToolKind::Other(_))), "{tool}");
            assert_eq!(serde_json::to_value(read).unwrap(), *tool.json());
        }
        for message in &request.messages {
            let _known: InputMessage = message.read().unwrap();
        }
    }
}

#[test]
fn blocks_round_trip() {
    for value in fixture("blocks.jsonl") {
        let _known: Block = round_trip(&value);
    }
}

#[test]
fn events_round_trip_under_their_names() {
    for value in fixture("events.jsonl") {
        assert_eq!(Some(round_trip::<Event>(&value).kind()), value["type"].as_str());
    }
    assert!(serde_json::from_value::<Event>(json!({ "type": "content_block_end", "index": 0 })).is_err());
}

#[test]
fn errors_round_trip() {
    for value in fixture("objects.jsonl") {
        let _known: ErrorEnvelope = round_trip(&value);
    }
}

#[test]
fn what_cannot_be_read_says_why_and_fails_nothing_around_it() {
    let wrong = json!([{ "type": "web_search_tool_result" }, { "type": "text" }, 5, { "type": "text", "text": "a" }]);
    let blocks: Vec<BlockDocument> = serde_json::from_value(wrong).unwrap();
    let errors: Vec<String> =
        blocks.iter().filter_map(|block| block.read().err()).map(|error| error.to_string()).collect();
    assert!(errors[0].contains("unknown variant `web_search_tool_result`"), "{errors:?}");
    assert!(errors[1].contains("missing field `text`") && errors.len() == 3, "{errors:?}");
    let message: MessageDocument = serde_json::from_value(json!({ "role": "critic", "content": "a" })).unwrap();
    assert!(message.read().unwrap_err().to_string().contains("unknown variant `critic`"));
    let tool: ToolDocument = json!({ "type": "web_search_20250305", "name": "web_search" }).into();
    assert!(matches!(tool.read().unwrap().kind, Some(ToolKind::Other(_))));
}
