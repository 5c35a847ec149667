//! One turn: asks the model, runs its calls, and asks again, until there is an answer or a reason to stop.

mod program;
mod reply;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use reqwest::header::HeaderMap;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Span, record_all};

use crate::event::{Budget, CutOff, Ending, Event};
use crate::fenced;
use crate::future_stream::Sink;
use crate::interpreter::{CodeInterpreter, OfferedTool};
use crate::item::{Call, CallOutput, Item, Part, text_of};
use crate::parts::AgentParts;
use crate::shell::ProgramTool;
use crate::tool::Tool;
use crate::upstream::{FinishReason, FunctionTool, ModelRequest, Sampling, TokenUsage, ToolChoice, call};
use aludel_sandbox::{ClientAnswer, KernelSpec};
use program::{Consent, Halt};
use reply::{ModelReply, PendingCall};

/// Rounds in which a model may ask for programs beyond their limit. Each time it is told about the limit.
const MAX_ROUNDS_WITHOUT_PROGRAMS: u32 = 2;
/// Tokens without which no further round begins: some servers refuse a lower limit.
pub const LEAST_TOKENS: u32 = 16;
/// The answer to a program beyond the most that the caller wants.
const NO_PROGRAMS_LEFT: &str = "No more programs can be run for this answer. Answer with what you have.";
/// The deadline if a budget is longer than the clock can count.
const FOREVER: Duration = Duration::from_secs(30 * 365 * 86_400);

/// A finished turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Reason for its end.
    pub ending: Ending,
    /// The model's last message; empty when there was none.
    pub answer: String,
    /// The whole conversation including the earlier part, to continue from.
    pub items: Vec<Item>,
    /// Tokens of all rounds.
    pub usage: TokenUsage,
}

/// Runs a turn to its end.
pub(crate) async fn drive(
    parts: Arc<AgentParts>,
    items: Vec<Item>,
    sink: Sink<Event>,
    cancel: CancellationToken,
    answers: mpsc::UnboundedReceiver<Vec<ClientAnswer>>,
) -> Turn {
    let (tools, files) = match &parts.interpreter {
        Some(interpreter) => {
            (interpreter.tools(&parts.functions().cloned().collect::<Vec<_>>()), interpreter.files().await)
        }
        None => Default::default(),
    };
    let mut state = State {
        deadline: Instant::now() + parts.budgets.time.min(FOREVER),
        first_new: items.len(),
        parts,
        tools,
        files,
        sink,
        cancel,
        answers,
        items,
        usage: TokenUsage::default(),
        answer: String::new(),
        programs: 0,
        function_calls: 0,
        rounds_without_programs: 0,
        last_failure: None,
        needs_approval: true,
    };
    let ending = state.rounds().await;
    state.answer_open_calls(&ending).await;
    Span::current().record("ending", ending.name());
    state.sink.send(Event::Finished(ending.clone())).await;
    Turn { ending, answer: state.answer, items: state.items, usage: state.usage }
}

struct State {
    parts: Arc<AgentParts>,
    /// Our own tools, the interpreter first. They are the same in every turn: an upstream may cache the beginning of its requests.
    tools: Vec<OfferedTool>,
    /// The files at the beginning of the turn, for the model: every output reports changes.
    files: Option<String>,
    sink: Sink<Event>,
    cancel: CancellationToken,
    /// The caller's answers to calls that programs make.
    answers: mpsc::UnboundedReceiver<Vec<ClientAnswer>>,
    deadline: Instant,
    items: Vec<Item>,
    /// Index of this turn's first item.
    first_new: usize,
    usage: TokenUsage,
    /// The text of the last round.
    answer: String,
    programs: u32,
    /// Calls of functions of this program.
    function_calls: u32,
    /// Rounds that only asked for programs beyond the limit.
    rounds_without_programs: u32,
    /// The last program, if it failed.
    last_failure: Option<String>,
    /// True while programs need approval.
    needs_approval: bool,
}

