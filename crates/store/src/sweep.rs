//! The sweep: removes what processes left behind that have died.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tracing::info;

use crate::blobs::named;
use crate::owners::{Owners, age};
use crate::{Error, Store, turns};

/// Least age of removed files. Their owner is dead; this is for cases where that cannot be seen: a network file system without locks, and a
/// copy of the data that was made while a server ran.
const MIN_AGE: Duration = Duration::from_secs(60);

/// Interval between sweeps when nothing waits for its age. Processes beside the server may die at any time.
const SWEEP_INTERVAL: Duration = Duration::from_secs(3600);

/// Outcome of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepOutcome {
    /// Number of half-written files and blobs that were removed.
    pub removed: usize,
    /// Number of files that are too young, and are removed by a later sweep.
    pub young: usize,
}

impl Store {
    /// Removes unfinished files and blobs without a row that belong to dead owners and are older than `grace`, and ends the leases of these
    /// owners' turns.
    pub async fn sweep(&self, grace: Duration) -> Result<SweepOutcome, Error> {
        self.run(move |store| store.sweep_now(grace)).await
    }

    /// Sweeps, if it is time for it.
    pub(crate) fn sweep_if_due(&self) -> Result<(), Error> {
        let due = *self.0.next_sweep.lock();
        if due.is_none_or(|due| Instant::now() >= due) { self.sweep_now(MIN_AGE).map(drop) } else { Ok(()) }
    }

    fn sweep_now(&self, grace: Duration) -> Result<SweepOutcome, Error> {
        // In this order: files are listed before the check of their owners, and those before their rows are read.
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
                // It is no name in flight, so the file is not ours.
                None => {}
            }
        }
        for owner in &owners.dead {
            // Before the file goes, so that the next sweep finds an owner whose rows were not all released.
            self.0.database.write(|database| turns::release(database, owner))?;
            remove(&self.0.owners.join(owner.as_str()))?;
        }
        let pause = if swept.young > 0 { grace } else { SWEEP_INTERVAL };
        *self.0.next_sweep.lock() = Some(Instant::now() + pause);
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
        // All our names are UTF-8.
        if let Some(name) = path.file_name().and_then(|name| name.to_str()) {
            found.push((name.to_owned(), path));
        }
    }
    Ok(found)
}

/// Removes a file; success if another process removed it meanwhile.
fn remove(path: &Path) -> Result<(), Error> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(Error::Io { path: path.to_path_buf(), source }),
        _ => Ok(()),
    }
}
