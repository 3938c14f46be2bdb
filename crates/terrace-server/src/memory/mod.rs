//! Fits `serve` to the machine's memory: by default the cache has a quarter, and other large parts
//! are smaller where memory is short. While the server runs a thread checks the free memory of the
//! machine and its control group, and the cache shrinks if other programs need memory. The thread
//! checks when the kernel reports that memory becomes short ([`events`]), and after traffic that
//! could fill a good part of the reserve; an idle server does not wake up for it.
//!
//! Sizes in the settings are used unchanged, and not given back.

pub mod allocator;
mod bounds;
mod events;

pub use bounds::Bounds;

use crate::{
    http::{
        self, Traffic,
        budget::{COLLECTED_BYTES_MAX, UPLOADS_BYTES_MAX},
        read_ahead::DOWNLOADS_BYTES_MAX,
    },
    settings::Settings,
};
use bounds::Standing;
use events::Woken;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use terrace::{Options, Store};

/// Fraction of the usable memory for the cache.
const CACHE_PARTS: u64 = 4;
/// Smallest cache, unless the settings say otherwise.
const CACHE_BYTES_MIN: u64 = 4 << 20;
/// Fraction that is kept free: for allocations between two checks, and for memory that the
/// allocator has not returned yet.
const FREE_PARTS: u64 = 4;
/// Memory per connection: one that sends or receives a large value, or a page of a listing, holds
/// more than a MiB, and the allocator as much again.
const CONNECTION_BYTES: u64 = 8 << 20;
/// Connections of one client.
const CONNECTIONS_MIN: u32 = 32;
/// Below this the allocator keeps no freed memory: of 256 MiB it kept more than half.
const KEPT_FROM_BYTES: u64 = 1 << 30;
/// Fraction for data that requests make the server collect.
const COLLECTED_PARTS: u64 = 6;
/// Fraction for uploads.
const UPLOADS_PARTS: u64 = 6;
/// Fraction for downloads.
const DOWNLOADS_PARTS: u64 = 8;
/// Shortest time between two checks. In that time clients fill some tens of MiB at most.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// After a check with a cause there is another one after this time, since the work continues for a
/// while; then none until the next cause.
const AFTER_LOOK: Duration = Duration::from_secs(1);
/// Memory is checked after traffic of this fraction of the usable memory: a sixteenth of the part
/// that is kept free.
const TRAFFIC_PARTS: u64 = 64;
/// Time without pressure until the cache grows by a fraction of [`GROWTH_PARTS`]; the allocator
/// keeps freed memory for as long.
const QUIET_UNTIL_GROWTH: Duration = Duration::from_secs(2);
const GROWTH_PARTS: u64 = 16;
/// From this percentage of time in which a task waits for memory the cache shrinks even if there is
/// free memory.
const PRESSURE_PERCENT: f64 = 10.0;

/// Parts of a server's memory that are not options of its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Largest cache, if it is to be adjusted.
    pub cache_bytes: Option<u64>,
    /// Data that requests make the server collect.
    pub collected_bytes: u64,
    /// Memory of uploads.
    pub uploads_bytes: u64,
    /// Memory of downloads besides the cache.
    pub downloads_bytes: u64,
}

/// Fits the settings of a server to the memory of the machine or control group, except those that
/// were given.
pub fn fit(settings: &mut Settings, bounds: &Bounds) -> Plan {
    let limit_bytes = bounds.limit_bytes().unwrap_or(u64::MAX);
    let options = &mut settings.options;
    fit_others(options, limit_bytes, settings.staging_given);
    let connections = u32::try_from(limit_bytes / CONNECTION_BYTES).unwrap_or(u32::MAX);
    let connections = connections.clamp(CONNECTIONS_MIN, http::CONNECTIONS_DEFAULT);
    settings.connections.get_or_insert(connections);
    let is_known = limit_bytes < u64::MAX;
    if is_known && !settings.cache_given {
        options.cache_bytes = (limit_bytes / CACHE_PARTS).max(CACHE_BYTES_MIN);
    }
    Plan {
        cache_bytes: Some(options.cache_bytes).filter(|_| is_known && !settings.cache_given),
        collected_bytes: COLLECTED_BYTES_MAX.min(limit_bytes / COLLECTED_PARTS),
        uploads_bytes: UPLOADS_BYTES_MAX.min(limit_bytes / UPLOADS_PARTS),
        downloads_bytes: DOWNLOADS_BYTES_MAX.min(limit_bytes / DOWNLOADS_PARTS),
    }
}

