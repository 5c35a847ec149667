//! Carrying out one response: the turn, what it leaves in the store, and what is told of it.

use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;

use aludel_agent::upstream::UpstreamError;
use aludel_agent::{Agent, Approval, ApprovalRequest, Budget, CutOff, Ending, Event, Item};
use aludel_engine::approvals::Gate;
use aludel_engine::execution::Event as ExecutionEvent;
use aludel_engine::{Session, SessionFile};
use aludel_store::{ConversationId, ResponseRecord, Tenant, now};
use aludel_wire::openai::responses::{self, ItemDocument};
use futures_util::StreamExt;
use tracing::error;

use super::writer::{Status, Writer, is_approval};
use crate::app::App;
use crate::error::ApiError;
use crate::turn::{End, Ended, Live, Output, Told, error_of, words_for_clients};

/// Bytes of all events of one response: they are in memory as long as somebody may follow them.
const MAX_LOG: usize = 256 << 20;
/// How long a response that is not to be stored is kept for whoever polls for it.
const UNSTORED: i64 = 600;

/// One response that is to be carried out.
pub(super) struct Run {
    pub(super) app: Arc<App>,
    pub(super) tenant: Tenant,
    pub(super) live: Arc<Live>,
    pub(super) agent: Agent,
    /// The conversation as the model gets it.
    pub(super) items: Vec<Item>,
    /// Whether the oldest part of it may be left out when it is too long for the model.
    pub(super) truncate: bool,
    pub(super) container: Option<Arc<Session>>,
    /// What programs go through.
    pub(super) gate: Option<Arc<Gate>>,
    pub(super) writer: Writer,
    pub(super) keep: Keep,
    /// What it adds to the conversation.
    pub(super) input: Vec<ItemDocument>,
    pub(super) conversation: Option<ConversationId>,
    /// Events that are told and not yet in the store.
    pub(super) unsaved: Vec<Told>,
    pub(super) ran_code: bool,
    /// Whether somebody is asked about a program.
    pub(super) is_waiting: bool,
}

/// Whether a response is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// Until it is deleted.
    Forever,
    /// As long as somebody may poll for it.
    ForAWhile,
    /// Not at all.
    Not,
}

impl Run {
    /// Says that it begins, so that whoever was told its id finds it.
    pub(super) async fn begin(&mut self, queued: bool) -> Result<(), ApiError> {
        let status = if queued { Status::Queued } else { Status::InProgress };
        self.writer.create(&status);
        if queued {
            self.writer.queue();
        }
        self.save(&status).await?;
        self.tell();
        self.flush().await
    }

    /// Runs the turn to its end.
    pub(super) async fn carry_out(mut self) {
        self.writer.begin();
        self.tell();
        self.carry_on(None).await;
    }

    /// Runs the turn to its end, from a program on that waits for somebody's decision, if one does.
    pub(super) async fn carry_on(mut self, waiting: Option<ApprovalRequest>) {
        let mut ending = match waiting {
            Some(program) => self.resumed(program).await,
            None => self.turn().await,
        };
        let is_ending = self.app.ending.is_cancelled() && !self.live.cancel.is_cancelled();
        if self.is_waiting && self.keep == Keep::Forever && is_ending {
            // It goes on after the restart; asked for again, it would be another one.
            let object = self.writer.object(&Status::InProgress).json();
            let message = format!(
                "The server is ending, and a program of {id} waits for approval; it goes on when the server is back: retrieve {id} then.",
                id = self.live.id
            );
            let error = ApiError { should_retry: Some(false), ..ApiError::unavailable(message) };
            return self.live.end(End { object, error: Some(error) });
        }
        while self.truncate && self.writer.is_empty() && is_too_long(&ending) && self.leave_out_oldest() {
            ending = self.turn().await;
        }
        let (status, mut error) = match &ending {
            Ok(ending) => (status_of(ending), error_of(ending)),
            Err(error) => {
                let status = Status::Failed { code: "server_error", message: error.message.clone() };
                (status, Some(error.clone()))
            }
        };
        if let Some(error) = &mut error {
            // Here, for streams and the background, too; the layer around all routes has nothing left to tell.
            let cause = error.cause.take();
            error!("{}: {}", self.live.id, cause.as_deref().unwrap_or(&error.message));
        }
        let files = self.files().await;
        if let Some(container) = &self.container {
            container.release().await;
        }
        if let Ok(Ending::Budget(budget)) = &ending
            && self.writer.is_empty()
        {
            self.writer.text(&format!("I stopped: {budget} are used up."));
        }
        let (programs, calls) = match &ending {
            Ok(Ending::ClientTools(calls)) => (&[][..], calls.as_slice()),
            Ok(Ending::AwaitsApproval { programs, client_tools }) => (programs.as_slice(), client_tools.as_slice()),
            _ => (&[][..], &[][..]),
        };
        let needs_message = status == Status::Completed && programs.is_empty() && calls.is_empty();
        self.writer.finish(&status, &files, needs_message);
        programs.iter().for_each(|call| self.writer.ask_for_approval(call));
        calls.iter().for_each(|call| self.writer.function_call(call));
        self.writer.end(&status);
        let object = self.writer.object(&status).json();
        // The store first: what a client was told is there even if we are killed now.
        let events = self.writer.take_events();
        self.unsaved.extend(events.iter().cloned());
        // The status last of all: whoever polls for it goes on at once, in the same conversation.
        for saved in [self.flush().await, self.add_to_conversation(&status).await, self.save(&status).await] {
            if let Err(error) = saved {
                error!("{}: {}", self.live.id, error.cause.as_deref().unwrap_or(&error.message));
            }
        }
        self.live.tell(&events);
        // Only a client that was told of no program may ask again.
        let error = error.map(|error| ApiError { should_retry: self.ran_code.then_some(false), ..error });
        self.live.end(End { object, error: error.filter(|_| self.writer.output().is_empty()) });
    }

