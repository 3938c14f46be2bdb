//! Large values that commits point to, and that are not known to be durable.

use super::{LargeSpace, LargeValue};
use crate::Result;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Values that commits point to and that may not be durable yet. Each gets a rising turn; before a
/// frame with records of such values is written, they are synced up to the last of their turns.
#[derive(Debug)]
pub struct UnsyncedLarge {
    large: LargeSpace,
    values: Mutex<Values>,
}

#[derive(Debug, Default)]
struct Values {
    last_turn: u64,
    /// By turn.
    waiting: BTreeMap<u64, LargeValue>,
}

impl UnsyncedLarge {
    /// None yet.
    pub fn new(large: LargeSpace) -> Self {
        Self {
            large,
            values: Mutex::default(),
        }
    }

    /// A turn for a value, above 0.
    pub fn turn(&self) -> u64 {
        let mut values = self.values.lock();
        values.last_turn += 1;
        values.last_turn
    }

    /// Adds a value.
    pub fn add(&self, turn: u64, value: LargeValue) {
        self.values.lock().waiting.insert(turn, value);
    }

    /// No record will point to the value with this turn.
    pub fn forget(&self, turn: u64) {
        self.values.lock().waiting.remove(&turn);
    }

    /// Makes the values up to `turn` durable, waiting for their writes, with one sync per block.
    /// Writes of later values continue meanwhile.
    ///
    /// # Errors
    /// The large space's. No frame may then be written any more: its records could point to bytes
    /// that are not there.
    pub fn sync(&self, turn: u64) -> Result<()> {
        let due = {
            let waiting = &mut self.values.lock().waiting;
            let later = waiting.split_off(&(turn + 1));
            std::mem::replace(waiting, later)
        };
        let values: Vec<LargeValue> = due.into_values().collect();
        self.large.sync_all(&values)
    }
}
