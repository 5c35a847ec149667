//! Signatures of thoughts: opaque data in an answer that its server requires back with the call that it belongs to.
//!
//! Kept in memory by the id of the call. After a restart they are gone, and conversations go on without them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

/// Calls that are remembered; the oldest go first.
const MAX_CALLS: usize = 10_000;
/// Most bytes of the signature of one call.
const MAX_SIGNATURE: usize = 256 << 10;

/// Signatures by call. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Signatures(Arc<Mutex<SignatureTable>>);

#[derive(Debug, Default)]
struct SignatureTable {
    signatures: HashMap<String, Value>,
    order: VecDeque<String>,
}

impl Signatures {
    /// Remembers the signature of a call.
    pub(super) fn insert(&self, call_id: &str, signature: Value) {
        if signature.to_string().len() > MAX_SIGNATURE {
            return;
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.signatures.insert(call_id.to_owned(), signature).is_none() {
            kept.order.push_back(call_id.to_owned());
        }
        while kept.order.len() > MAX_CALLS {
            if let Some(oldest) = kept.order.pop_front() {
                kept.signatures.remove(&oldest);
            }
        }
    }

    /// Returns the signature of a call.
    pub(super) fn of(&self, call_id: &str) -> Option<Value> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).signatures.get(call_id).cloned()
    }
}
