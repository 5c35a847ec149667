//! Messages of Anthropic's API, read and written again.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use aludel_wire::anthropic::{
    Block, BlockDocument, ErrorEnvelope, Event, InputMessage, MessageDocument, Request, ToolDocument, ToolKind,
};
use serde_json::json;

use common::{fixture, round_trip};

#[test]
fn requests_round_trip() {
    for value in fixture("anthropic/requests.jsonl") {
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
    for value in fixture("anthropic/blocks.jsonl") {
        let _known: Block = round_trip(&value);
    }
}

#[test]
fn events_round_trip_under_their_names() {
    for value in fixture("anthropic/events.jsonl") {
        assert_eq!(Some(round_trip::<Event>(&value).kind()), value["type"].as_str());
    }
    assert!(serde_json::from_value::<Event>(json!({ "type": "content_block_end", "index": 0 })).is_err());
}

#[test]
fn errors_round_trip() {
    for value in fixture("anthropic/objects.jsonl") {
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
