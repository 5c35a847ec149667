//! A model with fallbacks.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tracing::warn;

use super::{Delta, ModelCapabilities, ModelRequest, Upstream, UpstreamError};
use crate::future_stream::FutureStream;

/// Asks the first model; if a model fails before its answer has begun, asks the next one.
#[derive(Clone)]
pub struct Fallback {
    first: Arc<dyn Upstream>,
    others: Vec<NamedModel>,
}

/// A model and its name in the configuration.
pub type NamedModel = (Arc<str>, Arc<dyn Upstream>);

impl Fallback {
    /// Arranges the models. All must agree in function calling; the error names one that differs.
    pub fn new(first: Arc<dyn Upstream>, others: Vec<NamedModel>) -> Result<Self, String> {
        let calls = first.capabilities().function_calling;
        match others.iter().find(|(_, other)| other.capabilities().function_calling != calls) {
            Some((_, other)) => {
                Err(format!("`{}` and `{}` differ in whether they can call functions", first.name(), other.name()))
            }
            None => Ok(Self { first, others }),
        }
    }
}

impl Upstream for Fallback {
    fn name(&self) -> &str {
        self.first.name()
    }

    fn provider(&self) -> &'static str {
        self.first.provider()
    }

    fn capabilities(&self) -> ModelCapabilities {
        self.first.capabilities()
    }

    fn call(&self, request: ModelRequest) -> BoxStream<'static, Result<Delta, UpstreamError>> {
        let Self { first, others } = self.clone();
        let flow = FutureStream::new(|sink| async move {
            let mut left = others.into_iter();
            let mut model = first;
            loop {
                let mut deltas = model.call(request.clone());
                let mut has_begun = false;
                let mut failure = None;
                while let Some(delta) = deltas.next().await {
                    match delta {
                        Err(error) if !has_begun && error.is_unavailable() => failure = Some(error),
                        delta => {
                            // Counted tokens are no answer yet; the last count is used.
                            has_begun |=
                                !matches!(delta, Ok(Delta::Retrying { .. } | Delta::FellBack { .. } | Delta::Usage(_)));
                            sink.send(delta).await;
                        }
                    }
                }
                let Some(error) = failure else { return };
                let Some((name, next)) = left.next() else {
                    sink.send(Err(error)).await;
                    return;
                };
                warn!(model = model.name(), error = %error, "`{name}` is asked instead");
                sink.send(Ok(Delta::FellBack { error, model: name, provider: next.provider() })).await;
                model = next;
            }
        });
        flow.boxed()
    }
}
