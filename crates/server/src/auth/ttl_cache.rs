//! Short-lived cache of the store's answers that every request needs.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Most answers in the cache; one more empties it.
const MAX_ANSWERS: usize = 10_000;

/// A cache of answers that are valid for a time.
#[derive(Debug)]
pub(crate) struct TtlCache<K, V> {
    known: Mutex<HashMap<K, (Instant, V)>>,
    /// Time for which an answer is valid.
    life: Duration,
}

impl<K: Hash + Eq, V: Clone> TtlCache<K, V> {
    /// A cache whose answers are valid for this long.
    pub(crate) fn new(life: Duration) -> Self {
        Self { known: Mutex::default(), life }
    }

    /// Returns the answer about a key, if it is still valid.
    pub(crate) fn get<Q: Hash + Eq + ?Sized>(&self, about: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let known = self.known.lock();
        known.get(about).filter(|(at, _)| at.elapsed() < self.life).map(|(_, answer)| answer.clone())
    }

    /// Adds an answer.
    pub(crate) fn insert(&self, about: K, answer: V) {
        let mut known = self.known.lock();
        if known.len() >= MAX_ANSWERS {
            known.clear();
        }
        known.insert(about, (Instant::now(), answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_forgotten_with_time_and_when_there_are_too_many() {
        let answers = TtlCache::new(Duration::from_secs(60));
        answers.insert("a".to_owned(), 1);
        assert_eq!(answers.get("a"), Some(1));
        answers.known.lock().get_mut("a").unwrap().0 = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        assert_eq!(answers.get("a"), None);
        for number in 0..=MAX_ANSWERS {
            answers.insert(number.to_string(), number);
        }
        assert!(answers.known.lock().len() <= MAX_ANSWERS);
        assert_eq!(answers.get(&*MAX_ANSWERS.to_string()), Some(MAX_ANSWERS));
    }
}
