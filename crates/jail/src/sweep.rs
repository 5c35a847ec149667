//! Removing what a killed instance left behind.
//!
//! Every instance has a directory with a lock that it holds while it lives, and notes there what it makes outside of it. Processes need no
//! note: they end with the warden, the warden with aludel.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::cgroup;

const LOCK: &str = "lock";
const GROUPS: &str = "cgroups";

/// Makes the directory of a new instance and takes its lock. `run` is shared by all instances of one data directory.
pub fn new_instance(run: &Path) -> io::Result<(PathBuf, File)> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(run)?;
    // The process id makes the name unique among the living, the clock among the dead.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    for attempt in 0..100 {
        let name = format!("{}-{:x}-{attempt}", std::process::id(), now.as_micros());
        // Under another name until it is locked, so that nobody's sweep takes it for abandoned.
        let staged = run.join(format!(".{name}"));
        match fs::DirBuilder::new().mode(0o700).create(&staged) {
            Ok(()) => {
                let lock = File::create(staged.join(LOCK))?;
                lock.lock()?;
                let instance = run.join(name);
                fs::rename(&staged, &instance)?;
                return Ok((instance, lock));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("no free instance name"))
}

/// Notes control groups that are to be removed with the instance.
pub(crate) fn note_groups(instance: &Path, groups: &[PathBuf]) -> io::Result<()> {
    let lines: Vec<_> = groups.iter().map(|path| path.to_string_lossy()).collect();
    fs::write(instance.join(GROUPS), lines.join("\n"))
}

/// Removes every instance under `run` whose owner is gone. Returns how many there were.
pub fn sweep(run: &Path) -> usize {
    let entries = fs::read_dir(run).into_iter().flatten().flatten();
    entries
        .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b".") && remove_if_abandoned(&entry.path()))
        .count()
}

fn remove_if_abandoned(instance: &Path) -> bool {
    let Ok(lock) = File::open(instance.join(LOCK)) else { return false };
    match lock.try_lock() {
        Ok(()) => {
            remove_instance(instance);
            true
        }
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => false,
    }
}

/// Removes what an instance noted, then its directory.
pub(crate) fn remove_instance(instance: &Path) {
    for group in fs::read_to_string(instance.join(GROUPS)).unwrap_or_default().lines() {
        if let Err(error) = cgroup::remove(Path::new(group)) {
            eprintln!("aludel: the control group {group} could not be removed: {error}");
        }
    }
    if let Err(error) = fs::remove_dir_all(instance)
        && error.kind() != io::ErrorKind::NotFound
    {
        eprintln!("aludel: {} could not be removed: {error}", instance.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_instance_is_left_alone_and_a_dead_one_is_removed() {
        let run = tempfile::tempdir().unwrap();
        let (alive, _lock) = new_instance(run.path()).unwrap();
        let (dead, lock) = new_instance(run.path()).unwrap();
        fs::write(dead.join("left"), "x").unwrap();
        drop(lock);
        assert_eq!(sweep(run.path()), 1);
        assert!(alive.exists() && !dead.exists());
    }
}
