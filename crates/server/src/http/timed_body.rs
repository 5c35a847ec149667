//! A body that breaks off when its client sends nothing for too long.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::time::{Sleep, sleep};

use super::json::BODY_READ_TIMEOUT;

/// A client's body that is forwarded as it comes. The request that waits for it holds a permit.
pub(crate) struct TimedBody {
    body: Body,
    /// The deadline, while it waits.
    patience: Option<Pin<Box<Sleep>>>,
}

impl TimedBody {
    pub(crate) fn new(body: Body) -> Self {
        Self { body, patience: None }
    }
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if polled.is_ready() {
            self.patience = None;
            return polled;
        }
        let patience = self.patience.get_or_insert_with(|| Box::pin(sleep(BODY_READ_TIMEOUT)));
        patience.as_mut().poll(context).map(|()| Some(Err(axum::Error::new("the client sent nothing for too long"))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use futures_util::StreamExt;
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_breaks_off_in_a_silence_and_not_before() {
        let (sender, receiver) = mpsc::channel::<Result<Bytes, Infallible>>(1);
        let body = TimedBody::new(Body::from_stream(ReceiverStream::new(receiver)));
        let mut chunks = Body::new(body).into_data_stream();
        for _ in 0..3 {
            let send = async {
                sleep(BODY_READ_TIMEOUT - Duration::from_secs(1)).await;
                sender.send(Ok(Bytes::from_static(b"x"))).await.unwrap();
            };
            let (_, chunk) = tokio::join!(send, chunks.next());
            assert_eq!(chunk.unwrap().unwrap(), "x");
        }
        assert!(chunks.next().await.unwrap().is_err());
    }
}
