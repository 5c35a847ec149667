//! Parsing of large JSON texts on a thread where no other request waits.

use aludel_engine::processor_time::ProcessorShare;

use crate::app::App;
use crate::error::ApiError;

/// Bytes from which a body is large: smaller ones take less than a millisecond.
pub(super) const LARGE: usize = 128 << 10;

/// Works on a JSON text of this size. The work for a large one runs on a thread where no other request waits.
pub(super) async fn in_background<T: Send + 'static>(
    app: &App,
    share: &ProcessorShare,
    bytes: usize,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if bytes < LARGE {
        return work();
    }
    share.wait().await;
    let _permit = app.parsers.acquire().await.map_err(ApiError::internal)?;
    let share = share.clone();
    let work = tokio::task::spawn_blocking(move || share.work(work)).await;
    work.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}
