//! Ports of a sandbox's programs: requests are forwarded to them, and their answers are untrusted.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use aludel_engine::processor_time::ProcessorShare;
use aludel_engine::sandboxes::ClientSandbox;
use aludel_store::KEY_PREFIX;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, Version};
use axum::response::Response;
use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::tunnel::Tunnel;
use crate::error::RenderedMark;
use crate::http::{ACCEL_BUFFERING, GuardedBody, TimedBody};

/// Time that a program may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of the head of an answer, and its headers.
const MAX_HEAD: usize = 64 << 10;
const MAX_HEADERS: usize = 128;
/// Headers of a single connection.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];
/// Headers for this server.
const OURS: [&str; 9] = [
    "e2b-sandbox-id",
    "e2b-sandbox-port",
    "x-access-token",
    "e2b-traffic-access-token",
    "open-sandbox-api-key",
    "open-sandbox-client-ip",
    "opensandbox-secure-access",
    "opensandbox-egress-auth",
    "x-execd-access-token",
];

/// Headers of an answer by which proxies before this server would do something on its behalf, such as serving a file of their own host.
const FOR_PROXIES: [&str; 11] = [
    "x-accel-redirect",
    "x-accel-buffering",
    "x-accel-charset",
    "x-accel-expires",
    "x-accel-limit-rate",
    "x-lighttpd-send-file",
    "x-lighttpd-send-tempfile",
    "x-litespeed-location",
    "x-reproxy-url",
    "x-sendfile",
    "x-sendfile2",
];

/// Prefixes of this server's keys, in the forms that clients send.
const KEYS: [&str; 2] = [KEY_PREFIX, "e2b_"];

/// Base64 as clients write it, with padding or without.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// A failure to forward a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PortError {
    /// Nothing accepts connections.
    Closed,
    /// The program that accepts them does not answer in HTTP.
    NoHttp,
    /// The client paused for too long while it sent the body.
    Silent,
}

/// Forwards a request to the program that listens on a port of the sandbox. The work counts for the sandbox's tenant.
pub(crate) async fn hand_on(
    sandbox: &Arc<ClientSandbox>,
    share: &ProcessorShare,
    port: u16,
    request: Request,
) -> Result<Response, PortError> {
    match timeout(CONNECT_TIMEOUT, sandbox.inner().connect(port)).await {
        Ok(Ok(connection)) => speak(sandbox, share, TokioIo::new(connection), request).await,
        Ok(Err(_)) | Err(_) => Err(PortError::Closed),
    }
}

/// Returns true if there is no length, or a single one in digits: nothing else can be sent on. Only answers to HEAD come with others.
fn has_plain_length(headers: &HeaderMap) -> bool {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let is_number = |length: &str| length.bytes().all(|digit| digit.is_ascii_digit()) && length.parse::<u64>().is_ok();
    let is_plain = lengths.next().is_none_or(|length| length.to_str().is_ok_and(is_number));
    is_plain && lengths.next().is_none()
}