impl State {
    async fn rounds(&mut self) -> Ending {
        let budgets = self.parts.budgets.clone();
        if let Err(ending) = self.run_approved().await {
            return ending;
        }
        for number in 1.. {
            if number > budgets.rounds {
                return Ending::Budget(Budget::Rounds(budgets.rounds));
            }
            if self.usage.total() >= budgets.tokens {
                return Ending::Budget(Budget::Tokens(budgets.tokens));
            }
            if self.usage.input >= budgets.input_tokens {
                return Ending::Budget(Budget::InputTokens(budgets.input_tokens));
            }
            if self.usage.output >= budgets.output_tokens {
                return Ending::Budget(Budget::OutputTokens(budgets.output_tokens));
            }
            if number > 1 && self.tokens_left().is_some_and(|left| left < LEAST_TOKENS) {
                return Ending::CutOff(CutOff::Length);
            }
            self.sink.send(Event::RoundStarted { number }).await;
            let mut reply = self.new_reply();
            let ended = self.ask_model(number, &mut reply).await;
            self.count(&reply, ended.is_ok()).await;
            if let Err(ending) = ended {
                // Incomplete calls are dropped.
                reply.calls.clear();
                self.record(&reply).await;
                return ending;
            }
            self.record(&reply).await;
            if reply.calls.is_empty() {
                return ending_of(&reply);
            }
            if let Some(ending) = self.run_calls(reply).await {
                return ending;
            }
        }
        Ending::Budget(Budget::Rounds(budgets.rounds))
    }

    /// The reply of the next round, empty.
    fn new_reply(&self) -> ModelReply {
        // A program that cannot run any more is not shown.
        let ours = self.tools.iter().filter(|_| !self.has_no_programs_left());
        let ours: Vec<(String, ProgramTool)> = ours.map(|tool| (tool.function.name.clone(), tool.kind)).collect();
        let taken: HashSet<String> = self
            .items
            .iter()
            .filter_map(|item| match item {
                Item::Call(call) => Some(call.id.clone()),
                _ => None,
            })
            .collect();
        if self.calls_functions() {
            return ModelReply::of_calls(ours, taken);
        }
        ModelReply::of_text(ours, self.kernel().map(|kernel| kernel.fences.clone()).unwrap_or_default(), taken)
    }

    /// The language of the programs, if any can be run.
    fn kernel(&self) -> Option<&KernelSpec> {
        self.parts.interpreter.as_ref().map(CodeInterpreter::kernel)
    }

    fn calls_functions(&self) -> bool {
        self.parts.upstream.capabilities().function_calling
    }

    /// Asks the model once. An error is the reason to end the turn.
    async fn ask_model(&mut self, number: u32, reply: &mut ModelReply) -> Result<(), Ending> {
        let budget = self.parts.budgets.tokens;
        let mut deltas = call::call(&*self.parts.upstream, self.request(number));
        while !reply.is_complete() {
            let delta = tokio::select! {
                biased;
                ending = self.stopped() => return Err(ending),
                delta = deltas.next() => delta,
            };
            let Some(delta) = delta else { break };
            self.send(reply.read(delta.map_err(Ending::Upstream)?)).await;
            if self.usage.total().saturating_add(reply.least_tokens()) > budget {
                return Err(Ending::Budget(Budget::Tokens(budget)));
            }
        }
        self.send(reply.end()).await;
        Ok(())
    }

    async fn send(&self, events: Vec<Event>) {
        for event in events {
            self.sink.send(event).await;
        }
    }

    /// Waits for a reason to end the turn, during any other wait.
    async fn stopped(&self) -> Ending {
        stopped(&self.cancel, self.deadline, self.parts.budgets.time).await
    }

    /// Tokens that the answer may still have; `None` without a limit. All rounds of a turn are one answer.
    fn tokens_left(&self) -> Option<u32> {
        let most = self.parts.sampling.max_output_tokens?;
        Some(most.saturating_sub(u32::try_from(self.usage.output).unwrap_or(u32::MAX)))
    }

    /// The conversation for the model. The files are named with the last message of the user: what comes before it has been read before.
    fn items_with_files(&self) -> Vec<Item> {
        let mut items = self.items.clone();
        if let Some(files) = &self.files {
            let mut earlier = items.iter_mut().take(self.first_new).rev();
            let note = Part::Text(files.clone());
            match earlier.find_map(|item| if let Item::User(parts) = item { Some(parts) } else { None }) {
                Some(parts) => parts.push(note),
                None => items.insert(self.first_new, Item::User(vec![note])),
            }
        }
        items
    }

