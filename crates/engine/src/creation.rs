//! The creation of sandboxes, as it is counted and traced.

use tracing::field::Empty;
use tracing::{Instrument, Span, info_span};

/// Creates a sandbox in a span that has its result.
pub(crate) async fn observed<T, E>(create: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    let creating = async {
        let created = create.await;
        Span::current().record("result", if created.is_ok() { "ok" } else { "failed" });
        created
    };
    creating.instrument(info_span!("create sandbox", result = Empty)).await
}
