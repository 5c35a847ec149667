//! The kernels of a sandbox, as its client knows them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aludel_agent::{Runtime, RuntimeError};
use aludel_sandbox::{
    Cell, Error as SandboxError, Execution, FileEntry, Kernel, KernelOptions, KernelSpec, Limits, Sandbox,
};
use aludel_store::random_hex;
use futures_util::future::BoxFuture;
use tokio::sync::Mutex;

use super::live::HOME;
use crate::approvals::Namespace;
use crate::executions::Target;
use crate::{Error, Missing};

/// The contexts of one sandbox, the default one first.
pub struct Contexts {
    sandbox: Arc<dyn Sandbox>,
    place: String,
    environment: Vec<(String, String)>,
    known: Mutex<Vec<Arc<Context>>>,
}

/// A context: a kernel that can be restarted.
pub struct Context {
    id: String,
    directory: String,
    running: Mutex<Running>,
    executions: AtomicU64,
}

/// The kernel of a context, and the names that its programs share.
#[derive(Clone)]
struct Running {
    kernel: Arc<dyn Kernel>,
    namespace: Arc<Namespace>,
}

impl fmt::Debug for Contexts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Contexts").field("place", &self.place).finish_non_exhaustive()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Context").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Context {
    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The directory in which its programs start.
    pub fn directory(&self) -> &str {
        &self.directory
    }

    /// Counts a program that is started in it, and returns its number, from 1 on.
    pub fn count(&self) -> u64 {
        self.executions.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl Contexts {
    /// Makes the sandbox's first kernel the default context.
    pub(super) async fn new(
        sandbox: Arc<dyn Sandbox>,
        place: &str,
        environment: &BTreeMap<String, String>,
    ) -> Result<Self, Error> {
        let environment = environment.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        let contexts = Self { sandbox, place: place.to_owned(), environment, known: Mutex::default() };
        let kernel = contexts.sandbox.first_kernel();
        kernel.configure(&contexts.options(HOME)).await?;
        let default = contexts.context(kernel, HOME);
        contexts.known.lock().await.push(default);
        Ok(contexts)
    }

    fn options(&self, directory: &str) -> KernelOptions {
        KernelOptions {
            directory: Some(directory.to_owned()),
            environment: self.environment.clone(),
            forms: true,
            command_line: None,
        }
    }

    fn context(&self, kernel: Arc<dyn Kernel>, directory: &str) -> Arc<Context> {
        let running = Mutex::new(Running { kernel, namespace: Namespace::new(&self.place) });
        let id = format!("{:.32}", random_hex());
        Arc::new(Context { id, directory: directory.to_owned(), running, executions: AtomicU64::new(0) })
    }

    /// Starts a further kernel.
    pub async fn create(&self, directory: Option<&str>) -> Result<Arc<Context>, Error> {
        let directory = directory.unwrap_or(HOME);
        let kernel = self.sandbox.start_kernel(self.options(directory)).await.map_err(refused)?;
        let context = self.context(kernel, directory);
        self.known.lock().await.push(Arc::clone(&context));
        Ok(context)
    }

    /// All of them, in the order in which they were made.
    pub async fn list(&self) -> Vec<Arc<Context>> {
        self.known.lock().await.clone()
    }

    /// The context of this id; without one, the default one.
    pub async fn get(&self, id: Option<&str>) -> Result<Arc<Context>, Error> {
        let known = self.known.lock().await;
        let found = match id {
            None | Some("default") => known.first(),
            Some(id) => known.iter().find(|context| context.id == id),
        };
        found.cloned().ok_or_else(|| Error::NotFound(Missing::Context(id.unwrap_or("default").to_owned())))
    }

    /// Gives a context a new kernel.
    pub async fn restart(&self, id: &str) -> Result<(), Error> {
        let context = self.get(Some(id)).await?;
        let mut running = context.running.lock().await;
        running.kernel.close().await;
        *running = self.fresh(&context).await?;
        Ok(())
    }

    async fn fresh(&self, context: &Context) -> Result<Running, Error> {
        let kernel = self.sandbox.start_kernel(self.options(&context.directory)).await.map_err(refused)?;
        context.executions.store(0, Ordering::Relaxed);
        Ok(Running { kernel, namespace: Namespace::new(&self.place) })
    }

    /// Ends a context. The default one is there again when it is next asked for.
    pub async fn remove(&self, id: &str) -> Result<(), Error> {
        let context = self.get(Some(id)).await?;
        context.running.lock().await.kernel.close().await;
        let mut known = self.known.lock().await;
        let is_default = known.first().is_some_and(|default| default.id == context.id);
        if !is_default {
            known.retain(|known| known.id != context.id);
        }
        Ok(())
    }

    /// The place of a program with these variables in a context. A kernel that has died is replaced first.
    pub async fn target(&self, context: &Context, environment: BTreeMap<String, String>) -> Result<Target, Error> {
        let mut running = context.running.lock().await;
        if !running.kernel.is_alive() {
            *running = self.fresh(context).await?;
        }
        let Running { kernel, namespace } = running.clone();
        let environment = environment.into_iter().collect();
        let runtime = ContextRuntime { sandbox: Arc::clone(&self.sandbox), kernel, environment };
        Ok(Target::Kernel { runtime: Arc::new(runtime), namespace })
    }
}

/// In the words of whoever asked for a kernel.
fn refused(error: SandboxError) -> Error {
    match error {
        SandboxError::Full => {
            Error::InvalidSandbox { field: "context", reason: "there are as many as there may be".into() }
        }
        SandboxError::Start(reason) => Error::InvalidSandbox { field: "context", reason },
        error => error.into(),
    }
}

/// A kernel with the variables of one program.
struct ContextRuntime {
    sandbox: Arc<dyn Sandbox>,
    kernel: Arc<dyn Kernel>,
    environment: Vec<(String, String)>,
}

impl Runtime for ContextRuntime {
    fn limits(&self) -> &Limits {
        self.sandbox.limits()
    }

    fn kernel(&self) -> &KernelSpec {
        self.sandbox.kernel()
    }

    /// Nobody asks: they are the client's own matter.
    fn files(&self) -> BoxFuture<'_, Vec<FileEntry>> {
        Box::pin(std::future::ready(Vec::new()))
    }

    fn execute<'a>(&'a self, code: &'a str) -> BoxFuture<'a, Result<Execution, RuntimeError>> {
        let cell = Cell { code, environment: &self.environment };
        Box::pin(async move { self.kernel.execute(cell).await.map_err(RuntimeError::new) })
    }
}
