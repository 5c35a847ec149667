//! Carrying out one completion: a turn for each answer that was asked for, all told to one client.

use std::collections::HashMap;
use std::sync::Arc;

use aludel_agent::{Agent, CutOff, Ending, Event, Item};
use aludel_engine::Session;
use aludel_engine::approvals::Gate;
use aludel_engine::execution::Event as ExecutionEvent;
use aludel_store::Tenant;
use futures_util::StreamExt;
use futures_util::stream::select_all;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::rounds;
use super::writer::Writer;
use crate::app::App;
use crate::error::ApiError;
use crate::turn::{End, Ended, Live, Output, error_of};

/// Bytes of all chunks of one completion: they are in memory as long as somebody may follow them.
const MAX_LOG: usize = 256 << 20;

/// One completion that is to be carried out.
pub(super) struct Run {
    pub(super) app: Arc<App>,
    pub(super) tenant: Tenant,
    pub(super) live: Arc<Live>,
    /// The conversation as the model gets it.
    pub(super) items: Vec<Item>,
    pub(super) answers: Vec<Answer>,
    pub(super) writer: Writer,
    pub(super) ran_code: bool,
}

/// One of the answers.
pub(super) struct Answer {
    pub(super) agent: Agent,
    /// What its programs go through.
    pub(super) gate: Option<Arc<Gate>>,
    pub(super) container: Option<Arc<Session>>,
    /// Whether this request made the container, and nobody else knows of it yet.
    pub(super) is_own: bool,
    /// Whether the sandbox is kept for a moment only.
    pub(super) lingers: bool,
}

impl Answer {
    /// Gives back what was taken for it.
    pub(super) async fn abandon(&self, app: &App, tenant: &Tenant) {
        let Some(container) = &self.container else { return };
        container.release().await;
        if self.is_own
            && let Err(error) = app.engine.sessions.delete(tenant, container.id()).await
        {
            error!("cannot remove {}: {error}", container.id());
        }
    }
}

impl Run {
    /// Runs the turns to their end.
    pub(super) async fn carry_out(mut self) {
        let mut failed = self.turns().await.err();
        // Here, for streams, too; the layer around all routes has nothing left to tell.
        if let Some(cause) = failed.as_mut().and_then(|error| error.cause.take()) {
            error!("{cause}");
        }
        let is_cut = failed.is_some() || self.live.cancel.is_cancelled();
        for (index, answer) in self.answers.iter().enumerate() {
            // What nobody was told of, or nobody waits for, is of no use.
            if is_cut || self.writer.programs(index).is_empty() {
                answer.abandon(&self.app, &self.tenant).await;
            } else if let Some(container) = answer.container.as_ref().filter(|_| answer.lingers) {
                container.linger(self.app.engine.settings.linger);
            }
        }
        // Only a client that was told of no program may ask again.
        let error = failed.map(|error| ApiError { should_retry: self.ran_code.then_some(false), ..error });
        let object = match &error {
            // What fails before the first word is an answer of its own.
            Some(error) if !self.writer.has_begun() => json!(error.body()),
            Some(error) => {
                self.writer.fail(&error.body());
                json!(error.body())
            }
            None => {
                self.writer.end();
                self.writer.object()
            }
        };
        self.live.tell(&self.writer.take_chunks());
        self.live.end(End { object, error });
    }

    async fn turns(&mut self) -> Result<(), ApiError> {
        let mut cancellers: Vec<CancellationToken> = Vec::new();
        let turns: Vec<_> = self
            .answers
            .iter()
            .enumerate()
            .map(|(index, answer)| {
                let turn = answer.agent.resume(self.items.clone());
                cancellers.push(turn.canceller());
                turn.map(move |event| (index, event))
            })
            .collect();
        let mut turns = select_all(turns);
        let mut outputs: HashMap<(usize, String), Output> = HashMap::new();
        let (live, closing) = (Arc::clone(&self.live), self.app.closing.clone());
        let mut cancelled = false;
        let mut failure = None;
        loop {
            let next = tokio::select! {
                () = live.cancel.cancelled(), if !cancelled => None,
                () = closing.cancelled(), if !cancelled => None,
                next = turns.next() => Some(next),
            };
            let Some(next) = next else {
                cancelled = true;
                cancellers.iter().for_each(CancellationToken::cancel);
                continue;
            };
            let Some((index, event)) = next else { break };
            let seen = self.see(index, event, &mut outputs, &cancellers).await;
            self.live.tell(&self.writer.take_chunks());
            let seen = if self.live.bytes() > MAX_LOG {
                Err(ApiError::too_large(format!("The completion is larger than {} MB.", MAX_LOG >> 20)))
            } else {
                seen
            };
            if let Err(error) = seen
                && failure.is_none()
            {
                // One answer that failed is the end of all: a client gets all of them, or an error.
                failure = Some(error);
                cancelled = true;
                cancellers.iter().for_each(CancellationToken::cancel);
            }
        }
        failure.map_or(Ok(()), Err)
    }

