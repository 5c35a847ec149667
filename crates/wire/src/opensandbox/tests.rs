//! Messages as the SDKs send and expect them.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::code::{Event, RunCode};
use super::commands::RunCommand;
use super::files::{Permission, Replaced, UploadMetadata};
use super::lifecycle::{Action, NewSandbox, Pagination};

fn same<T: Serialize + DeserializeOwned>(value: &Value) -> T {
    let read: T = serde_json::from_value(value.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), *value);
    read
}

#[test]
fn requests_round_trip() {
    let new: NewSandbox = same(&json!({
        "image": {"uri": "opensandbox/code-interpreter:v1.1.0"}, "timeout": 600, "env": {"A": "1", "B": null},
        "metadata": {"project": "h3"}, "entrypoint": ["/opt/code-interpreter/code-interpreter.sh"],
        "networkPolicy": {"defaultAction": "deny", "egress": [{"action": "allow", "target": "example.com"}]},
        "secureAccess": false
    }));
    assert_eq!(new.network_policy.unwrap().egress.unwrap()[0].action, Action::Allow);
    let run: RunCode = same(&json!({"code": "x", "context": {"language": "python", "id": "c"}}));
    assert_eq!(run.context.unwrap().id.as_deref(), Some("c"));
    same::<RunCommand>(&json!({"command": "sleep 1", "cwd": "/tmp", "background": true, "timeout": 100, "envs": {}}));
    same::<RunCommand>(&json!({"argv": ["ls", "-l"], "uid": 1000}));
    let upload: UploadMetadata =
        serde_json::from_value(json!({"path": "/tmp/a.txt", "owner": null, "group": null, "mode": 755})).unwrap();
    assert_eq!(upload.permission, Permission { mode: Some(755), owner: None, group: None });
}

#[test]
fn events_have_their_kind_and_their_time_side_by_side() {
    for event in [
        json!({"type": "init", "text": "exec_1", "timestamp": 1}),
        json!({"type": "stdout", "text": "hi\n", "timestamp": 1}),
        json!({"type": "result", "results": {"text": "4", "image/png": "iVBO"}, "timestamp": 1}),
        json!({"type": "execution_count", "execution_count": 3, "timestamp": 1}),
        json!({"type": "error", "error": {"ename": "E", "evalue": "1", "traceback": []}, "timestamp": 1}),
        json!({"type": "execution_complete", "execution_time": 12, "timestamp": 1}),
        json!({"type": "ping", "text": "pong", "timestamp": 1}),
    ] {
        same::<Event>(&event);
    }
    same::<Replaced>(&json!({"replacedCount": 2}));
    same::<Pagination>(&json!({
        "page": 1, "pageSize": 20, "totalItems": 3, "totalPages": 1, "hasNextPage": false
    }));
}
