//! A stream that is written by a future.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

/// Items that the future may send ahead of the reader.
const AHEAD: usize = 16;

/// A stream whose items a future sends, which ends with an output.
///
/// No task is spawned: the future advances only while the stream is polled, and dropping the stream drops it with everything it holds.
pub(crate) struct FutureStream<T, R> {
    work: Option<BoxFuture<'static, R>>,
    items: mpsc::Receiver<T>,
    output: Option<R>,
}

/// The future's end of the stream.
pub(crate) struct Sink<T>(mpsc::Sender<T>);

impl<T> Sink<T> {
    /// Waits until everything that was sent has been read.
    pub(crate) async fn drained(&self) {
        // Dropped at once: all permits are free when no item waits.
        drop(self.0.reserve_many(AHEAD).await);
    }

    /// Sends an item; waits while the reader is behind.
    pub(crate) async fn send(&self, item: T) {
        // It fails only if the stream is gone, and then this future is being dropped.
        self.0.send(item).await.ok();
    }
}

impl<T, R> FutureStream<T, R> {
    /// Makes a stream of the future that `start` returns.
    pub(crate) fn new<F>(start: impl FnOnce(Sink<T>) -> F) -> Self
    where
        F: Future<Output = R> + Send + 'static,
    {
        let (sender, items) = mpsc::channel(AHEAD);
        Self { work: Some(Box::pin(start(Sink(sender)))), items, output: None }
    }

    /// Takes the future's output; `None` before the end of the stream.
    pub(crate) fn output(&mut self) -> Option<R> {
        self.output.take()
    }
}

impl<T, R: Unpin> Stream for FutureStream<T, R> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let this = &mut *self;
        // Items come before the end: the future waits for room, and its end drops no item.
        if let Poll::Ready(Some(item)) = this.items.poll_recv(context) {
            return Poll::Ready(Some(item));
        }
        if let Some(work) = &mut this.work
            && let Poll::Ready(output) = work.as_mut().poll(context)
        {
            this.output = Some(output);
            this.work = None;
        }
        // The future holds the only sender, so the channel closes with its end.
        this.items.poll_recv(context)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    #[tokio::test]
    async fn items_come_in_order_and_the_output_after_them() {
        let mut flow = FutureStream::new(|sink| async move {
            for n in 0..100 {
                sink.send(n).await;
            }
            "done"
        });
        let mut seen = Vec::new();
        while let Some(item) = flow.next().await {
            seen.push(item);
        }
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
        assert_eq!(flow.output(), Some("done"));
    }

    #[tokio::test]
    async fn dropping_the_stream_drops_the_future() {
        let held = std::sync::Arc::new(());
        let inside = held.clone();
        let mut flow = FutureStream::<u8, ()>::new(|sink| async move {
            let _held = inside;
            sink.send(1).await;
            std::future::pending::<()>().await;
        });
        assert_eq!(flow.next().await, Some(1));
        assert_eq!(std::sync::Arc::strong_count(&held), 2);
        drop(flow);
        assert_eq!(std::sync::Arc::strong_count(&held), 1);
    }
}
