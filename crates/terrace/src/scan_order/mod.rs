//! Charges of scans, and values to be rewritten in key order because of them.
//!
//! Values are in the log in commit order, so a scan reads each of them by itself. A short value
//! that is copied into its entry needs no read at all; longer ones that are rewritten in key order
//! are read together. That costs writes, so they are charged to scans (ski rental), like merges of
//! the index ([`crate::ordered_index`]): when reading the values of a range one by one has cost as
//! much as rewriting them in order once, they are rewritten. Charges are not recorded per range,
//! which would take RAM for each: a scan that is charged a part of a price triggers the rewrite
//! with that probability. On average the price has thus been paid when something is rewritten, and
//! no state is kept.
//!
//! A scan triggers rewrites only of values that it has read one by one. There is a price of the
//! whole log as well: when the charges have reached the cost of reading the log once sequentially
//! and of copying the short values in it, that is done ([`Sweep`]). What scans will soon have paid
//! for in this way is not copied range by range before.
//!
//! All prices are in bytes that the device writes in the same time.
//!
//! Invariant: without scans that read values nothing is rewritten. For values lost on their way
//! ([`MoveQueue`], [`Copies`]) scans are charged again.

mod charges;
mod copies;
mod sweep;

pub use charges::SweepCharges;
pub use copies::{Copied, Copies};
pub use sweep::{Sweep, SweepRam, copy_bytes};

use crate::{
    Options, ScanOrderStats,
    api::stats::ScanOrderCounters,
    log::move_queue::{Enqueued, MoveQueue, Moving},
};
use std::sync::atomic::{AtomicU64, Ordering};

/// Values up to this length are copied into their entries.
pub const COPY_BYTES_MAX: u64 = 256;
/// Longer values stay where they are: to read one by itself costs little more than to read it with
/// others.
const ORDERED_BYTES_MAX: u64 = 16 << 10;
/// Price of one device read: a device that reads 60,000 pages a second for eight threads writes 1
/// GB a second and more.
const READ_PRICE: u64 = 16 << 10;
/// How often what an entry has is written: to the memtable's table, and again by merges.
const INDEX_WRITES: u64 = 3;
/// Bytes of an entry without its copy, including its share of a table's overhead.
const ENTRY_BYTES: u64 = 32;
/// Maximum RAM of waiting values.
const WAITING_BYTES_MAX: u64 = 8 << 20;
/// Of the value cache's size, if that is less,
const WAITING_SHARE: u64 = 16;
/// but at least this much: values of a scan or two.
const WAITING_BYTES_MIN: u64 = 1 << 20;

/// Destination of a value that is paid for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// It is copied into its entry.
    Copied,
    /// It is written in order.
    Ordered,
}

/// The form of a value of this many bytes in the log. `None`: it is not moved.
pub const fn form(bytes: u64) -> Option<Form> {
    match bytes {
        0 => None,
        1..=COPY_BYTES_MAX => Some(Form::Copied),
        _ if bytes <= ORDERED_BYTES_MAX => Some(Form::Ordered),
        _ => None,
    }
}

/// Values read by a scan, and the cost of writing them in key order.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bill {
    /// Reads of the device that order would have spared.
    pub reads: u64,
    /// Cost of writing the values.
    price: u64,
}

impl Bill {
    /// Adds a value with a record of this many bytes.
    pub fn add(&mut self, form: Form, key_bytes: usize, value_bytes: u64, record_bytes: u64) {
        self.price += match form {
            Form::Copied => index_bytes(key_bytes, value_bytes),
            Form::Ordered => record_bytes + index_bytes(key_bytes, 0),
        };
    }

    const fn paid(&self) -> u64 {
        self.reads * READ_PRICE
    }
}

/// Bytes that a new entry of a key costs the index over time.
pub const fn index_bytes(key_bytes: usize, copied_bytes: u64) -> u64 {
    INDEX_WRITES * (ENTRY_BYTES + key_bytes as u64 + copied_bytes)
}

