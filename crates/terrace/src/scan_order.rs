//! Scans pay for order: what they have paid, and values on their way to where scans find them.
//!
//! Values lie in the log in the order of their commits, so a scan reads each of them by itself.
//! Written anew in the order of their keys they are read together; and a short one is copied into
//! its entry, where a scan has it without any read. That costs writes, so scans pay for it, as for
//! merges of the index ([`crate::ordered_index`]): when the values of a range have cost as much to
//! read one by one as it costs to write them in order once, they are written. What each scan pays
//! is not kept by range, which would take RAM for each: of a price a scan pays a part, and with
//! that probability it buys. So on average the price has been paid when something is bought, and
//! nothing has to be remembered.
//!
//! Both prices are in bytes that the device writes in the same time.
//!
//! Invariant: without scans that read values nothing is bought. What was bought and is lost on its
//! way ([`MoveQueue`]) scans pay again.

use crate::{
    ScanOrderStats,
    api::stats::ScanOrderCounters,
    log::move_queue::{Enqueued, MoveQueue, Moving},
};
use std::sync::atomic::{AtomicU64, Ordering};

/// Values up to this length are copied into their entries.
pub const COPY_BYTES_MAX: u64 = 256;
/// Longer values stay where they are: to read one by itself costs little more than to read it with
/// others.
const ORDERED_BYTES_MAX: u64 = 16 << 10;
/// What one read of the device costs.
const READ_PRICE: u64 = 4 << 10;
/// How often what an entry has is written: to the memtable's table, and again by merges.
const INDEX_WRITES: u64 = 3;
/// An entry without its copy, with what a table has of it besides.
const ENTRY_BYTES: u64 = 32;
/// RAM of what waits.
const WAITING_BYTES_MAX: u64 = 8 << 20;
/// Of the value cache's size, if that is less,
const WAITING_SHARE: u64 = 16;
/// but at least so much: values of a scan or two.
const WAITING_BYTES_MIN: u64 = 1 << 20;

/// What would become of a value that is bought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// It is written in order, and copied into its entry.
    Copied,
    /// It is written in order.
    Ordered,
}

/// The form of a value in the log of so many bytes. `None`: it stays where it is.
#[must_use]
pub const fn form(bytes: u64) -> Option<Form> {
    match bytes {
        0 => None,
        1..=COPY_BYTES_MAX => Some(Form::Copied),
        _ if bytes <= ORDERED_BYTES_MAX => Some(Form::Ordered),
        _ => None,
    }
}

/// What of a scan was read, and what it would cost to write that in order.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bill {
    /// Reads of the device that order would have spared.
    pub reads: u64,
    /// What it costs to write the values.
    price: u64,
}

impl Bill {
    /// Adds a value with a record of so many bytes.
    pub fn add(&mut self, form: Form, key_bytes: usize, value_bytes: u64, record_bytes: u64) {
        let copied = if form == Form::Copied { value_bytes } else { 0 };
        self.price += record_bytes + index_bytes(key_bytes, copied);
    }

    const fn paid(&self) -> u64 {
        self.reads * READ_PRICE
    }
}

/// What it writes to the index, in time, to give a key a new entry.
const fn index_bytes(key_bytes: usize, copied_bytes: u64) -> u64 {
    INDEX_WRITES * (ENTRY_BYTES + key_bytes as u64 + copied_bytes)
}

/// What scans have paid, and the values on their way.
#[derive(Debug)]
pub struct ScanOrder {
    /// What was bought and is not yet in order.
    pub queue: MoveQueue,
    throws: AtomicU64,
    /// What was bought and what became of it.
    pub counters: ScanOrderCounters,
}

impl ScanOrder {
    /// Nothing is under way. With 0 bytes a second nothing ever is.
    #[must_use]
    pub fn new(bytes_per_second: u64, cache_bytes: u64) -> Self {
        let bytes_max = WAITING_BYTES_MAX.min((cache_bytes / WAITING_SHARE).max(WAITING_BYTES_MIN));
        Self {
            queue: MoveQueue::new(if bytes_per_second == 0 { 0 } else { bytes_max }),
            throws: AtomicU64::new(0),
            counters: ScanOrderCounters::default(),
        }
    }

