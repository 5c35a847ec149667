//! File locks, as far as Linux shows them. Their memory is counted by no control group, and a program can take half a million in a second.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

use crate::{Step, StepError, message, pid_namespace, sys};

/// Locks that one sandbox may hold. A database takes five for each of its users.
const MAX_LOCKS: usize = 1_000;
/// Bytes of `/proc/locks` that are read: some 16,000 locks. Reading gets slower with its length, and blocks locking on the whole host.
const MAX_LIST_BYTES: u64 = 1 << 20;

/// Pid namespaces in one answer of the counter; those left out are in the next one.
const MAX_EXCESSIVE: usize = 1_000;

/// The process that counts locks for the warden. Linux has the reader of the list wait for a grace period of the system, some 9 ms, in
/// which the warden makes sandboxes.
pub(crate) struct LockCounter {
    socket: OwnedFd,
    is_counting: bool,
}

/// A request of the warden.
#[derive(Serialize, Deserialize)]
struct CountRequest {
    /// Number of sandboxes.
    sandboxes: usize,
}

/// Pid namespaces with more locks than one sandbox may hold.
#[derive(Serialize, Deserialize)]
struct ExcessiveLocks(HashSet<PathBuf>);

impl LockCounter {
    /// Starts the process. It sees the processes that its caller sees.
    pub(crate) fn start() -> Result<Self, StepError> {
        let (socket, theirs) = message::socket_pair().step("make the lock counter's socket")?;
        match sys::fork(0).step("fork the lock counter")? {
            sys::Fork::Parent(_) => Ok(Self { socket, is_counting: false }),
            sys::Fork::Child => {
                if let Err(error) = serve(&theirs) {
                    eprintln!("aludel: {error}");
                }
                sys::exit(1)
            }
        }
    }

    /// The descriptor that is readable when there is an answer.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.socket
    }

    /// Requests a count, unless one is under way.
    pub(crate) fn ask(&mut self, sandboxes: usize) {
        if !self.is_counting {
            self.is_counting = message::try_send(&self.socket, &CountRequest { sandboxes }, &[]).is_ok();
        }
    }

    /// Receives the answer: the pid namespaces with too many locks. `None` if the process has ended.
    pub(crate) fn answer(&mut self) -> Option<HashSet<PathBuf>> {
        self.is_counting = false;
        let (ExcessiveLocks(excessive), _) = message::receive(&self.socket).ok()??;
        Some(excessive)
    }
}

/// Counts for each request, until the warden hangs up.
fn serve(socket: &OwnedFd) -> Result<(), StepError> {
    sys::close_all_but(socket.as_fd()).step("close the warden's descriptors")?;
    sys::reset_signals().step("reset the signals")?;
    rustix::thread::set_name(c"aludel-locks").step("take a name")?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step("die with the warden")?;
    while let Some((CountRequest { sandboxes }, _)) = message::receive(socket).step("hear the warden")? {
        // Without a list of locks there is nothing to enforce.
        let excessive = Locks::read().unwrap_or_default().excessive(sandboxes);
        message::send(socket, &ExcessiveLocks(excessive), &[]).step("tell the warden")?;
    }
    Ok(())
}

/// The locks of the processes in the pid namespace of `/proc`.
#[derive(Default)]
struct Locks {
    /// Locks that each process holds or waits for.
    holders: HashMap<Pid, usize>,
    count: usize,
    is_cut: bool,
}

impl Locks {
    /// Reads the list.
    fn read() -> io::Result<Self> {
        let mut text = String::new();
        File::open("/proc/locks")?.take(MAX_LIST_BYTES).read_to_string(&mut text)?;
        Ok(Self::of(&text))
    }

    fn of(text: &str) -> Self {
        let mut locks = Self { holders: HashMap::new(), count: 0, is_cut: text.len() as u64 == MAX_LIST_BYTES };
        for pid in text.lines().filter_map(holder) {
            *locks.holders.entry(pid).or_default() += 1;
            locks.count += 1;
        }
        locks
    }

    /// The pid namespaces with more locks than one of so many sandboxes may hold.
    fn excessive(&self, sandboxes: usize) -> HashSet<PathBuf> {
        let mut counts = HashMap::<_, usize>::new();
        if self.is_cut || self.count > MAX_LOCKS {
            for (pid, count) in &self.holders {
                if let Some(namespace) = pid_namespace::namespace_of(*pid) {
                    *counts.entry(namespace).or_default() += count;
                }
            }
        }
        let limit = self.limit(sandboxes);
        let excessive = counts.into_iter().filter(|(_, count)| *count > limit).map(|(namespace, _)| namespace);
        excessive.take(MAX_EXCESSIVE).collect()
    }

    /// Locks that each sandbox may hold, for a number of sandboxes.
    ///
    /// Linux lists locks processor by processor, so many sandboxes could push those of another one beyond the part that is read. If the
    /// list is too long to be read, the limit is an equal share of that part, and at least one sandbox exceeds it.
    fn limit(&self, sandboxes: usize) -> usize {
        if self.is_cut { MAX_LOCKS.min(self.count / (sandboxes + 1)) } else { MAX_LOCKS }
    }
}

/// The process in a line such as `7: -> POSIX  ADVISORY  WRITE 4711 00:2e:5 0 EOF`: the first number that stands alone.
fn holder(line: &str) -> Option<Pid> {
    let number = line.split_whitespace().find_map(|word| word.parse().ok());
    number.filter(|number| *number > 0).and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_its_holder() {
        let pid = |line| holder(line).map(|pid| pid.as_raw_nonzero().get());
        assert_eq!(pid("1: POSIX  ADVISORY  WRITE 4711 00:2e:5 0 EOF"), Some(4711));
        assert_eq!(pid("1: -> FLOCK  ADVISORY  READ 12 00:2e:5 0 EOF"), Some(12));
        assert_eq!(pid("2: OFDLCK ADVISORY  READ -1 00:06:9 0 EOF"), None);
        assert_eq!(pid(""), None);
    }

    #[test]
    fn where_the_list_is_too_long_somebody_has_more_than_a_share() {
        let line = |sandbox: usize| format!("1: POSIX  ADVISORY  WRITE {} 00:2e:5 0 EOF\n", 100 + sandbox);
        let short = Locks::of(&line(0).repeat(2_000));
        assert_eq!((short.limit(30), short.count), (MAX_LOCKS, 2_000));
        let mut list: String = (0..30_000).map(|number| line(number % 30)).collect();
        list.truncate(MAX_LIST_BYTES as usize);
        let long = Locks::of(&list);
        let limit = long.limit(30);
        assert!(limit < MAX_LOCKS && long.holders.values().any(|count| *count > limit), "{limit}");
    }
}
