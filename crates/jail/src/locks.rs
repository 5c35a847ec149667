//! File locks, as far as Linux shows them. Their memory is counted by no control group, and a program can take half a million in a second.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

use crate::crowds::{Waiter, Waits};
use crate::{Step, StepError, message, pid_namespace, sys};

/// Locks that one sandbox may hold. A database takes five for each of its users.
const MAX_LOCKS: usize = 1_000;
/// Locks of one file beyond which a sandbox may hold no more than a share of so many. Devices and the template's files are the same for all
/// sandboxes, and Linux looks at all locks of a file whenever anybody closes it, 20 ns for each.
const MAX_LOCKS_OF_FILE: usize = 2_000;
/// Locks that each sandbox may always hold, of a file and in all.
const LEAST_LOCKS: usize = 16;
/// Counts in a row by which a sandbox has too many locks of whole files. Linux gives the list 4 KB at a time, and repeats a part of it when
/// locks are added meanwhile. Record locks that stand there twice are known by their ranges, these are not.
const COUNTS: u32 = 3;
/// Bytes of `/proc/locks` that are read: some 16,000 locks. Reading gets slower with its length, and blocks locking on the whole host.
const MAX_LIST_BYTES: u64 = 1 << 20;

/// Pid namespaces in one answer of the counter; those left out are in the next one.
const MAX_EXCESSIVE: usize = 1_000;

