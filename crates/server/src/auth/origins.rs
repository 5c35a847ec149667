//! Cross-origin requests, which browsers let pages make only with the server's consent.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Uri};
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer};

/// Time for which a browser may cache the permission.
const MAX_AGE: Duration = Duration::from_secs(3600);
/// Response headers that pages may read, besides those that are always readable.
const EXPOSED: [HeaderName; 12] = [
    HeaderName::from_static("content-disposition"),
    HeaderName::from_static("mcp-session-id"),
    HeaderName::from_static("openai-poll-after-ms"),
    HeaderName::from_static("openai-processing-ms"),
    HeaderName::from_static("request-id"),
    HeaderName::from_static("retry-after"),
    HeaderName::from_static("retry-after-ms"),
    HeaderName::from_static("x-goog-upload-size-received"),
    HeaderName::from_static("x-goog-upload-status"),
    HeaderName::from_static("x-goog-upload-url"),
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("x-should-retry"),
];

/// The origins whose pages may make requests from a browser, written as a list such as `https://app.example.com,http://localhost:3000`, or
/// `*` for all. Without any, browsers keep the server's answers from pages of other origins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origins {
    listed: Vec<HeaderValue>,
    any: bool,
}

impl Origins {
    /// Returns true if this origin is listed by name.
    pub(crate) fn lists(&self, origin: &HeaderValue) -> bool {
        self.listed.contains(origin)
    }

    /// The layer that answers browsers; `None` if no page may ask.
    pub(crate) fn layer(&self) -> Option<CorsLayer> {
        let origins = match (self.any, self.listed.is_empty()) {
            (true, _) => AllowOrigin::any(),
            (false, true) => return None,
            (false, false) => AllowOrigin::list(self.listed.clone()),
        };
        let layer = CorsLayer::new()
            .allow_origin(origins)
            .allow_methods(AllowMethods::mirror_request())
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(EXPOSED)
            .max_age(MAX_AGE);
        Some(layer)
    }
}

impl FromStr for Origins {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "is not a list of origins like https://app.example.com, or *";
        let mut origins = Self::default();
        for origin in text.split(',').map(str::trim).filter(|origin| !origin.is_empty()) {
            if origin == "*" {
                origins.any = true;
                continue;
            }
            // Browsers send origins in lower case, without a slash and without a default port.
            let parsed: Uri = origin.parse().map_err(|_| WRONG)?;
            let plain = parsed.scheme_str().zip(parsed.authority());
            let plain = plain.map(|(scheme, authority)| format!("{scheme}://{authority}").to_ascii_lowercase());
            let sent = origin.trim_end_matches('/').to_ascii_lowercase();
            if plain.is_none_or(|plain| plain != sent) {
                return Err(WRONG);
            }
            origins.listed.push(HeaderValue::try_from(sent).map_err(|_| WRONG)?);
        }
        Ok(origins)
    }
}

impl fmt::Display for Origins {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let any = self.any.then_some("*").into_iter();
        let all: Vec<&str> = any.chain(self.listed.iter().filter_map(|origin| origin.to_str().ok())).collect();
        formatter.write_str(if all.is_empty() { "none" } else { "" })?;
        formatter.write_str(&all.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_taken_as_people_write_them() {
        let read = |text: &str| text.parse::<Origins>().map(|origins| origins.to_string());
        assert_eq!(
            read("https://App.example.com/, http://localhost:3000").unwrap(),
            "https://app.example.com, http://localhost:3000"
        );
        assert_eq!(read("*").unwrap(), "*");
        assert_eq!(read("").unwrap(), "none");
        for wrong in ["app.example.com", "https://app.example.com/chat", "null", "https://a b"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
