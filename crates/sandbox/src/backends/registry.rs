//! The living sandboxes by the ids that their callers chose.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::{Error, SandboxId};
use parking_lot::Mutex;

/// The requested sandboxes of one backend, by id.
#[derive(Debug)]
pub(super) struct Registry<H>(Mutex<HashMap<SandboxId, Entry<H>>>);

impl<H> Default for Registry<H> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

#[derive(Debug)]
struct Entry<H> {
    owner: Option<String>,
    /// True if its end was asked for.
    is_ended: bool,
    /// `None` until there may be something of it.
    handle: Option<Weak<H>>,
}

/// A sandbox's claim to its id. Dropping it makes the id free again.
#[derive(Debug)]
pub(super) struct Registration<H> {
    registry: Arc<Registry<H>>,
    id: SandboxId,
}

impl<H> Registry<H> {
    /// Claims an id for a new sandbox.
    pub(super) fn register(
        registry: &Arc<Self>,
        id: SandboxId,
        owner: Option<String>,
    ) -> Result<Registration<H>, Error> {
        let mut entries = registry.0.lock();
        if entries.contains_key(&id) {
            return Err(Error::Exists(id));
        }
        entries.insert(id.clone(), Entry { owner, is_ended: false, handle: None });
        drop(entries);
        Ok(Registration { registry: Arc::clone(registry), id })
    }

    /// Marks a sandbox as ending, and returns its handle if it has one.
    pub(super) fn end(&self, id: &SandboxId) -> Option<Arc<H>> {
        let mut entries = self.0.lock();
        let entry = entries.get_mut(id)?;
        entry.is_ended = true;
        entry.handle.as_ref()?.upgrade()
    }

    /// Returns the ids, of this owner or of all.
    pub(super) fn list(&self, owner: Option<&str>) -> Vec<SandboxId> {
        let entries = self.0.lock();
        let of_owner = entries.iter().filter(|(_, entry)| owner.is_none() || entry.owner.as_deref() == owner);
        let mut ids: Vec<_> = of_owner.filter(|(_, entry)| !entry.is_ended).map(|(id, _)| id.clone()).collect();
        ids.sort();
        ids
    }
}

impl<H> Registration<H> {
    /// The id.
    pub(super) fn id(&self) -> &SandboxId {
        &self.id
    }

    /// Binds the id to a sandbox. Fails if its end was requested already.
    pub(super) fn bind(&self, handle: &Arc<H>) -> Result<(), Error> {
        let mut entries = self.registry.0.lock();
        match entries.get_mut(&self.id) {
            Some(entry) if !entry.is_ended => {
                entry.handle = Some(Arc::downgrade(handle));
                Ok(())
            }
            Some(_) | None => Err(Error::Setup("the sandbox was destroyed while it was made".into())),
        }
    }
}

impl<H> Drop for Registration<H> {
    fn drop(&mut self) {
        self.registry.0.lock().remove(&self.id);
    }
}