/// Whether the allocator may keep freed memory for a while.
pub fn keeps_freed(bounds: &Bounds) -> bool {
    bounds.limit_bytes().is_none_or(|bytes| bytes >= KEPT_FROM_BYTES)
}

/// The rest of a server's memory as listed in docs/operating.md: with the defaults some 350 MiB
/// besides the cache, more than small machines have.
fn fit_others(options: &mut Options, limit_bytes: u64, staging_given: bool) {
    let at_most = |value: &mut u64, parts: u64, least: u64| *value = (*value).min((limit_bytes / parts).max(least));
    // Frames take twice the size of the overlay.
    at_most(&mut options.tuning.overlay_bytes, 32, 1 << 20);
    at_most(&mut options.tuning.index_cache_bytes, 32, 1 << 20);
    // Up to four memtables take one and a half times their length each.
    at_most(&mut options.tuning.memtable_bytes, 64, 1 << 20);
    if !staging_given {
        at_most(&mut options.tuning.staging_bytes, 16, 1 << 20);
    }
}

/// Adjusts the cache until it is dropped.
pub struct Keeper {
    stop: Arc<AtomicBool>,
    traffic: Arc<Traffic>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Counts the traffic with clients.
    ///
    /// # Errors
    /// As [`Traffic::new`].
    pub fn traffic(bounds: &Bounds) -> std::io::Result<Arc<Traffic>> {
        Traffic::new(bounds.limit_bytes().unwrap_or(u64::MAX) / TRAFFIC_PARTS)
    }

    /// Begins to adjust the cache of a store, which may have this many bytes.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(store: Store, bounds: Bounds, most_bytes: u64, traffic: Arc<Traffic>) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::Builder::new().name("memory".to_owned()).spawn({
            let (stop, traffic) = (Arc::clone(&stop), Arc::clone(&traffic));
            move || look_after(&store, &bounds, most_bytes, &traffic, &stop)
        })?;
        Ok(Self {
            stop,
            traffic,
            thread: Some(thread),
        })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.traffic.tell();
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic in it has been printed.
            let _ = thread.join();
        }
    }
}

fn look_after(store: &Store, bounds: &Bounds, most_bytes: u64, traffic: &Traffic, stop: &AtomicBool) {
    let mut events = bounds.events();
    let mut size = Size::new(most_bytes, Instant::now());
    let mut woken = Woken::Told;
    while !stop.load(Ordering::Relaxed) {
        let looked = Instant::now();
        traffic.look();
        look(store, bounds, &mut size);
        let longest = (woken == Woken::Told).then_some(AFTER_LOOK);
        woken = events.wait(traffic, longest);
        if !stop.load(Ordering::Relaxed) {
            thread::park_timeout(LOOK_INTERVAL.saturating_sub(looked.elapsed()));
        }
    }
}

fn look(store: &Store, bounds: &Bounds, size: &mut Size) {
    let Some(standing) = bounds.tightest() else { return };
    let held = || store.stats().cache.bytes;
    if let Some(bytes) = size.look(standing, bounds.pressure_percent(), Instant::now(), held) {
        tracing::debug!(bytes, room = standing.room_bytes(), "the cache has another size");
        store.set_cache_bytes(bytes);
        if let Err(error) = allocator::give_back() {
            tracing::debug!(%error, "the allocator keeps what was freed");
        }
    }
    if size.is_least() && standing.room_bytes() < standing.limit_bytes / FREE_PARTS / 4 && size.warn_once() {
        tracing::warn!(
            limit = standing.limit_bytes,
            used = standing.used_bytes,
            "memory is nearly used up although the cache has given back all it can; give the server more"
        );
    }
}

/// The cache's size.
#[derive(Debug)]
struct Size {
    most_bytes: u64,
    bytes: u64,
    /// Time of the last change.
    changed: Instant,
    warned: bool,
}

impl Size {
    const fn new(most_bytes: u64, now: Instant) -> Self {
        Self {
            most_bytes,
            bytes: most_bytes,
            changed: now,
            warned: false,
        }
    }

    fn least_bytes(&self) -> u64 {
        CACHE_BYTES_MIN.min(self.most_bytes)
    }

    fn is_least(&self) -> bool {
        self.bytes == self.least_bytes()
    }

    fn warn_once(&mut self) -> bool {
        !std::mem::replace(&mut self.warned, true)
    }

