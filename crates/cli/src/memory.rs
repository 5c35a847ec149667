//! The memory of the server's own process.

use std::time::Duration;

use aludel_ignore::Ignore;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// Interval between two looks at it.
const INTERVAL: Duration = Duration::from_secs(10);
/// The same while nothing could be given back: what is in use may be freed later.
const LONG_INTERVAL: Duration = Duration::from_secs(60);
/// Growth over the least so far, from which memory is given back, pages: 64 MB where they have 4 KB.
const MIN_GROWTH: u64 = 16 << 10;

/// Gives freed memory back to the host again and again: after many large answers, more than a gigabyte of small blocks would stay.
pub(crate) async fn give_back() {
    let (mut least, mut interval) = (resident(), INTERVAL);
    loop {
        sleep(interval).await;
        let before = resident();
        least = least.min(before);
        interval = INTERVAL;
        if before > least + MIN_GROWTH {
            spawn_blocking(aludel_jail::give_back_freed_memory).await.ignore("it does not panic");
            if resident() + MIN_GROWTH / 4 > before {
                interval = LONG_INTERVAL;
            }
        }
    }
}

/// Pages of memory that this process has, or 0 if Linux does not tell.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or_default()
}
