//! Messages as real clients and servers send them.

use serde_json::json;

use super::*;

fn chunk(value: serde_json::Value) -> Chunk {
    serde_json::from_value(value).unwrap()
}

#[test]
fn a_request_with_image_tools_and_choice_round_trips() {
    let original = json!({
        "model": "m",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [
                {"type": "text", "text": "what is this?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
                {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
            ]},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "python", "arguments": "{\"code\":\"1\"}"}}
            ]},
            {"role": "tool", "content": "1", "tool_call_id": "call_1"}
        ],
        "tools": [
            {"type": "function", "function": {"name": "python", "description": "d", "parameters": {"type": "object"}}},
            {"type": "code_interpreter", "container": {"type": "auto"}}
        ],
        "tool_choice": {"type": "function", "function": {"name": "python"}},
        "stream": true,
        "stream_options": {"include_usage": true},
        "max_tokens": 100
    });
    let request: Request = serde_json::from_value(original.clone()).unwrap();
    assert_eq!(request.tool_choice, Some(ToolChoice::named("python")));
    assert!(matches!(request.tools.as_deref(), Some([Tool::Function(_), Tool::Other(_)])));
    let Message::User { content } = &request.messages[1] else { panic!("not a user's message") };
    assert_eq!(content.text(), "what is this?");
    assert_eq!(serde_json::to_value(&request).unwrap(), original);
}

#[test]
fn unknown_fields_are_ignored() {
    let request: Request = serde_json::from_value(json!({
        "model": "m", "messages": [{"role": "user", "content": "hi", "name": "ann"}],
        "tool_choice": "auto", "logit_bias": {}, "user": "u"
    }))
    .unwrap();
    assert_eq!(request.tool_choice, Some(ToolChoice::Mode(ToolChoiceMode::Auto)));
}

#[test]
fn calls_in_chunks_may_lack_index_id_and_type() {
    let chunk = chunk(json!({"choices": [{"delta": {"content": null, "tool_calls": [
        {"function": {"name": "python", "arguments": {"code": "1"}}}
    ]}, "finish_reason": null}]}));
    let call = &chunk.choices[0].delta.tool_calls.as_deref().unwrap()[0];
    assert_eq!(call.index, None);
    assert_eq!(call.function.arguments, r#"{"code":"1"}"#);
}

#[test]
fn nulls_stand_for_absent() {
    let chunk = chunk(json!({"id": null, "object": null, "created": 1.5, "model": null, "usage": null, "choices": [
        {"index": 0, "delta": null, "finish_reason": "stop", "logprobs": null},
        {"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"name": null, "arguments": null}}]}}
    ]}));
    assert_eq!(chunk.created, 1);
    assert_eq!(chunk.choices[0].finish_reason.as_deref(), Some("stop"));
}

#[test]
fn the_usage_chunk_has_no_choices() {
    let chunk = chunk(json!({"choices": [], "usage": {
        "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": null}, "completion_tokens_details": null
    }}));
    assert_eq!(chunk.usage.unwrap().prompt_tokens, 10);
}

#[test]
fn thoughts_come_under_two_names_at_once() {
    let chunk = chunk(json!({"choices": [{"delta": {"reasoning": "a", "reasoning_content": "a"}}]}));
    assert_eq!(chunk.choices[0].delta.reasoning_content.as_deref(), Some("a"));
}

#[test]
fn content_may_come_in_parts() {
    let chunk = chunk(
        json!({"choices": [{"delta": {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}}]}),
    );
    assert_eq!(chunk.choices[0].delta.content.as_deref(), Some("ab"));
}

#[test]
fn errors_come_as_object_or_text() {
    for (sent, message) in [
        (json!({"error": {"message": "no", "type": "x", "param": null, "code": 429}}), "no"),
        (json!({"error": {"message": "no", "code": "c"}}), "no"),
        (json!({"error": "no"}), "no"),
        (json!({"error": {}}), ""),
    ] {
        let envelope: ErrorEnvelope = serde_json::from_value(sent).unwrap();
        assert_eq!(envelope.error.message, message);
    }
    assert!(serde_json::from_value::<ErrorEnvelope>(json!({"choices": []})).is_err());
}

#[test]
fn a_whole_answer_round_trips() {
    let original = json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi", "refusal": null}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    });
    let response: Response = serde_json::from_value(original.clone()).unwrap();
    assert_eq!(serde_json::to_value(response).unwrap(), original);
}
