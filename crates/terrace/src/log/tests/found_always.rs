//! Readers concurrent with commits, writes of frames, and their applying: acknowledged commits are
//! found at every moment, by key or by the place in the index, and commits that are not durable are
//! not.

use super::{
    super::{
        frame::{Heir, PlaceInLog},
        frame_table::FrameTable,
    },
    *,
};
use crate::{Durability, key_hash};
use parking_lot::Mutex;
use std::{
    collections::{HashMap, HashSet},
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, channel},
    },
    time::{Duration, Instant},
};

const KEYS: u64 = 40;
const FRAMES: u64 = 400;
/// None of this many last frames, of at most 130 KiB, can have been evicted.
const LAST_FRAMES: u64 = 8;
const SHARE_BYTES: u64 = 2 << 20;

/// State of an index and a device.
struct Store {
    frames: FrameTable,
    /// By key: the place of its newest applied record, its seq, and the number of its frame.
    index: Mutex<HashMap<u64, (PlaceInLog, u64, u64)>>,
    written: Mutex<HashSet<PlaceInLog>>,
    durable_seq: AtomicU64,
    /// By key: the seq of its last commit that returned.
    acknowledged: Vec<AtomicU64>,
    sealed_frames: AtomicU64,
    inherited: Arc<AtomicU64>,
    /// Number of records found by key, by place, and in neither way.
    found: [AtomicU64; 3],
}

struct Counts(Arc<AtomicU64>);

impl Heir for Counts {
    fn inherit(&self, _: PlaceInLog, record: &Record<'_>) {
        check(record);
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn unused_bytes(&self) -> u64 {
        0
    }

    fn borrowed_bytes(&self) -> u64 {
        0
    }

    fn takes_unread(&self, bytes: u64) -> bool {
        self.unused_bytes() > bytes
    }
}

/// Every fifth commit.
const fn is_sync(seq: u64) -> bool {
    seq.is_multiple_of(5)
}

/// Live bytes counted for a value: too many for short ones, so only long frames with many dead
/// values are sparse.
const VALUE_BYTES: u64 = 6_000;

const fn key_of(seq: u64) -> u64 {
    seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & 0xffff_ffff
}

fn check(record: &Record<'_>) -> u64 {
    assert_eq!(record.key, (key_of(record.seq) % KEYS).to_le_bytes());
    assert!(record.body.value().iter().all(|byte| *byte == record.seq as u8));
    record.seq
}

impl Store {
    /// Commits to consecutive frames, short and long ones, and passes them to `hand_on`.
    fn commit(&self, hand_on: impl Fn(Arc<Frame>)) {
        let pool = Arc::new(FramePool::for_overlay(4 << 20));
        let (mut generation, mut offset, mut seq) = (1, 4096, 0);
        let patience = Instant::now() + Duration::from_secs(60);
        for number in 1..=FRAMES {
            let frame = Arc::new(Frame::open(3, generation, SEGMENT_BYTES, offset, Arc::clone(&pool)));
            self.frames.push(Arc::clone(&frame));
            let value_bytes = if number % 3 == 0 { 3_000 } else { 150 };
            for _ in 0..20 + number % 20 {
                seq += 1;
                let key = key_of(seq) % KEYS;
                let value = vec![seq as u8; value_bytes];
                let durability = if is_sync(seq) {
                    Durability::Sync
                } else {
                    Durability::Buffered
                };
                let key_bytes = key.to_le_bytes();
                self.frames.append(&frame, seq, &[put(&key_bytes, &value)], durability);
                if durability == Durability::Buffered {
                    self.acknowledged[key as usize].fetch_max(seq, Ordering::Release);
                }
            }
            frame.seal(0);
            self.frames.sealed(&frame);
            self.sealed_frames.store(number, Ordering::Release);
            offset = frame.end();
            if offset + (130 << 10) > SEGMENT_BYTES {
                (generation, offset) = (generation + 1, 4096);
            }
            hand_on(frame);
            // On a busy machine all frames would be written before a reader begins.
            while self.found[1].load(Ordering::Relaxed) < number && Instant::now() < patience {
                std::thread::yield_now();
            }
        }
    }

    fn write(&self, frames: Receiver<Arc<Frame>>, hand_on: impl Fn(Arc<Frame>)) {
        for frame in frames {
            let view = frame.view();
            let base = 3 * SEGMENT_BYTES;
            let places = view
                .records()
                .map(|(address, _)| (frame.generation, address.bytes() - base));
            self.written.lock().extend(places);
            frame.set_written();
            self.durable_seq.store(view.last_seq(), Ordering::Release);
            for (_, record) in view.records() {
                let key = key_of(record.seq) % KEYS;
                self.acknowledged[key as usize].fetch_max(record.seq, Ordering::Release);
            }
            hand_on(Arc::clone(&frame));
            self.frames.settle();
        }
    }

