//! Results that do not matter, each with the reason in words.

/// Drops a result whose error does not matter.
pub trait Ignore {
    /// Drops the result. The reason is for readers: `sender.send(event).ignore("the receiver may be gone")`.
    fn ignore(self, reason: &'static str);
}

impl<T, E> Ignore for Result<T, E> {
    fn ignore(self, _reason: &'static str) {}
}
