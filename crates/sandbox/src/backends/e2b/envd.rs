//! The commands of one sandbox: `envd`'s service `process.Process` over Connect's JSON.

use std::time::Duration;

use aludel_wire::e2b::process::{
    EventMessage, Input, Output, ProcessConfig, ProcessEvent, SelectRequest, Selector, SendInputRequest,
    SendSignalRequest, Signal, StartRequest,
};
use aludel_wire::e2b::{Bytes as Base64, EndStream};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Response};
use serde::Serialize;
use tokio_util::bytes::{Buf, Bytes, BytesMut};

use crate::Error;
use crate::backends::remote::{self, CommandEvent, json, read, reason, root, secret, success};
use crate::backends::stdio::OutputChunk;

/// The longest that an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest message of a stream, bytes. A piece of output has some 32 KiB before base64, which adds a third.
const MAX_MESSAGE: usize = 4 << 20;
/// The longest answer that says nothing, bytes.
const MAX_ANSWER: usize = 64 << 10;
/// The flag of a compressed message; compression is never requested.
const COMPRESSED: u8 = 1;
/// The bit of the last message of a stream.
const LAST: u8 = 2;

/// The client for the commands of one sandbox.
#[derive(Debug, Clone)]
pub struct Envd {
    client: Client,
    url: String,
    id: String,
    headers: HeaderMap,
}

/// The input of a command.
pub struct EnvdInput {
    envd: Envd,
    pid: u32,
}

/// The events of a command.
pub struct EnvdOutput {
    pieces: BoxStream<'static, reqwest::Result<Bytes>>,
    buffer: BytesMut,
}

impl Envd {
    /// The port at which it is.
    pub(super) const PORT: u16 = 49983;

    pub(super) fn new(
        client: Client,
        url: String,
        id: String,
        token: Option<&str>,
        traffic_token: Option<&str>,
    ) -> Result<Self, Error> {
        let is_none = || Error::Setup("the service gave a sandbox an id or a token that cannot be sent".into());
        let mut headers = HeaderMap::new();
        let mut add = |name: &'static str, value: Option<HeaderValue>| -> Result<(), Error> {
            headers.insert(HeaderName::from_static(name), value.ok_or_else(is_none)?);
            Ok(())
        };
        add("e2b-sandbox-id", HeaderValue::from_str(&id).ok())?;
        add("e2b-sandbox-port", Some(HeaderValue::from(Self::PORT)))?;
        add("connect-protocol-version", Some(HeaderValue::from_static("1")))?;
        if let Some(token) = token {
            add("x-access-token", secret(token))?;
        }
        if let Some(token) = traffic_token {
            add("e2b-traffic-access-token", secret(token))?;
        }
        Ok(Self { client, url, id, headers })
    }

    async fn call<T: Serialize>(&self, method: &str, request: &T) -> Result<(), Error> {
        let sent = self.client.post(format!("{}/process.Process/{method}", self.url)).headers(self.headers.clone());
        let sent = sent.header(CONTENT_TYPE, "application/json").timeout(ANSWER_TIMEOUT).body(json(request)?);
        let answer = self.check(method, sent.send().await).await?;
        read(answer, MAX_ANSWER).await.map(drop).map_err(|reason| self.failed(method, &reason))
    }

    async fn check(&self, step: &str, answer: reqwest::Result<Response>) -> Result<Response, Error> {
        success(answer, MAX_ANSWER).await.map_err(|reason| self.failed(step, &reason))
    }

    fn failed(&self, step: &str, reason: &str) -> Error {
        Error::Setup(format!("{step}: {reason} (sandbox {} at {})", self.id, self.url))
    }
}

impl remote::CommandRunner for Envd {
    type Input = EnvdInput;
    type Output = EnvdOutput;

