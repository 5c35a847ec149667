//! Lines of the person at the terminal for a program's `input()`.

use std::future::pending;
use std::{io, thread};

use aludel_ignore::Ignore;
use aludel_sandbox::{ClientAnswer, ClientCall};
use serde::Deserialize;
use tokio::sync::oneshot;

/// The arguments of a call.
#[derive(Deserialize)]
struct InputArguments {
    prompt: String,
}

/// The words before the line that is asked for.
pub(super) fn prompt(calls: &[ClientCall]) -> String {
    let question = calls.first().and_then(|call| serde_json::from_str(&call.arguments).ok());
    question.map_or_else(String::new, |InputArguments { prompt }| prompt)
}

/// The pending read of a line, if there is one. A thread reads, because reading from a terminal cannot be cancelled.
#[derive(Default)]
pub(super) struct LineRead(Option<oneshot::Receiver<ClientAnswer>>);

impl LineRead {
    /// Begins to read a line.
    pub(super) fn begin(&mut self) {
        let (sender, line) = oneshot::channel();
        thread::spawn(move || {
            let mut line = String::new();
            let answer = match io::stdin().read_line(&mut line) {
                Ok(0) => ClientAnswer::error("EOF when reading a line"),
                Ok(_) => ClientAnswer { text: line.strip_suffix('\n').unwrap_or(&line).to_owned(), is_error: false },
                Err(error) => ClientAnswer::error(format!("the terminal could not be read: {error}")),
            };
            sender.send(answer).ignore("the receiver is gone if the program has ended");
        });
        self.0 = Some(line);
    }

    /// Waits for the line; for ever if there is no read. Cancel-safe.
    pub(super) async fn next(&mut self) -> ClientAnswer {
        let Some(line) = &mut self.0 else { return pending().await };
        let answer = line.await.unwrap_or_else(|_| ClientAnswer::error("the terminal can no longer be read"));
        self.0 = None;
        answer
    }
}
