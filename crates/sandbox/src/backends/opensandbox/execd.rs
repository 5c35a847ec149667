//! The commands of one sandbox. The protocol has no stdin; a relay in the sandbox receives it on a port of its own.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aludel_wire::opensandbox::commands::RunCommand;
use futures_util::StreamExt;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use tokio_util::bytes::Bytes;

use super::api::OpenSandboxApi;
use super::events::{ExecdEvent, ExecdEvents};
use super::is_id;
use crate::Error;
use crate::backends::remote::{self, CommandEvent, json, reason, secret, success};
use crate::backends::stdio::OutputChunk;

/// The program that gives a command an input.
const RELAY: &str = include_str!("../../../kernel/relay.py");
/// The longest that an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest wait for an answer to [`Execd::answers`].
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Attempts to send input, since idle connections break off.
const TRIES: u32 = 3;
/// The longest answer that says nothing, bytes.
const MAX_ANSWER: usize = 64 << 10;
/// Bytes of a failed command's stderr in the error.
const MAX_COMPLAINT: usize = 400;
/// The longest line of the relay, bytes. Its own lines have some 32 KiB; a program of the sandbox may write there too.
const MAX_LINE: usize = 64 << 10;
const TOKEN: HeaderName = HeaderName::from_static("x-aludel-token");
const POSITION: HeaderName = HeaderName::from_static("x-position");

/// The client for the commands of one sandbox.
#[derive(Debug, Clone)]
pub struct Execd {
    api: OpenSandboxApi,
    id: String,
    url: String,
    headers: HeaderMap,
}

/// The input of a command.
pub struct ExecdInput {
    execd: Execd,
    /// The command's id.
    command: String,
    /// The address of the relay.
    url: String,
    headers: HeaderMap,
    /// Bytes that were sent.
    position: AtomicU64,
}

/// The output of a command.
pub struct ExecdOutput {
    events: ExecdEvents,
    lines: Lines,
}

/// The lines of the relay, which end with a full stop. Spaces between them are ignored.
#[derive(Default)]
struct Lines {
    complete: VecDeque<String>,
    begun: String,
}

impl Execd {
    /// The port at which it is.
    pub(super) const PORT: u16 = 44772;

    pub(super) fn new(api: OpenSandboxApi, id: String, url: String, headers: HeaderMap) -> Self {
        Self { api, id, url, headers }
    }

    /// Returns true if it takes commands.
    pub(super) async fn answers(&self) -> bool {
        let request = self.request(Method::GET, "/ping").timeout(PING_TIMEOUT);
        request.send().await.is_ok_and(|answer| answer.status().is_success())
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.api.client().request(method, format!("{}{path}", self.url)).headers(self.headers.clone())
    }

    async fn check(&self, step: &str, answer: reqwest::Result<Response>) -> Result<Response, Error> {
        success(answer, MAX_ANSWER).await.map_err(|reason| self.failed(step, &reason))
    }

    fn failed(&self, step: &str, reason: &str) -> Error {
        Error::Setup(format!("{step}: {reason} (sandbox {} at {})", self.id, self.api.address()))
    }

    async fn kill(&self, command: &str) -> Result<(), Error> {
        let request = self.request(Method::DELETE, &format!("/command?id={command}")).timeout(ANSWER_TIMEOUT);
        self.check("kill a command", request.send().await).await.map(drop)
    }
}

impl remote::CommandRunner for Execd {
    type Input = ExecdInput;
    type Output = ExecdOutput;

    async fn start(
        &self,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<(ExecdInput, ExecdOutput), Error> {
        let step = "start a command in the sandbox";
        let token = crate::random::hex::<16>();
        let relay = ["exec", "python3", "-I", "-c", RELAY, &token];
        let words = relay.iter().chain(arguments).map(|word| quoted(word));
        let envs = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let command = RunCommand {
            command: Some(words.collect::<Vec<_>>().join(" ")),
            envs: Some(envs),
            ..RunCommand::default()
        };
        let request = self.request(Method::POST, "/command").header(ACCEPT, "text/event-stream");
        let sent = request.header(CONTENT_TYPE, "application/json").body(json(&command)?).send();
        let late = |_| Error::Timeout { what: "command", limit: ANSWER_TIMEOUT };
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, sent).await.map_err(late)?;
        let answer = self.check(step, answer).await?;
        let mut output =
            ExecdOutput { events: ExecdEvents::new(answer.bytes_stream().boxed()), lines: Lines::default() };
        let started = tokio::time::timeout(ANSWER_TIMEOUT, output.started()).await.map_err(late)?;
        let (command, port) = started.map_err(|reason| self.failed(step, &reason))?;
        let (url, mut headers) = self.api.endpoint(&self.id, port).await?;
        headers.extend(secret(&token).map(|token| (TOKEN, token)));
        let stdin =
            ExecdInput { execd: self.clone(), command, url: format!("{url}/"), headers, position: AtomicU64::new(0) };
        Ok((stdin, output))
    }
}

