//! Messages as the SDKs send and expect them.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::filesystem::{EntryInfo, EntryResponse, FileType, WatchRequest};
use super::process::{EventMessage, SendInputRequest, SendSignalRequest, StartRequest};
use super::*;

fn same<T: Serialize + DeserializeOwned>(value: &Value) -> T {
    let read: T = serde_json::from_value(value.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), *value);
    read
}

#[test]
fn requests_round_trip() {
    let new: NewSandbox = same(&json!({"templateID": "base", "timeout": 300, "metadata": {"a": "b"}, "envVars": {}}));
    assert_eq!(new.timeout, Some(300));
    same::<NewSandbox>(&json!({"templateID": "base", "network": {"allowPublicTraffic": false}, "secure": true}));
    let start: StartRequest = same(&json!({
        "process": {"cmd": "/bin/bash", "args": ["-l", "-c", "echo hi"], "envs": {"A": "1"}, "cwd": "/tmp"},
        "tag": "t", "stdin": false
    }));
    assert_eq!(start.process.args[2], "echo hi");
    let input: SendInputRequest = same(&json!({"process": {"pid": 3}, "input": {"stdin": "aGkK"}}));
    assert_eq!(input.input, process::Input::Stdin(Bytes(b"hi\n".into())));
    same::<SendSignalRequest>(&json!({"process": {"tag": "t"}, "signal": "SIGNAL_SIGKILL"}));
    // Both spellings, and base64 without padding.
    let watch: WatchRequest = serde_json::from_value(json!({"path": "p", "include_entry": true})).unwrap();
    assert!(watch.include_entry);
    assert_eq!(serde_json::from_value::<Bytes>(json!("_-A")).unwrap().0, [0xff, 0xe0]);
}

#[test]
fn answers_have_the_shape_that_clients_read() {
    same::<EventMessage>(&json!({"event": {"start": {"pid": 42}}}));
    same::<EventMessage>(&json!({"event": {"data": {"stdout": "aGkK"}}}));
    same::<EventMessage>(&json!({"event": {"end": {"exitCode": 0, "exited": true, "status": "exit status 0"}}}));
    let entry: EntryResponse = same(&json!({"entry": {
        "name": "a.txt", "type": "FILE_TYPE_FILE", "path": "/home/user/a.txt", "size": "5", "mode": 420,
        "permissions": "-rw-r--r--", "owner": "user", "group": "user", "modifiedTime": "2026-01-01T00:00:00Z"
    }}));
    assert_eq!((entry.entry.size, entry.entry.r#type), (5, FileType::File));
    assert_eq!(serde_json::from_value::<EntryInfo>(json!({"size": 7})).unwrap().size, 7);
    same::<EndStream>(&json!({}));
    same::<EndStream>(&json!({"error": {"code": "deadline_exceeded", "message": "m"}}));
    let line = code::Line::Stdout(code::Text { text: "é".into(), timestamp: "t".into() });
    assert_eq!(serde_json::to_value(line).unwrap(), json!({"type": "stdout", "text": "é", "timestamp": "t"}));
    let line = serde_json::to_value(code::Line::EndOfExecution).unwrap();
    assert_eq!(line, json!({"type": "end_of_execution"}));
}
