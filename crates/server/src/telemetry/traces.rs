//! Traces: spans of OpenTelemetry, sent to a collector in the background.
//!
//! Spans wait in a bounded queue. When it is full or the collector does not take them in time they are lost, and counted; requests never
//! wait for it.

use std::borrow::Cow;
use std::time::Duration;

use aludel_ignore::Ignore;
use axum::http::{HeaderMap, Uri};
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanBuilder, SpanKind, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use opentelemetry_otlp::{WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span, SpanData, SpanExporter, SpanProcessor};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::error;

/// Most spans that wait.
const MAX_QUEUED_SPANS: usize = 4096;
/// Spans that are sent at once.
const MAX_BATCH_SPANS: usize = 512;
/// Time for which spans wait to be sent together.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// Time that the collector may take for a batch.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest that the end of the server waits for the last batches.
const FINAL_FLUSH_TIMEOUT: Duration = Duration::from_secs(3);
/// Attributes of one span, more than are ever set.
const MAX_ATTRIBUTES: u32 = 32;

/// A collector of traces, with the spans that are yet to be sent. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Traces {
    tracer: SdkTracer,
    sent: Counter,
    lost: Counter,
    ending: CancellationToken,
    sending: TaskTracker,
}

impl Traces {
    /// Sends spans to the collector at this address, by OTLP over HTTP. Must be called in a runtime. The error describes an invalid
    /// address.
    ///
    /// OpenTelemetry's own variables set the rest: `OTEL_EXPORTER_OTLP_HEADERS` for a collector that wants a key,
    /// `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER`.
    pub fn to(address: &str) -> Result<Self, String> {
        let (endpoint, is_near) = endpoint(address)?;
        rustls::crypto::ring::default_provider().install_default().ignore("the first installation counts");
        let mut client = reqwest::Client::builder().timeout(SEND_TIMEOUT).redirect(reqwest::redirect::Policy::none());
        if is_near {
            // A proxy of the environment would not reach this machine.
            client = client.no_proxy();
        }
        let client = client.build().map_err(|error| format!("cannot be used: {error}"))?;
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_endpoint(&endpoint)
            .with_timeout(SEND_TIMEOUT)
            .build();
        let mut exporter = exporter.map_err(|error| format!("cannot be used: {error}"))?;
        let resource = Resource::builder()
            .with_service_name("aludel")
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        exporter.set_resource(&resource);
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_SPANS);
        let (sent, lost) = (Counter::default(), Counter::default());
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_max_attributes_per_span(MAX_ATTRIBUTES)
            .with_span_processor(Queue { sender, lost: lost.clone() })
            .build();
        let (ending, sending) = (CancellationToken::new(), TaskTracker::new());
        sending.spawn(send(endpoint, exporter, receiver, sent.clone(), lost.clone(), ending.clone()));
        sending.close();
        Ok(Self { tracer: provider.tracer("aludel"), sent, lost, ending, sending })
    }

    /// Sends the queued spans, within [`FINAL_FLUSH_TIMEOUT`].
    pub(crate) async fn finish(&self) {
        self.ending.cancel();
        timeout(FINAL_FLUSH_TIMEOUT, self.sending.wait()).await.ignore("spans that are not sent in time are lost");
    }

    /// Spans that the collector took.
    pub(super) fn sent(&self) -> Counter {
        self.sent.clone()
    }

    /// Spans that the collector did not take.
    pub(super) fn lost(&self) -> Counter {
        self.lost.clone()
    }

    /// Starts a span below the one in this context, and returns a context with it.
    pub(super) fn start(
        &self,
        parent: &Context,
        name: impl Into<Cow<'static, str>>,
        kind: SpanKind,
        attributes: impl IntoIterator<Item = KeyValue>,
    ) -> Context {
        self.begin(parent, SpanBuilder::from_name(name).with_kind(kind).with_attributes(attributes))
    }

    /// Starts a prepared span.
    pub(super) fn begin(&self, parent: &Context, span: SpanBuilder) -> Context {
        parent.with_span(self.tracer.build_with_context(span, parent))
    }

    /// The span of another program in these headers.
    pub(super) fn context_of(headers: &HeaderMap) -> Context {
        TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderExtractor(headers))
    }

    /// Writes the span in this context into headers for another program.
    pub(super) fn put(context: &Context, headers: &mut HeaderMap) {
        TraceContextPropagator::new().inject_context(context, &mut HeaderInjector(headers));
    }
}

