//! Fuzz targets of `fuzz/`, and the replay of their corpora. Not part of any other build.

use std::fmt;
use std::mem::discriminant;
use std::sync::Arc;
use std::time::Duration;

use aludel_sandbox::KernelSpec;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};

use crate::fenced::{FencedPiece, Scanner};
use crate::partial_json::StringField;
use crate::upstream::http::{HttpOptions, HttpUpstream, Protocol, Transport};
use crate::upstream::{Delta, ModelCapabilities, ModelRequest, Sampling, ToolChoice, Upstream, UpstreamError};
use crate::{arguments_of, code_of, excerpt, framed};

/// Calls in one answer.
const MAX_CALLS: usize = 64;
/// Attempts of one call.
const ATTEMPTS: usize = 3;

/// Parses an answer of a model's server, in the protocol that the first byte selects: it has an end, the result does not depend on the
/// cuts, and is not larger than the input.
pub fn upstream(bytes: &[u8]) {
    let Some((&[choice, cut], body)) = bytes.split_first_chunk() else { return };
    let answer = |cut| {
        let chat =
            HttpUpstream::over(options(choice), Arc::new(Answer { choice, cut, body: Bytes::copy_from_slice(body) }));
        let deltas = chat.expect("the options are fine").call(request()).collect::<Vec<_>>();
        runtime().block_on(deltas)
    };
    let whole = answer(0);
    let (Some(last), mut calls, mut size, mut retries) = (whole.last(), 0, 0, 0) else { panic!("it has no end") };
    assert!(matches!(last, Ok(Delta::Finished(_)) | Err(_)), "{last:?}");
    for (index, delta) in whole.iter().enumerate() {
        match delta {
            Ok(Delta::CallStarted { index, name, .. }) => {
                assert_eq!(*index, calls);
                calls += 1;
                size += name.len();
            }
            Ok(Delta::CallArguments { index, fragment }) => {
                assert!(*index < calls && !fragment.is_empty());
                size += fragment.len();
            }
            Ok(Delta::Text(text) | Delta::Reasoning(text) | Delta::Refusal(text)) => {
                assert!(!text.is_empty());
                size += text.len();
            }
            Ok(Delta::Retrying { .. }) => {
                retries += 1;
                assert!(retries < ATTEMPTS && calls == 0 && size == 0, "something was told before");
            }
            Ok(Delta::FellBack { .. }) => panic!("a single model fell back"),
            Ok(Delta::Usage(_)) => {}
            Ok(Delta::Finished(_)) | Err(_) => assert_eq!(index + 1, whole.len(), "something comes after the end"),
        }
    }
    assert!(calls <= MAX_CALLS);
    // Invalid UTF-8 grows, and numbers may be written longer than they were.
    assert!(size <= 8 * body.len() + 64, "{size} of {}", body.len());
    let (whole, pieces): (Vec<_>, Vec<_>) =
        (whole.iter().map(meaning).collect(), answer(cut).iter().map(meaning).collect());
    assert_eq!(whole, pieces);
}

/// The content of a delta, for comparison. Some ids and waits are random, and errors quote as much as had arrived.
fn meaning(delta: &Result<Delta, UpstreamError>) -> String {
    match delta {
        Ok(Delta::Retrying { .. }) => "retrying".to_owned(),
        Ok(Delta::CallStarted { name, .. }) => format!("a call of {name}"),
        Ok(delta) => format!("{delta:?}"),
        Err(error) => format!("{:?}", discriminant(error)),
    }
}

/// A runtime whose clock advances when nothing else is to do.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime")
}

fn options(choice: u8) -> HttpOptions {
    HttpOptions {
        protocol: Protocol::ALL[usize::from(choice) % Protocol::ALL.len()],
        url: "http://localhost/v1".into(),
        model: "m".into(),
        key: None,
        capabilities: ModelCapabilities { function_calling: true, vision: true },
        idle_timeout: Duration::from_secs(60),
        headers: Vec::new(),
        max_output_tokens: None,
        requests: None,
    }
}

fn request() -> ModelRequest {
    ModelRequest {
        owner: String::new(),
        instructions: String::new(),
        items: Vec::new(),
        tools: Vec::new(),
        tool_choice: ToolChoice::Auto,
        sampling: Sampling::default(),
        headers: HeaderMap::new(),
    }
}

/// A server with one answer: as a stream, whole, or as an error.
struct Answer {
    choice: u8,
    /// Bytes of a piece; zero for all at once.
    cut: u8,
    body: Bytes,
}

impl fmt::Debug for Answer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Answer")
    }
}

