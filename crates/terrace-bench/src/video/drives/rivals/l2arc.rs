//! The second level of ZFS's cache, as described in the comments of its source (arc.c, "Level 2
//! ARC"): a ring on flash, fed at a steady rate from the end of the ARC's eviction list. Prefetched
//! records are not fed, so of a segment that is read in order, only the records requested before
//! prefetching began.
//!
//! Of the study's segments these are 2 records of 18, which is 11.1 %: the hit ratio reported in
//! its slides.

use super::{
    CacheFile, Flash, RECORDS, Shelf,
    ram::{Ram, Record},
};
use crate::Outcome;
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    ops::Range,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use terrace::io::AlignedBuffer;

use super::super::Scene;

/// Interval of feeding. ZFS feeds once a second, from an ARC that holds several minutes of reads.
const INTERVAL: Duration = Duration::from_millis(10);
/// The list is searched for this multiple of the bytes that may be written.
const HEADROOM: usize = 2;

#[derive(Debug)]
struct Ring {
    slot_of: HashMap<Record, usize>,
    slots: Vec<Option<Record>>,
    /// How often each slot was written.
    uses: Vec<u64>,
    hand: usize,
    /// Bytes that may be written in the time that has passed.
    allowed_bytes: f64,
}

/// State shared by the feeder and readers.
#[derive(Debug)]
struct Shared {
    file: CacheFile,
    ring: Mutex<Ring>,
    /// Held while feeding.
    feeding: Mutex<()>,
    ram: Arc<Ram>,
    record_bytes: usize,
    bytes_per_second: f64,
    /// Whether time passes in real time.
    runs: AtomicBool,
    ends: AtomicBool,
}

/// The cache.
#[derive(Debug)]
pub struct L2Arc {
    shared: Arc<Shared>,
    feeder: Mutex<Option<JoinHandle<Outcome>>>,
    asked_records: usize,
}

impl L2Arc {
    /// A cache in a file of this size, rounded down to whole records.
    pub fn new(directory: &Path, bytes: u64, scene: &Scene, ram: &Arc<Ram>) -> Outcome<Self> {
        let record_bytes = scene.segment_bytes / RECORDS;
        let slots = (bytes as usize / record_bytes).max(1);
        let shared = Arc::new(Shared {
            file: CacheFile::create(directory, (slots * record_bytes) as u64)?,
            ring: Mutex::new(Ring {
                slot_of: HashMap::new(),
                slots: vec![None; slots],
                uses: vec![0; slots],
                hand: 0,
                allowed_bytes: 0.0,
            }),
            feeding: Mutex::new(()),
            ram: Arc::clone(ram),
            record_bytes,
            bytes_per_second: scene.l2arc_bytes_per_second as f64,
            runs: AtomicBool::new(false),
            ends: AtomicBool::new(false),
        });
        let feeding = Arc::clone(&shared);
        Ok(Self {
            shared,
            feeder: Mutex::new(Some(std::thread::spawn(move || feeding.feed_on()))),
            asked_records: scene.asked_records,
        })
    }
}

impl Shared {
    fn feed_on(&self) -> Outcome {
        let mut last = Instant::now();
        while !self.ends.load(Ordering::Relaxed) {
            std::thread::sleep(INTERVAL);
            let passed = last.elapsed();
            last = Instant::now();
            if self.runs.load(Ordering::Relaxed) {
                self.allow(passed);
                self.feed()?;
            }
        }
        Ok(())
    }

    /// Adds the bytes for a time. At most a second's worth is kept, as in ZFS.
    fn allow(&self, passed: Duration) {
        let mut ring = self.ring.lock();
        let allowed = ring.allowed_bytes + self.bytes_per_second * passed.as_secs_f64();
        ring.allowed_bytes = allowed.min(self.bytes_per_second);
    }

