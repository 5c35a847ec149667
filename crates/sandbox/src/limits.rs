//! Limits of one sandbox.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The limits of one sandbox. Each is enforced, and each hit is reported as a [`crate::LimitHit`] or an error inside the program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory of all processes together, bytes. A soft limit a little below it turns most overruns into a `MemoryError`.
    pub memory: u64,
    /// Processes and threads together.
    pub processes: u32,
    /// Kernels at once.
    pub kernels: u32,
    /// Processor time per second of wall clock, in cores.
    pub cpus: f64,
    /// Wall clock of one execution.
    pub timeout: Duration,
    /// Processor time of one execution, all processes together; `None` for no limit but the wall clock. Checked every fifth of a second.
    pub cpu_time: Option<Duration>,
    /// Time in which an interrupted program has to end before it is killed.
    pub grace: Duration,
    /// All files of the workspace together, bytes. They are kept in memory, and those that programs write count as their memory.
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

impl Limits {
    /// The number of threads that compute at the same time.
    pub(crate) fn threads(&self) -> u32 {
        (self.cpus.ceil() as u32).max(1)
    }

    /// Returns a description of the first limit that is above its bound.
    pub fn exceeds(&self, most: &Self) -> Option<&'static str> {
        let Self {
            memory,
            processes,
            kernels,
            cpus,
            timeout,
            cpu_time,
            grace,
            disk,
            files,
            file_size,
            tmp,
            open_files,
            output,
        } = self;
        let unlimited = Duration::MAX;
        let comparisons = [
            (*memory > most.memory, "memory"),
            (*timeout > most.timeout, "time"),
            (*disk > most.disk || *file_size > most.file_size || *tmp > most.tmp, "room for files"),
            (*files > most.files || *open_files > most.open_files, "files"),
            (*output > most.output, "output"),
            (*processes > most.processes || *kernels > most.kernels, "processes"),
            // NaN is above every bound.
            (cpus.partial_cmp(&most.cpus).is_none_or(std::cmp::Ordering::is_gt), "processors"),
            (cpu_time.unwrap_or(unlimited) > most.cpu_time.unwrap_or(unlimited), "processor time"),
            (*grace > most.grace, "time to end"),
        ];
        comparisons.into_iter().find_map(|(is_above, words)| is_above.then_some(words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_above_others_are_named() {
        let most = Limits { cpu_time: Some(Duration::from_secs(9)), ..Limits::default() };
        assert_eq!(most.exceeds(&most), None);
        let less = Limits { memory: most.memory / 2, timeout: Duration::from_secs(1), ..most.clone() };
        assert_eq!(less.exceeds(&most), None);
        for (limits, words) in [
            (Limits { memory: most.memory + 1, ..most.clone() }, "memory"),
            (Limits { cpus: f64::NAN, ..most.clone() }, "processors"),
            (Limits { cpu_time: None, ..most.clone() }, "processor time"),
            (Limits { timeout: Duration::from_secs(3600), ..most.clone() }, "time"),
        ] {
            assert_eq!(limits.exceeds(&most), Some(words));
        }
    }
}