    fn request(&self, number: u32) -> ModelRequest {
        let parts = &self.parts;
        let sampling = Sampling {
            max_output_tokens: self.tokens_left(),
            whole_output_tokens: parts.sampling.max_output_tokens,
            ..parts.sampling.clone()
        };
        let headers = HeaderMap::new();
        if !self.calls_functions() {
            let mut instructions = vec![parts.instructions.clone()];
            if let (Some(tool), Some(kernel)) = (self.tools.first(), self.kernel()) {
                instructions.extend([fenced::instructions(kernel), tool.function.description.clone()]);
            }
            let instructions = instructions.join("\n\n").trim().to_owned();
            let items = fenced::as_text(&self.items_with_files(), self.kernel().map_or("", KernelSpec::fence));
            return ModelRequest {
                owner: parts.owner.clone(),
                instructions,
                items,
                tools: Vec::new(),
                tool_choice: ToolChoice::Auto,
                sampling,
                headers,
            };
        }
        // If it were forced in every round, the model could never answer.
        let tool_choice = if number == 1 { parts.tool_choice.clone() } else { ToolChoice::Auto };
        // A removed tool could be called all the same, and an upstream may cache the beginning of its requests.
        let tool_choice = if self.has_no_programs_left() && parts.functions().next().is_none() {
            ToolChoice::None
        } else {
            tool_choice
        };
        let tools = self.functions().cloned().collect();
        ModelRequest {
            owner: parts.owner.clone(),
            instructions: parts.instructions.clone(),
            items: self.items_with_files(),
            tools,
            tool_choice,
            sampling,
            headers,
        }
    }

    /// Counts the tokens of a round: the upstream's own figure, or an estimate. A request that failed without an answer counts none.
    async fn count(&mut self, reply: &ModelReply, answered: bool) {
        if !answered && reply.is_empty() && reply.usage.is_none() {
            return;
        }
        let mut usage = reply.usage.unwrap_or_else(|| {
            let input = estimated_tokens(&self.items, &self.parts.instructions);
            TokenUsage { input, output: reply.tokens(), ..TokenUsage::default() }
        });
        if reply.finish.is_none() {
            // The figure may be the one of the beginning: nobody read the answer to its end.
            usage.output = usage.output.max(reply.tokens());
        }
        self.usage += usage;
        record_all!(Span::current(), input_tokens = self.usage.input, output_tokens = self.usage.output);
        self.sink.send(Event::Usage(usage)).await;
    }

    /// Makes what the model said part of the conversation.
    async fn record(&mut self, reply: &ModelReply) {
        if !reply.reasoning.is_empty() {
            self.push(Item::Reasoning(reply.reasoning.clone())).await;
        }
        if !reply.text.is_empty() {
            self.push(Item::Assistant(reply.text.clone())).await;
        }
        self.answer.clone_from(&reply.text);
        for call in &reply.calls {
            self.push(Item::Call(call.item())).await;
        }
    }

    /// Adds an item to the conversation.
    async fn push(&mut self, item: Item) {
        self.sink.send(Event::Item(item.clone())).await;
        self.items.push(item);
    }

    /// Runs the calls of a reply. Returns the ending if the turn is over.
    async fn run_calls(&mut self, reply: ModelReply) -> Option<Ending> {
        if let Some(ending) = self.refuse_cut_off(&reply).await {
            return Some(ending);
        }
        let cut_off = reply.finish == Some(FinishReason::Length);
        let mut for_client: Vec<Call> = Vec::new();
        let mut waiting: Vec<Call> = Vec::new();
        if self.has_no_programs_left() && reply.calls.iter().all(|call| self.ours(&call.name).is_some()) {
            self.rounds_without_programs += 1;
        }
        for call in &reply.calls {
            if self.is_of_caller(&call.name) {
                for_client.push(call.item());
                continue;
            }
            if let Some(tool) = self.parts.tools.iter().find(|tool| tool.function().name == call.name).cloned() {
                match self.call_function(&tool, &call.id, &call.arguments, cut_off).await {
                    Ok(parts) => self.observe(&call.id, parts).await,
                    Err(ending) => return Some(ending),
                }
                continue;
            }
            if self.ours(&call.name).is_some() && !call.is_shown() {
                self.observe(&call.id, vec![Part::Text(NO_PROGRAMS_LEFT.to_owned())]).await;
                continue;
            }
            match self.call(&call.id, &call.name, &call.arguments, cut_off, Consent::Asked).await {
                Ok(parts) => self.observe(&call.id, parts).await,
                Err(Halt::Waits) => waiting.push(call.item()),
                Err(Halt::Ends(ending)) => return Some(ending),
            }
        }
        if !waiting.is_empty() {
            return Some(Ending::AwaitsApproval { programs: waiting, client_tools: for_client });
        }
        if !for_client.is_empty() {
            return Some(Ending::ClientTools(for_client));
        }
        let most = self.parts.max_programs.unwrap_or_default();
        (self.rounds_without_programs == MAX_ROUNDS_WITHOUT_PROGRAMS).then_some(Ending::Budget(Budget::ToolCalls(most)))
    }

