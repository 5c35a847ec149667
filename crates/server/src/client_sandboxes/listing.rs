//! Lists of a sandbox's files, each of which may be megabytes long.

use aludel_engine::sandboxes::ClientSandbox;
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::app::App;
use crate::error::ApiError;
use crate::http::{GuardedBody, JSON, memory};

/// Answers with a list. Few of a sandbox are made at once; the text of one counts for the tenant until it is sent.
pub(crate) async fn listing<T: Serialize, E: From<ApiError>>(
    app: &App,
    sandbox: &ClientSandbox,
    list: impl Future<Output = Result<T, E>>,
) -> Result<Response, E> {
    let text = {
        let _turn = sandbox.listing().await;
        serde_json::to_vec(&list.await?).map_err(ApiError::internal)?
    };
    let counted = memory(app, sandbox.tenant(), text.len())?;
    let body = Body::new(GuardedBody::new(Body::from(text), counted));
    Ok(([(CONTENT_TYPE, JSON)], body).into_response())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use aludel_engine::sandboxes::NewSandbox;
    use aludel_store::Tenant;
    use axum::body::to_bytes;

    use super::*;
    use crate::ServerSettings;

    #[tokio::test]
    async fn few_lists_are_made_at_once_and_all_count_until_they_are_sent() {
        let data = tempfile::tempdir().unwrap();
        let app = App::on_memory(data.path(), ServerSettings { bodies: 3 << 20, ..ServerSettings::default() }).await;
        let new = NewSandbox { timeout: Duration::from_secs(60), ..NewSandbox::default() };
        let sandbox = app.engine.sandboxes.create(&Tenant::local(), new).await.unwrap();
        let (at_once, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let list = async |bytes: usize| {
            let list = async {
                most.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                at_once.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, ApiError>("x".repeat(bytes))
            };
            listing(&app, &sandbox, list).await
        };
        let all = futures_util::future::join_all((0..40).map(|_| list(1000))).await;
        assert!(all.iter().all(Result::is_ok));
        assert!((1..=2).contains(&most.load(Ordering::SeqCst)), "{most:?}");
        drop(all);

        let first = list(2 << 20).await.unwrap();
        assert_eq!(first.headers()["content-type"], "application/json");
        assert_eq!(list(2 << 20).await.unwrap_err().status, 429);
        assert_eq!(to_bytes(first.into_body(), usize::MAX).await.unwrap().len(), (2 << 20) + 2);
        assert!(list(2 << 20).await.is_ok());
    }
}
