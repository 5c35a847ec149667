//! Removal of what a killed warden left behind.
//!
//! Every warden is an instance: it has a directory with a lock that it holds while it lives, and lists there what it makes outside of it.
//! Processes are not listed: they end with the warden, and the warden with aludel.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use aludel_ignore::Ignore;
use rustix::process::Pid;

use crate::cgroup;

const LOCK: &str = "lock";
const GROUPS: &str = "cgroups";
/// Prefix of the names of control groups.
const GROUP: &str = "aludel-";
/// Attempts to name a new instance.
const ATTEMPTS: usize = 100;
/// The host's pid namespace; its number is fixed (`PROC_PID_INIT_INO`).
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Makes the directory of a new instance and takes its lock. `run` is shared by all instances of one data directory.
pub fn new_instance(run: &Path) -> io::Result<(PathBuf, File)> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(run)?;
    share_with_owner(run)?;
    // The process id makes the name unique among running processes, the clock among earlier ones, the number within this process: control
    // groups get the same name, and those of all data directories are in one directory.
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    for _ in 0..ATTEMPTS {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{:x}-{number}", std::process::id(), now.as_micros());
        // It gets its final name once it is locked, so that no sweep takes it for abandoned.
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

/// Gives a file or a directory that root made in another user's directory to that user, who could not use it otherwise: a command of the
/// operator's must not keep the service out of its own data.
pub fn share_with_owner(path: &Path) -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, chownat, fstat, openat, statat};
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    // Opened once: its owner may put another one in its place.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = openat(CWD, parent, flags, Mode::empty())?;
    let (owner, own) = (fstat(&parent)?, statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?);
    // A file of root's may have got a second name there.
    let is_new = match FileType::from_raw_mode(own.st_mode) {
        FileType::Directory => true,
        FileType::RegularFile => own.st_nlink == 1,
        _ => false,
    };
    if owner.st_uid != 0 && own.st_uid == 0 && is_new {
        let (user, group) = (rustix::fs::Uid::from_raw(owner.st_uid), rustix::fs::Gid::from_raw(owner.st_gid));
        chownat(&parent, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

/// Records control groups to remove with the instance.
pub(crate) fn note_groups(instance: &Path, groups: &[PathBuf]) -> io::Result<()> {
    let lines: Vec<_> = groups.iter().map(|path| path.to_string_lossy()).collect();
    fs::write(instance.join(GROUPS), lines.join("\n"))
}

/// Removes every instance under `run` whose process is gone, and returns their number.
pub fn sweep(run: &Path) -> usize {
    let entries = fs::read_dir(run).into_iter().flatten().flatten();
    entries
        .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b".") && remove_if_abandoned(&entry.path()))
        .count()
}

/// Removes what an ended warden left of its instance. Blocks until the lock is free.
pub fn remove_ended(instance: &Path) {
    // Without the lock file nothing is left, or nothing can be known.
    if let Ok(lock) = File::open(instance.join(LOCK))
        && lock.lock().is_ok()
    {
        remove_instance(instance);
    }
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

/// The name of an instance's control groups.
pub(crate) fn name_of_group(instance: &Path) -> String {
    format!("{GROUP}{}", instance.file_name().and_then(|name| name.to_str()).unwrap_or("instance"))
}

/// Removes the control groups beneath `parents` of killed instances whose directory is gone too. Must run where process ids are the host's:
/// elsewhere it cannot tell which instances live.
pub(crate) fn sweep_groups(parents: &[PathBuf]) {
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    if namespace == Path::new(FIRST_PID_NAMESPACE) {
        let is_dead = |pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH);
        parents.iter().for_each(|parent| remove_groups_of_the_dead(parent, is_dead));
    }
}

/// Never ends a process: a group with processes stays.
fn remove_groups_of_the_dead(parent: &Path, is_dead: impl Fn(Pid) -> bool) {
    for group in directories(parent) {
        let owner = group.file_name().and_then(|name| owner_of_group(name.to_str()?));
        if owner.is_some_and(&is_dead) {
            for group in directories(&group).chain([group]) {
                fs::remove_dir(group).ignore("it may be in use");
            }
        }
    }
}

fn directories(of: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    fs::read_dir(of).into_iter().flatten().flatten().filter(is_directory).map(|entry| entry.path())
}

/// The process that made a group of this name; `None` if the name is not one of [`new_instance`].
fn owner_of_group(name: &str) -> Option<Pid> {
    let mut parts = name.strip_prefix(GROUP)?.splitn(3, '-');
    let (owner, clock, number) = (parts.next()?, parts.next()?, parts.next()?);
    u64::from_str_radix(clock, 16).ok()?;
    number.parse::<u32>().ok()?;
    Pid::from_raw(owner.parse().ok()?)
}

/// Removes what an instance noted, then its directory.
pub(crate) fn remove_instance(instance: &Path) {
    for group in fs::read_to_string(instance.join(GROUPS)).unwrap_or_default().lines() {
        if let Err(error) = cgroup::remove(Path::new(group)) {
            eprintln!("aludel: the control group {group} could not be removed: {error}");
        }
    }
    // The lock goes last: without it no later sweep would know the rest for abandoned.
    for entry in fs::read_dir(instance).into_iter().flatten().flatten().filter(|entry| entry.file_name() != LOCK) {
        let path = entry.path();
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = if is_directory { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        removed.ignore("the removal below reports it");
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

    #[test]
    fn what_root_makes_in_a_users_directory_is_the_users() {
        use std::os::unix::fs::MetadataExt;
        if !rustix::process::geteuid().is_root() {
            return eprintln!("NOT TESTED: only root can do this");
        }
        let data = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(data.path(), Some(65534), Some(65534)).unwrap();
        let run = data.path().join("run");
        let (instance, _lock) = new_instance(&run).unwrap();
        assert_eq!(fs::metadata(&run).unwrap().uid(), 65534);
        assert_eq!(fs::metadata(instance).unwrap().uid(), 0, "a sandbox's own things are root's");
    }

    /// Their control groups lie beside each other, and may be made within one microsecond.
    #[test]
    fn instances_of_one_process_differ_by_more_than_the_clock() {
        let number_of_new = |run: &tempfile::TempDir| {
            let (instance, _lock) = new_instance(run.path()).unwrap();
            instance.to_str().unwrap().rsplit('-').next().unwrap().to_owned()
        };
        let [one, another] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        assert_ne!(number_of_new(&one), number_of_new(&another));
    }

    #[test]
    fn groups_of_the_dead_go_unless_somebody_is_in_them() {
        let parent = tempfile::tempdir().unwrap();
        let (dead, alive) = ("aludel-12-660c7d9c408f3-0", "aludel-34-660c7d9c408f3-0");
        let kept = [alive, "aludel-12", "aludel-12-x-0", "aludel-0-1-0", "aludel-12-1-0-s", "aludel-host", "12-1-0"];
        for group in kept.into_iter().chain([dead]) {
            fs::create_dir_all(parent.path().join(group).join("s1")).unwrap();
        }
        // A group with a process cannot be removed; here a directory with a file stands in for one.
        let busy = parent.path().join("aludel-12-660c7d9c408f3-1/s1/process");
        fs::create_dir_all(&busy).unwrap();
        remove_groups_of_the_dead(parent.path(), |pid| pid.as_raw_nonzero().get() == 12);
        assert!(!parent.path().join(dead).exists() && busy.exists());
        assert!(kept.iter().all(|group| parent.path().join(group).join("s1").exists()));
    }
}