    /// Waits for the decision about a program, and goes on with it.
    async fn resumed(&mut self, program: ApprovalRequest) -> Result<Ending, ApiError> {
        let Some(gate) = self.gate.clone() else { return Err(ApiError::internal("a program without a gate")) };
        let call_id = program.call_id.clone();
        self.is_waiting = true;
        let decision = tokio::select! {
            decision = gate.pass(program) => decision,
            () = self.live.cancel.cancelled() => return Ok(Ending::Cancelled),
            () = gate.outlives() => return Ok(Ending::Cancelled),
            () = self.app.closing.cancelled() => return Ok(Ending::Cancelled),
        };
        self.is_waiting = false;
        if let Approval::Deny { reason } = decision {
            self.items.push(Item::output(&call_id, aludel_agent::denied(&reason)));
            self.writer.end_program(&call_id, Ended::rejected(reason));
        }
        self.turn().await
    }

    async fn turn(&mut self) -> Result<Ending, ApiError> {
        let stream = self.agent.resume(self.items.clone());
        let canceller = stream.canceller();
        let mut stream = stream;
        let (live, closing, gate) = (Arc::clone(&self.live), self.app.closing.clone(), self.gate.clone());
        let outlives = async || match &gate {
            Some(gate) => gate.outlives().await,
            None => pending().await,
        };
        let mut outputs: HashMap<String, Output> = HashMap::new();
        let mut written: HashMap<String, String> = HashMap::new();
        let mut ending = Ending::Cancelled;
        loop {
            let event = tokio::select! {
                () = live.cancel.cancelled(), if !canceller.is_cancelled() => {
                    canceller.cancel();
                    continue;
                }
                () = closing.cancelled(), if !canceller.is_cancelled() => {
                    canceller.cancel();
                    continue;
                }
                () = outlives(), if !canceller.is_cancelled() => {
                    canceller.cancel();
                    continue;
                }
                event = stream.next() => event,
            };
            let Some(event) = event else { return Ok(ending) };
            match event {
                Event::Text(text) => self.writer.text(&text),
                Event::Reasoning(text) => self.writer.think(&text),
                Event::CodeStarted { call_id } => {
                    let files = self.files().await;
                    self.writer.start_program(&call_id, &files);
                }
                Event::CodeDelta { call_id, text } => self.writer.code(&call_id, &text),
                Event::CodeFinished { call_id, code } => {
                    self.writer.code_done(&call_id, &code);
                    written.insert(call_id, code);
                }
                Event::Execution { call_id, event } => {
                    self.ran_code = true;
                    if let Some(code) = written.remove(&call_id) {
                        if let Some(gate) = self.gate.as_ref().filter(|_| is_approval(&call_id)) {
                            gate.approved_by_client(&call_id, &code).await?;
                        }
                        self.writer.start_mcp_call(&call_id, &code);
                    }
                    self.writer.run_program(&call_id);
                    match event {
                        ExecutionEvent::Finished(finished) => {
                            let output = outputs.remove(&call_id).unwrap_or_default();
                            if let (Some(gate), Some(container)) = (&self.gate, &self.container) {
                                gate.ended(&call_id, &finished).await?;
                                let ended = output.end(&finished, container).await?;
                                self.writer.end_program(&call_id, ended);
                            }
                        }
                        event => outputs.entry(call_id).or_default().see(event),
                    }
                }
                Event::CallRejected { call_id, reason } => {
                    self.writer.end_program(&call_id, Ended::rejected(reason));
                }
                Event::Usage(usage) => self.writer.use_tokens(usage),
                Event::Finished(end) => ending = end,
                // The program is shown to whoever decides, and found after a restart.
                Event::ApprovalRequested { .. } if self.gate.as_ref().is_some_and(|gate| gate.holds()) => {
                    self.tell();
                    self.flush().await?;
                    self.save(&Status::InProgress).await?;
                    self.is_waiting = true;
                }
                Event::ApprovalDecided { call_id, denied } => {
                    self.is_waiting = false;
                    if let Some(reason) = denied {
                        self.writer
                            .end_program(&call_id, Ended::rejected(format!("It was not allowed to run: {reason}")));
                    }
                }
                Event::RoundStarted { .. }
                | Event::Retrying { .. }
                | Event::ApprovalRequested { .. }
                | Event::Observation { .. } => {}
            }
            let milestone = self.tell();
            if self.live.bytes() > MAX_LOG {
                let message = format!("The response is larger than {} MB.", MAX_LOG >> 20);
                return Err(ApiError::too_large(message));
            }
            if milestone {
                self.flush().await?;
            }
        }
    }