    /// Ends the turn if a call of the caller's tools was cut off: the caller would run it with a part of its arguments.
    async fn refuse_cut_off(&mut self, reply: &ModelReply) -> Option<Ending> {
        let ending = ending_of(reply);
        let Ending::CutOff(by) = &ending else { return None };
        let is_cut_off = |call: &&PendingCall| self.is_of_caller(&call.name) && !call.is_whole();
        let cut_off: Vec<&PendingCall> = reply.calls.iter().filter(is_cut_off).collect();
        for call in &cut_off {
            let parts = self.reject(&call.id, format!("The call was cut off by {by}.")).await;
            self.observe(&call.id, parts).await;
        }
        (!cut_off.is_empty()).then_some(ending)
    }

    /// All tools of the model, ours first.
    fn functions(&self) -> impl Iterator<Item = &FunctionTool> {
        self.tools.iter().map(|tool| &tool.function).chain(self.parts.functions())
    }

    /// Our tool of this name.
    fn ours(&self, name: &str) -> Option<ProgramTool> {
        self.tools.iter().find(|tool| tool.function.name == name).map(|tool| tool.kind)
    }

    /// Returns true for a tool that the caller runs.
    fn is_of_caller(&self, name: &str) -> bool {
        self.parts.client_tools.iter().any(|tool| tool.name == name)
    }

    async fn observe(&mut self, call_id: &str, parts: Vec<Part>) {
        self.sink.send(Event::Observation { call_id: call_id.to_owned(), text: text_of(&parts) }).await;
        self.push(Item::Output(CallOutput { call_id: call_id.to_owned(), parts })).await;
    }

    /// Runs the calls of our tools that an earlier turn left open: they have been approved since.
    async fn run_approved(&mut self) -> Result<(), Ending> {
        for call in open_calls(&self.items) {
            if self.ours(&call.name).is_none() {
                continue;
            }
            match self.call(&call.id, &call.name, &call.arguments, false, Consent::Given).await {
                Ok(parts) => self.observe(&call.id, parts).await,
                // No approval is pending here.
                Err(Halt::Waits) => {}
                Err(Halt::Ends(ending)) => return Err(ending),
            }
        }
        Ok(())
    }

    async fn call(
        &mut self,
        id: &str,
        name: &str,
        arguments: &str,
        cut_off: bool,
        consent: Consent,
    ) -> Result<Vec<Part>, Halt> {
        let (interpreter, tool) = match (&self.parts.interpreter, self.ours(name)) {
            (Some(interpreter), Some(tool)) => (interpreter.clone(), tool),
            _ => return Ok(self.reject(id, self.no_such_tool(name)).await),
        };
        if self.has_no_programs_left() {
            return Ok(self.reject(id, NO_PROGRAMS_LEFT.to_owned()).await);
        }
        match tool.program(arguments) {
            Ok(program) => self.run(&interpreter, id, program, consent).await,
            Err(_) if cut_off => {
                let reason = "The call was cut off by the limit of tokens for one answer. Write a shorter program.";
                Ok(self.reject(id, reason.to_owned()).await)
            }
            Err(reason) => Ok(self.reject(id, reason).await),
        }
    }