    /// Writes, within the limit, records that will be evicted from the ARC next and are not in the
    /// ring.
    fn feed(&self) -> Outcome {
        let Some(_one) = self.feeding.try_lock() else {
            return Ok(());
        };
        let records_max = {
            let ring = self.ring.lock();
            (ring.allowed_bytes / self.record_bytes as f64) as usize
        };
        if records_max == 0 {
            return Ok(());
        }
        // Most of the searched records were prefetched; ZFS counts these in its headroom too.
        let mut chosen = {
            let ring = self.ring.lock();
            self.ram
                .tail(records_max * HEADROOM, |record| !ring.slot_of.contains_key(&record))
        };
        chosen.truncate(records_max);
        let mut left = &chosen[..];
        while !left.is_empty() {
            left = &left[self.write(left)?..];
        }
        Ok(())
    }

    /// Writes records, up to the end of the ring, as one request; returns their number.
    fn write(&self, records: &[(Record, bytes::Bytes)]) -> Outcome<usize> {
        let (first, count) = {
            let mut ring = self.ring.lock();
            let first = ring.hand;
            let count = records.len().min(ring.slots.len() - first);
            for slot in first..first + count {
                if let Some(old) = ring.slots[slot].take() {
                    ring.slot_of.remove(&old);
                }
                ring.uses[slot] += 1;
            }
            ring.hand = (first + count) % ring.slots.len();
            ring.allowed_bytes -= (count * self.record_bytes) as f64;
            (first, count)
        };
        let mut buffer = AlignedBuffer::with_capacity(count * self.record_bytes);
        for (_, data) in &records[..count] {
            buffer.extend_from_slice(data);
        }
        self.file.write(&buffer, (first * self.record_bytes) as u64)?;
        let mut ring = self.ring.lock();
        for (slot, (record, _)) in (first..).zip(&records[..count]) {
            ring.slots[slot] = Some(*record);
            ring.slot_of.insert(*record, slot);
        }
        Ok(count)
    }

    /// Reads a record from the ring, if it was there during the whole read.
    fn read(&self, record: Record, into: &mut [u8]) -> Outcome<bool> {
        let place = |ring: &Ring| {
            let slot = *ring.slot_of.get(&record)?;
            Some((slot, ring.uses[slot]))
        };
        let Some(found) = place(&self.ring.lock()) else {
            return Ok(false);
        };
        self.file.read(into, (found.0 * self.record_bytes) as u64)?;
        Ok(place(&self.ring.lock()) == Some(found))
    }
}

impl Flash for L2Arc {
    fn read(&self, shelf: &Shelf, object: usize, part: Range<usize>, into: &mut [u8]) -> Outcome {
        let record_bytes = self.shared.record_bytes;
        let first = part.start / record_bytes;
        let mut missing: Vec<usize> = Vec::new();
        for (number, bytes) in (first..).zip(into.chunks_mut(record_bytes)) {
            // Prefetching reads the disk.
            let asked = number < self.asked_records;
            if !asked || !self.shared.read(Record { object, number }, bytes)? {
                missing.push(number);
            }
        }
        for run in missing.chunk_by(|one, other| one + 1 == *other) {
            let (start, end) = (run[0] * record_bytes, (run[0] + run.len()) * record_bytes);
            shelf.read(object, start..end, &mut into[start - part.start..end - part.start])?;
        }
        Ok(())
    }

    fn warm_up_passed(&self, time: Option<Duration>) -> Outcome {
        // With fast drives, records would leave the ARC before a separate thread had seen them.
        match time {
            Some(time) => {
                self.shared.allow(time);
                self.shared.feed()?;
            }
            None => self.shared.runs.store(true, Ordering::Relaxed),
        }
        Ok(())
    }

    fn written_bytes(&self) -> u64 {
        self.shared.file.written_bytes()
    }

    fn close(&self) -> Outcome {
        self.shared.ends.store(true, Ordering::Relaxed);
        let feeder = self.feeder.lock().take();
        feeder.map_or(Ok(()), |feeder| {
            feeder.join().unwrap_or_else(|_| Err("the feeder panicked".into()))
        })
    }
}
