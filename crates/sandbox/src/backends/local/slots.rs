//! Slots: numbers of the host's user ids for workspaces and their sandboxes. A slot is free again when its workspace is gone.

use std::collections::VecDeque;
use std::sync::Arc;

use aludel_jail::message::MAX_SLOTS;
use parking_lot::Mutex;

/// All slots of one backend.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slots(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Slots below this were handed out at least once.
    next: u32,
    /// The one that was free for longest is first.
    returned: VecDeque<u32>,
}

/// A slot in use; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Slot {
    number: u32,
    slots: Slots,
}

impl Slots {
    /// Takes a free slot; `None` when all are in use.
    pub(crate) fn take(&self) -> Option<Slot> {
        let mut state = self.0.lock();
        // Unused ids first: the longer an id is unused, the less is left that belongs to it.
        let number = if state.next < MAX_SLOTS {
            state.next += 1;
            state.next - 1
        } else {
            state.returned.pop_front()?
        };
        Some(Slot { number, slots: self.clone() })
    }
}

impl Slot {
    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.0.lock().returned.push_back(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_that_was_free_for_longest_is_used_again_first() {
        let slots = Slots::default();
        let mut all: Vec<Slot> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(all.len(), MAX_SLOTS as usize);
        let (later, sooner) = (all.swap_remove(1), all.swap_remove(7));
        let expected = [sooner.number(), later.number()];
        drop(sooner);
        drop(later);
        assert_eq!([(); 2].map(|()| slots.take().map(|slot| slot.number())), expected.map(Some));
    }
}
