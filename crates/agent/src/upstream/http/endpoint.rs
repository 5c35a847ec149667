//! Address of a model's API.

use reqwest::Url;

use crate::upstream::adapter::HttpApi;

/// The address of the method that is called, below a base.
#[derive(Debug, Clone)]
pub(super) struct Endpoint {
    url: Url,
    /// The end of its path.
    method: String,
    shown: String,
}

impl Endpoint {
    /// Joins base and method. The base may already end with the method.
    pub(super) fn new(mut url: Url, api: &HttpApi, method: String) -> Self {
        let path = url.path().trim_end_matches('/');
        let path = path.strip_suffix(&method).unwrap_or(path);
        let base_path = if path.is_empty() { api.base_path } else { "" };
        let path = format!("{path}{base_path}{method}");
        url.set_path(&path);
        url.set_fragment(None);
        if let Some((name, value)) = api.query {
            url.query_pairs_mut().append_pair(name, value);
        }
        let mut shown = url.clone();
        shown.set_query(None);
        Self { url, method, shown: shown.into() }
    }

    pub(super) fn url(&self) -> Url {
        self.url.clone()
    }

    /// The address of another method below the same base.
    pub(super) fn beside(&self, method: &str) -> Url {
        let mut url = self.url();
        let base = url.path().strip_suffix(&self.method).unwrap_or_default().to_owned();
        url.set_path(&format!("{base}/{method}"));
        url
    }

    /// The address for a message, without its query, which may contain secrets.
    pub(super) fn shown(&self) -> String {
        self.shown.clone()
    }
}

/// Parses a base in any usual form: with or without a slash at its end, or with the method already in it.
pub(super) fn base(base: &str) -> Result<Url, String> {
    let base = base.trim();
    let url = Url::parse(base).map_err(|error| {
        // A URL that cannot be parsed may contain a password.
        let shown = if base.contains('@') { "" } else { base };
        format!("the url {shown:?}: {error}; it looks like https://host/v1")
    })?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("the url holds a user name or a password, which would end up in messages: give the key \
                    as `key`"
            .to_owned());
    }
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("the url {base:?} must begin with http:// or https://"));
    }
    Ok(url)
}

/// Returns true for this host itself.
pub(super) fn is_loopback(base: &Url) -> bool {
    let host = base.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::protocol::Protocol;

    fn parse(base: &str, protocol: Protocol) -> Endpoint {
        let base = super::base(base).unwrap();
        let adapter = protocol.adapter(&base);
        Endpoint::new(base, adapter.api(), adapter.path("m"))
    }

    #[test]
    fn a_base_is_taken_as_people_write_it() {
        for (base, url) in [
            ("https://host/v1", "https://host/v1/chat/completions"),
            (" https://host/v1/ ", "https://host/v1/chat/completions"),
            ("https://host", "https://host/chat/completions"),
            ("https://host/v1/chat/completions", "https://host/v1/chat/completions"),
            ("https://host/v1/chat/completions/", "https://host/v1/chat/completions"),
            ("https://host/x?api-version=1#y", "https://host/x/chat/completions?api-version=1"),
        ] {
            assert_eq!(parse(base, Protocol::CHAT_COMPLETIONS).url().as_str(), url, "{base}");
        }
        assert_eq!(
            parse("https://host/x?key=1", Protocol::CHAT_COMPLETIONS).shown(),
            "https://host/x/chat/completions"
        );
    }

    #[test]
    fn each_protocol_has_its_method() {
        for (base, protocol, url) in [
            ("https://host/v1", Protocol::RESPONSES, "https://host/v1/responses"),
            ("https://host", Protocol::ANTHROPIC, "https://host/v1/messages"),
            ("https://host/v1/", Protocol::ANTHROPIC, "https://host/v1/messages"),
            ("https://host", Protocol::GEMINI, "https://host/v1beta/models/m:streamGenerateContent?alt=sse"),
            ("https://host/x", Protocol::GEMINI, "https://host/x/models/m:streamGenerateContent?alt=sse"),
        ] {
            assert_eq!(parse(base, protocol).url().as_str(), url, "{base}");
        }
    }

    #[test]
    fn other_methods_stand_beside_it() {
        for (base, url) in [
            ("https://host/v1", "https://host/v1/audio/speech"),
            ("https://host/v1/chat/completions", "https://host/v1/audio/speech"),
            ("https://host/x?api-version=1", "https://host/x/audio/speech?api-version=1"),
        ] {
            let endpoint = parse(base, Protocol::CHAT_COMPLETIONS);
            assert_eq!(endpoint.beside("audio/speech").as_str(), url, "{base}");
        }
    }

    #[test]
    fn loopback_is_known_in_every_spelling() {
        for (base, expected) in [
            ("http://localhost:11434/v1", true),
            ("http://127.0.0.1/v1", true),
            ("http://[::1]:80/v1", true),
            ("http://192.168.0.1/v1", false),
            ("https://localhost.example/v1", false),
        ] {
            assert_eq!(is_loopback(&super::base(base).unwrap()), expected, "{base}");
        }
    }
}