    /// Whether a scan that has paid so much buys.
    #[must_use]
    pub fn buys(&self, bill: &Bill) -> bool {
        let paid = bill.paid();
        if paid == 0 || bill.price == 0 {
            return false;
        }
        self.counters
            .paid_bytes
            .fetch_add(paid.min(bill.price), Ordering::Relaxed);
        paid >= bill.price || self.throw() % bill.price < paid
    }

    /// The next of numbers that look random.
    fn throw(&self) -> u64 {
        let number = self.throws.fetch_add(1, Ordering::Relaxed);
        let mut bits = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (bits ^ (bits >> 27)) >> 16
    }

    /// Has values written in order. What there is no room for is left out.
    pub fn enqueue(&self, values: impl Iterator<Item = Moving>) {
        let enqueued = values.map(|value| self.queue.enqueue(value));
        let dropped = enqueued.filter(|done| *done == Enqueued::Full).count() as u64;
        self.counters.dropped_full.fetch_add(dropped, Ordering::Relaxed);
    }

    /// All that waits, in the order of keys.
    #[must_use]
    pub fn take(&self) -> Vec<Moving> {
        let mut taken = self.queue.take(u64::MAX);
        taken.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        taken
    }

    /// Whether a move that is applied now is one of these, of a value that is copied into its
    /// entry.
    #[must_use]
    pub fn wants_copy(&self, hash: u64, version: u64, bytes: u64) -> bool {
        form(bytes) == Some(Form::Copied) && self.queue.version_under_way(hash) == Some(version)
    }

    /// Counts values that were committed, with records of so many bytes. Returns what is written
    /// for them in all.
    pub fn count_moved(&self, values: &[Moving], record_bytes: u64) -> u64 {
        let counters = &self.counters;
        let is_copied = |value: &&Moving| form(value.value.len() as u64) == Some(Form::Copied);
        let copied: u64 = values
            .iter()
            .filter(is_copied)
            .map(|value| value.value.len() as u64)
            .sum();
        let keys: u64 = values.iter().map(|value| index_bytes(value.key.len(), 0)).sum();
        counters.moved.fetch_add(values.len() as u64, Ordering::Relaxed);
        counters
            .copied
            .fetch_add(values.iter().filter(is_copied).count() as u64, Ordering::Relaxed);
        counters.log_bytes.fetch_add(record_bytes, Ordering::Relaxed);
        record_bytes + keys + INDEX_WRITES * copied
    }

    /// A picture.
    #[must_use]
    pub fn stats(&self) -> ScanOrderStats {
        ScanOrderStats {
            waiting_bytes: self.queue.bytes(),
            ..self.counters.picture()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::move_queue::tests::value;

    fn bill(reads: u64, values: u64) -> Bill {
        let mut bill = Bill {
            reads,
            ..Bill::default()
        };
        (0..values).for_each(|_| bill.add(Form::Ordered, 16, 1000, 1072));
        bill
    }

    #[test]
    fn who_has_paid_the_price_buys_and_who_has_paid_nothing_never_does() {
        let order = ScanOrder::new(1 << 20, 1 << 30);
        assert!((0..100).all(|_| order.buys(&bill(50, 50))));
        assert!(!(0..1000).any(|_| order.buys(&bill(0, 50))));
    }

    #[test]
    fn on_average_the_price_is_paid() {
        let order = ScanOrder::new(1 << 20, 1 << 30);
        // Two reads of 8 KiB for 121,600 bytes: one in fifteen.
        let bought = (0..30_000).filter(|_| order.buys(&bill(2, 100))).count();
        assert!((1_850..2_200).contains(&bought), "{bought}");
    }

    #[test]
    fn what_is_bought_leaves_in_the_order_of_keys_and_short_values_are_copied() {
        let order = ScanOrder::new(1 << 20, 1 << 30);
        order.enqueue([value(2, 100), value(1, 100), value(2, 100), value(3, 5000)].into_iter());
        let keys: Vec<_> = order.take().iter().map(|value| value.hash).collect();
        assert_eq!(keys, [1, 2, 3]);
        assert!(order.wants_copy(1, 101, 100));
        assert!(!order.wants_copy(1, 102, 100), "another version");
        assert!(!order.wants_copy(3, 103, 5000), "too long");
        assert!(!ScanOrder::new(0, 1 << 30).queue.is_on());
        // What there is no room for is counted.
        order.enqueue((10..10_000).map(|number| value(number, 1000)));
        let waits = order.take().len() as u64;
        assert_eq!(order.stats().dropped_full, 9_990 - waits);
    }
}
