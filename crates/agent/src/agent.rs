//! The public interface: an agent has a model, instructions, tools and budgets, and answers one question at a time.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use aludel_ignore::Ignore;
use aludel_sandbox::ClientAnswer;
use futures_util::{Stream, StreamExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::field::Empty;
use tracing::{Instrument, info_span};

use crate::event::{Ending, Event};
use crate::future_stream::FutureStream;
use crate::interpreter::CodeInterpreter;
use crate::item::Item;
use crate::parts::{AgentParts, Budgets};
use crate::tool::Tool;
use crate::turn::{self, Turn};
use crate::upstream::{FunctionTool, Sampling, TokenUsage, ToolChoice, Upstream};

/// A model with a code interpreter. Cheap to clone.
#[derive(Clone)]
pub struct Agent(Arc<AgentParts>);

/// Puts an agent together.
pub struct AgentBuilder(AgentParts);

impl Agent {
    /// Starts to put an agent together.
    pub fn builder(upstream: impl Upstream + 'static) -> AgentBuilder {
        AgentBuilder(AgentParts {
            upstream: Box::new(upstream),
            owner: String::new(),
            instructions: String::new(),
            interpreter: None,
            client_tools: Vec::new(),
            tools: Vec::new(),
            tool_choice: ToolChoice::Auto,
            sampling: Sampling::default(),
            budgets: Budgets::default(),
            max_programs: None,
        })
    }

    /// Answers a question.
    pub async fn run(&self, question: impl Into<String>) -> Turn {
        self.resume(vec![Item::user(question)]).wait().await
    }

    /// Answers a question and sends events meanwhile.
    pub fn run_streamed(&self, question: impl Into<String>) -> TurnStream {
        self.resume(vec![Item::user(question)])
    }

    /// Continues a conversation whose last item is a user's message or a tool's answer.
    pub fn resume(&self, items: Vec<Item>) -> TurnStream {
        let cancel = CancellationToken::new();
        let (answers, answered) = mpsc::unbounded_channel();
        let (parts, token) = (Arc::clone(&self.0), cancel.clone());
        let span = info_span!("turn", input_tokens = Empty, output_tokens = Empty, ending = Empty);
        TurnStream {
            flow: FutureStream::new(|sink| turn::drive(parts, items, sink, token, answered).instrument(span)),
            cancel,
            answers: Answerer(answers),
        }
    }
}

impl AgentBuilder {
    /// The owner of its conversations, by any name. Thoughts that a model's server requires back are kept for one owner alone.
    #[must_use]
    pub fn owner(mut self, name: impl Into<String>) -> Self {
        self.0.owner = name.into();
        self
    }

    /// The system prompt.
    #[must_use]
    pub fn instructions(mut self, text: impl Into<String>) -> Self {
        self.0.instructions = text.into();
        self
    }

    /// Lets the model run programs.
    #[must_use]
    pub fn code_interpreter(mut self, interpreter: CodeInterpreter) -> Self {
        self.0.interpreter = Some(interpreter);
        self
    }

    /// Adds a function of this program, which the model may call at any time and without approval. A model without function calling does
    /// not get it.
    #[must_use]
    pub fn tool(mut self, tool: Tool) -> Self {
        self.0.tools.push(tool);
        self
    }

    /// Adds a function that the caller runs: a call of it ends the turn with [`Ending::ClientTools`]. A model without function calling does
    /// not get it.
    #[must_use]
    pub fn client_tool(mut self, tool: FunctionTool) -> Self {
        self.0.client_tools.push(tool);
        self
    }

    /// Sets the tool that the model must call in the first round; in later rounds it chooses itself.
    #[must_use]
    pub fn tool_choice(mut self, choice: ToolChoice) -> Self {
        self.0.tool_choice = choice;
        self
    }

    /// Sets the sampling parameters.
    #[must_use]
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.0.sampling = sampling;
        self
    }

    /// Limits the programs of a turn. After them the model has to answer with what it has; a budget, by contrast, ends the turn.
    #[must_use]
    pub fn max_programs(mut self, count: u32) -> Self {
        self.0.max_programs = Some(count);
        self
    }

    /// Sets the limits of one turn.
    #[must_use]
    pub fn budgets(mut self, budgets: Budgets) -> Self {
        self.0.budgets = budgets;
        self
    }

    /// The agent.
    pub fn build(self) -> Agent {
        Agent(Arc::new(self.0))
    }
}

/// A running turn: a stream of its events. It advances only while it is polled; dropping it interrupts the program and ends the request to
/// the model.
pub struct TurnStream {
    flow: FutureStream<Event, Turn>,
    cancel: CancellationToken,
    answers: Answerer,
}

/// A handle that answers the calls of a turn's programs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Answerer(mpsc::UnboundedSender<Vec<ClientAnswer>>);

impl Answerer {
    /// Answers the last calls of the running program, in order. The program continues when the turn's stream is polled again.
    pub fn answer(&self, answers: Vec<ClientAnswer>) {
        self.0.send(answers).ignore("the turn may have ended and needs no answers");
    }
}

impl TurnStream {
    /// A handle that cancels the turn. The stream then goes on until the program has ended, and its ending is [`Ending::Cancelled`].
    pub fn canceller(&self) -> CancellationToken {
        self.cancel.clone()
    }

    /// A handle that answers the calls of its programs.
    pub fn answerer(&self) -> Answerer {
        self.answers.clone()
    }

    /// The finished turn; `None` before the stream's end, and on later calls.
    pub fn turn(&mut self) -> Option<Turn> {
        self.flow.output()
    }

    /// Reads to the end and returns the finished turn.
    pub async fn wait(mut self) -> Turn {
        while self.next().await.is_some() {}
        match self.turn() {
            Some(turn) => turn,
            // The future has an output at its end, unless it was taken, which only `turn` does.
            None => Turn {
                ending: Ending::Cancelled,
                answer: String::new(),
                items: Vec::new(),
                usage: TokenUsage::default(),
            },
        }
    }
}

impl Stream for TurnStream {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.flow.poll_next_unpin(context)
    }
}
