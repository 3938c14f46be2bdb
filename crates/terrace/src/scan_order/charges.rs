//! What scans have paid for a sweep.
//!
//! Before a sweep the charges add up until they reach its price, and are spent. What scans pay
//! while it runs it may read and write beyond its rate limit: the device is busy with reads that it
//! makes needless, so the sooner it ends the better for all. Without such scans the limit holds.
//!
//! Invariant: a charge is spent once. In RAM only; nothing here can fail.

use super::{READ_PRICE, Sweep, SweepRam};
use parking_lot::Mutex;
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Scans that will have paid for a sweep in this time at their present rate do not pay for single
/// ranges as well, whose copies would cost the applier 3 µs each and delay the sweep.
const NEAR: Duration = Duration::from_secs(10);
/// Time over which that rate is measured, at least.
const LOOKS_APART: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Debug)]
pub struct SweepCharges {
    /// Bytes that were paid and are not spent.
    paid: AtomicU64,
    /// How much of that was found to be too little.
    too_little: AtomicU64,
    /// Percentage of its price for which a sweep is bought.
    price_percent: u64,
    is_near: AtomicBool,
    /// The last sweep did not get to its end.
    has_failed: AtomicBool,
    looked: Mutex<Look>,
}

/// A look at what was paid.
#[derive(Debug)]
struct Look {
    at: Instant,
    paid: u64,
    is_near: bool,
}

impl SweepCharges {
    /// None yet.
    pub fn new(price_percent: u32) -> Self {
        Self {
            paid: AtomicU64::new(0),
            too_little: AtomicU64::new(0),
            price_percent: price_percent.into(),
            is_near: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            looked: Mutex::new(Look {
                at: Instant::now(),
                paid: 0,
                is_near: false,
            }),
        }
    }

    /// A scan has read this many short values from the device, one by one.
    pub fn pay(&self, reads: u64) {
        self.paid.fetch_add(reads * READ_PRICE, Ordering::Relaxed);
    }

    /// Whether anything was paid since it was last found to be too little.
    pub fn has_grown(&self) -> bool {
        self.paid.load(Ordering::Relaxed) != self.too_little.load(Ordering::Relaxed)
    }

    /// Whether a sweep is under way, or will be soon if scans go on.
    pub fn is_near(&self) -> bool {
        self.is_near.load(Ordering::Relaxed)
    }

    /// Whether the charges are sufficient for a sweep, for this mean length of values in the log
    /// and this much RAM. If so, they are spent.
    #[must_use]
    pub fn buy(&self, sweep: Sweep, mean_bytes: u64, ram: SweepRam) -> bool {
        let paid = self.paid.load(Ordering::Relaxed);
        let price = sweep.price(mean_bytes, ram).filter(|_| sweep.bytes > 0);
        let price = price.map(|price| price / 100 * self.price_percent);
        let is_bought = price.is_some_and(|price| paid > 0 && paid >= price);
        let will_be = |price| !self.has_failed.load(Ordering::Relaxed) && self.will_reach(price, paid);
        let is_near = is_bought || price.is_some_and(will_be);
        let too_little = if is_bought { 0 } else { paid };
        if is_bought {
            self.paid.store(0, Ordering::Relaxed);
        }
        self.too_little.store(too_little, Ordering::Relaxed);
        self.is_near.store(is_near, Ordering::Relaxed);
        is_bought
    }

    /// However much is paid, there can be none now.
    pub fn is_impossible(&self) {
        self.is_near.store(false, Ordering::Relaxed);
    }

    /// Whether scans that pay as they did since the last look reach this price soon.
    fn will_reach(&self, price: u64, paid: u64) -> bool {
        let mut looked = self.looked.lock();
        let passed = looked.at.elapsed();
        if passed >= LOOKS_APART {
            let per_second = paid.saturating_sub(looked.paid) as f64 / passed.as_secs_f64();
            *looked = Look {
                at: Instant::now(),
                paid,
                is_near: paid as f64 + per_second * NEAR.as_secs_f64() >= price as f64,
            };
        }
        looked.is_near
    }

    /// Whether scans have paid more since a sweep began than it has taken of that.
    pub fn is_paying(&self) -> bool {
        self.paid.load(Ordering::Relaxed) > 0
    }

