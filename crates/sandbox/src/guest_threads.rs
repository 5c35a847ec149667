//! Threads for calls that a program can make last: those on pipes, terminals and files that it shares with the host.

use std::sync::LazyLock;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// Threads at most: more than the kernels, commands and files that can be held up at once. They come as they are needed.
const MAX_THREADS: usize = 16 << 10;
/// Time for which an idle thread waits for the next call.
const IDLE: Duration = Duration::from_secs(10);

/// A runtime with nothing else on it, so that no other work waits for these calls.
static THREADS: LazyLock<Runtime> = LazyLock::new(|| {
    let mut threads = Builder::new_current_thread();
    threads.max_blocking_threads(MAX_THREADS).thread_keep_alive(IDLE).thread_name("aludel-guest");
    threads.build().expect("a runtime without drivers takes nothing from the system")
});

/// Makes a call.
pub(crate) fn spawn<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    THREADS.spawn_blocking(call)
}
