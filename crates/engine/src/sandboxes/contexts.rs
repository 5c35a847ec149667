//! The kernels of a sandbox, as its client knows them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use aludel_agent::{Runtime, RuntimeError};
use aludel_sandbox::{
    Cell, Error as SandboxError, Execution, FileEntry, Kernel, KernelOptions, KernelSpec, Language, Limits, NoLanguage,
    Sandbox,
};
use aludel_store::random_hex;
use futures_util::future::BoxFuture;
use tokio::sync::Mutex;

use super::{HOME, USER_VARIABLES};
use crate::approvals::KernelPrograms;
use crate::environment::check_names;
use crate::executions::ProgramTarget;
use crate::meter::Leftovers;
use crate::processor_time::ProcessorShare;
use crate::{Error, Missing};

/// Bytes of the longest path that Linux takes.
const MAX_PATH: usize = 4096;
/// Contexts of one sandbox, with those whose kernels have died. Of kernels that live there may be fewer.
const MAX_CONTEXTS: usize = 256;

/// The contexts of one sandbox, the default one first.
pub struct Contexts {
    starter: Arc<KernelStarter>,
    leftovers: Arc<Leftovers>,
    known: Mutex<Vec<Arc<Context>>>,
    /// Held while a language's own context is looked for and made.
    making: Mutex<()>,
}

/// The means of starting kernels in one sandbox.
struct KernelStarter {
    sandbox: Arc<dyn Sandbox>,
    sandbox_id: String,
    environment: Vec<(String, String)>,
    share: ProcessorShare,
}

/// A context: a kernel that can be restarted.
pub struct Context {
    id: String,
    directory: String,
    language: Option<Language>,
    /// `None` until its kernel is started.
    running: Mutex<Option<Running>>,
    executions: AtomicU64,
    /// True if a client has heard that the variables are lost.
    is_loss_told: AtomicBool,
}

/// The kernel of a context, and its programs.
#[derive(Clone)]
struct Running {
    kernel: Arc<dyn Kernel>,
    /// True if the kernel has its directory and variables. The first kernel gets them with its first program: many sandboxes run none, and
    /// then need not start it.
    is_configured: bool,
    kernel_programs: Arc<KernelPrograms>,
}

