//! Secrets of sandboxes in requests.

use axum::http::HeaderMap;

/// Returns true if a header has this secret, and `None` if there is no such header.
pub(crate) fn brings(headers: &HeaderMap, name: &str, secret: &str) -> Option<bool> {
    headers.get(name).map(|value| is_same(value.as_bytes(), secret.as_bytes()))
}

/// Compares secrets in a time that does not depend on the place of a difference.
pub(crate) fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |differ, (one, other)| differ | (one ^ other)) == 0
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_secret_is_the_whole_of_a_header() {
        for (value, is_it) in [("secret", true), ("", false), ("secre", false), ("secrets", false), ("tecres", false)] {
            let headers: HeaderMap =
                [("x-token".parse().unwrap(), HeaderValue::from_static(value))].into_iter().collect();
            assert_eq!(brings(&headers, "x-token", "secret"), Some(is_it), "{value:?}");
        }
        assert_eq!(brings(&HeaderMap::new(), "x-token", "secret"), None);
    }
}
