//! Recorded messages of the Responses API, read and written again.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use aludel_wire::openai::responses::{
    ContentPart, Event, Item, ItemDocument, MessageContent, ProgramOutput, Request, RequireApproval, Response, Role,
    StreamEvent, TextFormat, Tool, ToolChoice, ToolDocument,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use common::{fixture, round_trip};

/// Streams of our own server, with ids and times replaced by others.
const STREAMS: [&str; 5] =
    ["program.jsonl", "approval_request.jsonl", "approval.jsonl", "functions.jsonl", "failure.jsonl"];

fn is_known(item: &Item) -> bool {
    !matches!(item, Item::Other(_))
}

#[test]
fn recorded_streams_round_trip() {
    let mut kinds = Vec::new();
    // The last one holds the events that our server never tells, and other servers do.
    for name in STREAMS.iter().chain(&["events.jsonl"]) {
        for (number, value) in fixture(name).iter().enumerate() {
            let StreamEvent { event, sequence_number } = round_trip(value);
            assert_eq!(sequence_number, number as u64, "{name}");
            assert_eq!(Some(event.kind()), value["type"].as_str());
            match &event {
                Event::OutputItemAdded { item, .. } | Event::OutputItemDone { item, .. } => assert!(is_known(item)),
                Event::Completed { response } => assert!(response.output.iter().all(is_known)),
                _ => {}
            }
            kinds.push(event.kind());
        }
    }
    let missing: Vec<_> = Event::KINDS.iter().filter(|kind| !kinds.contains(kind)).collect();
    assert!(missing.is_empty(), "no recording of {missing:?}");
}

#[test]
fn the_set_of_events_is_closed() {
    let unknown = json!({ "type": "response.code_interpreter_call.failed", "sequence_number": 1, "item_id": "ci_1" });
    assert!(serde_json::from_value::<StreamEvent>(unknown).is_err());
    let unnumbered = json!({ "type": "response.refusal.done", "item_id": "m", "output_index": 0, "content_index": 0, "refusal": "" });
    assert!(serde_json::from_value::<StreamEvent>(unnumbered).is_err());
}

#[test]
fn requests_of_clients_round_trip() {
    for value in fixture("requests.jsonl") {
        let request: Request = round_trip(&value);
        for tool in request.tools.iter().flatten() {
            assert!(!matches!(tool.tool(), Tool::Other(_)), "{tool}");
            assert_eq!(serde_json::to_value(tool.tool()).unwrap(), *tool.json());
        }
        if let Some(choice) = &request.tool_choice {
            assert!(!matches!(choice.read().unwrap(), ToolChoice::Other(_)), "{choice}");
        }
    }
}

#[test]
fn items_of_clients_round_trip() {
    for value in fixture("items.jsonl") {
        assert!(is_known(&round_trip(&value)), "{value}");
    }
}

#[test]
fn a_number_stays_as_it_was_sent_when_it_is_stored() {
    for number in ["5.555555555555557e+121", "0.1", "8.54e-307", "1.0", "18446744073709551615"] {
        let document: ItemDocument = serde_json::from_str(number).unwrap();
        let stored: ItemDocument = serde_json::from_str(&document.to_string()).unwrap();
        assert_eq!((stored.to_string(), stored), (number.to_owned(), document));
    }
}

#[test]
fn a_document_stays_as_it_was_sent() {
    for value in [
        json!({ "type": "message", "role": "user", "content": "hi", "status": null, "cache_control": { "type": "ephemeral" } }),
        json!({ "type": "shell_call", "action": [1, null, 1.50, 18446744073709551615_u64] }),
        json!({ "type": 5 }),
        json!([]),
        json!(null),
    ] {
        assert_eq!(round_trip::<ItemDocument>(&value).into_json(), value);
        assert_eq!(round_trip::<ToolDocument>(&value).into_json(), value);
    }
}

#[test]
fn what_is_not_understood_fails_nothing_around_it() {
    let item = |value: Value| ItemDocument::from(value).item();
    assert!(matches!(item(json!({ "type": "shell_call" })), Item::Other(_)));
    assert!(matches!(item(json!(5)), Item::Other(_)));
    let Item::Message(message) = item(json!({ "type": "message", "role": "critic", "id": 5, "content": [
        { "type": "input_audio" }, { "text": "?" }, 7, { "type": "input_text", "text": 7 },
    ] })) else {
        panic!("no message")
    };
    assert_eq!((message.id, message.role), (None, Some(Role::Other("critic".into()))));
    let Some(MessageContent::Parts(parts)) = message.content else { panic!("no parts") };
    assert!(
        matches!(&parts[..], [ContentPart::Other(_), ContentPart::Other(_), ContentPart::Other(_), ContentPart::InputText { text }] if text.is_empty())
    );

    let Item::CodeInterpreterCall(call) = item(json!({ "type": "code_interpreter_call", "id": "ci_1", "code": 1,
        "outputs": [{ "type": "logs", "logs": "1", "index": 0 }, { "logs": "2" }, { "type": "file", "url": "data:" }] }))
    else {
        panic!("no program")
    };
    let outputs = call.outputs.unwrap();
    assert_eq!(outputs.iter().filter_map(ProgramOutput::logs).collect::<String>(), "12");
    assert_eq!((call.code, outputs.iter().filter(|output| output.is_image()).count()), (None, 1));

    let tool = |value: Value| ToolDocument::from(value).tool();
    assert!(matches!(tool(json!({ "type": "web_search" })), Tool::Other(_)));
    // Fields in a list are no object, though serde would take them for one.
    assert!(matches!(tool(json!(["mcp", "aludel"])), Tool::Other(_)));
    assert!(matches!(item(json!(["message", "msg_1"])), Item::Other(_)));
    assert!(matches!(ContentPart::from(json!(["input_text", "hi"])), ContentPart::Other(_)));
    let choice: ToolChoice = serde_json::from_value(json!(["function", "f"])).unwrap();
    assert!(matches!(choice, ToolChoice::Other(_)));
    for approval in [json!([null, { "tool_names": ["python"] }]), json!({ "never": [["python"]] })] {
        let read: RequireApproval = serde_json::from_value(approval).unwrap();
        let never = if let RequireApproval::Filter(filter) = read { filter.never } else { None };
        assert_eq!(never, None);
    }
    let Tool::Mcp(mcp) = tool(json!({ "type": "mcp", "server_label": 5, "require_approval": 5 })) else {
        panic!("no server")
    };
    assert_eq!((mcp.server_label, mcp.require_approval), (None, Some(RequireApproval::Other(json!(5)))));
}