    async fn see(
        &mut self,
        index: usize,
        event: Event,
        outputs: &mut HashMap<(usize, String), Output>,
        cancellers: &[CancellationToken],
    ) -> Result<(), ApiError> {
        match event {
            Event::Finished(ending) => return self.finish(index, &ending).await,
            // A stop word came; the rest is not for the client.
            _ if self.writer.has_finished(index) => {}
            Event::Text(text) => {
                if !self.writer.text(index, &text)
                    && let Some(canceller) = cancellers.get(index)
                {
                    canceller.cancel();
                }
            }
            Event::Reasoning(text) => self.writer.think(index, &text),
            Event::CodeStarted { call_id } => self.writer.start_program(index, &call_id),
            Event::CodeDelta { call_id, text } => self.writer.code(index, &call_id, &text),
            Event::CodeFinished { call_id, code } => self.writer.code_done(index, &call_id, &code),
            Event::Execution { call_id, event: ExecutionEvent::Finished(finished) } => {
                let output = outputs.remove(&(index, call_id.clone())).unwrap_or_default();
                let Some(Answer { gate, container, .. }) = self.answers.get(index) else { return Ok(()) };
                if let (Some(gate), Some(container)) = (gate, container) {
                    gate.ended(&call_id, &finished).await?;
                    let ended = output.end(&finished, container).await?;
                    self.writer.end_program(index, &call_id, ended);
                }
            }
            Event::Execution { call_id, event } => {
                self.ran_code = true;
                outputs.entry((index, call_id)).or_default().see(event);
            }
            Event::CallRejected { call_id, reason } => {
                self.writer.end_program(index, &call_id, Ended::rejected(reason));
            }
            Event::ApprovalDecided { call_id, denied: Some(reason) } => {
                let ended = Ended::rejected(format!("It was not allowed to run: {reason}"));
                self.writer.end_program(index, &call_id, ended);
            }
            Event::Usage(usage) => self.writer.use_tokens(usage),
            Event::RoundStarted { .. }
            | Event::Retrying { .. }
            | Event::ApprovalRequested { .. }
            | Event::ApprovalDecided { denied: None, .. }
            | Event::Observation { .. } => {}
        }
        Ok(())
    }

    async fn finish(&mut self, index: usize, ending: &Ending) -> Result<(), ApiError> {
        if self.writer.has_finished(index) {
            return Ok(());
        }
        let reason = match ending {
            Ending::Answered | Ending::Refused => "stop",
            Ending::CutOff(CutOff::Length) => "length",
            Ending::CutOff(CutOff::Filter) => "content_filter",
            Ending::Budget(budget) => {
                self.writer.text(index, &format!("I stopped: {budget} are used up."));
                "length"
            }
            Ending::ClientTools(calls) | Ending::AwaitsApproval { client_tools: calls, .. } => {
                let programs = self.writer.programs(index);
                for call in calls {
                    let id = rounds::new_call_id();
                    if !programs.is_empty() {
                        rounds::keep(&self.app, &self.tenant, &id, &programs).await?;
                    }
                    self.writer.function_call(index, &id, call);
                }
                "tool_calls"
            }
            // Whoever cancelled does not read it, but for the server's end.
            Ending::Cancelled => {
                let message = "The server is ending; try again in a moment.";
                return Err(ApiError::unavailable(message));
            }
            Ending::Upstream(_) | Ending::Sandbox(_) => {
                return Err(error_of(ending).unwrap_or_else(|| ApiError::internal("a turn failed without a reason")));
            }
        };
        self.writer.finish(index, reason);
        Ok(())
    }
}
