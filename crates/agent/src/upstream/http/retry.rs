//! Waits before a request is sent again.
//!
//! A library would not pay: the server's own figure takes precedence, and each wait is an event for the caller.

use std::time::Duration;

use crate::random;
use crate::upstream::UpstreamError;

/// Attempts of one request.
const ATTEMPTS: u32 = 3;
/// The wait after the first attempt; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// The longest wait before another attempt. A server that asks for more gets no further attempt, and the error has its figure.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Returns the wait before another attempt, or `None` if there is none.
pub(super) fn wait(error: &UpstreamError, attempt: u32) -> Option<Duration> {
    if attempt >= ATTEMPTS {
        return None;
    }
    match error {
        UpstreamError::RateLimited { retry_after, .. } | UpstreamError::Server { retry_after, .. } => {
            Some(retry_after.unwrap_or_else(|| backoff(attempt))).filter(|wait| *wait <= MAX_WAIT)
        }
        UpstreamError::Dropped { .. } => Some(backoff(attempt)),
        _ => None,
    }
}

/// Returns the wait after this attempt. Up to a quarter of it is randomly left out, so that requests that failed together are not repeated
/// together.
fn backoff(attempt: u32) -> Duration {
    let most = FIRST_WAIT * 2_u32.saturating_pow(attempt - 1);
    let share = u32::try_from(random::random() % 256).unwrap_or_default();
    most - most / 4 * share / 256
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_differ() {
        let waits: Vec<Duration> = (0..32).map(|_| backoff(1)).collect();
        assert!(waits.iter().all(|wait| (375..=500).contains(&wait.as_millis())), "{waits:?}");
        assert!(waits.iter().any(|wait| *wait != waits[0]), "{waits:?}");
        assert!((750..=1000).contains(&backoff(2).as_millis()));
    }
}
