//! Locks of files, as far as the kernel shows them: it takes memory for each that no control group counts, and a program can take half a
//! million in a second.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::time::Duration;

use rustix::process::Pid;

/// How often they are looked at. What can be taken in between is little against a host's memory.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);
/// The most that one sandbox may hold. A database takes five for each of its users.
pub(crate) const MOST: usize = 4_000;
/// How much of the list is read, bytes. The newest come first, and each line has less than a hundred.
const READ: u64 = 1 << 20;

/// How many each process holds or waits for: those of the process namespace of `/proc`, and of the newest only.
pub(crate) fn holders() -> io::Result<HashMap<Pid, usize>> {
    let mut text = String::new();
    File::open("/proc/locks")?.take(READ).read_to_string(&mut text)?;
    let mut holders = HashMap::new();
    for pid in text.lines().filter_map(holder) {
        *holders.entry(pid).or_default() += 1;
    }
    Ok(holders)
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
}
