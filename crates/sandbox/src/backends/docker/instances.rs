//! Instances of the backend: each has a locked file, which tells the next start whether it is alive.

use std::fs::File;
use std::path::Path;

use aludel_ignore::Ignore;
use rustix::fs::{FlockOperation, flock};

use super::engine::DockerEngine;
use crate::Error;

/// A living instance. Its file stays locked until the process ends.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) id: String,
    _lock: File,
}

impl Instance {
    /// Makes an instance below a directory.
    pub(super) fn new(directory: &Path) -> Result<Self, Error> {
        let id = crate::random::hex::<6>();
        let path = directory.join(&id);
        let failed = |source| Error::Io { path: path.clone(), source };
        std::fs::create_dir_all(directory).map_err(failed)?;
        let lock = File::create_new(&path).map_err(failed)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| failed(error.into()))?;
        Ok(Self { id, _lock: lock })
    }
}

/// Removes what dead instances have left in the engine.
pub(super) async fn remove(directory: &Path, engine: &DockerEngine, own: &str) {
    let Ok(instances) = std::fs::read_dir(directory) else { return };
    for instance in instances.flatten().take(1000) {
        let name = instance.file_name();
        let Some(name) = name.to_str().filter(|name| *name != own) else { continue };
        let Ok(file) = File::open(instance.path()) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue; // it lives
        }
        match engine.remove_all_of(name).await {
            // Its file goes last, so that an interrupted start leaves the rest to the next.
            Ok(()) => {
                std::fs::remove_file(instance.path()).ignore("another process may have removed it");
            }
            Err(error) => tracing::warn!(%error, instance = name, "what a dead instance left stays for now"),
        }
    }
}
