//! Headers of requests that several parts read.

use std::net::IpAddr;

use axum::http::header::AUTHORIZATION;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName};

/// The header that tells a proxy whether to buffer an answer.
pub(crate) const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// The key in `Authorization`.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let key = key.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !key.is_empty()).then_some(key)
}

/// Returns true for a host name that always means this machine, without a lookup.
pub(crate) fn is_local_host(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let (text, host) = (host, authority.host());
    let is_port =
        |rest: &str| rest.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    // The parser also finds the host `[::1]` in `[::1].example.com`.
    if !text.strip_prefix(host).is_some_and(|rest| rest.is_empty() || is_port(rest)) {
        return false;
    }
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_local() {
        for host in ["localhost", "localhost:8080", "127.0.0.1:80", "127.1.2.3", "[::1]:8080"] {
            assert!(is_local_host(host), "{host}");
        }
        for host in ["example.com", "localhost.example.com", "127.0.0.1.example.com:80", "10.0.0.1", "", "0.0.0.0"] {
            assert!(!is_local_host(host), "{host}");
        }
        for host in ["[::1].example.com", "[::1]x:80", "example.com@localhost", "localhost:x"] {
            assert!(!is_local_host(host), "{host}");
        }
    }
}
