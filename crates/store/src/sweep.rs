//! The sweep: removes what processes left behind that have died.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use tracing::info;

use crate::blobs::named;
use crate::owners::{Owners, age};
use crate::{Error, Store, turns};

/// Least age of what is removed. Its owner is dead, so this is for what that cannot tell: a lock that a file system of another machine does
/// not keep, and a copy of the data that was made while a server ran.
const MIN_AGE: Duration = Duration::from_secs(60);

/// Time between two sweeps when nothing waits for its age. Processes beside the server die without a word, too.
const SWEEP_INTERVAL: Duration = Duration::from_secs(3600);

/// Outcome of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepOutcome {
    /// Number of half-written files and blobs that were removed.
    pub removed: usize,
    /// Number of those that are too young, and are removed by a later sweep.
    pub young: usize,
}

impl Store {
    /// Removes half-written files and blobs without a row that belong to owners that have died and are older than `grace`, and lets the
    /// leases of the turns of these owners run out.
    pub async fn sweep(&self, grace: Duration) -> Result<SweepOutcome, Error> {
        self.run(move |store| store.sweep_now(grace)).await
    }

    /// Sweeps, if it is time for it.
    pub(crate) fn sweep_if_due(&self) -> Result<(), Error> {
        let due = *self.0.next_sweep.lock().unwrap_or_else(PoisonError::into_inner);
        if due.is_none_or(|due| Instant::now() >= due) { self.sweep_now(MIN_AGE).map(drop) } else { Ok(()) }
    }

    fn sweep_now(&self, grace: Duration) -> Result<SweepOutcome, Error> {
        // In this order: what is found was made before its owner is seen dead, and the owner's rows before they are read.
        let scratch = entries(&self.0.scratch)?;
        let mut blobs = Vec::new();
        for (_, fan) in entries(&self.0.blobs)? {
            blobs.extend(entries(&fan)?);
        }
        let owners = Owners::look(&self.0.owners)?;
        let named = self.0.database.read(None, named)?;
        let blobs = blobs.into_iter().filter(|(name, _)| !named.contains(name));
        let mut swept = SweepOutcome::default();
        for (name, path) in scratch.into_iter().chain(blobs).filter(|(name, _)| !owners.may_finish(name)) {
            match age(&name) {
                Some(age) if age >= grace => {
                    remove(&path)?;
                    swept.removed += 1;
                }
                Some(_) => swept.young += 1,
                // Nobody in flight has such a name: it is not ours.
                None => {}
            }
        }
        for owner in &owners.dead {
            // Before the file goes, so that the next sweep finds an owner whose rows this one did not get to.
            self.0.database.write(|database| turns::release(database, owner))?;
            remove(&self.0.owners.join(owner.as_str()))?;
        }
        let pause = if swept.young > 0 { grace } else { SWEEP_INTERVAL };
        *self.0.next_sweep.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + pause);
        if swept.removed > 0 || !owners.dead.is_empty() {
            let (files, owners) = (swept.removed, owners.dead.len());
            info!(files, owners, "removed what processes that have died left behind");
        }
        Ok(swept)
    }
}

/// Returns the names and paths of what is in a directory.
fn entries(directory: &Path) -> Result<Vec<(String, PathBuf)>, Error> {
    let failed = |source| Error::Io { path: directory.to_path_buf(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        // All names of ours are text.
        if let Some(name) = path.file_name().and_then(|name| name.to_str()) {
            found.push((name.to_owned(), path));
        }
    }
    Ok(found)
}

/// Removes a file; one that somebody else has removed meanwhile is no error.
fn remove(path: &Path) -> Result<(), Error> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(Error::Io { path: path.to_path_buf(), source }),
        _ => Ok(()),
    }
}
