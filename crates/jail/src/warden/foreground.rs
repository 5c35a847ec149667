//! Shares of busy processors by the time since something began in a sandbox that somebody waits for.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::cgroup::CpuShare;

/// Time at the largest share: most of what is waited for is over by then.
const FIRST: Duration = Duration::from_millis(100);
/// Time until it gives way to what begins elsewhere.
const FOREGROUND: Duration = Duration::from_secs(1);

/// The sandboxes in which something began a short while ago.
#[derive(Debug, Default)]
pub(super) struct Foreground {
    sandboxes: HashMap<u64, Began>,
    /// When which sandbox's share is to be looked at again.
    due: BTreeSet<(Instant, u64)>,
}

#[derive(Debug)]
struct Began {
    at: Instant,
    share: CpuShare,
    due: Instant,
}

impl Foreground {
    /// Takes note that something begins in a sandbox. Returns true if it has to be given [`CpuShare::Large`].
    pub(super) fn begin(&mut self, id: u64, now: Instant) -> bool {
        let due = now + FIRST;
        if let Some(began) = self.sandboxes.get_mut(&id) {
            began.at = now;
            if began.share == CpuShare::Large {
                return false;
            }
            self.due.remove(&(began.due, id));
        }
        self.sandboxes.insert(id, Began { at: now, share: CpuShare::Large, due });
        self.due.insert((due, id));
        true
    }

    /// The next sandbox whose share is another one from now on.
    pub(super) fn next_change(&mut self, now: Instant) -> Option<(u64, CpuShare)> {
        while let Some((_, id)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            self.due.pop_first();
            let Some(began) = self.sandboxes.get_mut(&id) else { continue };
            let (share, wait) = match now.saturating_duration_since(began.at) {
                since if since < FIRST => (CpuShare::Large, FIRST),
                since if since < FOREGROUND => (CpuShare::Full, FOREGROUND),
                _ => {
                    self.sandboxes.remove(&id);
                    return Some((id, CpuShare::Small));
                }
            };
            began.due = began.at + wait;
            self.due.insert((began.due, id));
            if std::mem::replace(&mut began.share, share) != share {
                return Some((id, share));
            }
        }
        None
    }

    /// The time of the next change.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic and explains itself")]

    use super::*;

    #[test]
    fn a_share_shrinks_until_something_begins_again() {
        let (mut foreground, start) = (Foreground::default(), Instant::now());
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        assert!(foreground.begin(1, start));
        assert!(!foreground.begin(1, after(60)), "it has the largest share already");
        assert!(foreground.begin(2, after(70)));
        assert_eq!(foreground.next_due(), Some(after(100)));
        assert_eq!(foreground.next_change(after(100)), None, "something began in it since");
        assert_eq!(foreground.next_due(), Some(after(160)));
        assert_eq!(foreground.next_change(after(165)), Some((1, CpuShare::Full)));
        assert_eq!(foreground.next_change(after(170)), Some((2, CpuShare::Full)));
        assert_eq!(foreground.next_change(after(170)), None);
        assert!(foreground.begin(1, after(500)));
        assert_eq!(foreground.next_change(after(1100)), Some((1, CpuShare::Full)));
        assert_eq!(foreground.next_change(after(1100)), Some((2, CpuShare::Small)));
        assert_eq!(foreground.next_due(), Some(after(1500)));
        assert_eq!(foreground.next_change(after(1500)), Some((1, CpuShare::Small)));
        assert_eq!(foreground.next_due(), None, "nothing is kept of them");
        assert!(foreground.begin(1, after(1600)));
    }
}
