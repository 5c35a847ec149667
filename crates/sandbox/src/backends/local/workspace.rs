//! The files of a session, in memory.

use std::any::Any;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::slots::Slot;
use super::warden_client::WardenClient;
use crate::backends::directory::Directory;
use crate::workspace::{FileEntry, WorkspaceEntry, WorkspaceListing, WorkspaceUsage};
use crate::{Error, Workspace};

/// An in-memory file system with one session's files. It is mounted where only the warden and the sandbox see it; the host accesses it by
/// descriptor. Dropping it removes the files, as does the end of the process.
#[derive(Debug)]
pub(super) struct LocalWorkspace {
    files: Directory,
    mount: Mount,
}

/// A workspace of the warden, from before its request on. Dropping it removes the workspace, made or not.
#[derive(Debug)]
pub(super) struct Mount {
    id: u64,
    client: Arc<WardenClient>,
    /// The user id that owns the files; `None` once the wait for the end has taken it over.
    slot: Option<Slot>,
    /// The root, so that the warden's is not the last reference to the files.
    root: Option<Arc<OwnedFd>>,
}

impl Mount {
    /// A workspace to make.
    pub(super) fn new(client: &Arc<WardenClient>, slot: Slot) -> Self {
        Self { id: client.next_id(), client: Arc::clone(client), slot: Some(slot), root: None }
    }

    /// The number that the workspace has at the warden.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// The way to its warden.
    pub(super) fn client(&self) -> &Arc<WardenClient> {
        &self.client
    }

    /// The number of its slot.
    pub(super) fn slot(&self) -> u32 {
        self.slot.as_ref().map_or(0, Slot::number)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.client.close_workspace(self.id, slot, self.root.take());
        }
    }
}

impl LocalWorkspace {
    /// Wraps an empty workspace with this root directory.
    pub(super) fn new(root: OwnedFd, owner: Option<u32>, mut mount: Mount) -> Self {
        let root = Arc::new(root);
        mount.root = Some(Arc::clone(&root));
        Self { files: Directory::new(root, owner), mount }
    }

    /// The workspace, if it is of this backend.
    pub(super) fn of(workspace: &Arc<dyn Workspace>) -> Option<&Self> {
        (&**workspace as &dyn Any).downcast_ref()
    }

    /// The workspace at the warden.
    pub(super) fn mount(&self) -> &Mount {
        &self.mount
    }
}

impl Workspace for LocalWorkspace {
    fn listing(&self) -> Result<WorkspaceListing, Error> {
        self.files.listing()
    }

    fn open(&self, path: &str) -> Result<(Box<dyn Read + Send>, u64), Error> {
        self.files.open(path)
    }

    fn write(&self, name: &str, source: &mut dyn Read, limit: u64) -> Result<FileEntry, Error> {
        self.files.write(name, source, limit)
    }

    fn remove(&self, name: &str) -> Result<(), Error> {
        self.files.remove(name)
    }

    fn usage(&self) -> Result<WorkspaceUsage, Error> {
        self.files.usage()
    }

    fn is_small(&self) -> bool {
        self.files.is_small()
    }

    fn walk(&self, most: u64, visit: &mut dyn FnMut(WorkspaceEntry)) -> Result<(), Error> {
        self.files.walk(most, visit)
    }
}
