//! One turn: the model is asked, what it calls is run, and it is asked again, until there is an answer or a reason to stop.

use std::sync::Arc;

use aludel_session::{Event as ExecutionEvent, Execution};
use futures_util::StreamExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::agent::{Parts, Turn};
use crate::approval::{Approval, ApprovalRequest, Approver};
use crate::event::{Budget, Ending, Event};
use crate::fenced;
use crate::flow::Sink;
use crate::interpreter::{self, CodeInterpreter};
use crate::item::{Call, Item, Output, Part, text_of};
use crate::observation::Observer;
use crate::partial_json::StringField;
use crate::upstream::{Delta, FinishReason, Request, ToolChoice, Usage};

/// A rough count of tokens, for upstreams that tell none.
const BYTES_PER_TOKEN: u64 = 4;

/// Runs a turn to its end.
pub(crate) async fn drive(parts: Arc<Parts>, items: Vec<Item>, sink: Sink<Event>, cancel: CancellationToken) -> Turn {
    let deadline = Instant::now() + parts.budgets.time;
    let mut state = State {
        parts,
        sink,
        cancel,
        deadline,
        items,
        usage: Usage::default(),
        answer: String::new(),
        tool_calls: 0,
        last_failure: None,
        ask: true,
    };
    let ending = state.rounds().await;
    state.answer_open_calls();
    state.sink.send(Event::Finished(ending.clone())).await;
    Turn { ending, answer: state.answer, items: state.items, usage: state.usage }
}

struct State {
    parts: Arc<Parts>,
    sink: Sink<Event>,
    cancel: CancellationToken,
    deadline: Instant,
    items: Vec<Item>,
    usage: Usage,
    /// The text of the last round.
    answer: String,
    tool_calls: u32,
    /// The program that failed last, if the last one did.
    last_failure: Option<String>,
    /// Whether approval is still asked for.
    ask: bool,
}

/// What the model said in one round.
#[derive(Default)]
struct Said {
    text: String,
    reasoning: String,
    calls: Vec<PendingCall>,
    refused: bool,
    usage: Option<Usage>,
    finish: Option<FinishReason>,
}

/// A call whose arguments are coming.
struct PendingCall {
    id: String,
    name: String,
    arguments: String,
    /// The live view of the program, for our own tool.
    code: Option<StringField>,
}

impl State {
    async fn rounds(&mut self) -> Ending {
        let budgets = self.parts.budgets.clone();
        for number in 1.. {
            if number > budgets.rounds {
                return Ending::Budget(Budget::Rounds(budgets.rounds));
            }
            if self.usage.total() >= budgets.tokens {
                return Ending::Budget(Budget::Tokens(budgets.tokens));
            }
            self.sink.send(Event::RoundStarted { number }).await;
            let mut said = Said::default();
            let ended = self.ask_model(number, &mut said).await;
            self.count(&said).await;
            if let Err(ending) = ended {
                // Unfinished calls are dropped: nobody knows what they would have been.
                said.calls.clear();
                self.keep(&said);
                return ending;
            }
            self.keep(&said);
            if let Some(ending) = self.after(said).await {
                return ending;
            }
        }
        Ending::Budget(Budget::Rounds(budgets.rounds))
    }

    /// Asks the model once. An error is the reason to end the turn.
    async fn ask_model(&mut self, number: u32, said: &mut Said) -> Result<(), Ending> {
        let request = self.request(number).await;
        let mut deltas = self.parts.upstream.call(request);
        loop {
            let delta = tokio::select! {
                biased;
                () = self.cancel.cancelled() => return Err(Ending::Cancelled),
                () = tokio::time::sleep_until(self.deadline) => return Err(self.out_of_time()),
                delta = deltas.next() => delta,
            };
            match delta {
                None => return Ok(()),
                Some(Err(error)) => return Err(Ending::Upstream(error)),
                Some(Ok(delta)) => self.delta(delta, said).await,
            }
        }
    }

