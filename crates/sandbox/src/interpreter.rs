//! A Python interpreter in a sandbox of this host: the shortest way to run programs.

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;

use crate::outcome::{ExecutionEvent, Finished, MimeBundle, Outcome, ProgramError};
use crate::{
    Backend, Error, KernelOptions, Limits, Local, LocalConfig, Require, Sandbox, SandboxId, SandboxSpec, Template,
    template,
};

/// One sandbox with one interpreter, whose variables and files stay from one program to the next.
///
/// ```no_run
/// # async fn run() -> Result<(), aludel_sandbox::Error> {
/// use aludel_sandbox::Interpreter;
///
/// let interpreter = Interpreter::new().await?;
/// assert_eq!(interpreter.run("1 + 1").await?.text(), Some("2"));
/// # Ok(())
/// # }
/// ```
///
/// It is the backend [`Local`] with defaults; use that for more. Dropping it ends the running program; [`Interpreter::close`] waits for
/// that, and [`Interpreter::close_blocking`] does so without a runtime.
#[derive(Debug)]
pub struct Interpreter {
    backend: Local,
    sandbox: Arc<dyn Sandbox>,
    disk: u64,
}

/// An interpreter to start.
#[derive(Debug, Clone)]
pub struct InterpreterBuilder {
    data: Option<PathBuf>,
    template: Option<Template>,
    limits: Limits,
    require: Require,
    environment: Vec<(String, String)>,
}

/// A program that has run.
#[derive(Debug)]
pub struct RunOutput {
    /// Text that it wrote to standard output.
    pub stdout: String,
    /// Text that it wrote to standard error.
    pub stderr: String,
    /// Figures and other displayed values, in order.
    pub displays: Vec<MimeBundle>,
    /// The value of its last expression.
    pub value: Option<MimeBundle>,
    /// The exception that ended it.
    pub error: Option<ProgramError>,
    /// Its end, with the files that it made or changed.
    pub finished: Finished,
}

impl RunOutput {
    /// The value of the last expression as text.
    pub fn text(&self) -> Option<&str> {
        self.value.as_ref()?.text()
    }

    /// Returns true if it came to its end.
    pub fn is_completed(&self) -> bool {
        self.finished.outcome == Outcome::Completed
    }
}

impl Interpreter {
    /// Starts an interpreter with the usual limits. The first time on a host, this builds the default template, which takes minutes and the
    /// network.
    pub async fn new() -> Result<Self, Error> {
        Self::builder().start().await
    }

    /// An interpreter with other limits or another place for its data.
    pub fn builder() -> InterpreterBuilder {
        InterpreterBuilder {
            data: None,
            template: None,
            limits: Limits::default(),
            require: Require::Default,
            environment: Vec::new(),
        }
    }

    /// Runs a program to its end. Programs run one at a time; the next waits. A failure of the program is no error here, but part of the
    /// result.
    pub async fn run(&self, code: &str) -> Result<RunOutput, Error> {
        let mut execution = self.sandbox.execute(code).await?;
        let (mut stdout, mut stderr) = (String::new(), String::new());
        let (mut displays, mut value, mut error) = (Vec::new(), None, None);
        while let Some(event) = execution.next().await {
            match event {
                ExecutionEvent::Stdout(text) => stdout.push_str(&text),
                ExecutionEvent::Stderr(text) => stderr.push_str(&text),
                ExecutionEvent::Display(bundle) => displays.push(bundle),
                ExecutionEvent::Result(bundle) => value = Some(bundle),
                ExecutionEvent::Error(of_program) => error = Some(of_program),
                // No tools were given to it.
                ExecutionEvent::Calls(_) => {}
                ExecutionEvent::Finished(finished) => {
                    return Ok(RunOutput { stdout, stderr, displays, value, error, finished });
                }
            }
        }
        Err(Error::KernelGone("it ended without an outcome".into()))
    }

