//! Which containers there are, and which of them are live.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use aludel_session::{Limits, Local};
use aludel_store::{ContainerId, ContainerRecord, FileId, FileRecord, Store, Tenant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::error;

use super::{Container, MemoryLimit, expired, no_container};
use crate::app::{App, Settings};
use crate::error::ApiError;

/// Files that can be put into a new container by their ids.
const MAX_FILES: usize = 50;

/// All containers. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Containers {
    shared: Arc<Shared>,
    known: Arc<Known>,
}

/// Those that are in use or have a session.
type Known = Mutex<HashMap<ContainerId, Arc<Container>>>;

/// What all containers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) store: Store,
    pub(super) backend: Local,
    settings: Settings,
    /// Room for live ones.
    places: Arc<Semaphore>,
    /// Containers hold this, so it does not hold them.
    known: Weak<Known>,
}

/// Which container a request wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ContainerChoice {
    /// A new one.
    Auto {
        /// Files of the Files API to put in.
        file_ids: Vec<FileId>,
        /// How much memory it may use.
        memory_limit: Option<MemoryLimit>,
    },
    /// The one that goes by this name, or a new one.
    Named {
        /// The name.
        name: String,
        /// How much memory a new one may use.
        memory_limit: Option<MemoryLimit>,
    },
    /// The one that an earlier part of the conversation used, whether it has expired or not.
    Reuse(ContainerId),
    /// This one and no other.
    Explicit(ContainerId),
}

/// A container that is to be.
#[derive(Debug)]
pub(crate) struct NewContainer {
    pub(crate) name: String,
    pub(crate) file_ids: Vec<FileId>,
    pub(crate) memory_limit: Option<MemoryLimit>,
    /// How long it may be left alone, if not as long as usual.
    pub(crate) idle: Option<Duration>,
}

impl Shared {
    /// What a container may use.
    pub(super) fn limits_of(&self, record: &ContainerRecord) -> Limits {
        match record.memory_limit.as_deref().and_then(MemoryLimit::parse) {
            Some(asked) => asked.limits(&self.settings.limits, self.settings.max_memory),
            None => self.settings.limits.clone(),
        }
    }

    /// A place among the live containers, for a tenant that has room to store what it makes.
    pub(super) async fn place_for(&self, tenant: &Tenant) -> Result<OwnedSemaphorePermit, ApiError> {
        if self.store.bytes_of(tenant).await? >= self.settings.storage {
            return Err(self.settings.no_room());
        }
        loop {
            if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
                return Ok(place);
            }
            let Some(idle) = self.take_longest_idle(tenant) else {
                let message = format!(
                    "All {} containers (server.containers) are in use; try again later.",
                    self.settings.containers
                );
                return Err(ApiError::too_many(message, Duration::from_secs(10)));
            };
            // Its files are kept; whoever goes on with it gets another session.
            idle.end().await;
        }
    }

    /// The live container that was left alone the longest, the tenant's own first: who asks for many does not take the others'.
    fn take_longest_idle(&self, tenant: &Tenant) -> Option<Arc<Container>> {
        let known = self.known.upgrade()?;
        let mut known = lock(&known);
        let idle = known.values().filter(|container| Arc::strong_count(container) == 1 && container.is_live());
        let id = idle.min_by_key(|container| (container.tenant() != tenant, container.last_active_ms()))?.id().clone();
        known.remove(&id)
    }
}