impl fmt::Debug for Contexts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Contexts").field("sandbox", &self.starter.sandbox_id).finish_non_exhaustive()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Context").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Context {
    fn new(running: Option<Running>, directory: &str, language: Option<Language>) -> Arc<Self> {
        let id = format!("{:.32}", random_hex());
        let (directory, running) = (directory.to_owned(), Mutex::new(running));
        Arc::new(Self {
            id,
            directory,
            language,
            running,
            executions: AtomicU64::new(0),
            is_loss_told: AtomicBool::new(false),
        })
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The directory in which its programs start.
    pub fn directory(&self) -> &str {
        &self.directory
    }

    /// The language of its programs; `None` for the sandbox's own.
    pub fn language(&self) -> Option<&Language> {
        self.language.as_ref()
    }

    /// Notes that a client has heard of the loss of the variables. Otherwise the next program's outcome has
    /// [`VariablesState::Restarted`](aludel_sandbox::VariablesState::Restarted).
    pub fn note_told_loss(&self) {
        self.is_loss_told.store(true, Ordering::Relaxed);
    }

    /// Counts a program that starts in it, and returns its number, from 1.
    pub fn count(&self) -> u64 {
        self.executions.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl Contexts {
    /// Makes the sandbox's first kernel the default context.
    pub(super) fn new(
        sandbox: Arc<dyn Sandbox>,
        leftovers: Arc<Leftovers>,
        sandbox_id: &str,
        environment: &BTreeMap<String, String>,
        share: ProcessorShare,
    ) -> Self {
        let own = USER_VARIABLES.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let all: BTreeMap<_, _> = own.into_iter().chain(environment.clone()).collect();
        let environment = all.into_iter().collect();
        let kernel_programs = KernelPrograms::of_language(sandbox_id, None);
        let running = Running { kernel: sandbox.first_kernel(), is_configured: false, kernel_programs };
        let known = Mutex::new(vec![Context::new(Some(running), HOME, None)]);
        let starter = Arc::new(KernelStarter { sandbox, sandbox_id: sandbox_id.to_owned(), environment, share });
        Self { starter, leftovers, known, making: Mutex::default() }
    }

    /// The language of this name; `None` if it is the sandbox's own.
    pub fn language(&self, name: &str) -> Result<Option<Language>, Error> {
        let language: Language = name
            .parse()
            .map_err(|error: NoLanguage| Error::Invalid { field: "language", reason: error.to_string() })?;
        Ok((language.as_str() != self.starter.sandbox.kernel().language).then_some(language))
    }

    /// Starts a further kernel; without a language, of the sandbox's own.
    pub async fn create(&self, directory: Option<&str>, language: Option<Language>) -> Result<Arc<Context>, Error> {
        let directory = directory.unwrap_or(HOME);
        if directory.len() > MAX_PATH {
            let reason = format!("a path has at most {MAX_PATH} bytes");
            return Err(Error::Invalid { field: "cwd", reason });
        }
        self.release_dead_kernels().await?;
        let running = self.starter.start(directory, language.as_ref()).await?;
        let mut known = self.known.lock().await;
        // Others may have come while it started.
        if known.len() >= MAX_CONTEXTS {
            drop(known);
            running.kernel.close().await;
            return Err(too_many());
        }
        let context = Context::new(Some(running), directory, language);
        known.push(Arc::clone(&context));
        Ok(context)
    }

    /// Lists a context for each further language that the sandbox is known to have, unless there is one. Its kernel starts on first use.
    pub async fn list_further(&self) {
        let _one_at_a_time = self.making.lock().await;
        let mut known = self.known.lock().await;
        for language in &self.starter.sandbox.kernel().further {
            if !known.iter().any(|context| context.language.as_ref() == Some(language)) {
                known.push(Context::new(None, HOME, Some(language.clone())));
            }
        }
    }

    /// Releases the kernels that have died: each holds descriptors of this process. Their contexts get new ones on next use. Fails if there
    /// are too many contexts.
    async fn release_dead_kernels(&self) -> Result<(), Error> {
        let known = self.known.lock().await;
        for context in &*known {
            // One that is in use is released by its user.
            let Ok(mut running) = context.running.try_lock() else { continue };
            if running.as_ref().is_some_and(|running| !running.kernel.is_alive()) {
                *running = None;
            }
        }
        if known.len() < MAX_CONTEXTS { Ok(()) } else { Err(too_many()) }
    }

    /// All of them, in the order in which they were made.
    pub async fn list(&self) -> Vec<Arc<Context>> {
        self.known.lock().await.clone()
    }

    /// The context of this id; the default one without an id.
    pub async fn get(&self, id: Option<&str>) -> Result<Arc<Context>, Error> {
        let known = self.known.lock().await;
        let found = match id {
            None | Some("default") => known.first(),
            Some(id) => known.iter().find(|context| context.id == id),
        };
        found.cloned().ok_or_else(|| Error::NotFound(Missing::Context(id.unwrap_or("default").to_owned())))
    }

    /// The context for programs that name a language and no context: the first of that language, made on first use.
    pub async fn of_language(&self, language: Option<Language>) -> Result<Arc<Context>, Error> {
        let Some(language) = language else { return self.get(None).await };
        let _one_at_a_time = self.making.lock().await;
        let known = self.list().await.into_iter().find(|context| context.language.as_ref() == Some(&language));
        match known {
            Some(context) => Ok(context),
            None => self.create(None, Some(language)).await,
        }
    }

    /// Gives a context a new kernel.
    pub async fn restart(&self, id: &str) -> Result<(), Error> {
        let context = self.get(Some(id)).await?;
        let mut running = context.running.lock().await;
        if let Some(before) = running.take() {
            before.kernel.close().await;
        }
        *running = Some(self.starter.fresh(&context).await?);
        context.is_loss_told.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Ends a context. The default context exists again on its next use.
    pub async fn remove(&self, id: &str) -> Result<(), Error> {
        let context = self.get(Some(id)).await?;
        // Before its kernel ends: a caller that gives up meanwhile leaves no context that has lost its variables.
        let mut known = self.known.lock().await;
        let is_default = known.first().is_some_and(|default| default.id == context.id);
        if !is_default {
            known.retain(|known| known.id != context.id);
        }
        drop(known);
        if let Some(running) = &*context.running.lock().await {
            running.kernel.close().await;
        }
        Ok(())
    }

    /// The target of a program with these variables in a context. Replaces a kernel that has died.
    pub async fn target(
        &self,
        context: &Arc<Context>,
        environment: BTreeMap<String, String>,
    ) -> Result<ProgramTarget, Error> {
        check_names(&environment)?;
        let mut running = context.running.lock().await;
        let mut has_lost = false;
        let running = match &mut *running {
            Some(running) if running.kernel.is_alive() => running,
            running => {
                let fresh = self.starter.fresh_after_loss(context).await?;
                has_lost = fresh.1;
                running.insert(fresh.0)
            }
        };
        if !running.is_configured {
            let options = self.starter.options(&context.directory, context.language.as_ref());
            let language = context.language.as_ref();
            running.kernel.configure(&options).await.map_err(|error| refused(error, language))?;
            running.is_configured = true;
        }
        let Running { kernel, kernel_programs, .. } = running.clone();
        let environment = environment.into_iter().collect();
        let (starter, leftovers) = (Arc::clone(&self.starter), Arc::clone(&self.leftovers));
        let runtime =
            ContextRuntime { starter, leftovers, context: Arc::clone(context), kernel, environment, has_lost };
        Ok(ProgramTarget::Kernel { runtime: Arc::new(runtime), kernel_programs })
    }
}

impl KernelStarter {
    fn options(&self, directory: &str, language: Option<&Language>) -> KernelOptions {
        KernelOptions {
            directory: Some(directory.to_owned()),
            environment: self.environment.clone(),
            forms: true,
            command_line: None,
            language: language.cloned(),
        }
    }

    /// Starts a kernel for a context anew.
    async fn fresh(&self, context: &Context) -> Result<Running, Error> {
        let running = self.start(&context.directory, context.language.as_ref()).await?;
        context.executions.store(0, Ordering::Relaxed);
        Ok(running)
    }

    /// The same in place of one that has died. Returns true, too, if its variables are lost and no client has heard of it.
    async fn fresh_after_loss(&self, context: &Context) -> Result<(Running, bool), Error> {
        let has_run = context.executions.load(Ordering::Relaxed) > 0;
        let running = self.fresh(context).await?;
        Ok((running, has_run && !context.is_loss_told.swap(false, Ordering::Relaxed)))
    }

    async fn start(&self, directory: &str, language: Option<&Language>) -> Result<Running, Error> {
        self.share.start_process().await;
        let started = self.sandbox.start_kernel(self.options(directory, language)).await;
        let kernel = started.map_err(|error| refused(error, language))?;
        let kernel_programs = KernelPrograms::of_language(&self.sandbox_id, language.cloned());
        Ok(Running { kernel, is_configured: true, kernel_programs })
    }
}

fn too_many() -> Error {
    Error::SandboxFull { limit: MAX_CONTEXTS, things: "contexts" }
}

/// The error in terms of the request for a kernel.
fn refused(error: SandboxError, language: Option<&Language>) -> Error {
    match error {
        SandboxError::Full => too_many(),
        SandboxError::Start(reason) => Error::Invalid { field: language.map_or("context", |_| "language"), reason },
        error => error.into(),
    }
}

/// A kernel with the variables of one program.
struct ContextRuntime {
    starter: Arc<KernelStarter>,
    leftovers: Arc<Leftovers>,
    context: Arc<Context>,
    kernel: Arc<dyn Kernel>,
    environment: Vec<(String, String)>,
    /// True if its kernel replaced another, and no client was told yet that the variables are lost.
    has_lost: bool,
}

impl Runtime for ContextRuntime {
    fn limits(&self) -> &Limits {
        self.starter.sandbox.limits()
    }

    fn kernel(&self) -> &KernelSpec {
        self.starter.sandbox.kernel()
    }

    /// Never asked for: the client manages its files.
    fn files(&self) -> BoxFuture<'_, Vec<FileEntry>> {
        Box::pin(std::future::ready(Vec::new()))
    }

    fn execute<'a>(&'a self, cell: Cell<'a>) -> BoxFuture<'a, Result<Execution, RuntimeError>> {
        let cell = Cell { environment: &self.environment, ..cell };
        Box::pin(async move {
            let (execution, has_lost) = match self.kernel.execute(cell).await {
                // It died of its last program, after this one was accepted; nothing of it ran.
                Err(SandboxError::KernelGone(_)) => {
                    let (kernel, has_lost) = self.replace_kernel().await?;
                    (kernel.execute(cell).await, has_lost)
                }
                result => (result, self.has_lost),
            };
            let execution = execution?.holding(self.leftovers.attend());
            Ok(if has_lost { execution.restarted() } else { execution })
        })
    }
}

impl ContextRuntime {
    /// The context's new kernel in place of the one that has gone.
    async fn replace_kernel(&self) -> Result<(Arc<dyn Kernel>, bool), RuntimeError> {
        let mut running = self.context.running.lock().await;
        let (running, has_lost) = match &mut *running {
            Some(other) if !Arc::ptr_eq(&other.kernel, &self.kernel) && other.kernel.is_alive() => (other, false),
            running => {
                let (fresh, has_lost) = self.starter.fresh_after_loss(&self.context).await?;
                (running.insert(fresh), has_lost)
            }
        };
        Ok((Arc::clone(&running.kernel), has_lost))
    }
}
