//! Room on the disk that is kept for deletions, which write to the database before they free any.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use rustix::fs::StatVfs;
use tracing::{info, warn};

/// Bytes of the reserve: a deletion changes few pages of the database, and hundreds for a container of a thousand files.
const BYTES: u64 = 4 << 20;
/// Bytes that are free before it is made: with less, others need them.
const LEAST_FREE: u64 = 8 * BYTES;

/// Free bytes below which the disk of the state counts as full: some file systems keep that many for themselves.
pub const FULL_DISK: u64 = 8 << 20;

/// A file that takes up room until a deletion finds the disk full.
#[derive(Debug)]
pub(crate) struct DiskReserve(PathBuf);

impl DiskReserve {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Makes the file, unless it is there or the disk has little room.
    pub(crate) fn fill(&self) {
        if let Err(error) = self.try_fill() {
            // Some file systems cannot keep room. Deletions need it on a full disk alone.
            info!(path = %self.0.display(), %error, "no room is kept for deletions on a full disk");
        }
    }

    fn try_fill(&self) -> io::Result<()> {
        if self.0.metadata().is_ok_and(|found| found.len() >= BYTES) {
            return Ok(());
        }
        let free = rustix::fs::statvfs(self.0.parent().unwrap_or(&self.0))?;
        if free.f_bavail.saturating_mul(free.f_frsize) < LEAST_FREE {
            return Ok(());
        }
        let file: File = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&self.0)?;
        let kept = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, BYTES);
        if let Err(error) = kept {
            std::fs::remove_file(&self.0)?;
            return Err(error.into());
        }
        Ok(())
    }

    /// Gives the room back if nothing else is free, for the state to be opened: its clients can then delete.
    pub(crate) fn release_if_full(&self) {
        let parent = self.0.parent().unwrap_or(&self.0);
        if self.0.exists() && rustix::fs::statvfs(parent).is_ok_and(|found| free_bytes(&found) < FULL_DISK) {
            self.release();
        }
    }

    /// Gives the room back, until it is filled again.
    pub(crate) fn release(&self) {
        match std::fs::remove_file(&self.0) {
            Ok(()) => warn!("the disk of the state is full; the room that is kept for deletions is used"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => warn!(path = %self.0.display(), %error, "the room that is kept for deletions cannot be used"),
        }
    }
}

/// Bytes of a file system that this process can use. Some are reserved for root. One that tells no size, as in gVisor's memory, has room.
pub(crate) fn free_bytes(found: &StatVfs) -> u64 {
    if found.f_blocks == 0 {
        return u64::MAX;
    }
    let blocks = if rustix::process::geteuid().is_root() { found.f_bfree } else { found.f_bavail };
    blocks.saturating_mul(found.f_frsize)
}
