//! Large values that commits point to, or will, and that are not known to be durable.

use super::{LargeSpace, LargeValue};
use crate::Result;
use parking_lot::Mutex;

/// Values that commits point to, or will, and that are not known to be durable. Each gets a turn, rising; a frame with
/// records of such values has them synced, up to the last of their turns, before it is written.
#[derive(Debug)]
pub struct UnsyncedLarge {
    large: LargeSpace,
    values: Mutex<Values>,
}

#[derive(Debug, Default)]
struct Values {
    last_turn: u64,
    waiting: Vec<(u64, LargeValue)>,
}

impl UnsyncedLarge {
    /// None yet.
    pub fn new(large: LargeSpace) -> Self {
        Self {
            large,
            values: Mutex::default(),
        }
    }

    /// Takes a value in. Returns its turn, above 0.
    pub fn add(&self, value: LargeValue) -> u64 {
        let mut values = self.values.lock();
        values.last_turn += 1;
        let turn = values.last_turn;
        values.waiting.push((turn, value));
        turn
    }

    /// No record will point to the value with this turn.
    pub fn forget(&self, turn: u64) {
        self.values.lock().waiting.retain(|(other, _)| *other != turn);
    }

    /// Makes those up to `turn` durable, waiting for their writes, with one sync per block. Later ones are not waited
    /// for: their writes go on meanwhile.
    ///
    /// # Errors
    /// The large space's. No frame may then be written any more: its records could point to bytes that are not there.
    pub fn sync(&self, turn: u64) -> Result<()> {
        let due = |(other, _): &mut (u64, LargeValue)| *other <= turn;
        let values: Vec<LargeValue> = {
            let mut values = self.values.lock();
            values.waiting.extract_if(.., due).map(|(_, value)| value).collect()
        };
        self.large.sync_all(&values)
    }
}