    /// Leaves out the older half of the conversation, up to a message of the user's. Returns whether anything is left to try.
    fn leave_out_oldest(&mut self) -> bool {
        let half = self.items.len().div_ceil(2);
        let next = self.items.iter().enumerate().skip(half.max(1)).find(|(_, item)| matches!(item, Item::User(_)));
        let Some((place, _)) = next else { return false };
        self.items.drain(..place);
        true
    }

    async fn files(&self) -> Vec<SessionFile> {
        match &self.container {
            // Without them no link is found, and the answer is still the answer.
            Some(container) => container.files().await.unwrap_or_default(),
            None => Vec::new(),
        }
    }

    /// Lets listeners have what is new. Returns whether there is more in it than pieces of text.
    fn tell(&mut self) -> bool {
        let events = self.writer.take_events();
        self.live.tell(&events);
        let milestone = events.iter().any(|told| !told.kind.ends_with(".delta"));
        self.unsaved.extend(events);
        milestone
    }

    async fn flush(&mut self) -> Result<(), ApiError> {
        let events = std::mem::take(&mut self.unsaved);
        if self.keep != Keep::Not {
            let events = events.into_iter().map(|told| (told.sequence, told.text)).collect();
            self.app.store.append_events(&self.tenant, &self.live.id, events).await?;
        }
        Ok(())
    }

    async fn save(&self, status: &Status) -> Result<(), ApiError> {
        let expires_at = match self.keep {
            Keep::Forever => None,
            Keep::ForAWhile => Some(now() + UNSTORED),
            Keep::Not => return Ok(()),
        };
        let (id, object) = (self.live.id.clone(), self.writer.object(status).json());
        let input = self.input.iter().map(|item| item.json().clone()).collect();
        Ok(self.app.store.put_response(&self.tenant, ResponseRecord { id, object, input, expires_at }).await?)
    }

    /// What was said becomes a part of the conversation, unless nothing came of it.
    async fn add_to_conversation(&self, status: &Status) -> Result<(), ApiError> {
        let Some(conversation) = &self.conversation else { return Ok(()) };
        if matches!(status, Status::Failed { .. }) {
            return Ok(());
        }
        let output = self.writer.output().iter().map(responses::Item::document);
        let items = self.input.iter().cloned().chain(output);
        let items = items.filter_map(|item| Some((item.id()?.to_owned(), item.into_json()))).collect();
        self.app.store.add_items(&self.tenant, conversation, items).await?;
        Ok(())
    }
}

fn status_of(ending: &Ending) -> Status {
    match ending {
        Ending::Answered | Ending::Refused | Ending::ClientTools(_) | Ending::AwaitsApproval { .. } => {
            Status::Completed
        }
        Ending::CutOff(CutOff::Filter) => Status::Incomplete("content_filter"),
        Ending::CutOff(CutOff::Length) | Ending::Budget(Budget::Tokens(_)) => Status::Incomplete("max_output_tokens"),
        Ending::Budget(_) => Status::Incomplete("max_messages"),
        Ending::Cancelled => Status::Cancelled,
        Ending::Upstream(error) => {
            let busy = matches!(error, UpstreamError::RateLimited { .. });
            let code = if busy { "rate_limit_exceeded" } else { "server_error" };
            Status::Failed { code, message: words_for_clients(error) }
        }
        Ending::Sandbox(_) => {
            let message =
                "The sandbox failed; the server's log says why, under the request's id (x-request-id).".to_owned();
            Status::Failed { code: "server_error", message }
        }
    }
}

/// Whether a model's server refused a conversation, for its length most likely.
fn is_too_long(ending: &Result<Ending, ApiError>) -> bool {
    matches!(ending, Ok(Ending::Upstream(UpstreamError::Rejected { status: 400 | 413 | 422, .. })))
}
