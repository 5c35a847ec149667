//! The use that a sandbox makes of its limits.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aludel_engine::sandboxes::ClientSandbox;
use aludel_wire::opensandbox::commands::Metrics;
use axum::Json;
use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use tokio::time::interval;

use super::describe;
use super::target::TargetSandbox;
use crate::client_sandboxes::ascii_json::line;

/// Pause between two figures of a stream.
const METRICS_INTERVAL: Duration = Duration::from_secs(1);

/// `GET /metrics`
pub(super) async fn retrieve(TargetSandbox { sandbox, .. }: TargetSandbox) -> Json<Metrics> {
    Json(measure(&sandbox).await)
}

/// `GET /metrics/watch`: the same every second, until the client or the sandbox is gone.
pub(super) async fn watch(TargetSandbox { sandbox, .. }: TargetSandbox) -> Response {
    let chunks = unfold(interval(METRICS_INTERVAL), move |mut clock| {
        let sandbox = Arc::clone(&sandbox);
        async move {
            clock.tick().await;
            let mut shown = line(&measure(&sandbox).await);
            shown.push(b'\n');
            Some((Ok::<_, Infallible>(shown), clock))
        }
    });
    let mut response = Body::from_stream(chunks).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

async fn measure(sandbox: &ClientSandbox) -> Metrics {
    let limits = sandbox.inner().limits().clone();
    let (usage, now) = (sandbox.usage().await, SystemTime::now());
    let lived = now.duration_since(sandbox.started()).unwrap_or_default().as_secs_f64().max(0.001);
    let mebibytes = |bytes: u64| (bytes >> 10) as f64 / 1024.0;
    Metrics {
        cpu_count: f64::from(limits.cpus.ceil() as u32),
        cpu_used_pct: (usage.cpu.as_secs_f64() / lived / limits.cpus * 100.0).min(100.0),
        mem_total_mib: mebibytes(limits.memory),
        mem_used_mib: mebibytes(usage.memory.min(limits.memory)),
        timestamp: describe::millis(now),
    }
}