    /// Calls a function of this program.
    async fn call_function(
        &mut self,
        tool: &Tool,
        call_id: &str,
        arguments: &str,
        cut_off: bool,
    ) -> Result<Vec<Part>, Ending> {
        if cut_off {
            let reason = "The call was cut off by the limit of tokens for one answer.";
            return Ok(self.reject(call_id, reason.to_owned()).await);
        }
        self.check_calls()?;
        self.function_calls += 1;
        tokio::select! {
            biased;
            ending = self.stopped() => Err(ending),
            text = tool.call(arguments) => Ok(vec![Part::Text(text)]),
        }
    }

    /// Checks that another call may be carried out.
    fn check_calls(&self) -> Result<(), Ending> {
        let most = self.parts.budgets.tool_calls;
        if self.programs + self.function_calls >= most {
            return Err(Ending::Budget(Budget::ToolCalls(most)));
        }
        Ok(())
    }

    /// Returns true once the caller's limit of programs is reached. Unlike after a budget, the model can still answer.
    fn has_no_programs_left(&self) -> bool {
        self.parts.max_programs.is_some_and(|most| self.programs >= most)
    }

    fn no_such_tool(&self, name: &str) -> String {
        let known: Vec<&str> = self.functions().map(|tool| tool.name.as_str()).collect();
        let callable = self.parts.interpreter.as_ref().and_then(|interpreter| interpreter.callable().function_of(name));
        if let (Some(function), Some(program)) = (callable, self.tools.first()) {
            return format!(
                "`{name}` is called in programs: `await {function}({{…}})` in a call of `{}`.",
                program.function.name
            );
        }
        if known.is_empty() {
            format!("There is no tool `{name}`. There are no tools; answer in words.")
        } else {
            format!("There is no tool `{name}`. There is: {}.", known.join(", "))
        }
    }

    async fn reject(&self, call_id: &str, reason: String) -> Vec<Part> {
        self.sink.send(Event::CallRejected { call_id: call_id.to_owned(), reason: reason.clone() }).await;
        vec![Part::Text(reason)]
    }

    /// Adds an answer to every open call of this turn, because every call must have one, except those for the caller to answer.
    async fn answer_open_calls(&mut self, ending: &Ending) {
        let left_open: Vec<&Call> = match ending {
            Ending::ClientTools(calls) => calls.iter().collect(),
            Ending::AwaitsApproval { programs, client_tools } => programs.iter().chain(client_tools).collect(),
            _ => Vec::new(),
        };
        let open = open_calls(self.items.get(self.first_new..).unwrap_or_default());
        for call in open.into_iter().filter(|call| !left_open.iter().any(|left| left.id == call.id)) {
            self.push(Item::output(call.id, "This was not run: the turn ended before.")).await;
        }
    }
}

/// The ending of a turn with this reply, if nothing is to be called.
fn ending_of(reply: &ModelReply) -> Ending {
    match reply.finish {
        _ if reply.refused => Ending::Refused,
        Some(FinishReason::Length) => Ending::CutOff(CutOff::Length),
        Some(FinishReason::ContentFilter) => Ending::CutOff(CutOff::Filter),
        Some(FinishReason::Stop) | None => Ending::Answered,
    }
}

/// Waits until a turn is cancelled, or has used up its time.
async fn stopped(cancel: &CancellationToken, deadline: Instant, budget: Duration) -> Ending {
    tokio::select! {
        biased;
        () = cancel.cancelled() => Ending::Cancelled,
        () = tokio::time::sleep_until(deadline) => Ending::Budget(Budget::Time(budget)),
    }
}

/// The calls that have no output.
fn open_calls(items: &[Item]) -> Vec<Call> {
    let mut open: Vec<Call> = Vec::new();
    for item in items {
        match item {
            Item::Call(call) => open.push(call.clone()),
            Item::Output(output) => open.retain(|call| call.id != output.call_id),
            _ => {}
        }
    }
    open
}

/// About as many tokens as a conversation has.
pub fn estimated_tokens(items: &[Item], instructions: &str) -> u64 {
    let length_of = |part: &Part| if let Part::Text(text) = part { text.len() } else { 0 };
    let length = |item: &Item| match item {
        Item::User(parts) => parts.iter().map(length_of).sum(),
        Item::Assistant(text) | Item::Reasoning(text) => text.len(),
        Item::Call(call) => call.arguments.len(),
        Item::Output(output) => output.parts.iter().map(length_of).sum(),
    };
    reply::tokens(items.iter().map(length).sum::<usize>() + instructions.len())
}
