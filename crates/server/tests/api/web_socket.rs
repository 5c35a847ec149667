//! Responses over a WebSocket.

use std::time::Duration;

use aludel_testkit::{Scripted, ScriptedUpstream};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::common::{Server, listen, model, settings};

/// A client's end.
struct Socket(WebSocketStream<TcpStream>);

impl Socket {
    async fn open(server: &Server, key: Option<&str>) -> Result<Self, Error> {
        let mut request = format!("ws://{}/v1/responses", server.address()).into_client_request()?;
        if let Some(key) = key {
            request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
        }
        let stream = TcpStream::connect(server.address()).await.unwrap();
        Ok(Self(client_async(request, stream).await?.0))
    }

    async fn send(&mut self, message: &Value) {
        self.0.send(Message::Text(message.to_string().into())).await.unwrap();
    }

    async fn next(&mut self) -> Option<Value> {
        loop {
            match self.0.next().await?.unwrap() {
                Message::Text(text) => return Some(serde_json::from_str(&text).unwrap()),
                Message::Close(_) => return None,
                _ => {}
            }
        }
    }

    /// The code with which the server closes it.
    async fn closed(&mut self) -> u16 {
        match self.0.next().await {
            Some(Ok(Message::Close(Some(frame)))) => frame.code.into(),
            other => panic!("it goes on: {other:?}"),
        }
    }

    /// Asks for a response. Returns its events.
    async fn create(&mut self, fields: Value) -> Vec<Value> {
        let mut message = json!({ "type": "response.create", "model": "m" });
        message.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        self.send(&message).await;
        self.answer().await
    }

    /// The events up to the end of a response.
    async fn answer(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let event = self.next().await.unwrap();
            let name = event["type"].as_str().unwrap();
            let is_last = ["error", "response.completed", "response.failed", "response.incomplete"].contains(&name);
            events.push(event);
            if is_last {
                return events;
            }
        }
    }
}

/// The response of the last event.
fn response(events: &[Value]) -> &Value {
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed", "{last}");
    &last["response"]
}

#[tokio::test]
async fn responses_come_one_after_another_and_go_on_in_their_container() {
    let data = tempfile::tempdir().unwrap();
    let script = vec![
        Scripted::Python("x = 1"),
        Scripted::Text("It is set."),
        Scripted::Python("x"),
        Scripted::Text("It is 1."),
        Scripted::Text("Again."),
    ];
    let upstream = ScriptedUpstream::start(script).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let mut socket = Socket::open(&server, None).await.unwrap();
    let tools = json!([{ "type": "code_interpreter", "container": { "type": "auto" } }]);
    let first = socket.create(json!({ "input": "Set x.", "tools": tools })).await;
    let (first, names) = (response(&first), first.iter().map(|event| event["type"].clone()).collect::<Vec<_>>());
    assert_eq!(names[..2], ["response.created", "response.in_progress"]);
    assert!(names.contains(&"response.code_interpreter_call.completed".into()), "{names:?}");
    // Both are sent at once, and the second one waits.
    let include = json!(["code_interpreter_call.outputs"]);
    let next = json!({ "type": "response.create", "model": "m", "input": "What is x?", "tools": tools, "include": include,
        "previous_response_id": first["id"] });
    socket.send(&next).await;
    let third = socket.create(json!({ "input": "Another." })).await;
    let second = response(&third);
    assert_eq!(second["output"][0]["outputs"][0]["logs"], "1");
    assert_eq!(second["output"][1]["content"][0]["text"], "It is 1.");
    assert_eq!(response(&socket.answer().await)["output"][0]["content"][0]["text"], "Again.");
    // They are stored as others are.
    assert_eq!(server.get(&format!("/v1/responses/{}", second["id"].as_str().unwrap())).await.ok()["id"], second["id"]);
    server.stop().await;
    assert_eq!(socket.closed().await, 1001);
}

#[tokio::test]
async fn messages_beyond_those_that_wait_are_refused_in_their_turn() {
    let data = tempfile::tempdir().unwrap();
    let late = Scripted::Late(Duration::from_millis(300), Box::new(Scripted::Text("Fine.")));
    let script = [late].into_iter().chain([(); 4].map(|()| Scripted::Text("Fine."))).collect();
    let upstream = ScriptedUpstream::start(script).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let mut socket = Socket::open(&server, None).await.unwrap();
    for _ in 0..6 {
        socket.send(&json!({ "type": "response.create", "model": "m", "input": "?" })).await;
    }
    for _ in 0..5 {
        response(&socket.answer().await);
    }
    assert_eq!(socket.answer().await[0]["status"], 429);
    // An ordinary end gets its answer.
    let mut other = Socket::open(&server, None).await.unwrap();
    other.0.close(None).await.unwrap();
    assert!(matches!(other.0.next().await, Some(Ok(Message::Close(_)))));
    server.stop().await;
}

