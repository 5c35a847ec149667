//! The interface to a protocol of models: its use of HTTP, its requests and its answers.

use std::fmt::Debug;

use reqwest::header::HeaderName;

use super::answer::{AnswerBuilder, Fault};
use super::{ModelRequest, UpstreamError};

/// A protocol with the quirks of one server, and its state between requests.
pub(super) trait Adapter: Debug + Send + Sync {
    /// Returns its use of HTTP.
    fn api(&self) -> &'static HttpApi;

    /// Returns the path of the method that this model answers, below the base.
    fn path(&self, model: &str) -> String;

    /// Begins an exchange.
    fn exchange(&self) -> Box<dyn Exchange>;
}

/// The use that a protocol makes of HTTP.
#[derive(Debug)]
pub(super) struct HttpApi {
    /// Its name in messages.
    pub(super) name: &'static str,
    /// Its vendor, in the terms of OpenTelemetry's `gen_ai.provider.name`.
    pub(super) provider: &'static str,
    /// The path of a base that has none.
    pub(super) base_path: &'static str,
    /// A parameter of the query of every request.
    pub(super) query: Option<(&'static str, &'static str)>,
    /// The header with the key, and the beginning of its value.
    pub(super) key: (HeaderName, &'static str),
    /// A header with the protocol's version. In forwarded requests, the client's takes precedence.
    pub(super) version: Option<(HeaderName, &'static str)>,
    /// True if the same base has other methods of OpenAI's API.
    pub(super) has_openai_methods: bool,
}

/// One request and its answer.
pub(super) trait Exchange: Send {
    /// Renders the body of the request.
    fn request(&mut self, model: &str, request: &ModelRequest, vision: bool) -> serde_json::Result<Vec<u8>>;

    /// Reads the data of one event.
    fn event(&mut self, data: &str, answer: &mut AnswerBuilder) -> Result<(), Fault>;

    /// Reads the body of an answer that does not stream.
    fn body(&mut self, body: &str, answer: &mut AnswerBuilder) -> Result<(), Fault>;

    /// Learns from an error. Returns true if the next request will be written differently.
    fn learn(&mut self, _error: &UpstreamError) -> bool {
        false
    }
}