#[test]
fn a_document_says_what_every_item_has() {
    let mut item = ItemDocument::from(json!({ "role": "user", "content": "hi", "container_id": "cntr_1" }));
    assert_eq!((item.kind(), item.id(), item.container_id()), (None, None, Some("cntr_1")));
    item.identify("message", "msg_1");
    item.set_content(&[ContentPart::input_text("hi")]);
    item.default_status(aludel_wire::openai::responses::ItemStatus::Completed);
    let complete = json!({
        "type": "message", "id": "msg_1", "role": "user", "status": "completed", "container_id": "cntr_1",
        "content": [{ "type": "input_text", "text": "hi" }],
    });
    assert_eq!(*item.json(), complete);
    let mut item = ItemDocument::from(json!({ "outputs": [1], "encrypted_content": "x" }));
    item.hide_outputs();
    item.hide_encrypted_content();
    assert_eq!(*item.json(), json!({ "outputs": null }));
}

#[test]
fn secrets_are_blanked_out() {
    let policy = json!({ "type": "allowlist", "domain_secrets": [{ "domain": "a", "name": "n", "value": "s" }, 5] });
    let mut tool = ToolDocument::from(json!({ "type": "code_interpreter", "container": { "network_policy": policy } }));
    tool.blank_secrets();
    assert_eq!(tool.json()["container"]["network_policy"]["domain_secrets"][0]["value"], "");
}

#[test]
fn a_format_stands_beside_its_type() {
    let format = |format: Value| {
        let text: aludel_wire::openai::responses::TextOptions =
            serde_json::from_value(json!({ "format": format })).unwrap();
        text.format()
    };
    assert_eq!(format(Value::Null), None);
    assert_eq!(format(json!({ "type": "text" })), Some(TextFormat::Text {}));
    assert_eq!(format(json!({ "type": "json_object", "x": 1 })), Some(TextFormat::JsonObject {}));
    let Some(TextFormat::JsonSchema(schema)) =
        format(json!({ "type": "json_schema", "name": "n", "schema": {}, "strict": true }))
    else {
        panic!("no schema")
    };
    assert_eq!(Value::Object(schema), json!({ "name": "n", "schema": {}, "strict": true }));
    assert_eq!(format(json!("x")), Some(TextFormat::Other(json!("x"))));
    assert_eq!(format(json!({ "type": "xml" })), Some(TextFormat::Other(json!({ "type": "xml" }))));
}

/// Cuts and bends recorded messages in every place: nothing panics, and what is still read is written and read the same.
#[test]
fn bent_messages_are_read_or_refused() {
    for name in ["requests.jsonl", "items.jsonl", "functions.jsonl"] {
        // Whole responses take long, and hold nothing that the others do not.
        for value in fixture(name).into_iter().filter(|value| value.get("response").is_none()) {
            let text = value.to_string();
            for cut in (0..text.len()).filter(|cut| text.is_char_boundary(*cut)) {
                assert!(serde_json::from_str::<ItemDocument>(&text[..cut]).is_err());
                assert!(serde_json::from_str::<Item>(&text[..cut]).is_err());
                assert!(serde_json::from_str::<Request>(&text[..cut]).is_err());
                assert!(serde_json::from_str::<StreamEvent>(&text[..cut]).is_err());
            }
            for bent in bent(&value) {
                stable::<Item>(&bent);
                stable::<Request>(&bent);
                stable::<Response>(&bent);
                stable::<StreamEvent>(&bent);
                let item = ItemDocument::from(bent.clone());
                let _read: Item = item.item();
                assert_eq!(item.into_json(), bent);
            }
        }
    }
}

/// Every value that one can make of a value by putting something else in one place.
fn bent(value: &Value) -> Vec<Value> {
    fn places(value: &Value, path: &str, found: &mut Vec<String>) {
        found.push(path.to_owned());
        match value {
            Value::Object(fields) => {
                fields.iter().for_each(|(name, value)| {
                    places(value, &format!("{path}/{}", name.replace('~', "~0").replace('/', "~1")), found)
                });
            }
            Value::Array(values) => {
                values.iter().enumerate().for_each(|(index, value)| places(value, &format!("{path}/{index}"), found));
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    places(value, "", &mut found);
    let others =
        [json!(null), json!(true), json!(-1), json!("x"), json!([]), json!([[]]), json!({}), json!({ "type": {} })];
    let mut all = Vec::new();
    for path in found {
        for other in &others {
            let mut bent = value.clone();
            *bent.pointer_mut(&path).unwrap() = other.clone();
            all.push(bent);
        }
    }
    all
}

/// Asserts that a message which can be read is written so that it is read the same.
fn stable<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(value: &Value) {
    if let Ok(read) = serde_json::from_str::<T>(&value.to_string()) {
        let written = serde_json::to_string(&read).unwrap();
        assert_eq!(serde_json::from_str::<T>(&written).unwrap(), read, "{value}");
    }
}