    /// Takes what scans have paid since a sweep began for bytes that it reads or writes. Returns
    /// how many of them that does not cover.
    pub fn take(&self, bytes: u64) -> u64 {
        let rest = |paid: u64| Some(paid.saturating_sub(bytes));
        let before = self.paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
        bytes.saturating_sub(before.unwrap_or(0))
    }

    /// A sweep has ended. What was paid meanwhile is dropped, since it saves those reads. After one
    /// that failed (`is_whole` is false) scans pay for single ranges until another one begins: what
    /// it failed of may be there for ever, and nothing would ever be copied.
    pub fn swept(&self, is_whole: bool) {
        self.paid.store(0, Ordering::Relaxed);
        self.has_failed.store(!is_whole, Ordering::Relaxed);
        self.is_near.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAM_BYTES: u64 = 64 << 20;
    const SWEEP: Sweep = Sweep {
        bytes: 100 << 20,
        live_bytes: 50 << 20,
        index_bytes: 20 << 20,
    };

    fn reads_of_price() -> u64 {
        let price = SWEEP.price(100, SweepRam::of_cache(RAM_BYTES)).unwrap_or(0);
        (price / 100 * 100).div_ceil(READ_PRICE)
    }

    fn buys(charges: &SweepCharges) -> bool {
        charges.buy(SWEEP, 100, SweepRam::of_cache(RAM_BYTES))
    }

    fn seconds_pass(charges: &SweepCharges, seconds: u64) {
        charges.looked.lock().at -= Duration::from_secs(seconds);
    }

    /// Values were copied range by range until a sweep of all of them began, a second later than
    /// without that.
    #[test]
    fn a_sweep_is_near_while_scans_pay_for_it_fast_enough() {
        let charges = SweepCharges::new(100);
        let reads = reads_of_price();
        assert!(!buys(&charges) && !charges.is_near(), "no scans");
        // Two thirds of it would take a minute.
        charges.pay(reads / 60);
        seconds_pass(&charges, 1);
        assert!(!buys(&charges) && !charges.is_near());
        charges.pay(reads / 5);
        assert!(!buys(&charges) && !charges.is_near(), "too soon for another look");
        seconds_pass(&charges, 1);
        assert!(!buys(&charges) && charges.is_near());
        charges.is_impossible();
        assert!(!charges.is_near());
        charges.pay(1);
        assert!(!buys(&charges) && charges.is_near());
        seconds_pass(&charges, 60);
        charges.pay(1);
        assert!(!buys(&charges) && !charges.is_near(), "they scan less");
        charges.pay(reads);
        assert!(buys(&charges) && charges.is_near(), "it is under way");
        charges.swept(true);
        assert!(!charges.is_near());
        charges.pay(reads / 2);
        seconds_pass(&charges, 1);
        assert!(!buys(&charges) && charges.is_near(), "the next one");
        charges.swept(true);
        // Nothing is left to sweep.
        charges.pay(reads / 2);
        seconds_pass(&charges, 1);
        assert!(!charges.buy(Sweep::default(), 100, SweepRam::of_cache(RAM_BYTES)) && !charges.is_near());
    }

    /// A sweep that failed each time, for example of a damaged value, was near again at once, so
    /// no range was copied by itself either.
    #[test]
    fn after_a_sweep_that_failed_the_next_is_near_once_it_is_bought() {
        let charges = SweepCharges::new(100);
        let reads = reads_of_price();
        charges.pay(reads);
        assert!(buys(&charges));
        charges.swept(false);
        charges.pay(reads / 2);
        seconds_pass(&charges, 1);
        assert!(!buys(&charges) && !charges.is_near());
        charges.pay(reads);
        assert!(buys(&charges) && charges.is_near(), "it is under way");
        charges.swept(true);
        charges.pay(reads / 2);
        seconds_pass(&charges, 1);
        assert!(!buys(&charges) && charges.is_near());
    }

    #[test]
    fn what_scans_pay_beside_a_sweep_is_taken_once() {
        let charges = SweepCharges::new(100);
        charges.pay(reads_of_price());
        assert!(buys(&charges) && !charges.is_paying());
        assert_eq!(charges.take(100), 100, "no scans beside it");
        charges.pay(1);
        assert!(charges.is_paying());
        assert_eq!(charges.take(READ_PRICE - 10), 0);
        assert_eq!(charges.take(100), 90);
        charges.pay(1);
        charges.swept(true);
        assert!(!charges.is_paying());
    }
}
