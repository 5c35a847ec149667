//! The seam to dialects.

use std::future::ready;

use aludel_store::RowChange;
use futures_util::future::BoxFuture;
use serde_json::value::RawValue;

use super::{Failure, TurnEvent};
use crate::Error;

/// A dialect's state machine from events to frames. The same events yield the same frames.
pub trait Render: Send + Sync {
    /// Renders one event.
    fn render(&mut self, event: &TurnEvent) -> RenderedEvent;

    /// The request's document as it stands, as it is stored.
    fn document(&self) -> Box<RawValue>;

    /// The document for a client that waited for the whole.
    fn answer(&self) -> Box<RawValue> {
        self.document()
    }

    /// The failure that a client gets in place of the document, if it has received nothing of an answer.
    fn failure(&self) -> Option<Failure>;
}

/// The frames of one event.
#[derive(Debug, Default)]
pub struct RenderedEvent {
    /// Frames in order, or none.
    pub frames: Vec<Frame>,
    /// The course of the turns from here on.
    pub flow: Flow,
    /// A document to store before the frames are published, for clients that look there for the result.
    pub save: Option<Box<RawValue>>,
}

/// The course of the turns after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Flow {
    /// The turns continue.
    #[default]
    GoOn,
    /// The choice of this event stops.
    Stop,
    /// All choices stop.
    StopAll,
}

/// One frame of a client's stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its number in the stream, from 0.
    pub sequence: u64,
    /// The name of its kind; empty in a protocol without such names.
    pub kind: String,
    /// The whole frame, on one line.
    pub text: String,
}

/// The documents that a dialect stores for a request: the client's input, and objects that it may retrieve.
pub trait Documents: Send + Sync {
    /// Changes that store the document as it stands.
    fn save(&self, document: Box<RawValue>) -> Result<Vec<RowChange>, Error>;

    /// Changes that store the document at the request's beginning.
    fn begin(&self, document: Box<RawValue>) -> Result<Vec<RowChange>, Error> {
        self.save(document)
    }

    /// Stores the documents that a client needs before it gets calls to answer.
    fn hand_over<'a>(&'a self, _document: &'a RawValue) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(ready(Ok(())))
    }

    /// Changes that store the document at the request's end, with everything that depends on it.
    fn finish(&self, document: Box<RawValue>) -> Result<Vec<RowChange>, Error> {
        self.save(document)
    }
}
