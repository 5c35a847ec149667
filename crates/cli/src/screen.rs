//! The terminal as a dialect: shows the events of a turn as they come, and keeps what is needed at its end.

use std::collections::HashMap;
use std::sync::Arc;

use aludel_engine::transcript::Transcript;
use aludel_engine::turns::{
    EndReason, EventKind, Failure, Flow, ItemId, OutputPiece, Render, RenderedEvent, TurnEvent,
};
use aludel_sandbox::{ExecutionEvent as ProgramEvent, FileEntry, ProgramError};
use parking_lot::Mutex;
use serde_json::value::RawValue;

use crate::ending::failure_of;
use crate::json;
use crate::output_directory::OutputDirectory;
use crate::show::TurnView;
use crate::turn_items::TurnItems;

/// The audience of a turn.
pub(crate) enum TurnAudience {
    /// A person.
    Person(Box<TurnView>),
    /// A program.
    Program,
}

/// A turn as it is shown and written down.
pub(crate) struct Screen {
    pub(crate) view: TurnAudience,
    pub(crate) out: OutputDirectory,
    pub(crate) transcript: Transcript,
    /// True if a person is asked about programs. Otherwise approval is not mentioned.
    pub(crate) needs_approval: bool,
    /// The model's server's ids of calls.
    calls: HashMap<ItemId, String>,
    /// Files that programs made or changed.
    pub(crate) files: Vec<FileEntry>,
    /// The part of it that the model sees with the next question.
    pub(crate) exchange: TurnItems,
    /// The text of the last round.
    pub(crate) answer: String,
    pub(crate) ending: Option<EndReason>,
    /// The reason for which nothing can be shown any more.
    failure: Option<anyhow::Error>,
}

impl Screen {
    pub(crate) fn new(view: TurnAudience, out: OutputDirectory, transcript: Transcript) -> Self {
        Self {
            view,
            out,
            transcript,
            needs_approval: false,
            calls: HashMap::new(),
            files: Vec::new(),
            exchange: TurnItems::default(),
            answer: String::new(),
            ending: None,
            failure: None,
        }
    }

    fn see(&mut self, event: &EventKind) -> anyhow::Result<()> {
        match event {
            EventKind::RoundStarted { .. } => self.answer.clear(),
            EventKind::Text { delta, .. } | EventKind::Refusal { delta, .. } => self.answer.push_str(delta),
            EventKind::ToolStarted { item, call_id, .. } | EventKind::ToolReady { item, call_id, .. } => {
                self.calls.insert(item.clone(), call_id.clone());
            }
            EventKind::ApprovalRequested { .. } | EventKind::ApprovalDecided { denied: None, .. }
                if !self.needs_approval =>
            {
                return Ok(());
            }
            EventKind::ToolEnded { outcome, .. } => {
                self.files.extend(outcome.finished.iter().flat_map(|finished| &finished.files).cloned());
            }
            EventKind::Ended { ending, .. } => self.ending = Some(ending.clone()),
            _ => {}
        }
        self.transcript.record(event);
        self.exchange.record(event);
        let of_program = program_event(event);
        match &mut self.view {
            TurnAudience::Person(view) => view.see(event, of_program.as_ref(), &mut self.out),
            TurnAudience::Program => json::turn(event, &self.calls, of_program.as_ref(), &mut self.out),
        }
    }

    /// The error that kept events from being shown, or the turn from running; failures of the model or sandbox are endings instead.
    pub(crate) fn failure(&mut self) -> Option<anyhow::Error> {
        self.failure.take().or_else(|| self.ending.as_ref().and_then(failure_of))
    }
}

/// The event of a program inside an event of a turn.
fn program_event(event: &EventKind) -> Option<ProgramEvent> {
    Some(match event {
        EventKind::Output { output, .. } => match output {
            OutputPiece::Stdout(text) => ProgramEvent::Stdout(text.clone()),
            OutputPiece::Stderr(text) => ProgramEvent::Stderr(text.clone()),
            OutputPiece::Display(value) => ProgramEvent::Display(value.bundle()),
            OutputPiece::Result(value) => ProgramEvent::Result(value.bundle()),
            OutputPiece::Error { name, value, traceback } => ProgramEvent::Error(ProgramError {
                name: name.clone(),
                value: value.clone(),
                traceback: traceback.clone(),
            }),
        },
        EventKind::ToolEnded { outcome, .. } => ProgramEvent::Finished(outcome.finished.clone()?),
        _ => return None,
    })
}

/// A screen shared by a turn's driver and the code that waits for the turn.
#[derive(Clone)]
pub(crate) struct SharedScreen(Arc<Mutex<Screen>>);

impl SharedScreen {
    pub(crate) fn new(screen: Screen) -> Self {
        Self(Arc::new(Mutex::new(screen)))
    }

    /// Shows a person that the turn goes on.
    pub(crate) fn tick(&self) {
        self.tell(TurnView::tick);
    }

    /// Leaves nothing behind of that.
    pub(crate) fn hush(&self) {
        self.tell(TurnView::hush);
    }

    fn tell(&self, show: fn(&mut TurnView) -> anyhow::Result<()>) {
        let mut screen = self.0.lock();
        if let TurnAudience::Person(view) = &mut screen.view
            && let Err(error) = show(view)
        {
            screen.failure.get_or_insert(error);
        }
    }

    /// The screen, when the driver has let go of it.
    pub(crate) fn into_inner(self) -> Option<Screen> {
        Some(Arc::into_inner(self.0)?.into_inner())
    }
}

impl Render for SharedScreen {
    fn render(&mut self, event: &TurnEvent) -> RenderedEvent {
        let mut screen = self.0.lock();
        if screen.failure.is_none() {
            screen.failure = screen.see(&event.kind).err();
        }
        // The output has no reader any more.
        let flow = if screen.failure.is_some() { Flow::StopAll } else { Flow::GoOn };
        RenderedEvent { flow, ..RenderedEvent::default() }
    }

    fn document(&self) -> Box<RawValue> {
        Box::default()
    }

    fn failure(&self) -> Option<Failure> {
        None
    }
}
