//! Output of a command, kept until its followers have read it, or as its log.

use std::collections::{BTreeMap, VecDeque};
use std::time::SystemTime;

use bytes::Bytes;

use super::ProcessEnd;

/// Clients that follow one command at once.
pub(super) const MAX_FOLLOWERS: usize = 16;
/// The most recent bytes of output that are kept while a command has no follower, or as its log.
pub(super) const MAX_KEPT: usize = 64 << 10;
/// Chunks that wait for the slowest follower. Beyond that, the command waits.
pub(super) const MAX_QUEUED_CHUNKS: u64 = 16;

/// Output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A terminal.
    Pty,
}

/// Output of a command that its followers have not read yet.
#[derive(Default)]
pub(super) struct OutputLog {
    pub(super) chunks: VecDeque<(ProcessStream, Bytes)>,
    /// Bytes of these chunks.
    pub(super) bytes: usize,
    /// The number of the first of these chunks.
    first: u64,
    /// The number of the first chunk that no follower has taken.
    unseen: u64,
    /// The number of the next chunk of each follower.
    followers: BTreeMap<u64, u64>,
    last_follower: u64,
    pub(super) log: LogTail,
    pub(super) end: Option<(ProcessEnd, SystemTime)>,
}

/// The last output of a command, as far as it is kept.
#[derive(Default)]
pub(super) struct LogTail {
    bytes: VecDeque<u8>,
    /// Bytes that were kept before.
    dropped: u64,
}

/// A part of the output of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPart {
    /// The output.
    pub bytes: Vec<u8>,
    /// Bytes between the cursor and this part that are no longer kept.
    pub dropped: u64,
    /// The cursor of the next part.
    pub next: u64,
}

impl LogTail {
    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let excess = self.bytes.len().saturating_sub(MAX_KEPT);
        self.bytes.drain(..excess);
        self.dropped += excess as u64;
    }

    pub(super) fn part(&self, cursor: u64) -> LogPart {
        let end = self.dropped + self.bytes.len() as u64;
        let from = cursor.clamp(self.dropped, end);
        let skipped = usize::try_from(from - self.dropped).unwrap_or(usize::MAX);
        let bytes = self.bytes.iter().skip(skipped).copied().collect();
        LogPart { bytes, dropped: from.saturating_sub(cursor), next: end }
    }
}

impl OutputLog {
    /// The number of a new follower; `None` if there are too many.
    pub(super) fn join(&mut self) -> Option<u64> {
        if self.followers.len() >= MAX_FOLLOWERS {
            return None;
        }
        self.last_follower += 1;
        self.followers.insert(self.last_follower, self.unseen);
        Some(self.last_follower)
    }

    /// The number of the next chunk.
    fn next(&self) -> u64 {
        self.first + self.chunks.len() as u64
    }

    /// Returns true unless a follower is too far behind.
    pub(super) fn has_room(&self) -> bool {
        self.followers.values().all(|position| self.next() - position < MAX_QUEUED_CHUNKS)
    }

    /// Returns true if a client follows the command.
    pub(super) fn has_followers(&self) -> bool {
        !self.followers.is_empty()
    }

    /// Adds a chunk. Without followers it keeps the last chunks, or none if the output is logged.
    pub(super) fn add(&mut self, stream: ProcessStream, bytes: Bytes, is_logged: bool) {
        self.bytes += bytes.len();
        self.chunks.push_back((stream, bytes));
        self.forget(is_logged);
    }

    /// Takes the next chunk of a follower.
    pub(super) fn take(&mut self, follower: u64) -> Option<(ProcessStream, Bytes)> {
        let position = self.followers.get_mut(&follower)?;
        let index = usize::try_from(*position - self.first).ok()?;
        let chunk = self.chunks.get(index)?.clone();
        *position += 1;
        self.unseen = self.unseen.max(*position);
        self.forget(false);
        Some(chunk)
    }

    /// Removes a follower. Unread output stays for the next one, within the bounds for output without followers.
    pub(super) fn leave(&mut self, follower: u64, is_logged: bool) {
        self.followers.remove(&follower);
        self.forget(is_logged);
    }

    /// Removes the chunks that no follower needs.
    fn forget(&mut self, is_logged: bool) {
        let wanted = match self.followers.values().min() {
            Some(position) => *position,
            None if is_logged => self.next(),
            None => self.unseen,
        };
        let is_followed = !self.followers.is_empty();
        while self.first < wanted || (!is_followed && self.bytes > MAX_KEPT) {
            let Some((_, oldest)) = self.chunks.pop_front() else { break };
            self.bytes -= oldest.len();
            self.first += 1;
        }
        self.unseen = self.unseen.max(self.first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_keeps_its_end_and_counts_the_rest() {
        let mut log = LogTail::default();
        log.append(b"abc");
        assert_eq!(log.part(1), LogPart { bytes: b"bc".to_vec(), dropped: 0, next: 3 });
        assert_eq!(log.part(9), LogPart { bytes: Vec::new(), dropped: 0, next: 3 });
        log.append(&vec![b'x'; MAX_KEPT]);
        let part = log.part(1);
        assert_eq!((part.bytes.len(), part.dropped, part.next), (MAX_KEPT, 2, 3 + MAX_KEPT as u64));
    }
}
