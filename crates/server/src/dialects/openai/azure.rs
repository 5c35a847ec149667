//! Requests of OpenAI's clients for Azure: OpenAI's, under other addresses and with the key in another header.

use axum::extract::Request;
use axum::http::header::AUTHORIZATION;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderValue, Uri};

/// The prefix of their paths.
const PREFIX: &str = "/openai/";
/// The segment before a deployment, which is the model that the body names, too.
const DEPLOYMENTS: &str = "deployments/";
/// The header in which they send their key.
const API_KEY: &str = "api-key";

/// Gives a request of these clients the address and the header that OpenAI has for it. Others stay as they are.
pub(crate) fn rename(request: &mut Request) {
    let Some(renamed) = renamed(request.uri()) else { return };
    *request.uri_mut() = renamed;
    let headers = request.headers_mut();
    let key = headers.get(API_KEY).and_then(|key| key.to_str().ok()).map(str::trim);
    let key = key.filter(|key| !key.is_empty()).and_then(|key| HeaderValue::from_str(&format!("Bearer {key}")).ok());
    if let Some(mut key) = key {
        key.set_sensitive(true);
        headers.insert(AUTHORIZATION, key);
    }
}

/// The address that OpenAI has for one of Azure's: `/openai/…`, `/openai/v1/…`, or either with a deployment before the rest.
fn renamed(uri: &Uri) -> Option<Uri> {
    let rest = uri.path().strip_prefix(PREFIX)?;
    let rest = rest.strip_prefix("v1/").unwrap_or(rest);
    let rest = match rest.strip_prefix(DEPLOYMENTS) {
        Some(deployed) => deployed.split_once('/').map(|(_, rest)| rest)?,
        None => rest,
    };
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(format!("/v1/{rest}{query}")).ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn azures_addresses_are_openais() {
        for (azures, openais) in [
            ("/openai/threads?api-version=1", Some("/v1/threads?api-version=1")),
            ("/openai/v1/responses", Some("/v1/responses")),
            ("/openai/deployments/gpt%20x/chat/completions?a=b", Some("/v1/chat/completions?a=b")),
            ("/openai/v1/deployments/m/chat/completions", Some("/v1/chat/completions")),
            ("/openai/deployments/m", None),
            ("/openai", None),
            ("/openapi/openai.json", None),
            ("/v1/responses", None),
        ] {
            assert_eq!(renamed(&azures.parse().unwrap()).map(|uri| uri.to_string()).as_deref(), openais, "{azures}");
        }
    }

    #[test]
    fn the_key_is_moved_where_it_is_looked_for() {
        let key = |path: &str| {
            let mut request = Request::get(path).header(API_KEY, " k ").body(Body::empty()).unwrap();
            rename(&mut request);
            request.headers().get(AUTHORIZATION).map(|key| key.to_str().unwrap().to_owned())
        };
        assert_eq!(key("/openai/threads").as_deref(), Some("Bearer k"));
        assert_eq!(key("/v1/threads"), None);
    }
}