    fn apply(&self, frames: Receiver<Arc<Frame>>) {
        for (number, frame) in (1..).zip(frames) {
            let view = frame.view();
            for (address, record) in view.records() {
                let place = (frame.generation, address.bytes() - 3 * SEGMENT_BYTES);
                let key = key_of(record.seq) % KEYS;
                let replaced = self.index.lock().insert(key, (place, record.seq, number));
                let at = usize::try_from(place.1 - frame.offset).unwrap();
                frame.sealed().unwrap().lives(at, VALUE_BYTES);
                // Frames with many dead values are evicted first, and the last frames are looked up
                // here.
                if let Some((dead, _, of)) = replaced
                    && of + LAST_FRAMES <= number
                {
                    self.frames.value_died(dead, VALUE_BYTES);
                }
            }
            frame.set_applied();
            self.frames.settle();
        }
    }

    /// Looks up a key like a read.
    fn read(&self, key: u64) {
        let acknowledged = self.acknowledged[key as usize].load(Ordering::Acquire);
        let bytes = key.to_le_bytes();
        let durable_seq = || self.durable_seq.load(Ordering::Acquire);
        let by_key = self.frames.find(key_hash(&bytes), &bytes, durable_seq, check);
        let (seq, how) = by_key.map_or_else(|| self.read_by_index(key), |seq| (seq, 0));
        assert!(
            seq >= acknowledged,
            "{seq} of {key}, and {acknowledged} was acknowledged"
        );
        assert!(!is_sync(seq) || seq <= durable_seq(), "{seq} is not durable");
        self.found[how].fetch_add(1, Ordering::Relaxed);
    }

    fn read_by_index(&self, key: u64) -> (u64, usize) {
        let Some((place, seq, number)) = self.index.lock().get(&key).copied() else {
            return (0, 2);
        };
        if let Some(found) = self.frames.at(place, check) {
            assert_eq!(found, seq);
            return (seq, 1);
        }
        let is_old = number + LAST_FRAMES <= self.sealed_frames.load(Ordering::Acquire);
        assert!(is_old, "frame {number} was not in RAM");
        assert!(self.written.lock().contains(&place), "nor on the device");
        (seq, 2)
    }
}

#[test]
fn what_was_acknowledged_is_found_at_every_moment() {
    let inherited = Arc::new(AtomicU64::new(0));
    let store = Store {
        frames: FrameTable::starting_at(0, 1 << 30, SHARE_BYTES),
        index: Mutex::default(),
        written: Mutex::default(),
        durable_seq: AtomicU64::new(0),
        acknowledged: (0..KEYS).map(|_| AtomicU64::new(0)).collect(),
        sealed_frames: AtomicU64::new(0),
        inherited: Arc::clone(&inherited),
        found: Default::default(),
    };
    store.frames.hand_on_to(Box::new(Counts(Arc::clone(&store.inherited))));
    let (to_write, writes) = channel();
    let (to_apply, applies) = channel();
    let store = &store;
    std::thread::scope(|scope| {
        let writing = scope.spawn(move || store.write(writes, |frame| to_apply.send(frame).unwrap()));
        let applying = scope.spawn(move || store.apply(applies));
        for reader in 0..3 {
            scope.spawn(move || {
                let mut turn = reader;
                while !applying_is_over(store) {
                    turn += 1;
                    store.read(key_of(turn) % KEYS);
                }
            });
        }
        store.commit(|frame| to_write.send(frame).unwrap());
        drop(to_write);
        writing.join().unwrap();
        applying.join().unwrap();
    });
    (0..KEYS).for_each(|key| store.read(key));
    assert_eq!(store.frames.pending_frames(), 0);
    assert!(store.frames.retained_bytes() <= SHARE_BYTES);
    assert!(inherited.load(Ordering::Relaxed) > 0, "nothing that was read has left");
    let found: Vec<_> = store.found.iter().map(|found| found.load(Ordering::Relaxed)).collect();
    assert!(found[0] > 100 && found[1] > 100, "{found:?}");
}

fn applying_is_over(store: &Store) -> bool {
    store.sealed_frames.load(Ordering::Acquire) == FRAMES && store.frames.pending_frames() == 0
}