    async fn request(&self, number: u32) -> Request {
        let parts = &self.parts;
        let mut instructions = parts.instructions.clone();
        let mut tools = Vec::new();
        if let Some(interpreter) = &parts.interpreter {
            let tool = interpreter.tool().await;
            if parts.upstream.capabilities().function_calling {
                tools.push(tool);
            } else {
                instructions =
                    [instructions.as_str(), fenced::INSTRUCTIONS, &tool.description].join("\n\n").trim().to_owned();
            }
        }
        tools.extend(parts.client_tools.iter().cloned());
        // Forced again and again, the model could never answer.
        let tool_choice = if number == 1 { parts.tool_choice.clone() } else { ToolChoice::Auto };
        Request { instructions, items: self.items.clone(), tools, tool_choice, sampling: parts.sampling.clone() }
    }

    async fn delta(&mut self, delta: Delta, said: &mut Said) {
        match delta {
            Delta::Retrying { wait, reason } => self.sink.send(Event::Retrying { wait, reason }).await,
            Delta::Text(text) => {
                said.text.push_str(&text);
                self.sink.send(Event::Text(text)).await;
            }
            Delta::Refusal(text) => {
                said.refused = true;
                said.text.push_str(&text);
                self.sink.send(Event::Text(text)).await;
            }
            Delta::Reasoning(text) => {
                said.reasoning.push_str(&text);
                self.sink.send(Event::Reasoning(text)).await;
            }
            Delta::CallStarted { id, name, .. } => {
                // Some upstreams give none, and some the same one in every round; answers are found by it.
                let usable = !id.is_empty() && !self.is_used(&id) && !said.calls.iter().any(|call| call.id == id);
                let id = if usable { id } else { format!("call_{}", crate::random::word()) };
                let ours = name == interpreter::NAME && self.parts.interpreter.is_some();
                if ours {
                    self.sink.send(Event::CodeStarted { call_id: id.clone() }).await;
                }
                let code = ours.then(|| StringField::new("code"));
                said.calls.push(PendingCall { id, name, arguments: String::new(), code });
            }
            Delta::CallArguments { index, fragment } => {
                let Some(call) = said.calls.get_mut(index) else { return };
                call.arguments.push_str(&fragment);
                let text = call.code.as_mut().map(|code| code.push(&fragment)).unwrap_or_default();
                if !text.is_empty() {
                    self.sink.send(Event::CodeDelta { call_id: call.id.clone(), text }).await;
                }
            }
            Delta::Usage(usage) => said.usage = Some(usage),
            Delta::Finished(finish) => said.finish = Some(finish),
        }
    }

    async fn count(&mut self, said: &Said) {
        let usage = said.usage.unwrap_or_else(|| {
            let written = said.text.len()
                + said.reasoning.len()
                + said.calls.iter().map(|call| call.arguments.len()).sum::<usize>();
            let read: usize = self.items.iter().map(length).sum::<usize>() + self.parts.instructions.len();
            let tokens = |bytes: usize| (bytes as u64).div_ceil(BYTES_PER_TOKEN);
            Usage { input: tokens(read), output: tokens(written), ..Usage::default() }
        });
        self.usage += usage;
        self.sink.send(Event::Usage(usage)).await;
    }

    /// Makes what the model said part of the conversation.
    fn keep(&mut self, said: &Said) {
        if !said.reasoning.is_empty() {
            self.items.push(Item::Reasoning(said.reasoning.clone()));
        }
        if !said.text.is_empty() {
            self.items.push(Item::Assistant(said.text.clone()));
        }
        self.answer.clone_from(&said.text);
        for call in &said.calls {
            // What is not JSON is wrapped, so that the upstream can read its own history.
            let arguments = match serde_json::from_str::<serde::de::IgnoredAny>(&call.arguments) {
                Ok(_) => call.arguments.clone(),
                Err(_) => serde_json::json!({ "malformed": call.arguments }).to_string(),
            };
            self.items.push(Item::Call(Call { id: call.id.clone(), name: call.name.clone(), arguments }));
        }
    }