async fn speak(
    sandbox: &Arc<ClientSandbox>,
    share: &ProcessorShare,
    connection: impl hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    mut request: Request,
) -> Result<Response, PortError> {
    let mut http = http1::Builder::new();
    // Names as most clients and proxies write them, `Host` for example, for programs that compare them by case.
    http.max_buf_size(MAX_HEAD).max_headers(MAX_HEADERS).title_case_headers(true);
    let (mut sender, driver) = http.handshake(connection).await.map_err(|_| PortError::NoHttp)?;
    // Ends with the answer's body, or with the tunnel. Reading what a program sends counts for its tenant.
    #[expect(clippy::disallowed_methods, reason = "it ends with the answer's body or the tunnel")]
    let driver = AbortOnDropHandle::new(tokio::spawn(share.pace(driver.with_upgrades())));
    let mut tunnel = Tunnel::asked_for(sandbox, &mut request);
    let (mut parts, body) = request.into_parts();
    let path = without_key(parts.uri.path_and_query().map_or("/", |path| path.as_str()));
    parts.uri = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
    without_hops(&mut parts.headers);
    for name in OURS {
        parts.headers.remove(name);
    }
    without_keys(&mut parts.headers);
    if let Some(tunnel) = &tunnel {
        tunnel.name(&mut parts.headers);
    }
    let request = Request::from_parts(parts, Body::new(TimedBody::new(body)));
    let refused = |error: hyper::Error| if error.is_user() { PortError::Silent } else { PortError::NoHttp };
    let mut response = sender.send_request(request).await.map_err(refused)?;
    let is_switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if is_switched && tunnel.is_none() {
        // A client or proxy that did not ask for a tunnel would misread what follows.
        return Err(PortError::NoHttp);
    }
    tunnel = tunnel.filter(|_| is_switched);
    let program = hyper::upgrade::on(&mut response);
    let (mut parts, body) = response.into_parts();
    parts.version = Version::HTTP_11;
    if parts.headers.contains_key(TRANSFER_ENCODING) || !has_plain_length(&parts.headers) {
        // The chunked encoding determines the body's end; a length would contradict it.
        parts.headers.remove(CONTENT_LENGTH);
    }
    without_hops(&mut parts.headers);
    for name in FOR_PROXIES {
        parts.headers.remove(name);
    }
    // Nobody need read a program's answer, which may have no end: a proxy would keep it on its disk.
    parts.headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    if let Some(tunnel) = tunnel {
        tunnel.name(&mut parts.headers);
        #[expect(clippy::disallowed_methods, reason = "it ends with the sandbox")]
        tokio::spawn(share.pace(tunnel.carry(program, driver)));
        let mut response = Response::from_parts(parts, Body::empty());
        response.extensions_mut().insert(RenderedMark);
        return Ok(response);
    }
    let body = Body::new(GuardedBody::new(Body::new(body), (driver, sender)));
    let mut response = Response::from_parts(parts, body);
    // Its errors are the program's own and are not rendered again.
    response.extensions_mut().insert(RenderedMark);
    Ok(response)
}

/// Removes the headers of a single connection, including those that its `Connection` header lists.
fn without_hops(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // Without it a program would see a request that no client may send.
        .filter(|name| *name != HOST)
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Removes headers with a key of this server, which a program must not learn. Credentials of the program's own clients stay.
fn without_keys(headers: &mut HeaderMap) {
    let contains = |text: &[u8], key: &str| text.windows(key.len()).any(|part| part == key.as_bytes());
    let has_key = |value: &HeaderValue| {
        let words = value.as_bytes().split(u8::is_ascii_whitespace);
        // User and password after `Basic`, however it is written.
        let decoded: Vec<Vec<u8>> = words.skip(1).filter_map(|word| LENIENT.decode(word).ok()).collect();
        let texts = || [value.as_bytes()].into_iter().chain(decoded.iter().map(Vec::as_slice));
        KEYS.iter().any(|key| texts().any(|text| contains(text, key)))
    };
    let named = headers.iter().filter(|(_, value)| has_key(value)).map(|(name, _)| name.clone());
    for name in named.collect::<Vec<_>>() {
        headers.remove(name);
    }
}

/// Removes parameters with a key of this server from a path, as Gemini's clients send it.
fn without_key(path: &str) -> Cow<'_, str> {
    let Some((path_alone, query)) = path.split_once('?').filter(|(_, query)| query.contains(KEY_PREFIX)) else {
        return path.into();
    };
    let others: Vec<&str> = query.split('&').filter(|parameter| !parameter.contains(KEY_PREFIX)).collect();
    if others.is_empty() { path_alone.into() } else { format!("{path_alone}?{}", others.join("&")).into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_learns_no_key_from_an_address() {
        for (asked, seen) in [
            ("/a?key=sk-aludel-0", "/a"),
            ("/a?x=1&key=sk-aludel-0&y=%20", "/a?x=1&y=%20"),
            ("/a?x=1&&y", "/a?x=1&&y"),
            ("/a", "/a"),
        ] {
            assert_eq!(without_key(asked), seen);
        }
    }

    #[test]
    fn a_program_learns_no_key_of_ours() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer sk-aludel-0"),
            ("x-api-key", "e2b_0"),
            ("x-other", "sk-aludel-0"),
            ("x-basic", "Basic OnNrLWFsdWRlbC0w"),
            ("x-lower", "basic  OnNrLWFsdWRlbC0w"),
            ("x-padded", "BASIC OnNrLWFsdWRlbC0wMA=="),
            ("x-unpadded", "Basic OnNrLWFsdWRlbC0wMA"),
            ("accept", "text/html"),
            ("cookie", "theirs"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers.insert("x-odd", HeaderValue::from_bytes(b"\xe9sk-aludel-0").unwrap());
        without_keys(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["accept", "cookie"]);
    }
}
