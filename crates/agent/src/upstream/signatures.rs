//! Signatures of thoughts: opaque data in an answer that its server requires back with the call that it belongs to.
//!
//! Kept in memory by the owner of the conversation and the id of the call. After a restart they are gone, and conversations go on without
//! them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;

use crate::item::Item;

/// Most bytes of the signature of one call.
const MAX_SIGNATURE: usize = 256 << 10;
/// Most bytes that are remembered for one owner; the oldest calls go first.
const MAX_OF_OWNER: usize = 8 << 20;
/// Most bytes that are remembered in all; the owner with most loses its oldest calls.
const MAX_BYTES: usize = 64 << 20;
/// Cost of a call besides its texts.
const CALL: usize = 256;

/// Signatures by owner and call. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Signatures(Arc<Mutex<HashMap<String, OwnerSignatures>>>);

/// The signatures of one owner's calls.
#[derive(Debug, Default)]
struct OwnerSignatures {
    /// The number and the signature of each call. A JSON text: a value may take many times as much.
    by_call: HashMap<Arc<str>, (u64, Box<str>)>,
    /// The calls by number.
    order: BTreeMap<u64, Arc<str>>,
    bytes: usize,
}

/// The signatures of one owner's calls for one request. Each is sent once.
#[derive(Debug)]
pub(super) struct UnsentSignatures<'s> {
    signatures: &'s Signatures,
    owner: &'s str,
    sent: HashSet<String>,
}

impl Signatures {
    /// Remembers the signature of a call of an owner's.
    pub(super) fn insert(&self, owner: &str, call_id: &str, signature: &Value) {
        let text = signature.to_string();
        if text.len() > MAX_SIGNATURE {
            return;
        }
        let mut owners = self.0.lock();
        let own = owners.entry(owner.to_owned()).or_default();
        own.insert(call_id, text.into());
        while own.bytes > MAX_OF_OWNER {
            own.remove_oldest();
        }
        while owners.values().map(|owner| owner.bytes).sum::<usize>() > MAX_BYTES {
            let Some(greediest) = owners.values_mut().max_by_key(|owner| owner.bytes) else { break };
            greediest.remove_oldest();
            owners.retain(|_, owner| owner.bytes > 0);
        }
    }

    /// Returns true if the signature of a call is known.
    pub(super) fn has(&self, owner: &str, call_id: &str) -> bool {
        self.0.lock().get(owner).is_some_and(|own| own.by_call.contains_key(call_id))
    }

    /// The signatures of an owner's calls, for one request.
    pub(super) fn unsent<'s>(&'s self, owner: &'s str) -> UnsentSignatures<'s> {
        UnsentSignatures { signatures: self, owner, sent: HashSet::new() }
    }
}

impl UnsentSignatures<'_> {
    /// Takes the thoughts that led to a call, where this item is the first of what they led to: a text or the call itself. They come before
    /// it, also if the conversation has none of their words.
    pub(super) fn take_before(&mut self, items: &[Item], index: usize) -> Vec<Value> {
        if matches!(index.checked_sub(1).and_then(|before| items.get(before)), Some(Item::Call(_))) {
            return Vec::new();
        }
        let next = items.get(index..).into_iter().flatten();
        let mut next = next.skip_while(|item| matches!(item, Item::Assistant(_) | Item::Reasoning(_)));
        let Some(Item::Call(call)) = next.next() else { return Vec::new() };
        match self.take(&call.id) {
            Some(Value::Array(thoughts)) => thoughts,
            _ => Vec::new(),
        }
    }

    /// Takes the signature of a call, if it is known and was not taken before.
    pub(super) fn take(&mut self, call_id: &str) -> Option<Value> {
        let owners = self.signatures.0.lock();
        let (_, text) = owners.get(self.owner)?.by_call.get(call_id)?;
        if !self.sent.insert(call_id.to_owned()) {
            return None;
        }
        serde_json::from_str(text).ok()
    }
}