    /// Carries out the calls. Returns the ending when there is nothing to ask the model for any more.
    async fn after(&mut self, said: Said) -> Option<Ending> {
        if said.calls.is_empty() {
            let interpreter =
                self.parts.interpreter.clone().filter(|_| !self.parts.upstream.capabilities().function_calling);
            if let Some(interpreter) = interpreter
                && let Some(code) = fenced::program(&said.text)
            {
                return self.fenced(&interpreter, code).await;
            }
            return Some(match said.finish {
                _ if said.refused => Ending::Refused,
                Some(FinishReason::Length) => Ending::CutOff { reason: "the limit of tokens for one answer" },
                Some(FinishReason::ContentFilter) => Ending::CutOff { reason: "the upstream's content filter" },
                Some(FinishReason::Stop) | None => Ending::Answered,
            });
        }
        let mut for_client = Vec::new();
        for call in said.calls {
            let result = if self.parts.client_tools.iter().any(|tool| tool.name == call.name) {
                for_client.push(Call { id: call.id, name: call.name, arguments: call.arguments });
                continue;
            } else {
                self.call(&call).await
            };
            match result {
                Ok(parts) => self.observe(&call.id, parts).await,
                Err(ending) => return Some(ending),
            }
        }
        (!for_client.is_empty()).then_some(Ending::ClientTools(for_client))
    }

    async fn fenced(&mut self, interpreter: &CodeInterpreter, code: String) -> Option<Ending> {
        let call_id = format!("call_{}", crate::random::word());
        self.sink.send(Event::CodeStarted { call_id: call_id.clone() }).await;
        match self.python(interpreter, &call_id, code).await {
            Ok(parts) => {
                self.sink.send(Event::Observation { call_id, text: text_of(&parts) }).await;
                self.items.push(Item::User(parts));
                None
            }
            Err(ending) => Some(ending),
        }
    }

    async fn observe(&mut self, call_id: &str, parts: Vec<Part>) {
        self.sink.send(Event::Observation { call_id: call_id.to_owned(), text: text_of(&parts) }).await;
        self.items.push(Item::Output(Output { call_id: call_id.to_owned(), parts }));
    }

    async fn call(&mut self, call: &PendingCall) -> Result<Vec<Part>, Ending> {
        let interpreter = match &self.parts.interpreter {
            Some(interpreter) if call.name == interpreter::NAME => interpreter.clone(),
            _ => {
                let known: Vec<_> = self.parts.interpreter.iter().map(|_| interpreter::NAME).collect();
                return Ok(self
                    .reject(&call.id, format!("There is no tool `{}`. There is: {}.", call.name, known.join(", ")))
                    .await);
            }
        };
        match interpreter::code_of(&call.arguments) {
            Ok(code) => self.python(&interpreter, &call.id, code).await,
            Err(reason) => Ok(self.reject(&call.id, reason).await),
        }
    }

    async fn reject(&self, call_id: &str, reason: String) -> Vec<Part> {
        self.sink.send(Event::CallRejected { call_id: call_id.to_owned(), reason: reason.clone() }).await;
        vec![Part::Text(reason)]
    }

    /// Asks for approval, runs the program and makes the observation.
    async fn python(
        &mut self,
        interpreter: &CodeInterpreter,
        call_id: &str,
        code: String,
    ) -> Result<Vec<Part>, Ending> {
        self.sink.send(Event::CodeFinished { call_id: call_id.to_owned(), code: code.clone() }).await;
        if self.tool_calls >= self.parts.budgets.tool_calls {
            return Err(Ending::Budget(Budget::ToolCalls(self.parts.budgets.tool_calls)));
        }
        if let Some(reason) = self.denied(interpreter, call_id, &code).await? {
            return Ok(vec![Part::Text(format!("The user did not allow this program to run: {reason}"))]);
        }
        self.tool_calls += 1;
        let execution =
            interpreter.session().execute(&code).await.map_err(|error| Ending::Sandbox(error.to_string()))?;
        let (observer, stopped) = self.watch(call_id, execution).await;
        let failed = observer.failed();
        let repeated = failed && self.last_failure.as_ref() == Some(&code);
        self.last_failure = failed.then_some(code);
        let parts = observer.into_parts(repeated, self.parts.upstream.capabilities().vision);
        match stopped {
            None => Ok(parts),
            Some(ending) => {
                self.observe(call_id, parts).await;
                Err(ending)
            }
        }
    }