impl Containers {
    pub(crate) fn new(store: Store, backend: Local, settings: Settings) -> Self {
        let places = Arc::new(Semaphore::new(settings.containers));
        let known = Arc::default();
        Self { shared: Arc::new(Shared { store, backend, settings, places, known: Arc::downgrade(&known) }), known }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<ContainerId, Arc<Container>>> {
        lock(&self.known)
    }

    /// The container that a request wants, in use from now on.
    pub(crate) async fn open(&self, tenant: &Tenant, choice: ContainerChoice) -> Result<Arc<Container>, ApiError> {
        let id = match choice {
            ContainerChoice::Auto { file_ids, memory_limit } => {
                return self.create_auto(tenant, file_ids, memory_limit).await;
            }
            ContainerChoice::Named { name, memory_limit } => {
                let (memory, idle) = (memory_limit.map(|limit| limit.word().to_owned()), self.shared.settings.idle);
                let record = self.shared.store.container_by_name(tenant, name, memory, idle).await?;
                return self.enter(tenant, &record).await;
            }
            ContainerChoice::Reuse(ref id) | ContainerChoice::Explicit(ref id) => id,
        };
        let record = self.shared.store.container(tenant, id).await?;
        match (record, &choice) {
            (Some(record), ContainerChoice::Explicit(_)) if self.status(&record) == Status::Expired => Err(expired()),
            (Some(record), _) => self.enter(tenant, &record).await,
            (None, ContainerChoice::Explicit(_)) => Err(no_container(id.as_str())),
            (None, _) => self.create_auto(tenant, Vec::new(), None).await,
        }
    }

    async fn create_auto(
        &self,
        tenant: &Tenant,
        file_ids: Vec<FileId>,
        memory_limit: Option<MemoryLimit>,
    ) -> Result<Arc<Container>, ApiError> {
        let new = NewContainer { name: "auto".to_owned(), file_ids, memory_limit, idle: None };
        Ok(self.create(tenant, new).await?.0)
    }

    /// Makes a container. It has no session before somebody asks for it.
    pub(crate) async fn create(
        &self,
        tenant: &Tenant,
        new: NewContainer,
    ) -> Result<(Arc<Container>, ContainerRecord), ApiError> {
        let NewContainer { name, file_ids, memory_limit, idle } = new;
        if file_ids.len() > MAX_FILES {
            return Err(ApiError::invalid(
                "file_ids",
                format!("Too many 'file_ids': at most {MAX_FILES} are allowed."),
            ));
        }
        let mut files: Vec<FileRecord> = Vec::new();
        for id in &file_ids {
            let file = self.shared.store.file(tenant, id).await?;
            files.push(file.ok_or_else(|| crate::files::no_file(id.as_str()).param("file_ids"))?);
        }
        let memory = memory_limit.map(|limit| limit.word().to_owned());
        let idle = idle.unwrap_or(self.shared.settings.idle);
        let record = self.shared.store.add_container(tenant, name, memory, idle).await?;
        let container = self.enter(tenant, &record).await?;
        for file in &files {
            if let Err(error) = container.add_stored_file(file).await {
                // Half a container is worse than none.
                let _deleted = self.delete(tenant, &record.id).await;
                return Err(error);
            }
        }
        Ok((container, record))
    }

    /// Makes it known, if it is not, and notes that it is in use.
    async fn enter(&self, tenant: &Tenant, record: &ContainerRecord) -> Result<Arc<Container>, ApiError> {
        self.shared.store.touch_container(tenant, &record.id).await?;
        let mut known = self.known();
        let make = || Arc::new(Container::new(Arc::clone(&self.shared), tenant.clone(), record));
        let container = Arc::clone(known.entry(record.id.clone()).or_insert_with(make));
        container.touch();
        Ok(container)
    }

    /// Whether a container can be used.
    pub(crate) fn status(&self, record: &ContainerRecord) -> Status {
        // What is in use does not expire, however long it takes.
        let used = self.known().get(&record.id).is_some_and(|container| !container.is_expired());
        if used || !record.is_expired() { Status::Running } else { Status::Expired }
    }

    /// Removes a container with its files. Returns whether there was one.
    pub(crate) async fn delete(&self, tenant: &Tenant, id: &ContainerId) -> Result<bool, ApiError> {
        if self.shared.store.container(tenant, id).await?.is_none() {
            return Ok(false);
        }
        let container = self.known().remove(id);
        if let Some(container) = container {
            container.delete().await;
        }
        Ok(self.shared.store.delete_container(tenant, id).await?)
    }

    /// Ends what was left alone too long, and notes what is in use.
    pub(super) async fn reap_once(&self) {
        let (mut ended, mut used) = (Vec::new(), Vec::new());
        self.known().retain(|_, container| {
            // One reference is the map's own, and more are made only while the map is locked.
            let in_use = Arc::strong_count(container) > 1;
            if in_use {
                container.touch();
                used.push(Arc::clone(container));
            } else if container.is_expired() || container.has_lingered() {
                ended.push(Arc::clone(container));
                return false;
            }
            true
        });
        for container in used {
            if let Err(error) = self.shared.store.touch_container(container.tenant(), container.id()).await {
                error!("cannot note that {} is in use: {error}", container.id());
            }
        }
        for container in ended {
            container.end().await;
        }
    }

    /// How many places are taken.
    pub(crate) fn taken(&self) -> usize {
        self.shared.settings.containers.saturating_sub(self.shared.places.available_permits())
    }

    /// Ends all sessions.
    pub(crate) async fn close_all(&self) {
        let all: Vec<Arc<Container>> = self.known().drain().map(|(_, container)| container).collect();
        for container in all {
            container.end().await;
        }
    }
}

fn lock(known: &Known) -> MutexGuard<'_, HashMap<ContainerId, Arc<Container>>> {
    // Nothing that could panic happens while it is held.
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a container can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// It can.
    Running,
    /// It was left alone too long.
    Expired,
}

/// Looks after containers, and after everything in the store that goes away by itself, until the server ends.
pub(crate) async fn reap(app: Arc<App>) {
    /// How often the store is looked through.
    const SWEEP: Duration = Duration::from_secs(60);
    let pause =
        (app.settings.idle.min(app.settings.linger) / 4).clamp(Duration::from_millis(50), Duration::from_secs(15));
    let mut since_sweep = SWEEP;
    loop {
        app.containers.reap_once().await;
        if since_sweep >= SWEEP {
            since_sweep = Duration::ZERO;
            let swept = async {
                app.store.remove_expired().await?;
                app.store.remove_containers_unused_for(app.settings.keep).await
            };
            if let Err(error) = swept.await {
                error!("cannot remove what has expired: {error}");
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => since_sweep += pause,
            () = app.closing.cancelled() => return,
        }
    }
}
