//! Metrics for a monitor that scrapes them.
//!
//! Every label has few values: route patterns, names of models from the configuration, words of our own enums.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use aludel_agent::upstream::CallResult;
use aludel_engine::{BackendStatus, Engine};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use super::Traces;

/// The path of the metrics.
pub(crate) const METRICS: &str = "/metrics";

/// The media type of OpenMetrics' format.
const OPEN_METRICS: &str = "application/openmetrics-text";

/// All metrics of a server.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    pub(super) requests: Family<RequestLabels, Counter>,
    pub(super) request_seconds: Family<RouteLabels, Histogram, Buckets>,
    pub(super) requests_in_flight: Gauge,
    pub(super) turns: Family<TurnLabels, Counter>,
    pub(super) turn_seconds: Family<ApiLabels, Histogram, Buckets>,
    pub(super) model_calls: Family<CallLabels, Counter>,
    pub(super) model_call_seconds: Family<ModelLabels, Histogram, Buckets>,
    pub(super) first_word_seconds: Family<ModelLabels, Histogram, Buckets>,
    pub(super) tokens: Family<TokenLabels, Counter>,
    pub(super) executions: Family<OutcomeLabels, Counter>,
    pub(super) execution_seconds: Histogram,
    pub(super) sandbox_starts: Family<ResultLabels, Counter>,
    pub(super) sandbox_start_seconds: Histogram,
    containers_live: Gauge,
    containers_limit: Gauge,
    sandboxes_ready: Gauge,
    backend_degraded: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RequestLabels {
    pub(super) method: &'static str,
    pub(super) route: Arc<str>,
    pub(super) status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RouteLabels {
    pub(super) method: &'static str,
    pub(super) route: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct TurnLabels {
    pub(super) api: Arc<str>,
    pub(super) ending: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ApiLabels {
    pub(super) api: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CallLabels {
    pub(super) model: Arc<str>,
    pub(super) result: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ModelLabels {
    pub(super) model: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct TokenLabels {
    pub(super) model: Arc<str>,
    pub(super) direction: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OutcomeLabels {
    pub(super) outcome: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ResultLabels {
    pub(super) result: Arc<str>,
}

/// The upper bounds of a histogram's buckets, seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Buckets(&'static [f64]);

/// Buckets from an answer out of the store to a turn with many rounds.
const LONG: Buckets = Buckets(&[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0]);
/// Buckets for making a sandbox: milliseconds if it is forked, seconds if not.
const SHORT: Buckets = Buckets(&[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

impl Metrics {
    /// All metrics, at zero. Traces count their own losses.
    pub(super) fn new(traces: Option<&Traces>) -> Self {
        let metrics = Self {
            registry: Registry::with_prefix("aludel"),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(LONG),
            requests_in_flight: Gauge::default(),
            turns: Family::default(),
            turn_seconds: Family::new_with_constructor(LONG),
            model_calls: Family::default(),
            model_call_seconds: Family::new_with_constructor(LONG),
            first_word_seconds: Family::new_with_constructor(LONG),
            tokens: Family::default(),
            executions: Family::default(),
            execution_seconds: LONG.new_metric(),
            sandbox_starts: Family::default(),
            sandbox_start_seconds: SHORT.new_metric(),
            containers_live: Gauge::default(),
            containers_limit: Gauge::default(),
            sandboxes_ready: Gauge::default(),
            backend_degraded: Gauge::default(),
        };
        metrics.registered(traces)
    }

    fn registered(mut self, traces: Option<&Traces>) -> Self {
        let all = &mut self.registry;
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        all.register("build", "Version of the server", version);
        all.register("http_requests", "Requests, by answer", self.requests.clone());
        let help = "Duration of requests, from their head to the last byte of the answer";
        all.register_with_unit("http_request_duration", help, Unit::Seconds, self.request_seconds.clone());
        all.register("http_requests_in_flight", "Requests that are being answered", self.requests_in_flight.clone());
        all.register("turns", "Turns of a model with our tool or the client's, by their ending", self.turns.clone());
        all.register_with_unit("turn_duration", "Duration of turns", Unit::Seconds, self.turn_seconds.clone());
        all.register("model_calls", "Calls of models, by their result", self.model_calls.clone());
        let help = "Duration of calls of models, to the end of their answer";
        all.register_with_unit("model_call_duration", help, Unit::Seconds, self.model_call_seconds.clone());
        let help = "Time of models to the first piece of their answer";
        all.register_with_unit("model_first_word", help, Unit::Seconds, self.first_word_seconds.clone());
        let help = "Tokens of turns: the model's own figure, or an estimate where it gives none";
        all.register("model_tokens", help, self.tokens.clone());
        all.register("executions", "Programs that ran, by their outcome", self.executions.clone());
        let help = "Duration of programs";
        all.register_with_unit("execution_duration", help, Unit::Seconds, self.execution_seconds.clone());
        all.register("sandbox_starts", "Sandboxes that were asked for", self.sandbox_starts.clone());
        let help = "Time that it took to make a sandbox";
        all.register_with_unit("sandbox_start_duration", help, Unit::Seconds, self.sandbox_start_seconds.clone());
        all.register("containers_live", "Live sandboxes, and permits reserved for one", self.containers_live.clone());
        all.register("containers_limit", "Containers that may be live at once", self.containers_limit.clone());
        all.register("sandboxes_ready", "Sandboxes that are ready before anyone asks", self.sandboxes_ready.clone());
        let help = "1 while no sandbox can be made, as far as the backend knows, else 0";
        all.register("backend_degraded", help, self.backend_degraded.clone());
        if let Some(traces) = traces {
            all.register("trace_spans_sent", "Spans that the collector took", traces.sent());
            all.register("trace_spans_lost", "Spans that no collector took in time", traces.lost());
        }
        self
    }

    /// Returns the metrics with the engine's present values, in OpenMetrics' format where that is accepted, else in Prometheus' older one.
    pub(crate) fn scrape(&self, engine: &Engine, accepted: &str) -> Result<Response, fmt::Error> {
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.containers_live.set(gauge(engine.sessions.in_use()));
        self.containers_limit.set(gauge(engine.settings.sessions));
        let health = engine.backend_health();
        self.sandboxes_ready.set(gauge(health.pooled));
        self.backend_degraded.set(i64::from(health.status != BackendStatus::Ready));
        // A rate cannot tell of the first failure if its series begins with it.
        for model in engine.models().iter() {
            for result in CallResult::ALL {
                let labels = CallLabels { model: model.name.as_str().into(), result: result.name().into() };
                drop(self.model_calls.get_or_create(&labels));
            }
        }
        let mut answer = String::new();
        text::encode(&mut answer, &self.registry)?;
        if accepted.contains(OPEN_METRICS) {
            return Ok(
                ([(CONTENT_TYPE, format!("{OPEN_METRICS}; version=1.0.0; charset=utf-8"))], answer).into_response()
            );
        }
        Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], in_older_format(&answer)).into_response())
    }
}

/// Converts metrics in OpenMetrics' format to the one before it: there, families of counters have the name of their series, and there are
/// no units, no infos and no mark of the end.
fn in_older_format(metrics: &str) -> String {
    let mut kinds = HashMap::new();
    for line in metrics.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
            kinds.insert(name, kind);
        }
    }
    let mut older = String::with_capacity(metrics.len());
    for line in metrics.lines() {
        let mut words = line.splitn(4, ' ');
        let (word, name) = match (words.next(), words.next(), words.next()) {
            (Some("#"), Some(word @ ("HELP" | "TYPE")), Some(name)) => (word, name),
            (Some("#"), ..) => continue,
            _ => {
                older.extend([line, "\n"]);
                continue;
            }
        };
        let rest = words.next().unwrap_or_default();
        let (suffix, kind) = match kinds.get(name) {
            Some(&"counter") => ("_total", "counter"),
            Some(&"info") => ("_info", "gauge"),
            _ => ("", rest),
        };
        let rest = if word == "TYPE" { kind } else { rest };
        older.extend(["# ", word, " ", name, suffix, " ", rest, "\n"]);
    }
    older
}
