//! Limits of one sandbox.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The limits of one sandbox. Each is enforced, and each hit is reported as a [`crate::LimitHit`] or an error inside the program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory of all processes together, bytes. A soft limit a little below turns most cases into a `MemoryError`.
    pub memory: u64,
    /// Processes and threads together.
    pub processes: u32,
    /// Kernels at once.
    pub kernels: u32,
    /// Processor time per second of wall clock, in cores.
    pub cpus: f64,
    /// Wall clock of one execution.
    pub timeout: Duration,
    /// Processor time of one execution, all processes together; `None` for no more than the wall clock allows. Looked at every fifth of a
    /// second.
    pub cpu_time: Option<Duration>,
    /// Time in which an interrupted program has to end before it is killed.
    pub grace: Duration,
    /// All files of the workspace together, bytes. They are kept in memory, and what programs write counts as theirs.
    pub disk: u64,
    /// Number of files and directories in the workspace.
    pub files: u64,
    /// One file, bytes.
    pub file_size: u64,
    /// `/tmp` and `/dev/shm` together, bytes. Counts as memory.
    pub tmp: u64,
    /// Open files of one process.
    pub open_files: u32,
    /// Output of one execution, bytes of stdout and as many of stderr. Head and tail are kept, the middle is counted.
    pub output: u64,
}

impl Default for Limits {
    fn default() -> Self {
        const MIB: u64 = 1 << 20;
        Self {
            memory: 1024 * MIB,
            processes: 128,
            kernels: 16,
            cpus: 2.0,
            timeout: Duration::from_secs(60),
            cpu_time: None,
            grace: Duration::from_secs(2),
            disk: 512 * MIB,
            files: 50_000,
            file_size: 512 * MIB,
            tmp: 256 * MIB,
            open_files: 1024,
            output: 8 * MIB,
        }
    }
}