impl OwnerSignatures {
    fn insert(&mut self, call_id: &str, text: Box<str>) {
        // A server may give a call an id that it gave before.
        if let Some((number, _)) = self.by_call.get(call_id) {
            self.remove(*number);
        }
        let number = self.order.last_key_value().map_or(0, |(last, _)| last + 1);
        let call_id: Arc<str> = call_id.into();
        self.bytes += CALL + call_id.len() + text.len();
        self.order.insert(number, Arc::clone(&call_id));
        self.by_call.insert(call_id, (number, text));
    }

    fn remove_oldest(&mut self) {
        if let Some((&oldest, _)) = self.order.first_key_value() {
            self.remove(oldest);
        }
    }

    fn remove(&mut self, number: u64) {
        let Some(call_id) = self.order.remove(&number) else { return };
        if let Some((_, text)) = self.by_call.remove(&call_id) {
            self.bytes -= CALL + call_id.len() + text.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::item::Call;

    #[test]
    fn each_owner_has_its_own_and_a_share_of_the_room() {
        let signatures = Signatures::default();
        signatures.insert("good", "call_0", &json!("good's"));
        signatures.insert("evil", "call_0", &json!("evil's"));
        assert_eq!(signatures.unsent("good").take("call_0"), Some(json!("good's")));
        assert!(!signatures.has("evil", "call_1") && !signatures.has("third", "call_0"));
        let large = json!("x".repeat(MAX_SIGNATURE - 2));
        for number in 0..100 {
            signatures.insert("evil", &format!("call_{number}"), &large);
        }
        let bytes = signatures.0.lock()["evil"].bytes;
        assert!(bytes <= MAX_OF_OWNER && bytes > MAX_OF_OWNER / 2, "{bytes}");
        assert!(
            signatures.has("good", "call_0") && signatures.has("evil", "call_99") && !signatures.has("evil", "call_0")
        );
        for owner in 0..20 {
            for number in 0..40 {
                signatures.insert(&owner.to_string(), &number.to_string(), &large);
            }
        }
        let bytes: usize = signatures.0.lock().values().map(|owner| owner.bytes).sum();
        assert!(bytes <= MAX_BYTES && bytes > MAX_BYTES / 2, "{bytes}");
        assert!(signatures.has("good", "call_0"));
    }

    #[test]
    fn a_request_sends_each_once() {
        let signatures = Signatures::default();
        signatures.insert("", "call_0", &json!([1]));
        signatures.insert("", "call_0", &json!([2]));
        signatures.insert("", "call_1", &json!("x".repeat(MAX_SIGNATURE)));
        let mut unsent = signatures.unsent("");
        assert_eq!(["call_0", "call_0", "call_1"].map(|id| unsent.take(id)), [Some(json!([2])), None, None]);
        assert_eq!(signatures.unsent("").take("call_0"), Some(json!([2])));
    }

    #[test]
    fn thoughts_come_before_all_that_they_led_to() {
        let signatures = Signatures::default();
        signatures.insert("", "call_0", &json!(["thought"]));
        let call = |id: &str| Item::Call(Call { id: id.into(), name: "f".into(), arguments: "{}".into() });
        let text = || Item::Assistant("Let me see.".into());
        let user = || Item::user("Go");
        for (items, place) in [
            (vec![user(), text(), call("call_0"), call("call_1")], Some(1)),
            (vec![user(), Item::Reasoning("Hm.".into()), text(), call("call_0")], Some(1)),
            (vec![user(), call("call_0"), call("call_1")], Some(1)),
            (vec![user(), call("call_1"), call("call_0")], None),
            (vec![text(), user(), call("call_0")], Some(2)),
            (vec![user(), text()], None),
        ] {
            let mut unsent = signatures.unsent("");
            let sent: Vec<usize> =
                (0..items.len()).filter(|index| !unsent.take_before(&items, *index).is_empty()).collect();
            assert_eq!(sent, Vec::from_iter(place), "{items:?}");
        }
    }
}