impl ExecdInput {
    async fn post(&self, step: &str, method: Method, body: Bytes) -> Result<(), Error> {
        let position = self.position.fetch_add(body.len() as u64, Ordering::Relaxed);
        let mut tries = 0;
        loop {
            tries += 1;
            let request = self.execd.api.client().request(method.clone(), &self.url).headers(self.headers.clone());
            let request = request.header(POSITION, HeaderValue::from(position)).timeout(ANSWER_TIMEOUT);
            let answer = request.body(body.clone()).send().await;
            let is_again = match &answer {
                Ok(answer) => answer.status() == StatusCode::BAD_GATEWAY,
                Err(error) => !error.is_timeout(),
            };
            if !is_again || tries == TRIES {
                return self.execd.check(step, answer).await.map(drop);
            }
        }
    }
}

impl remote::CommandInput for ExecdInput {
    async fn send(&self, bytes: &[u8]) -> Result<(), Error> {
        self.post("give a command its input", Method::POST, Bytes::copy_from_slice(bytes)).await
    }

    async fn close(&self) -> Result<(), Error> {
        self.post("end the input of a command", Method::DELETE, Bytes::new()).await
    }

    async fn kill(&self) -> Result<(), Error> {
        self.execd.kill(&self.command).await
    }
}

impl ExecdOutput {
    /// Waits for the command's id and the port of its input.
    async fn started(&mut self) -> Result<(String, u16), String> {
        let mut command = None;
        let mut complaint = String::new();
        loop {
            match self.events.next().await? {
                ExecdEvent::Started(id) if is_id(&id) => command = Some(id),
                ExecdEvent::Started(_) => return Err("it was given an id that is none".to_owned()),
                ExecdEvent::Stdout(text) => self.lines.take(&text)?,
                ExecdEvent::Stderr(text) => complaint.push_str(&text),
                ExecdEvent::Ended(end) => {
                    let status = end.err().unwrap_or_else(|| "0".to_owned());
                    let end = complaint.floor_char_boundary(MAX_COMPLAINT);
                    let complaint = reason(complaint.get(..end).unwrap_or_default().as_bytes());
                    return Err(format!("it ended at once with status {status}: {complaint}"));
                }
            }
            if complaint.len() > MAX_ANSWER {
                return Err("it prints errors without an end".to_owned());
            }
            if let Some(line) = self.lines.next() {
                let port = line.parse().map_err(|_| "its first line is not the number of a port".to_owned())?;
                return Ok((command.take().ok_or("its first event is not its start")?, port));
            }
        }
    }
}

impl Lines {
    /// Adds text of the output.
    fn take(&mut self, text: &str) -> Result<(), String> {
        for char in text.chars().filter(|char| !char.is_whitespace()) {
            if char == '.' {
                self.complete.push_back(std::mem::take(&mut self.begun));
            } else if self.begun.len() < MAX_LINE {
                self.begun.push(char);
            } else {
                return Err("a line of the relay is too long".to_owned());
            }
        }
        Ok(())
    }

    /// Returns the next line, if it is complete.
    fn next(&mut self) -> Option<String> {
        self.complete.pop_front()
    }
}

impl remote::CommandOutput for ExecdOutput {
    async fn next(&mut self) -> Result<CommandEvent, String> {
        use base64::Engine as _;
        loop {
            if let Some(line) = self.lines.next() {
                let bytes = base64::engine::general_purpose::STANDARD.decode(line);
                let bytes = bytes.map_err(|_| "a line of the relay is not base64".to_owned())?;
                return Ok(CommandEvent::Printed(OutputChunk::Out(bytes.into())));
            }
            match self.events.next().await? {
                ExecdEvent::Stdout(text) => self.lines.take(&text)?,
                ExecdEvent::Stderr(text) => return Ok(CommandEvent::Printed(OutputChunk::Err(text.into()))),
                ExecdEvent::Ended(end) => {
                    return Ok(CommandEvent::Ended(end.map_err(|status| format!("exit status {status}"))));
                }
                ExecdEvent::Started(_) => {}
            }
        }
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::{Lines, MAX_LINE, quoted};

    #[test]
    fn lines_come_whole_from_any_pieces() {
        let mut lines = Lines::default();
        for piece in ["41", "234.", "\n", "YWJj.\nZGVm", "\r\n.", "Zw"] {
            lines.take(piece).unwrap();
        }
        let read: Vec<_> = std::iter::from_fn(|| lines.next()).collect();
        assert_eq!(read, ["41234", "YWJj", "ZGVm"]);
        lines.take(&"x".repeat(MAX_LINE - 2)).unwrap();
        assert!(lines.take("x").is_err());
    }

    #[test]
    fn words_stay_words_in_a_shell() {
        assert_eq!(quoted("it's $HOME\n`x`"), "'it'\\''s $HOME\n`x`'");
    }
}