    /// The new size of the cache, if it changes. The cache returns what is missing of the part that
    /// is kept free, once in the time that the allocator takes to return it, or again if even less
    /// is left; it grows slowly while one and a half times that part is free.
    fn look(
        &mut self,
        standing: Standing,
        pressure_percent: f64,
        now: Instant,
        held_bytes: impl FnOnce() -> u64,
    ) -> Option<u64> {
        let (room, free) = (standing.room_bytes(), standing.limit_bytes / FREE_PARTS);
        let wanting = free.saturating_sub(room);
        let is_pressed = pressure_percent >= PRESSURE_PERCENT && room < 2 * free;
        let before = self.bytes;
        let is_quiet = now.saturating_duration_since(self.changed) >= QUIET_UNTIL_GROWTH;
        if wanting > 0 || is_pressed {
            let is_urgent = room < free / 2;
            if is_quiet || is_urgent {
                let step = wanting.max(self.most_bytes / GROWTH_PARTS);
                self.bytes = self
                    .bytes
                    .min(held_bytes())
                    .saturating_sub(step)
                    .max(self.least_bytes());
                self.changed = now;
            }
        } else if self.bytes < self.most_bytes && is_quiet && room > free + free / 2 {
            self.bytes = (self.bytes + self.most_bytes / GROWTH_PARTS).min(self.most_bytes);
            self.changed = now;
        }
        (self.bytes != before).then_some(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    const fn used(used_bytes: u64) -> Standing {
        Standing {
            limit_bytes: 1000 * MIB,
            used_bytes,
        }
    }

    /// A size, and a time at which there was no pressure for long enough.
    fn quiet(most_bytes: u64) -> (Size, Instant) {
        let began = Instant::now();
        (Size::new(most_bytes, began), began + QUIET_UNTIL_GROWTH)
    }

    #[test]
    fn what_is_wanting_is_given_back_at_once_and_taken_again_slowly() {
        let (mut size, mut now) = quiet(256 * MIB);
        assert_eq!(
            size.look(used(500 * MIB), 0.0, now, || 200 * MIB),
            None,
            "it has all it may"
        );
        // 50 MiB of the quarter that is kept free are used.
        assert_eq!(size.look(used(800 * MIB), 0.0, now, || 200 * MIB), Some(150 * MIB));
        // The allocator has not given it back yet.
        assert_eq!(size.look(used(790 * MIB), 0.0, now, || 150 * MIB), None);
        // But memory is nearly used up.
        assert_eq!(size.look(used(950 * MIB), 0.0, now, || 150 * MIB), Some(4 * MIB));
        assert!(size.is_least());
        assert_eq!(
            size.look(used(990 * MIB), 0.0, now, || 0),
            None,
            "it has no more to give"
        );
        let (mut looks, began) = (0, now);
        while size.bytes < 256 * MIB {
            now += LOOK_INTERVAL;
            looks += u32::from(size.look(used(500 * MIB), 0.0, now, || 0).is_some());
        }
        assert_eq!((looks, now - began), (16, 16 * QUIET_UNTIL_GROWTH));
        assert!(size.warn_once() && !size.warn_once());
    }

    #[test]
    fn between_the_two_marks_it_stays() {
        let (mut size, mut now) = quiet(256 * MIB);
        size.bytes = 100 * MIB;
        for _ in 0..100 {
            now += LOOK_INTERVAL;
            assert_eq!(size.look(used(700 * MIB), 0.0, now, || 100 * MIB), None);
        }
    }

    #[test]
    fn pressure_counts_where_room_is_short() {
        let (mut size, now) = quiet(256 * MIB);
        assert_eq!(
            size.look(used(100 * MIB), 90.0, now, || 256 * MIB),
            None,
            "another program's"
        );
        assert_eq!(size.look(used(600 * MIB), 90.0, now, || 256 * MIB), Some(240 * MIB));
    }

    #[test]
    fn small_machines_give_less_to_everything_and_large_ones_more_to_the_cache() {
        let fitted = |mib: u64| {
            let mut options = Options::new("x");
            fit_others(&mut options, mib * MIB, false);
            options
        };
        let small = fitted(256);
        let in_mib = [
            small.tuning.overlay_bytes,
            small.tuning.index_cache_bytes,
            small.tuning.memtable_bytes,
            small.tuning.staging_bytes,
        ];
        assert_eq!(in_mib.map(|bytes| bytes / MIB), [8, 8, 4, 16]);
        let (large, default) = (fitted(16 << 10), Options::new("x"));
        assert_eq!(large.tuning.overlay_bytes, default.tuning.overlay_bytes);
        assert_eq!(large.tuning.memtable_bytes, default.tuning.memtable_bytes);
        assert_eq!(large.tuning.staging_bytes, default.tuning.staging_bytes);
        assert!(fitted(1).validate().is_ok(), "the least is enough to open with");
    }
}
