//! What a program put out, in the words of OpenAI's protocols.

use aludel_agent::{Call, Item};
use aludel_engine::execution::{Event as ExecutionEvent, Finished, MimeBundle, Outcome};
use aludel_engine::{Session, SessionFile};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::error::ApiError;

/// What a program did, as far as clients see it.
#[derive(Default)]
pub(crate) struct Output {
    /// What it printed, the values of its last expressions and tracebacks, in order.
    logs: String,
    images: Vec<(String, Vec<u8>)>,
}

/// A program that ended, as clients see it.
#[derive(Debug)]
pub(crate) struct Ended {
    /// `completed`, `incomplete` or `failed`.
    pub(crate) status: &'static str,
    /// What it showed, as data URLs.
    pub(crate) images: Vec<String>,
    /// What it printed, and how it ended if that was not well.
    pub(crate) logs: String,
    /// The files that it left or showed, as clients can download them.
    pub(crate) made: Vec<SessionFile>,
}

impl Ended {
    /// One that could not be run.
    pub(crate) fn rejected(reason: String) -> Self {
        Self { status: "failed", images: Vec::new(), logs: reason, made: Vec::new() }
    }

    /// One of which no more is known.
    pub(crate) fn incomplete() -> Self {
        Self { status: "incomplete", images: Vec::new(), logs: String::new(), made: Vec::new() }
    }

    /// The entries of `outputs`: images first, as OpenAI has them.
    pub(crate) fn outputs(&self) -> Vec<Value> {
        let mut outputs: Vec<Value> = self.images.iter().map(|url| json!({ "type": "image", "url": url })).collect();
        if !self.logs.is_empty() {
            outputs.push(json!({ "type": "logs", "logs": self.logs }));
        }
        outputs
    }
}

impl Output {
    /// Keeps what the program made, and puts all of it into the words of the protocol.
    pub(crate) async fn end(self, finished: &Finished, container: &Session) -> Result<Ended, ApiError> {
        let Self { mut logs, images: shown } = self;
        let status = match &finished.outcome {
            Outcome::Completed | Outcome::Failed(_) => "completed",
            Outcome::Interrupted => "incomplete",
            Outcome::Limit(_) | Outcome::KernelDied(_) => "failed",
        };
        if status != "completed" {
            logs.push_str(&aludel_agent::describe_outcome(finished));
        }
        let (mut made, mut images) = (Vec::new(), Vec::new());
        for (mime, bytes) in shown {
            made.push(container.add_figure(&bytes, &mime).await?);
            images.push(format!("data:{mime};base64,{}", BASE64_STANDARD.encode(&bytes)));
        }
        made.extend(container.store_changes(&finished.files).await?);
        Ok(Ended { status, images, logs, made })
    }

    pub(crate) fn see(&mut self, event: ExecutionEvent) {
        match event {
            ExecutionEvent::Stdout(text) | ExecutionEvent::Stderr(text) => self.logs.push_str(&text),
            ExecutionEvent::Display(bundle) => self.bundle(&bundle, "\n"),
            // As a notebook shows it: without a line end.
            ExecutionEvent::Result(bundle) => self.bundle(&bundle, ""),
            ExecutionEvent::Error(error) => {
                self.logs.push_str(&error.traceback);
                self.logs.push('\n');
            }
            ExecutionEvent::Finished(_) => {}
        }
    }

    fn bundle(&mut self, bundle: &MimeBundle, end: &str) {
        match bundle.image() {
            Some((mime, bytes)) => self.images.push((mime.to_owned(), bytes.to_vec())),
            None => {
                self.logs.push_str(bundle.text().unwrap_or_default());
                self.logs.push_str(end);
            }
        }
    }
}

/// A program of an earlier turn as the model gets it: a call of our tool, and what it put out.
pub(crate) fn replayed(item: &Value) -> [Item; 2] {
    let id = item.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
    let code = item.get("code").and_then(Value::as_str).unwrap_or_default();
    let arguments = json!({ "code": code }).to_string();
    let outputs = item.get("outputs").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut text: String = outputs.iter().filter_map(|output| output.get("logs")?.as_str()).collect();
    let images = outputs.iter().filter(|output| output.get("url").is_some()).count();
    if images > 0 {
        text.push_str(&format!("\n[{images} images were shown to the user]"));
    }
    let call = Call { id: id.clone(), name: "python".into(), arguments };
    [Item::Call(call), Item::output(id, replayed_output(&text))]
}

/// What a program of an earlier turn put out: data, as it was when it was new.
pub(crate) fn replayed_output(output: &str) -> String {
    if output.is_empty() { "(no output)".to_owned() } else { aludel_agent::framed(output) }
}
