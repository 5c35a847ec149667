//! Watches of files (inotify), which a **watcher** adds in the place of a sandbox's programs: of the sandbox's own files only.
//!
//! A watch of a file tells of everybody that uses it, and everybody that uses it pays for that. The template and the devices are the
//! same for all sandboxes. A filter cannot see the path of a call, so the watcher reads it, opens the file, and watches what it opened.
//!
//! It is a process of the sandbox, in its control group, since what it does for a program can take as long as the program likes: reading
//! the program's memory, or closing the copy of a descriptor. Init could not end the sandbox meanwhile.

use std::ffi::CStr;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, inotify, openat2};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdGetfdFlags, Signal, pidfd_getfd};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::held_call::{self, CallArguments, HeldCall};
use crate::{Step, StepError, lockdown, namespaces, sys};

/// The file systems that are a sandbox's own, by a directory of each.
const OWN: [&CStr; 3] = [c"/mnt/data", c"/tmp", c"/home"];
/// The longest path that Linux takes, with its last zero.
const MAX_PATH: usize = 4096;
/// A length of which no part lies in two pages of memory.
const PAGE: usize = 4096;

/// A call of `inotify_add_watch` that waits for its answer.
pub(crate) type WatchCall = HeldCall<WatchArguments>;

/// The arguments of `inotify_add_watch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WatchArguments {
    /// The inotify instance, by the caller's number.
    pub(crate) descriptor: i32,
    pub(crate) mask: u32,
    /// The address of the path in the caller's memory.
    pub(crate) path: u64,
}

impl CallArguments for WatchArguments {
    type Bytes = [u8; 16];

    fn to_bytes(&self) -> Self::Bytes {
        let numbers = u64::from(self.descriptor.cast_unsigned()) << 32 | u64::from(self.mask);
        (u128::from(numbers) << 64 | u128::from(self.path)).to_ne_bytes()
    }

    fn from_bytes(bytes: Self::Bytes) -> Self {
        let all = u128::from_ne_bytes(bytes);
        Self { descriptor: (all >> 96) as i32, mask: (all >> 64) as u32, path: all as u64 }
    }
}

/// The place of a watcher.
pub(crate) struct WatcherPlace<'a> {
    pub(crate) init: BorrowedFd<'a>,
    /// The user and group of the sandbox's programs, where that is one of its own.
    pub(crate) user: Option<u32>,
    /// The membership files of the control group.
    pub(crate) joins: &'a [OwnedFd],
}

/// Forks the watcher of a sandbox, by way of a process that joins the sandbox's namespaces: its children start inside. The watcher is a
/// child of the caller's.
pub(crate) fn start(place: &WatcherPlace<'_>, socket: &OwnedFd) -> Result<(), StepError> {
    match sys::fork(0).step("fork")? {
        sys::Fork::Parent(_) => Ok(()),
        sys::Fork::Child => {
            // Without a watcher its socket closes, and the calls fail.
            if let Err(error) = become_watcher(place, socket) {
                eprintln!("aludel: a watcher: {error}");
                sys::exit(1);
            }
            sys::exit(0)
        }
    }
}

fn become_watcher(place: &WatcherPlace<'_>, socket: &OwnedFd) -> Result<(), StepError> {
    let user = if place.user.is_some() { libc::CLONE_NEWUSER } else { 0 };
    let namespaces = libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    sys::setns(place.init, user | namespaces).step("join the sandbox's namespaces")?;
    if place.user.is_some() {
        namespaces::become_namespace_root()?;
    }
    match sys::fork(libc::CLONE_PARENT).step("fork")? {
        sys::Fork::Parent(_) => Ok(()),
        sys::Fork::Child => {
            let own = enter(place, socket)?;
            held_call::serve(socket.as_fd(), |arguments, caller| add(arguments, &caller, &own))
        }
    }
}

