//! A backend whose sandboxes are reached over the streams of a process.

mod pool;

use std::fmt::Debug;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use self::pool::{Member, StdioPool, refill};
use super::{ReadyHost, SandboxHost, Stdio, StdioWorkspace};
use crate::backend::{Backend, BackendStatus, Capabilities, Health, Profile, Sandbox, SandboxSpec};
use crate::backends::registry::Registry;
use crate::{Error, KernelSpec, Limits, SandboxId, Workspace};

/// A provider of hosts for sandboxes.
pub trait HostProvider: Debug + Send + Sync + Sized + 'static {
    /// The host of a sandbox.
    type Host: SandboxHost;
    /// The home of a workspace's files.
    type Home: Debug + Send + Sync + 'static;
    /// The noun for what a host is made from.
    const ORIGIN: &'static str;

    /// Makes an empty workspace.
    fn make_workspace(
        &self,
        life: &InstanceLife,
        limits: &Limits,
    ) -> impl Future<Output = Result<StdioWorkspace<Self::Home>, Error>> + Send;

    /// Returns a host in which nothing runs yet.
    fn new_host(&self, life: &InstanceLife) -> Arc<Self::Host>;

    /// Starts a host's first process. A task holds `needs` until nothing of the host is left.
    fn start<N: Send + 'static>(
        &self,
        host: &Self::Host,
        home: &Self::Home,
        kernel: &KernelSpec,
        limits: &Limits,
        profile: Profile,
        needs: N,
    ) -> impl Future<Output = Result<Stdio, Error>> + Send;
}

/// A backend that reaches its sandboxes by the standard streams of a process in them. Cheap to clone; dropping the last clone ends
/// everything.
#[derive(Debug)]
pub struct StdioBackend<H: HostProvider>(Arc<BackendState<H>>);

impl<H: HostProvider> Clone for StdioBackend<H> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[derive(Debug)]
pub(super) struct BackendState<H: HostProvider> {
    provider: H,
    life: InstanceLife,
    registry: Arc<Registry<H::Host>>,
    capabilities: Capabilities,
    failure: Mutex<Option<String>>,
    pool: StdioPool<H>,
}

/// The life of an instance of a backend.
#[derive(Debug)]
pub struct InstanceLife {
    instance: String,
    end: CancellationToken,
    /// The parts that have not ended.
    parts: TaskTracker,
}

impl InstanceLife {
    /// The name of the instance.
    pub(in crate::backends) fn instance(&self) -> &str {
        &self.instance
    }

    /// The token that ends everything.
    pub(in crate::backends) fn end(&self) -> &CancellationToken {
        &self.end
    }

    /// A hold that keeps the backend's end waiting.
    pub(in crate::backends) fn hold(&self) -> TaskTrackerToken {
        self.parts.token()
    }
}

impl<H: HostProvider> StdioBackend<H> {
    /// A backend without sandboxes.
    pub(in crate::backends) fn new(provider: H, instance: String, capabilities: Capabilities) -> Self {
        Self::with_pool(provider, instance, capabilities, 0, Limits::default())
    }

    /// Like `new`, with a pool of ready sandboxes with these limits.
    pub(in crate::backends) fn with_pool(
        provider: H,
        instance: String,
        capabilities: Capabilities,
        pool: usize,
        limits: Limits,
    ) -> Self {
        let life = InstanceLife { instance, end: CancellationToken::new(), parts: TaskTracker::new() };
        let (registry, failure, kernel) = (Arc::default(), Mutex::default(), Arc::clone(capabilities.kernel()));
        let inner =
            BackendState { provider, life, registry, capabilities, failure, pool: StdioPool::new(pool, limits) };
        let inner = Arc::new(inner);
        if pool > 0 {
            inner.life.parts.spawn(refill(Arc::downgrade(&inner), kernel));
        }
        Self(inner)
    }

    /// The provider of its hosts.
    pub(in crate::backends) fn provider(&self) -> &H {
        &self.0.provider
    }
}