    /// Passes on what the program tells, and interrupts it when the turn is to end.
    async fn watch(&self, call_id: &str, mut execution: Execution) -> (Observer, Option<Ending>) {
        let mut observer = Observer::default();
        let mut stopped = None;
        loop {
            let event = tokio::select! {
                biased;
                event = execution.next() => event,
                () = self.cancel.cancelled(), if stopped.is_none() => {
                    execution.interrupter().interrupt();
                    stopped = Some(Ending::Cancelled);
                    continue;
                }
                () = tokio::time::sleep_until(self.deadline), if stopped.is_none() => {
                    execution.interrupter().interrupt();
                    stopped = Some(self.out_of_time());
                    continue;
                }
            };
            let Some(event) = event else { return (observer, stopped) };
            observer.see(&event);
            let last = matches!(event, ExecutionEvent::Finished(_));
            self.sink.send(Event::Execution { call_id: call_id.to_owned(), event }).await;
            if last {
                return (observer, stopped);
            }
        }
    }

    /// Why the program may not run, if so.
    async fn denied(
        &mut self,
        interpreter: &CodeInterpreter,
        call_id: &str,
        code: &str,
    ) -> Result<Option<String>, Ending> {
        let ask = match interpreter.approver() {
            Approver::Callback(ask) if self.ask => Arc::clone(ask),
            _ => return Ok(None),
        };
        self.sink.send(Event::ApprovalRequested { call_id: call_id.to_owned() }).await;
        // Whoever is asked has seen the whole program.
        self.sink.drained().await;
        let answer = tokio::select! {
            biased;
            () = self.cancel.cancelled() => return Err(Ending::Cancelled),
            () = tokio::time::sleep_until(self.deadline) => return Err(self.out_of_time()),
            answer = ask(ApprovalRequest { call_id: call_id.to_owned(), code: code.to_owned() }) => answer,
        };
        let denied = match answer {
            Approval::Allow => None,
            Approval::AllowAll => {
                self.ask = false;
                None
            }
            Approval::Deny { reason } => Some(reason),
        };
        self.sink.send(Event::ApprovalDecided { call_id: call_id.to_owned(), denied: denied.clone() }).await;
        Ok(denied)
    }

    fn is_used(&self, call_id: &str) -> bool {
        self.items.iter().any(|item| matches!(item, Item::Call(call) if call.id == call_id))
    }

    fn out_of_time(&self) -> Ending {
        Ending::Budget(Budget::Time(self.parts.budgets.time))
    }

    /// Every call of ours has an answer, also when the turn ended before it came to it. The caller answers his own.
    fn answer_open_calls(&mut self) {
        let answered: Vec<String> = self
            .items
            .iter()
            .filter_map(|item| match item {
                Item::Output(output) => Some(output.call_id.clone()),
                _ => None,
            })
            .collect();
        let open: Vec<String> = self
            .items
            .iter()
            .filter_map(|item| match item {
                Item::Call(call) if !answered.contains(&call.id) => Some(call),
                _ => None,
            })
            .filter(|call| !self.parts.client_tools.iter().any(|tool| tool.name == call.name))
            .map(|call| call.id.clone())
            .collect();
        self.items.extend(open.into_iter().map(|id| Item::output(id, "This was not run: the turn ended before.")));
    }
}

fn length(item: &Item) -> usize {
    match item {
        Item::User(parts) => text_of(parts).len(),
        Item::Assistant(text) | Item::Reasoning(text) => text.len(),
        Item::Call(call) => call.arguments.len(),
        Item::Output(output) => text_of(&output.parts).len(),
    }
}
