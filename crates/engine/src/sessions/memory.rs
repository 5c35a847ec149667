//! The memory that a session asks for.

use aludel_sandbox::Limits;

/// Whole GiB of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryTier(u32);

impl MemoryTier {
    /// `count` GiB.
    pub const fn gib(count: u32) -> Self {
        Self(count)
    }

    /// Parses the text of [`MemoryTier::word`].
    pub fn parse(text: &str) -> Option<Self> {
        text.strip_suffix('g')?.parse().ok().map(Self)
    }

    /// The number of bytes.
    pub fn bytes(self) -> u64 {
        u64::from(self.0) << 30
    }

    /// The number with its unit, for example `4g`.
    pub fn word(self) -> String {
        format!("{}g", self.0)
    }

    /// The limits of a session with this memory: at most `max` of it, and otherwise the usual limits.
    pub fn limits(self, usual: &Limits, max: u64) -> Limits {
        let memory = self.bytes().min(max.max(usual.memory));
        // Files and scratch space are memory too.
        let (disk, tmp) = (usual.disk.min(memory / 2), usual.tmp.min(memory / 2));
        Limits { memory, disk, file_size: usual.file_size.min(disk), tmp, ..usual.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_gets_more_than_the_most() {
        let usual = Limits { memory: 2 << 30, disk: 1 << 30, ..Limits::default() };
        let limits = |asked: u32| MemoryTier::gib(asked).limits(&usual, 8 << 30);
        assert_eq!(limits(1).memory, 1 << 30);
        assert_eq!(limits(1).disk, 512 << 20);
        assert_eq!(limits(4).memory, 4 << 30);
        assert_eq!(limits(64).memory, 8 << 30);
    }

    #[test]
    fn a_word_is_read_back() {
        assert_eq!(MemoryTier::parse(&MemoryTier::gib(16).word()), Some(MemoryTier::gib(16)));
        assert_eq!(MemoryTier::parse("16"), None);
    }
}
