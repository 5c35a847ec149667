//! Announces waiting programs to another program, signed according to the Standard Webhooks specification.

use std::sync::Arc;
use std::time::Duration;

use aludel_ignore::Ignore;
use aludel_store::{ApprovalRecord, ApprovalStatus, ApprovalUpdate, now};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures_util::StreamExt;
use hmac::{Hmac, Mac};
use reqwest::header::CONTENT_TYPE;
use serde::Deserialize;
use serde_json::json;
use sha2::Sha256;
use tokio::time::sleep;
use tracing::error;

use super::{OperatorDecision, describe};
use crate::Engine;

/// The beginning of a secret that is written as base64.
const ENCODED: &str = "whsec_";
/// The most attempts to deliver, with growing pauses between them.
const ATTEMPTS: u32 = 4;
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Time that an answer may take.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes of an answer.
const MAX_ANSWER: usize = 64 << 10;

/// The endpoint, and the secret for the signature.
#[derive(Clone)]
pub struct Webhook {
    url: reqwest::Url,
    secret: Arc<[u8]>,
    client: reqwest::Client,
}

/// An answer with a decision. Without one, the program keeps waiting.
#[derive(Deserialize)]
struct WebhookAnswer {
    decision: OperatorDecision,
    reason: Option<String>,
}

impl Webhook {
    /// An `https:` address, or an `http:` one; the secret is `whsec_` and base64, or any other text of at least 16 bytes.
    pub fn new(url: &str, secret: &str) -> Result<Self, String> {
        let url = reqwest::Url::parse(url).map_err(|error| format!("the url {url:?}: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err("the url must begin with http:// or https://".to_owned());
        }
        let secret = match secret.strip_prefix(ENCODED) {
            Some(encoded) => BASE64_STANDARD.decode(encoded).map_err(|error| format!("the secret: {error}"))?,
            None => secret.as_bytes().to_vec(),
        };
        if secret.len() < 16 {
            return Err("the secret is shorter than 16 bytes".to_owned());
        }
        rustls::crypto::ring::default_provider().install_default().ignore("the first installation counts");
        let client = reqwest::Client::builder().timeout(TIMEOUT).redirect(reqwest::redirect::Policy::none()).build();
        let client = client.map_err(|error| format!("the HTTP client: {error}"))?;
        Ok(Self { url, secret: secret.into(), client })
    }

    /// Announces a waiting program until an attempt succeeds. The answer may decide.
    pub(super) async fn deliver(self, engine: Arc<Engine>, asked: ApprovalRecord) {
        let body = json!({ "type": "approval.requested", "timestamp": now(), "data": describe(&asked) }).to_string();
        let mut wait = FIRST_WAIT;
        for attempt in 1..=ATTEMPTS {
            match self.send(asked.id.as_str(), &body).await {
                Ok(answer) => return take(&engine, &asked, &answer).await,
                Err(error) if attempt == ATTEMPTS => {
                    let host = self.url.host_str().unwrap_or_default();
                    error!("{}: the webhook at {host} (approval.webhook) was not told: {error}", asked.id);
                }
                Err(_) => {
                    tokio::select! {
                        () = sleep(wait) => wait *= 2,
                        () = engine.shutdown.cancelled() => return,
                    }
                }
            }
        }
    }

    async fn send(&self, id: &str, body: &str) -> Result<Vec<u8>, String> {
        let timestamp = now().to_string();
        let request = self
            .client
            .post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", &timestamp)
            .header("webhook-signature", self.signature(id, &timestamp, body))
            .body(body.to_owned());
        let response = request.send().await.map_err(words)?;
        if !response.status().is_success() {
            return Err(format!("it answered {}", response.status()));
        }
        let mut answer = Vec::new();
        let mut bytes = response.bytes_stream();
        while let Some(piece) = bytes.next().await {
            answer.extend(piece.map_err(words)?);
            if answer.len() > MAX_ANSWER {
                return Err("its answer is too long".to_owned());
            }
        }
        Ok(answer)
    }

    fn signature(&self, id: &str, timestamp: &str, body: &str) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.secret).expect("a key of any length will do");
        mac.update(format!("{id}.{timestamp}.{body}").as_bytes());
        format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()))
    }
}

/// Describes a failure with its causes, but without the address, which may contain a token.
fn words(error: reqwest::Error) -> String {
    let error = error.without_url();
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

async fn take(engine: &Engine, asked: &ApprovalRecord, answer: &[u8]) {
    let (decision, reason) = match serde_json::from_slice(answer) {
        Ok(WebhookAnswer { decision, reason }) => (decision, reason),
        Err(error) => {
            // Most answers are "ok" or empty. An answer that is meant as a decision must not be ignored silently.
            if serde_json::from_slice::<serde_json::Value>(answer).is_ok_and(|value| value.get("decision").is_some()) {
                error!("{}: the webhook's decision is not understood: {error}", asked.id);
            }
            return;
        }
    };
    let status = ApprovalStatus::from(decision);
    let decision = ApprovalUpdate { sha256: asked.sha256.clone(), status, by: "the webhook".to_owned(), reason };
    if let Err(error) = engine.store.decide(None, &asked.id, decision).await {
        error!("{}: the webhook's decision was lost: {error}", asked.id);
    }
}

impl std::fmt::Debug for Webhook {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Webhook").field("host", &self.url.host_str()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_signed_as_the_specification_has_it() {
        // The specification's own example.
        let webhook = Webhook::new("https://example.com", "whsec_plJ3nmyCDGBKInavdOK15jsl").unwrap();
        let body = r#"{"event_type":"ping","data":{"success":true}}"#;
        let signature = webhook.signature("msg_loFOjxBNrRLzqYUf", "1731705121", body);
        assert_eq!(signature, "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0=");
        assert!(Webhook::new("ftp://example.com", "0123456789abcdef").is_err());
        assert!(Webhook::new("https://example.com", "short").is_err());
    }

    #[tokio::test]
    async fn why_nobody_was_told_is_said_without_the_address() {
        let webhook = Webhook::new("http://127.0.0.1:1/token-7f3a", "0123456789abcdef").unwrap();
        let error = webhook.send("appr_1", "{}").await.unwrap_err();
        assert!(error.to_lowercase().contains("refused") && !error.contains("7f3a"), "{error}");
    }
}
