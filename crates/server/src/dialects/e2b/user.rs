//! The user that a request asks for.

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::client_sandboxes::commands::USER;
use crate::error::ApiError;

/// Refuses an unknown user. A request without a name means the only one.
pub(super) fn check_user(name: Option<&str>) -> Result<(), ApiError> {
    match name {
        None | Some("" | USER) => Ok(()),
        Some(name) => {
            let name: String = name.chars().take(32).collect();
            let message =
                format!("invalid username: '{name}'; everything in this sandbox belongs to the user '{USER}'");
            Err(ApiError::unauthorized(message))
        }
    }
}

/// The user that a request names by the scheme `Basic`, without a password.
pub(super) fn named_user(headers: &HeaderMap) -> Option<String> {
    let (scheme, encoded) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let decoded = BASE64_STANDARD.decode(encoded.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    let text = String::from_utf8(decoded).ok()?;
    Some(text.split(':').next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn nobody_but_the_one_user_is_there() {
        let named = |header: &'static str| {
            named_user(&HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(header))]))
        };
        // `user:`, `:` and `root:`
        for (header, name) in [("Basic dXNlcjo=", "user"), ("basic Og==", ""), ("Basic cm9vdDo=", "root")] {
            let found = named(header);
            assert_eq!(found.as_deref(), Some(name));
            assert_eq!(check_user(found.as_deref()).is_ok(), name != "root", "{name}");
        }
        assert_eq!((named("Bearer cm9vdDo="), named("Basic !"), named_user(&HeaderMap::new())), (None, None, None));
        assert!(check_user(None).is_ok());
    }
}