impl Transport for Answer {
    fn send(&self, _request: reqwest::Request) -> BoxFuture<'static, reqwest::Result<reqwest::Response>> {
        let size = if self.cut == 0 { self.body.len().max(1) } else { self.cut.into() };
        let pieces: Vec<_> = self.body.chunks(size).map(|piece| Ok::<_, fmt::Error>(piece.to_vec())).collect();
        let mut response = http::Response::new(reqwest::Body::wrap_stream(stream::iter(pieces)));
        let (status, kind) = match self.choice >> 2 {
            kind if kind < 32 => (200, "text/event-stream"),
            kind if kind < 48 => (200, "application/json"),
            kind => ([400, 401, 404, 429, 500, 503][usize::from(kind % 6)], "application/json"),
        };
        *response.status_mut() = status.try_into().expect("a status");
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        // Servers also send a header with the time to wait: here it is the first line of the body.
        let line = self.body.split(|byte| *byte == b'\n').next().unwrap_or_default();
        if let Ok(line) = HeaderValue::from_bytes(line) {
            response.headers_mut().insert(RETRY_AFTER, line);
        }
        async { Ok(response.into()) }.boxed()
    }
}

/// Parses a model's text and a program's output: the result does not depend on the cuts, excerpts are bounded and harmless, and framed text
/// is found in its frame.
pub fn written(bytes: &[u8]) {
    let Some((cut, text)) = bytes.split_first() else { return };
    let text = &*String::from_utf8_lossy(text);
    let characters: Vec<String> = text.chars().map(String::from).collect();
    let pieces: Vec<String> = characters.chunks(usize::from(cut % 16) + 1).map(<[_]>::concat).collect();

    let scanned = scan([text]);
    assert!(scanned.said.len() + scanned.code.as_deref().unwrap_or_default().len() <= text.len());
    assert_eq!(scan(pieces.iter().map(String::as_str)), scanned);

    let decoded = decode([text]);
    assert_eq!(decode(pieces.iter().map(String::as_str)), decoded);
    // Of several fields of this name the first is shown during streaming, and the last is run.
    if text.matches("code").count() == 1
        && !text.contains("\\u00")
        && let Ok(serde_json::Value::Object(fields)) = serde_json::from_str(text)
        && let Some(code) = fields.get("code").and_then(serde_json::Value::as_str)
    {
        assert_eq!(decoded, code);
    }
    if !text.trim().is_empty() {
        assert_eq!(code_of(&arguments_of(text)).as_deref(), Ok(text));
        assert_eq!(decode([&*arguments_of(text)]), text);
    }

    let plain = excerpt::plain(text);
    assert!(
        plain.len() <= text.len()
            && !plain.chars().any(|character| character.is_control() && !"\t\n".contains(character))
    );
    assert_eq!(excerpt::plain(&plain), plain);
    let limit = usize::from(*cut);
    assert!(excerpt::head_and_tail(text, limit).len() <= limit + 60);
    let line = excerpt::line(text, limit);
    assert!(line.chars().count() <= limit + 1 && !line.contains(['\n', '\r', '\t']), "{line:?}");

    // A fence may be longer than the longest recognized one.
    if !text.contains(&"`".repeat(50)) {
        let block = scan([&*excerpt::fenced("python", text)]);
        assert!(block.said.is_empty() && block.is_closed);
        assert_eq!(block.code.as_deref().map(str::trim_end), Some(text.trim_end()));
    }
    let frame = framed(text);
    assert!(frame.len() <= text.len() + 200);
    assert_eq!(frame.matches("<output ").count(), 1 + plain.trim_end().matches("<output ").count());
}

/// The finds in a model's text.
#[derive(Debug, PartialEq, Eq)]
struct ScannedText {
    said: String,
    code: Option<String>,
    is_closed: bool,
}

fn scan<'a>(pieces: impl IntoIterator<Item = &'a str>) -> ScannedText {
    let mut scanner = Scanner::new(KernelSpec::python("").fences);
    let mut found: Vec<FencedPiece> = pieces.into_iter().flat_map(|piece| scanner.push(piece)).collect();
    found.extend(scanner.finish());
    let (mut said, mut code) = (String::new(), None::<String>);
    for piece in found {
        match piece {
            FencedPiece::Text(text) => said.push_str(&text),
            FencedPiece::Opened => assert_eq!(code.replace(String::new()), None, "only one program starts"),
            FencedPiece::Code(text) => code.as_mut().expect("it has started").push_str(&text),
        }
    }
    assert_eq!(code, scanner.program());
    ScannedText { said, code, is_closed: scanner.is_closed() }
}

/// The program in a call's arguments, decoded as it streams.
fn decode<'a>(pieces: impl IntoIterator<Item = &'a str>) -> String {
    let mut field = StringField::new("code");
    pieces.into_iter().map(|piece| field.push(piece)).collect()
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn kept_inputs_of_upstream_pass() {
        replay("upstream", super::upstream);
    }

    #[test]
    fn kept_inputs_of_written_pass() {
        replay("written", super::written);
    }
}