    /// Writes a file into the working directory of programs, replacing one of that name.
    pub async fn write(&self, name: &str, bytes: impl Into<Vec<u8>>) -> Result<(), Error> {
        let (workspace, name, bytes, disk) =
            (Arc::clone(self.sandbox.workspace()), name.to_owned(), bytes.into(), self.disk);
        blocking(move || workspace.write(&name, &mut bytes.as_slice(), disk).map(drop)).await
    }

    /// Reads a whole file of that directory: at most as many bytes as the disk limit.
    pub async fn read(&self, path: &str) -> Result<Vec<u8>, Error> {
        let (workspace, path, disk) = (Arc::clone(self.sandbox.workspace()), path.to_owned(), self.disk);
        blocking(move || {
            let (file, size) = workspace.open(&path)?;
            let mut bytes = Vec::with_capacity(usize::try_from(size.min(disk)).unwrap_or(0));
            let read = file.take(disk).read_to_end(&mut bytes);
            read.map_err(|source| Error::File { path, reason: source.to_string() })?;
            Ok(bytes)
        })
        .await
    }

    /// The sandbox, for commands, ports and further interpreters.
    pub fn sandbox(&self) -> &Arc<dyn Sandbox> {
        &self.sandbox
    }

    /// Ends it, and waits until nothing of it is left.
    pub async fn close(self) -> Result<(), Error> {
        let closed = self.sandbox.close().await;
        self.backend.shutdown().await;
        closed
    }

    /// Ends it, and blocks until nothing of it is left: for callers outside of a runtime.
    pub fn close_blocking(self) {
        let Self { backend, sandbox, disk: _ } = self;
        drop(sandbox);
        backend.shutdown_blocking();
    }
}

impl InterpreterBuilder {
    /// Keeps the template, and sandboxes while they live, in this directory instead of `aludel` below `XDG_DATA_HOME`, `/var/lib/aludel`
    /// for root, or `~/.local/share/aludel`.
    #[must_use]
    pub fn data(self, directory: impl Into<PathBuf>) -> Self {
        Self { data: Some(directory.into()), ..self }
    }

    /// Starts from this template instead of the default one.
    #[must_use]
    pub fn template(self, template: Template) -> Self {
        Self { template: Some(template), ..self }
    }

    /// Sets an environment variable of its programs.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Has these limits.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Refuses to start where the host cannot enforce all of the limits.
    #[must_use]
    pub fn strict(self) -> Self {
        Self { require: Require::Strict, ..self }
    }

    /// Starts it.
    pub async fn start(self) -> Result<Interpreter, Error> {
        let Self { data, template, limits, require, environment } = self;
        let data = data.map_or_else(data_directory, Ok)?;
        let template = match template {
            Some(template) => template,
            None => {
                let of_template = data.clone();
                blocking(move || template::ensure(&of_template, false, &mut |_| ())).await?
            }
        };
        let config = LocalConfig { limits: limits.clone(), require, ..LocalConfig::new(data, template) };
        let backend = Local::start(config).await?;
        let disk = limits.disk;
        let sandbox = backend.create(SandboxId::unique(), SandboxSpec::new(limits)).await?;
        if !environment.is_empty() {
            let options = KernelOptions { environment, ..KernelOptions::default() };
            sandbox.first_kernel().configure(&options).await?;
        }
        Ok(Interpreter { backend, sandbox, disk })
    }
}

/// The default data directory of the program `aludel`.
fn data_directory() -> Result<PathBuf, Error> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let of_home = || variable("HOME").map(|home| home.join(".local/share/aludel"));
    let of_root = || rustix::process::geteuid().is_root().then(|| PathBuf::from("/var/lib/aludel"));
    let found = variable("XDG_DATA_HOME").map(|data| data.join("aludel")).or_else(of_root).or_else(of_home);
    found.ok_or_else(|| Error::Setup("there is no place for data: neither HOME nor XDG_DATA_HOME is set".into()))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Error::Over(error.to_string())),
    }
}