/// The process that counts locks for the warden. Linux has the reader of the list wait for a grace period of the system, some 9 ms, in
/// which the warden makes sandboxes.
pub(crate) struct LockCounter {
    socket: OwnedFd,
    is_counting: bool,
    /// Start of the last count.
    since: Instant,
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
    pub(crate) fn start(waits: Waits) -> Result<Self, StepError> {
        let (socket, theirs) = message::socket_pair().step("make the lock counter's socket")?;
        match sys::fork(0).step("fork the lock counter")? {
            sys::Fork::Parent(_) => Ok(Self { socket, is_counting: false, since: Instant::now() }),
            sys::Fork::Child => {
                if let Err(error) = serve(&theirs, waits) {
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
            self.since = Instant::now();
            self.is_counting = message::try_send(&self.socket, &CountRequest { sandboxes }, &[]).is_ok();
        }
    }

    /// Receives the answer: the pid namespaces with too many locks, and the start of the count. Linux gives the name of a namespace that
    /// has ended to the next one, so those made since are not meant. `None` if the process has ended.
    pub(crate) fn answer(&mut self) -> Option<(HashSet<PathBuf>, Instant)> {
        self.is_counting = false;
        let (ExcessiveLocks(excessive), _) = message::receive(&self.socket).ok()??;
        Some((excessive, self.since))
    }
}

/// Counts for each request, until the warden hangs up.
fn serve(socket: &OwnedFd, waits: Waits) -> Result<(), StepError> {
    sys::close_all_but(socket.as_fd()).step("close the warden's descriptors")?;
    sys::reset_signals().step("reset the signals")?;
    rustix::thread::set_name(c"aludel-locks").step("take a name")?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step("die with the warden")?;
    let mut suspects = Suspects::default();
    while let Some((CountRequest { sandboxes }, _)) = message::receive(socket).step("hear the warden")? {
        // Without a list of locks there is nothing to enforce.
        waits.begin(Waiter::LockCounter);
        let list = read_list().unwrap_or_default();
        waits.end(Waiter::LockCounter);
        let excessive = suspects.judge(&Locks::of(&list), sandboxes, pid_namespace::namespace_of);
        message::send(socket, &ExcessiveLocks(excessive), &[]).step("tell the warden")?;
    }
    Ok(())
}

/// Reads the list of the locks of all processes in the pid namespace of `/proc`.
fn read_list() -> io::Result<String> {
    let mut list = String::new();
    File::open("/proc/locks")?.take(MAX_LIST_BYTES).read_to_string(&mut list)?;
    Ok(list)
}

/// Pid namespaces with too many locks in the last counts, and the number of those counts.
#[derive(Default)]
struct Suspects(HashMap<PathBuf, u32>);

impl Suspects {
    /// The pid namespaces to end after a further count. `namespace_of` tells that of a process.
    fn judge(
        &mut self,
        locks: &Locks<'_>,
        sandboxes: usize,
        namespace_of: impl Fn(Pid) -> Option<PathBuf> + Copy,
    ) -> HashSet<PathBuf> {
        let before = std::mem::take(&mut self.0);
        for namespace in locks.excessive(sandboxes, namespace_of, &[LockKind::Record, LockKind::File]) {
            let counts = before.get(&namespace).map_or(1, |counts| counts + 1);
            self.0.insert(namespace, counts);
        }
        let confirmed = self.0.iter().filter(|(_, counts)| **counts >= COUNTS).map(|(namespace, _)| namespace.clone());
        let mut excessive: HashSet<_> = confirmed.collect();
        if !self.0.is_empty() {
            excessive.extend(locks.excessive(sandboxes, namespace_of, &[LockKind::Record]));
        }
        excessive
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum LockKind {
    /// A lock of a range, by `fcntl`.
    Record,
    /// A lock of a whole file, by `flock`.
    File,
}

/// A process's locks of one kind, of one file.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Holder<'a> {
    pid: Pid,
    kind: LockKind,
    file: &'a str,
}

/// The locks of a list.
struct Locks<'a> {
    /// Locks that are held or waited for.
    holders: HashMap<Holder<'a>, usize>,
    /// Lines of the list, with those that stand there twice.
    count: usize,
    is_cut: bool,
}

impl<'a> Locks<'a> {
    fn of(list: &'a str) -> Self {
        let mut locks = Self { holders: HashMap::new(), count: 0, is_cut: list.len() as u64 == MAX_LIST_BYTES };
        let mut ranges = HashSet::new();
        for (holder, range) in list.lines().filter_map(holder) {
            if holder.kind == LockKind::File || ranges.insert((holder, range)) {
                *locks.holders.entry(holder).or_default() += 1;
            }
            locks.count += 1;
        }
        locks
    }

    /// The pid namespaces with more locks of these kinds than one of so many sandboxes may hold.
    fn excessive(
        &self,
        sandboxes: usize,
        namespace_of: impl Fn(Pid) -> Option<PathBuf>,
        kinds: &[LockKind],
    ) -> HashSet<PathBuf> {
        if !self.is_cut && self.count <= MAX_LOCKS {
            return HashSet::new();
        }
        let pids: HashSet<Pid> = self.holders.keys().map(|holder| holder.pid).collect();
        let namespaces: HashMap<Pid, PathBuf> =
            pids.into_iter().filter_map(|pid| Some((pid, namespace_of(pid)?))).collect();
        // Those of each namespace, and of those the ones of each file.
        let mut held = HashMap::<(&PathBuf, Option<&str>), usize>::new();
        let mut files = HashMap::<&str, usize>::new();
        for (Holder { pid, file, .. }, count) in self.holders.iter().filter(|(holder, _)| kinds.contains(&holder.kind))
        {
            *files.entry(file).or_default() += count;
            let namespace = namespaces.get(pid).into_iter();
            for holder in namespace.flat_map(|namespace| [(namespace, None), (namespace, Some(*file))]) {
                *held.entry(holder).or_default() += count;
            }
        }
        let limit = |file: Option<&str>| match file.map(|file| files.get(file)) {
            None => self.limit(sandboxes),
            Some(Some(count)) if *count > MAX_LOCKS_OF_FILE => LEAST_LOCKS.max(MAX_LOCKS_OF_FILE / (sandboxes + 1)),
            Some(_) => usize::MAX,
        };
        let excessive = held.into_iter().filter(|((_, file), count)| *count > limit(*file));
        // A namespace may be among them several times.
        let excessive: HashSet<_> = excessive.map(|((namespace, _), _)| namespace).collect();
        excessive.into_iter().take(MAX_EXCESSIVE).cloned().collect()
    }

    /// Locks that each sandbox may hold, for a number of sandboxes.
    ///
    /// Linux lists locks processor by processor, so many sandboxes could push those of another one beyond the part that is read. If the
    /// list is too long to be read, the limit is an equal share of that part, and at least one sandbox exceeds it.
    fn limit(&self, sandboxes: usize) -> usize {
        if self.is_cut { (self.count / (sandboxes + 1)).clamp(LEAST_LOCKS, MAX_LOCKS) } else { MAX_LOCKS }
    }
}

/// The holder and the range in a line such as `7: -> POSIX  ADVISORY  WRITE 4711 00:2e:5 0 EOF`. The process is the first number that
/// stands alone, and the file the word behind it.
fn holder(line: &str) -> Option<(Holder<'_>, (&str, &str))> {
    let mut words = line.split_whitespace();
    let mut kind = LockKind::Record;
    let number = words.find_map(|word| {
        if word == "FLOCK" {
            kind = LockKind::File;
        }
        word.parse().ok()
    });
    let pid = Pid::from_raw(number.filter(|number| *number > 0)?)?;
    Some((Holder { pid, kind, file: words.next()? }, (words.next()?, words.next()?)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic and explains itself")]

    use super::*;

    #[test]
    fn a_line_names_its_holder() {
        let holder = |line| {
            let (Holder { pid, kind, file }, range) = holder(line)?;
            Some((pid.as_raw_nonzero().get(), kind == LockKind::File, file, range))
        };
        let record = Some((4711, false, "00:2e:5", ("0", "EOF")));
        assert_eq!(holder("1: POSIX  ADVISORY  WRITE 4711 00:2e:5 0 EOF"), record);
        assert_eq!(holder("1: -> FLOCK  ADVISORY  READ 12 00:2e:5 0 EOF"), Some((12, true, "00:2e:5", ("0", "EOF"))));
        assert_eq!(holder("2: OFDLCK ADVISORY  READ -1 00:06:9 0 EOF"), None);
        // The list may end anywhere.
        assert_eq!((holder("1: POSIX  ADVISORY  WRITE 4711"), holder("")), (None, None));
    }

    /// A list of locks: processes, each with a file and a number of locks of it.
    fn list(locks: &[(i32, &str, usize)]) -> String {
        let line = |(pid, file, count): &(i32, &str, usize)| {
            format!("1: FLOCK  ADVISORY  READ {pid} {file} 0 EOF\n").repeat(*count)
        };
        locks.iter().map(line).collect()
    }

    fn namespace(pid: Pid) -> Option<PathBuf> {
        Some((pid.as_raw_nonzero().get() / 10).to_string().into())
    }

    /// The sandboxes with excessive locks, if each tenth process is the first of one.
    fn excessive(locks: &[(i32, &str, usize)], sandboxes: usize) -> Vec<i32> {
        let excessive = Locks::of(&list(locks)).excessive(sandboxes, namespace, &[LockKind::Record, LockKind::File]);
        let mut excessive: Vec<_> = excessive.iter().map(|path| path.to_str().unwrap().parse().unwrap()).collect();
        excessive.sort_unstable();
        excessive
    }

    #[test]
    fn locks_of_all_processes_of_a_sandbox_count() {
        assert_eq!(excessive(&[(10, "a", 500), (11, "b", 500), (20, "a", 900)], 2), [0; 0]);
        assert_eq!(excessive(&[(10, "a", 500), (11, "b", 501), (20, "a", 900)], 2), [1]);
    }

    #[test]
    fn what_stands_in_the_list_twice_ends_no_sandbox() {
        let record = |place: usize| format!("{place}: POSIX  ADVISORY  WRITE 10 a {place} {place}\n");
        let records = |places: std::ops::Range<usize>| places.map(record).collect::<String>();
        let judge = |suspects: &mut Suspects, list: &str| suspects.judge(&Locks::of(list), 2, namespace).len();
        let mut suspects = Suspects::default();
        assert_eq!(judge(&mut suspects, &(records(0..900) + &records(500..900))), 0);
        assert_eq!(judge(&mut suspects, &records(0..1001)), 1, "these are known for certain");
        let (repeated, files) = (list(&[(10, "a", 1100)]), list(&[(10, "a", 900)]));
        let mut suspects = Suspects::default();
        let counts = [&repeated, &repeated, &files, &repeated, &repeated, &repeated];
        assert_eq!(counts.map(|list| judge(&mut suspects, list)), [0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn of_a_crowded_file_nobody_holds_more_than_a_share() {
        let crowded = [(10, "a", 900), (20, "a", 900), (30, "a", 201), (40, "a", 16), (50, "b", 900)];
        assert_eq!(excessive(&crowded, 20), [1, 2, 3]);
        assert_eq!(excessive(&crowded, 9), [1, 2, 3], "the share is 200");
        assert_eq!(excessive(&crowded, 8), [1, 2], "the share is 222");
        assert_eq!(excessive(&crowded[..2], 2), [0; 0], "it is not crowded");
        let many: Vec<_> = (1..200).map(|sandbox| (sandbox * 10, "a", 16)).collect();
        assert_eq!(excessive(&many, 199), [0; 0], "some are always allowed");
    }

    #[test]
    fn where_the_list_is_too_long_somebody_has_more_than_a_share() {
        let line = |number: usize| format!("1: POSIX  ADVISORY  WRITE {} 00:2e:5 {number} EOF\n", 100 + number % 30);
        let short: String = (0..2_000).map(line).collect();
        let short = Locks::of(&short);
        assert_eq!((short.limit(30), short.count), (MAX_LOCKS, 2_000));
        let mut list: String = (0..30_000).map(line).collect();
        list.truncate(MAX_LIST_BYTES as usize);
        let long = Locks::of(&list);
        let limit = long.limit(30);
        assert!(limit < MAX_LOCKS && long.holders.values().any(|count| *count > limit), "{limit}");
    }
}