/// Joins the control group, and drops everything that a watcher does not need. Returns the numbers of the sandbox's own file systems.
fn enter(place: &WatcherPlace<'_>, socket: &OwnedFd) -> Result<[u64; OWN.len()], StepError> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step("die with the warden")?;
    for join in place.joins {
        rustix::io::write(join, b"0").step("join the cgroup")?;
    }
    sys::reset_signals().step("reset the signals")?;
    rustix::process::setsid().step("lead a session of its own")?;
    rustix::thread::set_name(c"aludel-watcher").step("take a name")?;
    let mut own = [0; OWN.len()];
    for (number, directory) in own.iter_mut().zip(OWN) {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::open(directory, flags, Mode::empty()).step("open the sandbox's directories")?;
        *number = fstat(&directory).step("look at the sandbox's directories")?.st_dev;
    }
    if let Some(user) = place.user {
        // A program may watch only files that it may read.
        sys::access_files_as(user, user).step("access files as its programs do")?;
    }
    let (none, ptrace) = (CapabilitySet::empty(), CapabilitySet::SYS_PTRACE);
    let sets = CapabilitySets { effective: ptrace, permitted: ptrace, inheritable: none };
    rustix::thread::set_capabilities(None, sets).step("drop the capabilities")?;
    rustix::thread::set_no_new_privs(true).step("gain no privileges")?;
    // Changing ids cleared it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step("die with the warden")?;
    sys::close_all_but(socket.as_fd()).step("close all other descriptors")?;
    sys::install_filter(&lockdown::watcher_filter()?).step("apply seccomp to the watcher")?;
    Ok(own)
}

/// Adds the watch, if the file is on one of the sandbox's own file systems, and returns its number.
fn add(arguments: WatchArguments, caller: &OwnedFd, own: &[u64]) -> Result<i32, Errno> {
    let WatchArguments { descriptor, mask, path } = arguments;
    if descriptor < 0 {
        return Err(Errno::BADF);
    }
    let instance = pidfd_getfd(caller, descriptor, PidfdGetfdFlags::empty())?;
    let thread = thread_of(caller)?;
    let mut buffer = [0; MAX_PATH];
    let path = read_path(thread, path, &mut buffer)?;
    let mut flags = OFlags::PATH | OFlags::CLOEXEC;
    flags.set(OFlags::NOFOLLOW, mask & libc::IN_DONT_FOLLOW != 0);
    flags.set(OFlags::DIRECTORY, mask & libc::IN_ONLYDIR != 0);
    // The links of /proc would lead to the watcher's own files.
    let open = |directory: BorrowedFd<'_>| openat2(directory, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS);
    let file = if path.to_bytes().starts_with(b"/") { open(CWD)? } else { open(directory_of(thread)?.as_fd())? };
    if !own.contains(&fstat(&file)?.st_dev) {
        return Err(Errno::ACCESS);
    }
    let mut name = [0; 32];
    let path = written(&mut name, format_args!("/proc/self/fd/{}\0", file.as_raw_fd()))?;
    let mask = mask & !(libc::IN_DONT_FOLLOW | libc::IN_ONLYDIR);
    inotify::add_watch(&instance, path, inotify::WatchFlags::from_bits_retain(mask))
}

/// The number of the thread or process behind a pidfd, in the watcher's namespace.
fn thread_of(pidfd: &OwnedFd) -> Result<Pid, Errno> {
    let (mut name, mut text) = ([0; 40], [0; 512]);
    let path = written(&mut name, format_args!("/proc/self/fdinfo/{}\0", pidfd.as_raw_fd()))?;
    let file = openat2(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::empty())?;
    let count = retry_on_intr(|| rustix::io::read(&file, &mut text[..]))?;
    let mut lines = text.get(..count).unwrap_or_default().split(|byte| *byte == b'\n');
    let number = lines.find_map(|line| line.strip_prefix(b"Pid:")).map(<[u8]>::trim_ascii);
    let number = number.and_then(|number| std::str::from_utf8(number).ok()).and_then(|number| number.parse().ok());
    // It is -1 once the process has ended.
    number.filter(|number: &i32| *number > 0).and_then(Pid::from_raw).ok_or(Errno::SRCH)
}

/// The working directory of a thread.
fn directory_of(thread: Pid) -> Result<OwnedFd, Errno> {
    let mut name = [0; 32];
    let path = written(&mut name, format_args!("/proc/{}/cwd\0", thread.as_raw_nonzero()))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(CWD, path, flags, Mode::empty(), ResolveFlags::empty())
}

/// Reads a path from the memory of a thread.
fn read_path(thread: Pid, address: u64, buffer: &mut [u8; MAX_PATH]) -> Result<&CStr, Errno> {
    let start = usize::try_from(address).map_err(|_| Errno::FAULT)?;
    let mut length = 0;
    // Page by page: there may be nothing after the one in which it ends.
    while !buffer.get(..length).unwrap_or_default().contains(&0) {
        let at = start.checked_add(length).ok_or(Errno::FAULT)?;
        let end = MAX_PATH.min(length + PAGE - at % PAGE);
        let part = buffer.get_mut(length..end).filter(|part| !part.is_empty()).ok_or(Errno::NAMETOOLONG)?;
        match sys::read_memory(thread, at, part) {
            Ok(count) if count > 0 => length += count,
            Ok(_) | Err(_) => return Err(Errno::FAULT),
        }
    }
    CStr::from_bytes_until_nul(buffer).map_err(|_| Errno::NAMETOOLONG)
}

