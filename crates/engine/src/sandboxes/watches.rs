//! Directories of which clients poll the changes.

use std::collections::HashMap;
use std::sync::Arc;

use aludel_sandbox::files::DirectoryWatch;
use aludel_store::random_hex;
use parking_lot::Mutex;

use crate::Error;

/// Directories of one sandbox that clients poll at once.
const MAX_WATCHES: usize = 32;

/// The directories of one sandbox whose changes clients poll.
#[derive(Debug, Default)]
pub struct Watches(Mutex<HashMap<String, Arc<DirectoryWatch>>>);

impl Watches {
    /// Keeps a watch until it is removed. Returns its id.
    pub fn add(&self, watch: DirectoryWatch) -> Result<String, Error> {
        let mut known = self.0.lock();
        if known.len() >= MAX_WATCHES {
            return Err(Error::SandboxFull { limit: MAX_WATCHES, things: "watched directories" });
        }
        let id = format!("w{:.16}", random_hex());
        known.insert(id.clone(), Arc::new(watch));
        Ok(id)
    }

    /// The watch of this id.
    pub fn get(&self, id: &str) -> Option<Arc<DirectoryWatch>> {
        self.0.lock().get(id).cloned()
    }

    /// Ends a watch. Returns false if there was none.
    pub fn remove(&self, id: &str) -> bool {
        self.0.lock().remove(id).is_some()
    }
}
