//! Numbers that cannot be guessed from outside.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

/// A random number. `RandomState` is seeded by the operating system and its hash is keyed, which is enough for nonces and jitter and saves
/// a dependency; it is not used for secrets.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// A word of sixteen random letters and digits.
pub(crate) fn word() -> String {
    format!("{:016x}", random())
}

/// Such a word that is the same for the same text as long as the process lives.
pub(crate) fn word_of(text: &str) -> String {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    format!("{:016x}", KEY.hash_one(text))
}
