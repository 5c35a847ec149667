//! The tool that runs programs.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use aludel_sandbox::{Cell, Execution, Interpreter, KernelSpec, Limits};

use crate::approval::{ApprovalDecision, ApprovalRequest, Approver};
use crate::callable::Callable;
use crate::excerpt;
use crate::observation::size;
use crate::runtime::{BareSandbox, Runtime, RuntimeError};
use crate::shell::{self, ProgramTool};
use crate::upstream::{FunctionTool, free_name};

/// Files that the model is told of.
const MAX_FILES: usize = 40;
/// A tool that runs the programs a model writes.
#[derive(Clone)]
pub struct CodeInterpreter {
    runtime: Arc<dyn Runtime>,
    packages: Vec<String>,
    approver: Approver,
    /// True if the model also has a shell and an editor.
    has_shell: bool,
    /// Tools of the caller's that programs call.
    callable: Callable,
}

/// A tool of ours as it is offered to a model.
#[derive(Debug, Clone)]
pub(crate) struct OfferedTool {
    pub(crate) kind: ProgramTool,
    pub(crate) function: FunctionTool,
}

impl fmt::Debug for CodeInterpreter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CodeInterpreter").field("approver", &self.approver).finish_non_exhaustive()
    }
}

impl From<&Interpreter> for CodeInterpreter {
    /// Runs programs in an interpreter that others may use too.
    fn from(interpreter: &Interpreter) -> Self {
        Self::new(Arc::new(BareSandbox(Arc::clone(interpreter.sandbox()))))
    }
}

impl CodeInterpreter {
    /// Runs programs there, without asking.
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self {
            runtime,
            packages: Vec::new(),
            approver: Approver::Nobody,
            has_shell: false,
            callable: Callable::default(),
        }
    }

    /// The tool's name for a model, which differs from the names of the caller's tools.
    pub fn name_beside(kernel: &KernelSpec, others: &[FunctionTool]) -> String {
        free_name(&kernel.tool_name, others)
    }

    /// Also offers a shell and an editor, if the kernel's language is Python.
    #[must_use]
    pub fn with_shell(mut self, has_shell: bool) -> Self {
        self.has_shell = has_shell && self.kernel().language == shell::LANGUAGE;
        self
    }

    /// Lets programs call tools of the caller, if the kernel's language is Python. A call is an [`aludel_sandbox::ExecutionEvent::Calls`]
    /// of the program, which waits for [`crate::Answerer::answer`].
    #[must_use]
    pub fn with_callable(mut self, tools: Vec<FunctionTool>) -> Self {
        if self.kernel().language == shell::LANGUAGE {
            self.callable = Callable::new(tools);
        }
        self
    }

    /// Sets the installed packages, which the tool's description lists for the model.
    #[must_use]
    pub fn packages<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.packages = names.into_iter().map(Into::into).collect();
        self
    }

    /// Asks before each program. All events before the question have been read from the stream by then. The turn's wall clock runs during
    /// the callback.
    #[must_use]
    pub fn approve<F, R>(mut self, ask: F) -> Self
    where
        F: Fn(ApprovalRequest) -> R + Send + Sync + 'static,
        R: Future<Output = ApprovalDecision> + Send + 'static,
    {
        self.approver = Approver::callback(ask);
        self
    }

    /// Starts a program. Commands and changes of files call no tools.
    pub(crate) async fn execute(&self, tool: ProgramTool, code: &str) -> Result<Execution, RuntimeError> {
        let tools = match tool {
            ProgramTool::Interpreter => self.callable.functions(),
            ProgramTool::Bash | ProgramTool::Editor => &[],
        };
        self.runtime.execute(Cell { tools, ..Cell::new(code) }).await
    }

    pub(crate) fn callable(&self) -> &Callable {
        &self.callable
    }

    /// The language of the programs.
    pub(crate) fn kernel(&self) -> &KernelSpec {
        self.runtime.kernel()
    }

    pub(crate) fn approver(&self) -> &Approver {
        &self.approver
    }

    /// The tools as offered to the model, under names that differ from those of the caller's tools. The first one runs programs.
    pub(crate) fn tools(&self, others: &[FunctionTool]) -> Vec<OfferedTool> {
        let mut tools = vec![OfferedTool { kind: ProgramTool::Interpreter, function: self.tool(others) }];
        if self.has_shell {
            let beside = [ProgramTool::Bash, ProgramTool::Editor].into_iter();
            tools.extend(beside.map(|kind| OfferedTool { kind, function: kind.offered(others) }));
        }
        tools
    }

    fn tool(&self, others: &[FunctionTool]) -> FunctionTool {
        let kernel = self.kernel();
        let description = self.description(kernel, self.runtime.limits());
        let code = format!("The {} program to run.", kernel.title);
        FunctionTool {
            name: Self::name_beside(kernel, others),
            description,
            parameters: serde_json::json!({
                "type": "object",
                "properties": { "code": { "type": "string", "description": code } },
                "required": ["code"],
                "additionalProperties": false,
            })
            .into(),
            strict: None,
        }
    }

    fn description(&self, kernel: &KernelSpec, limits: &Limits) -> String {
        let mut text = format!(
            "{} The working directory is /mnt/data: the user's files are there, and what you save there is given to the user; refer to it as \
             [name](sandbox:/mnt/data/name). {} There is no network. One call \
             may take {} s and all together {} of memory.",
            kernel.description,
            kernel.advice,
            limits.timeout.as_secs(),
            size(limits.memory),
        );
        if !self.packages.is_empty() {
            let _ = write!(text, " Installed: {}.", self.packages.join(", "));
        }
        text.push_str(&self.callable.description());
        text
    }

    /// The files that are there now, for the model; `None` without any.
    pub(crate) async fn files(&self) -> Option<String> {
        let files = self.runtime.files().await;
        let named = files.iter().take(MAX_FILES);
        let mut names: Vec<_> =
            named.map(|file| format!("/mnt/data/{} ({})", excerpt::path(&file.path), size(file.size))).collect();
        if files.len() > MAX_FILES {
            names.push(format!("and {} more", files.len() - MAX_FILES));
        }
        (!names.is_empty()).then(|| format!("[Files now: {}]", names.join(", ")))
    }
}