/// A text with a zero at its end, written without allocating.
fn written<'a>(buffer: &'a mut [u8], text: std::fmt::Arguments<'_>) -> Result<&'a CStr, Errno> {
    (&mut *buffer).write_fmt(text).map_err(|_| Errno::NAMETOOLONG)?;
    CStr::from_bytes_until_nul(buffer).map_err(|_| Errno::NAMETOOLONG)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic and explains itself")]

    use super::*;
    use crate::caller;

    /// The answer to a call of this thread.
    fn ask(instance: &OwnedFd, path: &CStr, mask: u32, own: &[u64]) -> Result<i32, Errno> {
        let path = path.as_ptr().addr() as u64;
        ask_at(instance.as_raw_fd(), path, mask, own)
    }

    fn ask_at(descriptor: i32, path: u64, mask: u32, own: &[u64]) -> Result<i32, Errno> {
        let (ours, theirs) = crate::message::socket_pair().unwrap();
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let arguments = WatchArguments { descriptor, mask, path };
        held_call::send(&ours, &arguments, caller::open(thread).unwrap().as_fd()).unwrap();
        let (received, copy) = held_call::receive(theirs.as_fd()).unwrap();
        assert_eq!(received, arguments);
        add(received, &copy.unwrap(), own)
    }

    #[test]
    fn what_is_on_its_own_file_systems_is_watched_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let own = [std::os::unix::fs::MetadataExt::dev(&path.metadata().unwrap())];
        std::fs::write(path.join("file"), "").unwrap();
        std::os::unix::fs::symlink("/dev/null", path.join("out")).unwrap();
        std::os::unix::fs::symlink("file", path.join("in")).unwrap();
        let text = |name: &str| std::ffi::CString::new(path.join(name).to_str().unwrap()).unwrap();
        let instance = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        let ask = |path: &CStr, mask| super::tests::ask(&instance, path, mask, &own);
        let (all, no_follow, only_directories) = (libc::IN_ALL_EVENTS, libc::IN_DONT_FOLLOW, libc::IN_ONLYDIR);
        let file = ask(&text("file"), all).unwrap();
        assert_eq!(ask(&text("in"), all), Ok(file), "a link is followed");
        assert!(ask(&text("out"), all | no_follow).is_ok_and(|number| number != file), "the link itself");
        assert!(ask(&text("."), all | only_directories).is_ok());
        assert_eq!(ask(&text("file"), all | only_directories), Err(Errno::NOTDIR));
        assert_eq!(ask(&text("none"), all), Err(Errno::NOENT));
        assert_eq!(ask(&text("file"), 0), Err(Errno::INVAL));
        for foreign in [c"/dev/null", c"/proc/self/status", c"/proc", &text("out")] {
            assert_eq!(ask(foreign, all), Err(Errno::ACCESS), "{foreign:?}");
        }
        for link in [c"/proc/self/fd/0", c"/proc/self/cwd"] {
            assert_eq!(ask(link, all), Err(Errno::LOOP), "{link:?}");
        }
        assert_eq!(ask(c"", all), Err(Errno::NOENT));
        let long = std::ffi::CString::new("a/".repeat(MAX_PATH)).unwrap();
        assert_eq!(ask(&long, all), Err(Errno::NAMETOOLONG));
        // A relative path is relative to the caller's directory: this crate's.
        assert_eq!(
            ask(c"Cargo.toml", all).is_ok(),
            own == [std::path::Path::new(".").metadata().unwrap()]
                .map(|own| { std::os::unix::fs::MetadataExt::dev(&own) })
        );
    }

    #[test]
    fn arguments_that_are_none_are_errors() {
        let own = [0];
        let instance = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        for address in [0, 1, u64::MAX, u64::MAX - 4000, 1 << 63] {
            assert_eq!(ask_at(instance.as_raw_fd(), address, 2, &own), Err(Errno::FAULT), "{address}");
        }
        let path = c"/".as_ptr().addr() as u64;
        assert_eq!(ask_at(-1, path, 2, &own), Err(Errno::BADF));
        let root = std::os::unix::fs::MetadataExt::dev(&std::path::Path::new("/").metadata().unwrap());
        assert_eq!(ask_at(std::fs::File::open("/").unwrap().as_raw_fd(), path, 2, &[root]), Err(Errno::INVAL));
    }
}
