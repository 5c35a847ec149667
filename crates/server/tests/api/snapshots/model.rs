//! Scripts for the model: short answers in a few pieces, so that streams are short to read.

use std::time::Duration;

use aludel_testkit::{End, Scripted};
use serde_json::{Value, json};

/// An answer in words.
pub(super) fn says(text: &str) -> Scripted {
    Round::new().text(text).ends("stop")
}

/// A program.
pub(super) fn runs(code: &str) -> Scripted {
    Round::new().program(code).ends("tool_calls")
}

/// An answer to a request whose client was answered before.
pub(super) fn later(answer: Scripted) -> Scripted {
    Scripted::Late(Duration::from_secs(1), Box::new(answer))
}

/// A call of a client's function.
pub(super) fn calls(name: &str, arguments: &Value) -> Scripted {
    Round::new().call(name, &arguments.to_string()).ends("tool_calls")
}

/// An answer of the model's server that is an error, or anything else that is no stream.
pub(super) fn answers(status: u16, headers: &'static str, body: &'static str) -> Scripted {
    Scripted::Status(status, headers, body)
}

/// One answer, put together from parts.
#[derive(Debug, Default)]
pub(super) struct Round {
    events: Vec<String>,
    calls: usize,
}

impl Round {
    /// Nothing yet.
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Text, in two pieces.
    pub(super) fn text(mut self, text: &str) -> Self {
        for piece in halves(text) {
            self.delta(&json!({ "content": piece }));
        }
        self
    }

    /// Thoughts, in two pieces.
    pub(super) fn thinks(mut self, text: &str) -> Self {
        for piece in halves(text) {
            self.delta(&json!({ "reasoning_content": piece }));
        }
        self
    }

    /// A refusal.
    pub(super) fn refuses(mut self, text: &str) -> Self {
        self.delta(&json!({ "refusal": text }));
        self
    }

    /// A program, in two pieces.
    pub(super) fn program(self, code: &str) -> Self {
        self.call("python", &json!({ "code": code }).to_string())
    }

    /// A call of a function, in two pieces.
    pub(super) fn call(mut self, name: &str, arguments: &str) -> Self {
        let index = self.calls;
        self.calls += 1;
        let id = format!("call_{index}_{name}");
        let function = json!({ "name": name, "arguments": "" });
        self.delta(&json!({ "tool_calls": [{ "index": index, "id": id, "type": "function", "function": function }] }));
        for piece in halves(arguments) {
            self.delta(&json!({ "tool_calls": [{ "index": index, "function": { "arguments": piece } }] }));
        }
        self
    }

    /// The end, with this reason and the usual number of tokens.
    pub(super) fn ends(self, reason: &str) -> Scripted {
        self.ends_with_tokens(reason, 10, 5)
    }

    /// The end, with this reason and so many tokens.
    pub(super) fn ends_with_tokens(mut self, reason: &str, input: u64, output: u64) -> Scripted {
        self.chunk(&json!([{ "index": 0, "delta": {}, "finish_reason": reason }]), &Value::Null);
        let usage = json!({ "prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output });
        self.chunk(&json!([]), &usage);
        Scripted::Events(self.events, End::Done)
    }

    /// No end: the connection breaks.
    pub(super) fn breaks(self) -> Scripted {
        Scripted::Events(self.events, End::Break)
    }

    /// No end: nothing more comes.
    pub(super) fn falls_silent(self) -> Scripted {
        Scripted::Events(self.events, End::Hold)
    }

    /// An event with an error.
    pub(super) fn fails(mut self, message: &str) -> Scripted {
        self.events.push(json!({ "error": { "message": message, "type": "server_error" } }).to_string());
        Scripted::Events(self.events, End::Close)
    }

    /// An event that is no chunk.
    pub(super) fn raves(mut self) -> Scripted {
        self.events.push(r#"{"choices": 5}"#.to_owned());
        Scripted::Events(self.events, End::Close)
    }

    fn delta(&mut self, delta: &Value) {
        self.chunk(&json!([{ "index": 0, "delta": delta, "finish_reason": null }]), &Value::Null);
    }

    fn chunk(&mut self, choices: &Value, usage: &Value) {
        let mut chunk = json!({
            "id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices,
        });
        if !usage.is_null() {
            chunk["usage"] = usage.clone();
        }
        self.events.push(chunk.to_string());
    }
}

fn halves(text: &str) -> [&str; 2] {
    let (start, end) = text.split_at(text.floor_char_boundary(text.len() / 2));
    [start, end]
}
