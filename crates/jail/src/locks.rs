//! Locks of files, as far as Linux shows them: it takes memory for each that no control group counts, and a program can take half a
//! million in a second.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use rustix::process::Pid;

use crate::pid_namespace;

/// Locks that one sandbox may hold. A database takes five for each of its users.
const MAX_LOCKS: usize = 1_000;
/// Bytes of the list that are read: some 16,000 locks. Reading on gets ever slower, and nobody can lock a file meanwhile.
const MAX_LIST_BYTES: u64 = 1 << 20;

/// The locks of the processes in the process namespace of `/proc`.
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

    /// Counts those of each process namespace. None are counted where nobody can have too many.
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

    /// Locks that each of so many sandboxes may hold.
    ///
    /// The list is that of one processor after another, so that many sandboxes could hide the locks of another one behind theirs. Where it
    /// is too long to be read, each has its share of what was read, and one at least has more.
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
