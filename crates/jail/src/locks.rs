//! File locks, as far as Linux shows them. Their memory is counted by no control group, and a program can take half a million in a second.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use rustix::process::Pid;

use crate::pid_namespace;

/// Locks that one sandbox may hold. A database takes five for each of its users.
const MAX_LOCKS: usize = 1_000;
/// Bytes of `/proc/locks` that are read: some 16,000 locks. Reading gets slower with its length, and blocks locking on the whole host.
const MAX_LIST_BYTES: u64 = 1 << 20;

/// The locks of the processes in the pid namespace of `/proc`.
#[derive(Default)]
pub(crate) struct Locks {
    /// Locks that each process holds or waits for.
    holders: HashMap<Pid, usize>,
    count: usize,
    is_cut: bool,
}

impl Locks {
    /// Reads the list.
    pub(crate) fn read() -> io::Result<Self> {
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

    /// Counts the locks of each pid namespace. Empty if the total is below the limit of one sandbox.
    pub(crate) fn by_namespace(&self) -> HashMap<PathBuf, usize> {
        let mut counts = HashMap::new();
        if self.is_cut || self.count > MAX_LOCKS {
            for (pid, count) in &self.holders {
                if let Some(namespace) = pid_namespace::namespace_of(*pid) {
                    *counts.entry(namespace).or_default() += count;
                }
            }
        }
        counts
    }

    /// Locks that each sandbox may hold, for a number of sandboxes.
    ///
    /// Linux lists locks processor by processor, so many sandboxes could push those of another one beyond the part that is read. If the
    /// list is too long to be read, the limit is an equal share of that part, and at least one sandbox exceeds it.
    pub(crate) fn limit(&self, sandboxes: usize) -> usize {
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
