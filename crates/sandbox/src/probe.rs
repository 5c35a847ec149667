//! What this host can enforce, found by trying it.

/// One thing the host can or cannot do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// A short name, for example `user namespaces`.
    pub name: &'static str,
    /// How it stands.
    pub status: Status,
    /// What was found, in words.
    pub detail: String,
    /// The command or setting that mends it, when something is missing.
    pub mend: Option<String>,
}

/// How a check stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Enforced.
    Ok,
    /// Works, with less protection or comfort.
    Degraded,
    /// Sandboxes cannot start without it.
    Missing,
}

/// Tries everything the local backend needs. Takes some milliseconds and leaves nothing behind.
pub fn probe() -> Vec<Check> {
    unimplemented!()
}
