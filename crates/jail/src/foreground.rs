//! Processor shares of sandboxes, by the time since a client began to wait for work in them.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::cgroup::CpuShare;

/// Time for which a sandbox is boosted. Most cells and commands end within it.
const BOOST_TIME: Duration = Duration::from_millis(100);
/// Time until a sandbox goes to the background.
const FOREGROUND_TIME: Duration = Duration::from_secs(1);

/// Processor time in one boost, above which a sandbox is not boosted again soon. Most work takes less; without this limit a client that
/// starts work again and again would keep the boost.
const MAX_BOOST_CPU_TIME: Duration = Duration::from_millis(50);

/// Processor time that one sandbox used while it was boosted.
#[derive(Debug, Default)]
pub(crate) struct BoostUsage {
    /// All of its processor time at the end of its last boost.
    time: Duration,
    /// The end of a boost in which it used too much.
    since: Option<Instant>,
}

impl BoostUsage {
    /// Records the processor time of a sandbox whose boost ends.
    pub(crate) fn note(&mut self, time: Duration, now: Instant) {
        let taken = time.saturating_sub(std::mem::replace(&mut self.time, time));
        self.since = (taken > MAX_BOOST_CPU_TIME).then_some(now);
    }

    /// Returns true if it used too much in a recent boost.
    pub(crate) fn is_recent(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.saturating_duration_since(since) < FOREGROUND_TIME)
    }
}

/// The sandboxes in which work began a short while ago.
#[derive(Debug, Default)]
pub(crate) struct Foreground {
    sandboxes: HashMap<u64, Began>,
    /// Times at which shares change, with their sandboxes.
    due: BTreeSet<(Instant, u64)>,
}

#[derive(Debug)]
struct Began {
    at: Instant,
    share: CpuShare,
    due: Instant,
}

impl Foreground {
    /// Records that work begins in a sandbox. Returns its new share if that changes.
    pub(crate) fn begin(&mut self, id: u64, now: Instant, used_up: bool) -> Option<CpuShare> {
        let (share, wait) = if used_up { (CpuShare::Normal, FOREGROUND_TIME) } else { (CpuShare::Boosted, BOOST_TIME) };
        let before = match self.sandboxes.get_mut(&id) {
            Some(began) if began.share == CpuShare::Boosted => {
                began.at = now;
                return None;
            }
            Some(began) => {
                self.due.remove(&(began.due, id));
                began.share
            }
            None => CpuShare::Background,
        };
        self.sandboxes.insert(id, Began { at: now, share, due: now + wait });
        self.due.insert((now + wait, id));
        (share != before).then_some(share)
    }

    /// The next sandbox whose share changes now, with the new share.
    pub(crate) fn next_change(&mut self, now: Instant) -> Option<(u64, CpuShare)> {
        while let Some((_, id)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            self.due.pop_first();
            let Some(began) = self.sandboxes.get_mut(&id) else { continue };
            let (share, wait) = match now.saturating_duration_since(began.at) {
                since if since < BOOST_TIME => (CpuShare::Boosted, BOOST_TIME),
                since if since < FOREGROUND_TIME => (CpuShare::Normal, FOREGROUND_TIME),
                _ => {
                    self.sandboxes.remove(&id);
                    return Some((id, CpuShare::Background));
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
    pub(crate) fn next_due(&self) -> Option<Instant> {
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
        let large = Some(CpuShare::Boosted);
        assert_eq!(foreground.begin(1, start, false), large);
        assert_eq!(foreground.begin(1, after(60), false), None, "it is boosted already");
        assert_eq!(foreground.begin(2, after(70), false), large);
        assert_eq!(foreground.next_due(), Some(after(100)));
        assert_eq!(foreground.next_change(after(100)), None, "something began in it since");
        assert_eq!(foreground.next_due(), Some(after(160)));
        assert_eq!(foreground.next_change(after(165)), Some((1, CpuShare::Normal)));
        assert_eq!(foreground.next_change(after(170)), Some((2, CpuShare::Normal)));
        assert_eq!(foreground.next_change(after(170)), None);
        assert_eq!(foreground.begin(1, after(500), false), large);
        assert_eq!(foreground.next_change(after(1100)), Some((1, CpuShare::Normal)));
        assert_eq!(foreground.next_change(after(1100)), Some((2, CpuShare::Background)));
        assert_eq!(foreground.next_due(), Some(after(1500)));
        assert_eq!(foreground.next_change(after(1500)), Some((1, CpuShare::Background)));
        assert_eq!(foreground.next_due(), None, "nothing is kept of them");
        assert_eq!(foreground.begin(1, after(1600), true), Some(CpuShare::Normal), "it used too much before");
        assert_eq!(foreground.begin(1, after(1700), true), None);
        assert_eq!(foreground.next_due(), Some(after(2700)));
        assert_eq!(foreground.next_change(after(2700)), Some((1, CpuShare::Background)));
    }

    #[test]
    fn a_sandbox_that_uses_much_is_not_boosted_again_at_once() {
        let (mut boost_usage, start) = (BoostUsage::default(), Instant::now());
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        boost_usage.note(Duration::from_millis(40), after(100));
        assert!(!boost_usage.is_recent(after(100)));
        boost_usage.note(Duration::from_millis(100), after(300));
        assert!(
            boost_usage.is_recent(after(400))
                && boost_usage.is_recent(after(1200))
                && !boost_usage.is_recent(after(1300))
        );
        boost_usage.note(Duration::from_millis(110), after(1500));
        assert!(!boost_usage.is_recent(after(1500)));
    }
}
