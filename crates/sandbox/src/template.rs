//! What a sandbox starts from: a root filesystem with an interpreter and its packages.
//!
//! (stub while it is being written)
use crate::Error;
use std::path::{Path, PathBuf};

/// A prepared template on this host.
#[derive(Debug, Clone)]
pub struct Template {
    root: PathBuf,
}

impl Template {
    /// The root filesystem.
    pub fn root(&self) -> &Path {
        &self.root
    }
    /// The interpreter, as a path inside.
    pub fn python(&self) -> &str {
        "/usr/local/bin/python3"
    }
    /// A root filesystem that something else prepared.
    pub fn from_root(root: PathBuf) -> Self {
        Self { root }
    }
}

/// What a build tells while it goes on.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// A phase began: what, and out of how many units (0 when unknown).
    Phase { name: String, total: u64 },
    /// The phase advanced to `done` units; `what` is being worked on.
    Step { done: u64, what: String },
    /// Everything is there.
    Finished { bytes: u64, elapsed: std::time::Duration },
}

/// Returns the default template under `data`, building it when it is missing or was made for another interpreter or lock file.
pub fn ensure(data: &Path, force: bool, progress: &mut dyn FnMut(Progress)) -> Result<Template, Error> {
    Ok(Template::from_root("/tmp/devtpl/root".into()))
}