/// Returns a collector's URL for spans, and true if it is on this machine.
fn endpoint(address: &str) -> Result<(String, bool), String> {
    const PATH: &str = "/v1/traces";
    let like = "is not an address like http://127.0.0.1:4318";
    let uri: Uri = address.parse().map_err(|_| like.to_owned())?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let host = uri.host().filter(|host| is_http && !host.is_empty()).ok_or(like)?;
    let is_near = crate::http::is_local_host(host);
    if uri.query().is_some() {
        return Err("has a query; keys go into OTEL_EXPORTER_OTLP_HEADERS".to_owned());
    }
    let base = address.trim_end_matches('/');
    let endpoint = if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") };
    Ok((endpoint, is_near))
}

/// Takes spans that ended.
#[derive(Debug)]
struct Queue {
    sender: mpsc::Sender<SpanData>,
    lost: Counter,
}

impl SpanProcessor for Queue {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.sender.try_send(span).is_err() {
            self.lost.inc();
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Sends spans until shutdown, and then the rest.
async fn send(
    endpoint: String,
    exporter: impl SpanExporter,
    mut spans: mpsc::Receiver<SpanData>,
    sent: Counter,
    lost: Counter,
    ending: CancellationToken,
) {
    let mut is_down = false;
    loop {
        let mut batch = Vec::new();
        tokio::select! {
            _ = spans.recv_many(&mut batch, MAX_BATCH_SPANS) => {}
            () = ending.cancelled() => spans.close(),
        }
        if !ending.is_cancelled() && batch.len() < MAX_BATCH_SPANS {
            tokio::select! {
                () = tokio::time::sleep(BATCH_DELAY) => {}
                () = ending.cancelled() => {}
            }
        }
        while batch.len() < MAX_BATCH_SPANS
            && let Ok(span) = spans.try_recv()
        {
            batch.push(span);
        }
        let count = batch.len() as u64;
        if count == 0 {
            return;
        }
        let failure = match timeout(SEND_TIMEOUT, exporter.export(batch)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer for {} s", SEND_TIMEOUT.as_secs())),
        };
        match &failure {
            None => sent.inc_by(count),
            Some(_) => lost.inc_by(count),
        };
        // Logged once, not every second.
        if let Some(failure) = &failure
            && !is_down
        {
            error!(
                "traces are lost: the collector at {endpoint} (server.traces) does not take them: {failure}; this is told once"
            );
        }
        is_down = failure.is_some();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_collector_that_hangs_keeps_nobody_and_what_it_loses_is_counted() {
        let hanging = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let traces = Traces::to(&format!("http://{}", hanging.local_addr().unwrap())).unwrap();
        let spans = MAX_QUEUED_SPANS + 2 * MAX_BATCH_SPANS;
        for _ in 0..spans {
            let _ended = traces.start(&Context::new(), "span", SpanKind::Internal, []);
        }
        // None of them has been taken from the queue yet.
        assert_eq!(traces.lost.get(), (2 * MAX_BATCH_SPANS) as u64);
        tokio::time::sleep(SEND_TIMEOUT * 3).await;
        assert!(traces.lost.get() >= (3 * MAX_BATCH_SPANS) as u64, "{} are lost", traces.lost.get());
        let began = tokio::time::Instant::now();
        traces.finish().await;
        assert!(
            began.elapsed() <= FINAL_FLUSH_TIMEOUT + Duration::from_millis(10),
            "the end waited {:?}",
            began.elapsed()
        );
        assert_eq!(traces.sent.get(), 0);
    }
}
