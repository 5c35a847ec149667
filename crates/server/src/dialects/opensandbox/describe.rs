//! Sandboxes and times in OpenSandbox's words.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aludel_engine::sandboxes::ClientSandbox;
use aludel_wire::opensandbox::lifecycle::{Image, Sandbox, State, Status};
use jiff::Timestamp;

/// A time in RFC 3339, to the microsecond.
pub(super) fn time(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let micros = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
    Timestamp::from_microsecond(micros).unwrap_or_default().to_string()
}

/// A time in milliseconds since 1970.
pub(super) fn millis(time: SystemTime) -> i64 {
    i64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()).unwrap_or(i64::MAX)
}

/// The time from now until an RFC 3339 time; `None` if it is invalid or over.
pub(super) fn until(text: &str) -> Option<Duration> {
    let micros = u64::try_from(text.parse::<Timestamp>().ok()?.as_microsecond()).ok()?;
    (UNIX_EPOCH + Duration::from_micros(micros)).duration_since(SystemTime::now()).ok().filter(|left| !left.is_zero())
}

/// The state of a sandbox.
pub(super) fn state(sandbox: &ClientSandbox) -> State {
    if sandbox.is_paused() { State::Paused } else { State::Running }
}

/// A sandbox.
pub(super) fn sandbox(sandbox: &ClientSandbox) -> Sandbox {
    Sandbox {
        id: sandbox.id().to_owned(),
        image: Image { uri: sandbox.spec().template_label.clone() },
        status: Status { state: state(sandbox) },
        metadata: sandbox.metadata(),
        entrypoint: sandbox.spec().entrypoint.clone(),
        created_at: time(sandbox.started()),
        expires_at: time(sandbox.ends()),
    }
}
