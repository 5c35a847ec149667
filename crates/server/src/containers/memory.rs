//! How much memory a container asks for.

use aludel_session::Limits;
use serde::Deserialize;

/// What can be asked for, GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum MemoryLimit {
    #[serde(rename = "1g")]
    One,
    #[serde(rename = "4g")]
    Four,
    #[serde(rename = "16g")]
    Sixteen,
    #[serde(rename = "64g")]
    SixtyFour,
}

impl MemoryLimit {
    /// As clients write it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::One => "1g",
            Self::Four => "4g",
            Self::Sixteen => "16g",
            Self::SixtyFour => "64g",
        }
    }

    /// Reads what the store kept.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let all = [Self::One, Self::Four, Self::Sixteen, Self::SixtyFour];
        all.into_iter().find(|limit| limit.word() == text)
    }

    fn bytes(self) -> u64 {
        let gib = match self {
            Self::One => 1,
            Self::Four => 4,
            Self::Sixteen => 16,
            Self::SixtyFour => 64,
        };
        gib << 30
    }

    /// The limits of a container that asks for this: no more memory than `max`, and the rest as usual.
    pub(crate) fn limits(self, usual: &Limits, max: u64) -> Limits {
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
        let limits = |asked: MemoryLimit| asked.limits(&usual, 8 << 30);
        assert_eq!(limits(MemoryLimit::One).memory, 1 << 30);
        assert_eq!(limits(MemoryLimit::One).disk, 512 << 20);
        assert_eq!(limits(MemoryLimit::Four).memory, 4 << 30);
        assert_eq!(limits(MemoryLimit::SixtyFour).memory, 8 << 30);
    }
}