#[tokio::test]
async fn a_response_that_is_not_stored_is_known_to_its_socket() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start([(); 4].map(|()| Scripted::Text("Fine.")).to_vec()).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let mut socket = Socket::open(&server, None).await.unwrap();
    let stored = socket.create(json!({ "input": "One." })).await;
    let after = &response(&stored)["id"];
    let prepared = socket.create(json!({ "input": "Two.", "generate": false, "previous_response_id": after })).await;
    assert_eq!(response(&prepared)["output"], json!([]));
    let mut last = prepared;
    for input in [json!("Three."), json!([{ "role": "user", "content": "Four." }])] {
        let id = &response(&last)["id"];
        last = socket.create(json!({ "input": input, "store": false, "previous_response_id": id })).await;
    }
    let asked = upstream.requests();
    let said: Vec<_> = asked[2]["messages"].as_array().unwrap().iter().map(|message| &message["content"]).collect();
    assert_eq!(json!(said), json!(["One.", "Fine.", "Two.", "Three.", "Fine.", "Four."]));
    let id = response(&last)["id"].as_str().unwrap().to_owned();
    server.get(&format!("/v1/responses/{id}")).await.refused(404, "not found");
    let conversation = server.post("/v1/conversations", json!({})).await.ok();
    let both =
        socket.create(json!({ "input": "?", "previous_response_id": id, "conversation": conversation["id"] })).await;
    assert_eq!(both[0]["error"]["code"], "mutually_exclusive_parameters");
    let nothing = socket.create(json!({ "input": "?", "generate": false, "previous_response_id": "resp_none" })).await;
    assert_eq!(nothing[0]["error"]["code"], "previous_response_not_found");
    // Another socket does not know it.
    let mut other = Socket::open(&server, None).await.unwrap();
    let refused = other.create(json!({ "input": "Five.", "previous_response_id": id })).await;
    assert_eq!((&refused[0]["type"], &refused[0]["param"]), (&"error".into(), &"previous_response_id".into()));
    server.stop().await;
}

#[tokio::test]
async fn refusals_are_events_and_the_socket_goes_on() {
    let data = tempfile::tempdir().unwrap();
    let script = vec![Scripted::Status(401, "", r#"{"error":{"message":"no key"}}"#), Scripted::Text("Fine.")];
    let upstream = ScriptedUpstream::start(script).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let plain = server.get("/v1/responses").await.refused(405, "GET opens a WebSocket");
    assert_eq!(plain["code"], "method_not_allowed");
    let mut socket = Socket::open(&server, None).await.unwrap();
    for (message, status, words) in [
        (r#"{"type":"response.create""#, 400, "cannot be read"),
        ("[]", 400, "cannot be read"),
        (r#"{"type":"response.steer"}"#, 400, "response.steer"),
        (r#"{"type":"response.create","stream_id":"a"}"#, 400, "stream_id"),
        (r#"{"type":"response.create","background":true}"#, 400, "POST"),
        (r#"{"type":"response.create","model":"none","input":"?"}"#, 404, "none"),
        (r#"{"type":"response.create","model":"m","input":"?"}"#, 502, "cannot be asked"),
    ] {
        socket.0.send(Message::Text(message.into())).await.unwrap();
        let events = socket.answer().await;
        assert_eq!((events.len(), &events[0]["status"]), (1, &status.into()), "{message}: {events:?}");
        let told = events[0]["error"]["message"].as_str().unwrap();
        assert!(told.contains(words) && events[0]["message"] == told, "{message}: {told}");
    }
    let answered = socket.create(json!({ "input": "?" })).await;
    assert_eq!(response(&answered)["output"][0]["content"][0]["text"], "Fine.");
    let key = server.store.create_key("one", None).await.unwrap();
    // Until then the server may believe that there is none.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let Err(Error::Http(refused)) = Socket::open(&server, None).await.map(|_| ()) else {
        panic!("opened without a key")
    };
    assert_eq!(refused.status(), 401);
    let mut socket = Socket::open(&server, Some(&key.secret)).await.unwrap();
    server.store.revoke_key(key.id).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(socket.create(json!({ "input": "?" })).await[0]["status"], 401);
    assert_eq!(socket.closed().await, 1008);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_goes_ends_its_response() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start(vec![Scripted::Python("wait()")]).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let mut socket = Socket::open(&server, None).await.unwrap();
    let tools = json!([{ "type": "code_interpreter", "container": { "type": "auto" } }]);
    socket.send(&json!({ "type": "response.create", "model": "m", "input": "Wait.", "tools": tools })).await;
    let id = socket.next().await.unwrap()["response"]["id"].as_str().unwrap().to_owned();
    while socket.next().await.unwrap()["type"] != "response.code_interpreter_call.interpreting" {}
    drop(socket);
    let ended = async {
        while server.get(&format!("/v1/responses/{id}")).await.ok()["status"] == "in_progress" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), ended).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn the_sockets_of_a_tenant_are_bounded() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings().server(|server| server.requests = 2), Vec::new()).await;
    let mut first = Socket::open(&server, None).await.unwrap();
    let _second = Socket::open(&server, None).await.unwrap();
    let Err(Error::Http(refused)) = Socket::open(&server, None).await.map(|_| ()) else { panic!("a third one opened") };
    assert_eq!(refused.status(), 429);
    first.0.close(None).await.unwrap();
    while Socket::open(&server, None).await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn the_memory_of_a_message_counts_while_it_arrives() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings().server(|server| server.bodies = 3 << 20), Vec::new()).await;
    let mut socket = Socket::open(&server, None).await.unwrap();
    let message = Message::Text("x".repeat(8 << 20).into());
    let sent = socket.0.send(message).await;
    let Some(Ok(Message::Close(Some(frame)))) = socket.0.next().await else { panic!("it is taken: {sent:?}") };
    assert_eq!(u16::from(frame.code), 1013);
    server.stop().await;
}
