//! Requests to a service, and its answers.

use std::time::Duration;

use aludel_ignore::Ignore;
use futures_util::StreamExt;
use reqwest::header::HeaderValue;
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode};
use serde::Deserialize;

use crate::Error;

/// The longest wait for an answer. The slowest request makes a sandbox.
pub(in crate::backends) const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The most that is shown of an error of the service, bytes.
const MAX_REASON: usize = 500;

/// The body of an error.
#[derive(Deserialize)]
struct Refusal {
    message: String,
}

/// Makes a client of HTTP.
pub(in crate::backends) fn client() -> Result<Client, Error> {
    rustls::crypto::ring::default_provider().install_default().ignore("the first installation counts");
    // No redirects: programs of a sandbox may answer in place of its service, and must not choose an address on this side.
    let client = Client::builder().connect_timeout(CONNECT_TIMEOUT).redirect(Policy::none()).build();
    client.map_err(|error| Error::Setup(format!("make an HTTP client: {error}")))
}

/// Reads the body of an answer, of at most so many bytes.
pub(in crate::backends) async fn read(answer: Response, most: usize) -> Result<Vec<u8>, String> {
    let mut pieces = answer.bytes_stream();
    let mut body = Vec::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| root(&error))?;
        if body.len() + piece.len() > most {
            return Err("it is too long".to_owned());
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

/// Returns a successful answer. The error for any other has the status and the reason, read from at most so many bytes of the body.
pub(in crate::backends) async fn success(answer: reqwest::Result<Response>, most: usize) -> Result<Response, String> {
    let answer = answer.map_err(|error| root(&error))?;
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let body = read(answer, most).await.unwrap_or_default();
    Err(format!("{}: {}", status.as_u16(), reason(&body)))
}

/// Returns true for a success, and false if the service does not have the sandbox any more. `None` is a refusal.
pub(in crate::backends) fn is_there(status: StatusCode) -> Option<bool> {
    match status {
        StatusCode::NOT_FOUND => Some(false),
        status => status.is_success().then_some(true),
    }
}

/// Returns the reason that an error's body gives, on one line.
pub(in crate::backends) fn reason(body: &[u8]) -> String {
    let text = match serde_json::from_slice(body) {
        Ok(Refusal { message }) => message,
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    let text: String = text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    let end = text.floor_char_boundary(MAX_REASON);
    text.get(..end).unwrap_or_default().trim().to_owned()
}

/// The innermost error, which has the cause. The outer ones repeat the address.
pub(in crate::backends) fn root(error: &reqwest::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    if error.is_timeout() { "the time is over".to_owned() } else { innermost.to_string() }
}

/// A sensitive header value; `None` if the text is empty or not valid in a header.
pub(in crate::backends) fn secret(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok().filter(|value| !value.is_empty())?;
    value.set_sensitive(true);
    Some(value)
}

/// The JSON of a request.
pub(in crate::backends) fn json<T: serde::Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value).map_err(|error| Error::Setup(error.to_string()))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn whoever_answers_chooses_no_other_address() {
        let (service, inside) =
            (TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let (address, secret) = (service.local_addr().unwrap(), inside.local_addr().unwrap());
        let answer = tokio::spawn(async move {
            let (mut stream, _) = service.accept().await.unwrap();
            let _request = stream.read(&mut [0; 4096]).await.unwrap();
            let answer =
                format!("HTTP/1.1 307 Temporary Redirect\r\nlocation: http://{secret}/\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream
        });
        let asked =
            client().unwrap().post(format!("http://{address}/")).header("x-access-token", "secret").body("x").send();
        tokio::select! {
            answer = asked => assert_eq!(answer.unwrap().status(), 307),
            _reached = inside.accept() => panic!("it went where it was sent"),
        }
        let _stream = answer.await.unwrap();
    }
}