impl<H: HostProvider> BackendState<H> {
    async fn make_sandbox(&self, id: SandboxId, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>, Error> {
        let SandboxSpec { limits, workspace, language, owner, profile, template } = spec;
        if template.is_some() {
            return Err(Error::NotSupported("several templates"));
        }
        let kernel = Arc::clone(self.capabilities.kernel_of(language.as_deref())?);
        let registration = Registry::register(&self.registry, id, owner)?;
        let is_usual = kernel == *self.capabilities.kernel() && workspace.is_none();
        let member = if is_usual { self.pool.take(&limits, profile, &self.life.instance) } else { None };
        let host = match &member {
            Some(member) => Arc::clone(member.ready.host()),
            None => self.provider.new_host(&self.life),
        };
        registration.bind(&host)?;
        let ended = host.end().clone();
        let making = async {
            let Member { workspace, ready, .. } = match member {
                Some(member) => member,
                None => self.prepare(&host, workspace, &kernel, &limits, profile).await?,
            };
            ready.start(limits, workspace, registration, profile).await
        };
        let made = tokio::select! {
            made = making => made,
            () = ended.cancelled() => Err(over()),
        };
        match made {
            Ok(sandbox) => Ok(Arc::new(sandbox)),
            Err(error) => {
                host.remove().await;
                Err(error)
            }
        }
    }

    /// Makes a sandbox that is ready for its first kernel, with these files or none.
    async fn prepare(
        &self,
        host: &Arc<H::Host>,
        workspace: Option<Arc<dyn Workspace>>,
        kernel: &Arc<KernelSpec>,
        limits: &Limits,
        profile: Profile,
    ) -> Result<Member<H>, Error> {
        let workspace = match workspace {
            Some(workspace) => workspace,
            None => Arc::new(self.provider.make_workspace(&self.life, limits).await?),
        };
        let foreign = Error::NotSupported("the workspace of another backend");
        let files = StdioWorkspace::<H::Home>::of(&workspace, &self.life.instance).ok_or(foreign)?;
        if files.is_lost() {
            return Err(Error::WorkspaceLost);
        }
        let needs = (Arc::clone(&workspace), self.life.hold());
        let stdio = self.provider.start(host, files.home(), kernel, limits, profile, needs).await?;
        let ready = ReadyHost::new(Arc::clone(host), stdio, Arc::clone(kernel), H::ORIGIN).await?;
        Ok(Member { workspace, ready, profile })
    }

    /// Makes one for the pool.
    pub(super) async fn member(
        &self,
        kernel: &Arc<KernelSpec>,
        limits: &Limits,
        profile: Profile,
    ) -> Result<Member<H>, Error> {
        self.prepare(&self.provider.new_host(&self.life), None, kernel, limits, profile).await
    }

    /// The life of the instance.
    pub(super) fn life(&self) -> &InstanceLife {
        &self.life
    }

    /// The sandboxes that are ready before anyone asks.
    pub(super) fn pool(&self) -> &StdioPool<H> {
        &self.pool
    }

    /// Notes whether a sandbox could be made. Without a pool no attempt may follow, and one failure would stand for ever.
    pub(super) fn note(&self, error: Option<&Error>) {
        let failure = match error {
            _ if self.pool.is_off() => return,
            Some(Error::Setup(reason)) => Some(reason.clone()),
            Some(Error::Timeout { .. }) => error.map(ToString::to_string),
            // Other errors say nothing about the host.
            Some(_) => return,
            None => None,
        };
        *self.failure.lock() = failure;
    }
}

impl<H: HostProvider> Drop for BackendState<H> {
    fn drop(&mut self) {
        self.life.end.cancel();
    }
}

impl<H: HostProvider> Backend for StdioBackend<H> {
    fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    fn create(&self, id: SandboxId, spec: SandboxSpec) -> BoxFuture<'_, Result<Arc<dyn Sandbox>, Error>> {
        Box::pin(async move {
            let made = self.0.make_sandbox(id, spec).await;
            self.0.note(made.as_ref().err());
            made
        })
    }

    fn destroy<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            if let Some(host) = self.0.registry.end(id) {
                host.remove().await;
            }
            Ok(())
        })
    }

    fn list<'a>(&'a self, owner: Option<&'a str>) -> BoxFuture<'a, Result<Vec<SandboxId>, Error>> {
        Box::pin(async move { Ok(self.0.registry.list(owner)) })
    }

    fn health(&self) -> Health {
        let failure = self.0.failure.lock().clone();
        let status = failure.map_or(BackendStatus::Ready, |reason| BackendStatus::Degraded { reason });
        Health { status, pooled: self.0.pool.ready(&self.0.life.instance) }
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.0.life.end.cancel();
            self.0.life.parts.close();
            self.0.life.parts.wait().await;
        })
    }
}

/// The error of a host that ended while it was made.
pub(in crate::backends) fn over() -> Error {
    Error::Over("the sandbox ended while it was made".into())
}