/// Charges of scans, and the values that are being moved.
#[derive(Debug)]
pub struct ScanOrder {
    /// Values to be moved.
    pub queue: MoveQueue,
    /// Short values on their way to the applier.
    pub copies: Copies,
    /// Charges for a sweep, by reads of short values.
    pub sweep: SweepCharges,
    throws: AtomicU64,
    /// Counters of moves.
    pub counters: ScanOrderCounters,
}

impl ScanOrder {
    /// An empty state. With 0 bytes a second nothing is ever moved.
    pub fn new(options: &Options) -> Self {
        let bytes_max = WAITING_BYTES_MAX.min((options.cache_bytes / WAITING_SHARE).max(WAITING_BYTES_MIN));
        let is_on = options.tuning.order_bytes_per_second > 0;
        Self {
            queue: MoveQueue::new(if is_on { bytes_max } else { 0 }),
            copies: Copies::default(),
            sweep: SweepCharges::new(options.tuning.sweep_price_percent),
            throws: AtomicU64::new(0),
            counters: ScanOrderCounters::default(),
        }
    }

    /// Whether the charges of a scan trigger a move: always if they reach the price, else with a
    /// probability of charges over price.
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

    /// Enqueues values to be rewritten in order, as many as there is room for.
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

    /// A sweep has ended, all of it or not.
    pub fn swept(&self, is_whole: bool) {
        self.sweep.swept(is_whole);
        self.counters.sweeps.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts values that were committed, with records of this many bytes. Returns the total bytes
    /// written for them.
    pub fn count_moved(&self, values: &[Moving], record_bytes: u64) -> u64 {
        let counters = &self.counters;
        counters.moved.fetch_add(values.len() as u64, Ordering::Relaxed);
        counters.log_bytes.fetch_add(record_bytes, Ordering::Relaxed);
        let keys = values.iter().map(|value| index_bytes(value.key.len(), 0));
        record_bytes + keys.sum::<u64>()
    }

    /// A picture.
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

    pub(super) fn of_rate(bytes_per_second: u64) -> ScanOrder {
        let options = Options {
            cache_bytes: 1 << 30,
            ..Options::new("")
        };
        ScanOrder::new(&options.tuned(|tuning| tuning.order_bytes_per_second = bytes_per_second))
    }

    fn bill(reads: u64, values: u64) -> Bill {
        let mut bill = Bill {
            reads,
            ..Bill::default()
        };
        (0..values).for_each(|_| bill.add(Form::Ordered, 16, 1000, 1072));
        bill
    }

    #[test]
    fn the_whole_price_always_buys_and_nothing_never_does() {
        let order = of_rate(1 << 20);
        assert!((0..100).all(|_| order.buys(&bill(50, 50))));
        assert!(!(0..1000).any(|_| order.buys(&bill(0, 50))));
    }

    #[test]
    fn on_average_the_price_is_paid() {
        let order = of_rate(1 << 20);
        // Two reads for 121,600 bytes, of 16 KiB each: a bit more than one in four.
        let bought = (0..30_000).filter(|_| order.buys(&bill(2, 100))).count();
        assert!((7_800..8_400).contains(&bought), "{bought}");
    }

    #[test]
    fn a_copy_costs_what_the_index_writes_and_nothing_of_the_log() {
        let (mut copied, mut ordered) = (Bill::default(), Bill::default());
        copied.add(Form::Copied, 16, 100, 172);
        ordered.add(Form::Ordered, 16, 1000, 1072);
        assert_eq!((copied.price, ordered.price), (3 * 148, 1072 + 3 * 48));
    }

    #[test]
    fn what_is_bought_leaves_in_the_order_of_keys() {
        let order = of_rate(1 << 20);
        order.enqueue([value(2, 100), value(1, 100), value(2, 100), value(3, 5000)].into_iter());
        let keys: Vec<_> = order.take().iter().map(|value| value.hash).collect();
        assert_eq!(keys, [1, 2, 3]);
        assert!(!of_rate(0).queue.is_on());
        // Values without room are counted.
        order.enqueue((10..10_000).map(|number| value(number, 1000)));
        let waits = order.take().len() as u64;
        assert_eq!(order.stats().dropped_full, 9_990 - waits);
    }
}