    async fn start(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Result<(EnvdInput, EnvdOutput), Error> {
        let step = "start a command in the sandbox";
        let mut arguments = arguments.iter().map(|argument| (*argument).to_owned());
        let envs = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let process =
            ProcessConfig { cmd: arguments.next().unwrap_or_default(), args: arguments.collect(), envs, cwd: None };
        let message = json(&StartRequest { process, pty: None, tag: None, stdin: Some(true) })?;
        let mut body = vec![0];
        body.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
        body.extend_from_slice(&message);
        let request = self.client.post(format!("{}/process.Process/Start", self.url)).headers(self.headers.clone());
        let sent = request.header(CONTENT_TYPE, "application/connect+json").body(body).send();
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, sent).await;
        let answer = answer.map_err(|_| Error::Timeout { what: "command", limit: ANSWER_TIMEOUT })?;
        let answer = self.check(step, answer).await?;
        let mut events = EnvdOutput { pieces: answer.bytes_stream().boxed(), buffer: BytesMut::new() };
        let first = tokio::time::timeout(ANSWER_TIMEOUT, events.read()).await;
        match first.map_err(|_| Error::Timeout { what: "command", limit: ANSWER_TIMEOUT })? {
            Ok(Some(ProcessEvent::Start(started))) => Ok((EnvdInput { envd: self.clone(), pid: started.pid }, events)),
            Ok(_) => Err(self.failed(step, "the first event is not its start")),
            Err(reason) => Err(self.failed(step, &reason)),
        }
    }
}

impl remote::CommandInput for EnvdInput {
    async fn send(&self, bytes: &[u8]) -> Result<(), Error> {
        let input = Input::Stdin(Base64(bytes.to_vec()));
        self.envd.call("SendInput", &SendInputRequest { process: Selector::Pid(self.pid), input }).await
    }

    async fn close(&self) -> Result<(), Error> {
        self.envd.call("CloseStdin", &SelectRequest { process: Selector::Pid(self.pid) }).await
    }

    async fn kill(&self) -> Result<(), Error> {
        let request = SendSignalRequest { process: Selector::Pid(self.pid), signal: Signal::Kill };
        self.envd.call("SendSignal", &request).await
    }
}

impl remote::CommandOutput for EnvdOutput {
    async fn next(&mut self) -> Result<CommandEvent, String> {
        loop {
            return Ok(match self.read().await? {
                Some(ProcessEvent::Data(Output::Stdout(bytes))) => {
                    CommandEvent::Printed(OutputChunk::Out(Bytes::from(bytes.0)))
                }
                Some(ProcessEvent::Data(Output::Stderr(bytes))) => {
                    CommandEvent::Printed(OutputChunk::Err(Bytes::from(bytes.0)))
                }
                Some(ProcessEvent::End(end)) => {
                    CommandEvent::Ended(if end.exit_code == 0 { Ok(()) } else { Err(end.status) })
                }
                Some(_) => continue,
                None => return Err("the events of the command ended before it did".to_owned()),
            });
        }
    }
}

impl EnvdOutput {
    /// Returns the next event of the service; `None` at the end of the stream. Cancel-safe.
    async fn read(&mut self) -> Result<Option<ProcessEvent>, String> {
        loop {
            if let Some((flags, message)) = take(&mut self.buffer)? {
                if flags & LAST != 0 {
                    let end: EndStream = serde_json::from_slice(&message).map_err(|error| error.to_string())?;
                    return end.error.map_or(Ok(None), |error| Err(reason(error.message.as_bytes())));
                }
                let EventMessage { event } = serde_json::from_slice(&message).map_err(|error| error.to_string())?;
                return Ok(Some(event));
            }
            match self.pieces.next().await {
                Some(Ok(piece)) => self.buffer.extend_from_slice(&piece),
                Some(Err(error)) => return Err(root(&error)),
                None => return Ok(None),
            }
        }
    }
}

/// Takes the next message, flags and text, if it is complete.
fn take(buffer: &mut BytesMut) -> Result<Option<(u8, Bytes)>, String> {
    let Some(mut header) = buffer.get(..5) else { return Ok(None) };
    let (flags, length) = (header.get_u8(), header.get_u32() as usize);
    if length > MAX_MESSAGE || flags & COMPRESSED != 0 {
        return Err("a message is too long or compressed".to_owned());
    }
    if buffer.len() < 5 + length {
        return Ok(None);
    }
    buffer.advance(5);
    Ok(Some((flags, buffer.split_to(length).freeze())))
}
