//! A collector of traces: an HTTP server that takes what it is sent and keeps it.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use parking_lot::Mutex;
use prost::Message;
use tokio::net::TcpListener;

/// The kind of a span that answers.
pub const SERVER: i32 = 2;
/// The kind of a span that asks.
pub const CLIENT: i32 = 3;

/// An OpenTelemetry collector that keeps every request.
pub struct Collector {
    url: String,
    requests: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
}

/// A span, its ids in hexadecimal digits.
#[derive(Debug)]
pub struct Span {
    pub name: String,
    pub kind: i32,
    pub trace: String,
    pub id: String,
    pub parent: String,
    attributes: Vec<(String, String)>,
}

impl Collector {
    pub async fn start() -> Self {
        let requests: Arc<Mutex<Vec<ExportTraceServiceRequest>>> = Arc::default();
        let taken = Arc::clone(&requests);
        let take = async move |headers: HeaderMap, body: Bytes| {
            assert_eq!(headers["content-type"], "application/x-protobuf");
            taken.lock().push(ExportTraceServiceRequest::decode(body).unwrap());
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(axum::serve(listener, Router::new().route("/v1/traces", post(take))).into_future());
        Self { url, requests }
    }

    /// The address to configure.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// Everything that was taken, as text.
    pub fn text(&self) -> String {
        format!("{:?}", self.requests.lock())
    }

    /// All spans so far, in the order in which they ended.
    pub fn spans(&self) -> Vec<Span> {
        let requests = self.requests.lock();
        let resources = requests.iter().flat_map(|request| &request.resource_spans);
        let mut spans: Vec<_> =
            resources.flat_map(|resource| &resource.scope_spans).flat_map(|scope| &scope.spans).collect();
        spans.sort_by_key(|span| span.end_time_unix_nano);
        let spans = spans.into_iter().map(|span| Span {
            name: span.name.clone(),
            kind: span.kind,
            trace: hex(&span.trace_id),
            id: hex(&span.span_id),
            parent: hex(&span.parent_span_id),
            attributes: span
                .attributes
                .iter()
                .map(|attribute| (attribute.key.clone(), text(attribute.value.as_ref().and_then(|v| v.value.as_ref()))))
                .collect(),
        });
        spans.collect()
    }
}

impl Span {
    /// An attribute, as text.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

fn text(value: Option<&Value>) -> String {
    match value {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
