//! The parts of an agent, and the limits of its turns.

use std::time::Duration;

use crate::interpreter::CodeInterpreter;
use crate::tool::Tool;
use crate::upstream::{FunctionTool, Sampling, ToolChoice, Upstream};

/// Everything that an agent was put together from.
pub(crate) struct AgentParts {
    pub(crate) upstream: Box<dyn Upstream>,
    /// The owner of its conversations.
    pub(crate) owner: String,
    pub(crate) instructions: String,
    pub(crate) interpreter: Option<CodeInterpreter>,
    pub(crate) client_tools: Vec<FunctionTool>,
    pub(crate) tools: Vec<Tool>,
    pub(crate) tool_choice: ToolChoice,
    pub(crate) sampling: Sampling,
    pub(crate) budgets: Budgets,
    pub(crate) max_programs: Option<u32>,
}

/// Limits of one turn. Each has its own [`crate::Budget`] ending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budgets {
    /// Calls of the model.
    pub rounds: u32,
    /// Executions, and calls of [`Tool`]s.
    pub tool_calls: u32,
    /// Tokens read and written, summed over the rounds.
    pub tokens: u64,
    /// Tokens read, summed over the rounds. No round begins after them.
    pub input_tokens: u64,
    /// Tokens written, summed over the rounds. No round begins after them.
    pub output_tokens: u64,
    /// Wall clock.
    pub time: Duration,
}

impl Default for Budgets {
    fn default() -> Self {
        Self {
            rounds: 30,
            tool_calls: 50,
            tokens: 2_000_000,
            input_tokens: u64::MAX,
            output_tokens: u64::MAX,
            time: Duration::from_secs(1800),
        }
    }
}

impl AgentParts {
    /// The functions besides the interpreter, first the client's.
    pub(crate) fn functions(&self) -> impl Iterator<Item = &FunctionTool> {
        self.client_tools.iter().chain(self.tools.iter().map(Tool::function))
    }
}
