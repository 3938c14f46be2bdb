//! One caller's history: random operations, each checked against the model when it returns.

mod ram;

use super::{
    generate::{self, Times},
    machine::{Machine, ms},
    state::{Bounds, Change, Held, Journal, Key, Put, State, apply, brief, is_empty, name},
};
use crate::common::block_on;
use rand::{Rng, rngs::StdRng, seq::SliceRandom};
use std::{
    io::Read,
    ops::Bound,
    time::{Duration, UNIX_EPOCH},
};
use terrace::{
    Batch, Condition, Durability, Error, Expiry, HomeKind, Object, PutOptions, Result, ScanRange, Snapshot, Store,
    Version, WriterOptions,
};

/// The power is off, so nothing more can be checked.
#[derive(Debug)]
pub struct PowerLost;

type Step<T = ()> = std::result::Result<T, PowerLost>;

/// Snapshots are released after this many bytes were written: they keep segments from being reused.
const SNAPSHOT_BYTES_MAX: usize = 600 << 10;

/// Writes and flushes between the steps of one scan.
const SCAN_CHANGES_MAX: usize = 4;

fn expiry(expires_ms: Option<u64>) -> Expiry {
    expires_ms.map_or(Expiry::Never, |ms| Expiry::At(UNIX_EPOCH + Duration::from_millis(ms)))
}

fn put_options(put: &Put, condition: Condition, durability: Durability) -> PutOptions {
    PutOptions {
        attributes: put.attributes.clone(),
        durability,
        condition,
        expiry: expiry(put.expires_ms),
    }
}

pub struct History<'a> {
    machine: &'a Machine,
    store: &'a Store,
    rng: &'a mut StdRng,
    prefix: &'a str,
    /// Whether no other caller writes.
    alone: bool,
    /// Whether objects rarely expire or are deleted by range.
    calm: bool,
    pub now: State,
    pub journal: Journal,
    snapshots: Vec<(Snapshot, State)>,
    bytes_since_snapshot: usize,
    last_version: u64,
}

impl<'a> History<'a> {
    pub fn new(
        machine: &'a Machine,
        store: &'a Store,
        rng: &'a mut StdRng,
        prefix: &'a str,
        alone: bool,
        now: State,
    ) -> Self {
        let calm = rng.random_bool(0.6);
        Self {
            machine,
            store,
            rng,
            prefix,
            alone,
            calm,
            journal: Journal::starting_with(now.clone()),
            now,
            snapshots: Vec::new(),
            bytes_since_snapshot: 0,
            last_version: 0,
        }
    }

    /// Does `steps` operations, or fewer if the power is cut.
    pub fn run(&mut self, steps: usize) -> Step {
        for _ in 0..steps {
            self.step()?;
        }
        Ok(())
    }

    fn step(&mut self) -> Step {
        match self.rng.random_range(0..100) {
            0..36 => self.put_or_delete(),
            36..38 if !self.calm || self.rng.random_bool(0.01) => self.delete_range(),
            36..40 => {
                // Other callers' expectations depend on the time.
                if self.alone {
                    self.machine.pass_time(self.rng, 600);
                }
                Ok(())
            }
            40..52 => self.batch(),
            52..58 => self.stream(),
            58..60 => self.abandoned_stream(),
            60..70 => self.get(),
            70..72 => self.read_often(),
            72..76 => self.get_range(),
            76..80 => self.read_stream(),
            80..83 => self.multi_get(),
            83..90 => self.scan(),
            90..93 => self.take_snapshot(),
            93..97 => self.read_snapshot(),
            97 => self.flush(),
            98 if self.rng.random_bool(0.5) => {
                let taken = self.store.checkpoint();
                self.survive(taken)?;
                Ok(())
            }
            98 => self.read_often(),
            _ => {
                let found = self.store.get(b"never written");
                let found = self.survive(found)?;
                assert_eq!(found, None);
                Ok(())
            }
        }
    }

    fn flush(&mut self) -> Step {
        let flushed = self.store.flush();
        self.survive(flushed)?;
        self.journal.durable_seq = self.last_version.max(self.journal.durable_seq);
        Ok(())
    }

    /// Returns a result; an error means that the power was cut.
    fn survive<T>(&self, result: Result<T>) -> Step<T> {
        result.map_err(|error| {
            if self.machine.is_powered() {
                panic!("failed with the power on: {error}; {:#?}", self.store.stats());
            }
            PowerLost
        })
    }

    fn durability(&mut self) -> Durability {
        if self.rng.random_bool(0.3) {
            Durability::Sync
        } else {
            Durability::Buffered
        }
    }

    fn times(&self) -> Times {
        Times {
            now_ms: self.machine.now_ms(),
            calm: self.calm,
        }
    }

    /// The current object of a key.
    fn held(&self, key: &[u8]) -> Option<&Held> {
        let now_ms = self.machine.now_ms();
        self.now.get(key).filter(|held| held.is_there(now_ms))
    }

    fn some_key(&mut self) -> Key {
        generate::key(self.rng, self.prefix)
    }

    /// A condition on a key, and whether it holds.
    fn condition(&mut self, key: &[u8]) -> (Condition, bool) {
        let held = self.held(key).map(|held| held.version);
        match self.rng.random_range(0..8) {
            0 => (Condition::Absent, held.is_none()),
            1 => (Condition::Present, held.is_some()),
            2 => {
                let wanted = held.unwrap_or(3);
                (Condition::VersionIs(Version(wanted)), held == Some(wanted))
            }
            3 => (Condition::VersionIs(Version(u64::MAX >> 20)), false),
            _ => (Condition::None, true),
        }
    }

    /// Records the result of a commit.
    fn settle(&mut self, result: Result<Version>, holds: bool, durability: Durability, changes: Vec<Change>) -> Step {
        match result {
            Ok(version) => {
                assert!(holds, "a condition that does not hold passed: {}", changes[0].name());
                assert!(version.0 > self.last_version, "{version} after {}", self.last_version);
                self.last_version = version.0;
                apply(&mut self.now, version.0, &changes);
                // A frame takes at least a page, and of values in the large space only the records.
                let bytes_of = |change: &Change| match change {
                    Change::Put(_, put) => put.value.len().min(25_000),
                    _ => 0,
                };
                self.bytes_since_snapshot += 8_000 + changes.iter().map(bytes_of).sum::<usize>();
                let before = self.journal.commits.insert(version.0, changes);
                assert!(before.is_none(), "version {version} was given out twice");
                if durability == Durability::Sync {
                    self.journal.durable_seq = version.0;
                }
                if self.bytes_since_snapshot > SNAPSHOT_BYTES_MAX {
                    self.snapshots.clear();
                }
                Ok(())
            }
            Err(Error::ConditionFailed { key, reason }) => {
                assert!(!holds, "a condition that holds failed: {key}: {reason}");
                Ok(())
            }
            Err(error) => {
                self.journal.in_flight.push(changes);
                self.survive(Err(error))
            }
        }
    }

    fn put_or_delete(&mut self) -> Step {
        let change = generate::change(self.rng, self.prefix, self.times());
        let (Change::Put(key, _) | Change::Delete(key)) = &change else {
            return Ok(());
        };
        let (condition, holds) = self.condition(key);
        let durability = self.durability();
        let result = match &change {
            Change::Put(key, put) => self
                .store
                .put_with(key, &put.value, &put_options(put, condition, durability)),
            _ => self.store.delete_with(key, condition, durability),
        };
        self.settle(result, holds, durability, vec![change])
    }

    fn delete_range(&mut self) -> Step {
        let (range, bounds) = if self.rng.random_bool(0.1) {
            let mut end = self.prefix.as_bytes().to_vec();
            *end.last_mut().expect("a prefix") += 1;
            let low = Bound::Included(self.prefix.as_bytes().to_vec());
            (ScanRange::prefix(self.prefix), (low, Bound::Excluded(end)))
        } else {
            self.range()
        };
        let durability = self.durability();
        let result = self.store.delete_range(range, durability);
        if is_empty(&bounds) {
            self.survive(result)?;
            return Ok(());
        }
        self.settle(result, true, durability, vec![Change::DeleteRange(bounds)])
    }

    fn batch(&mut self) -> Step {
        let changes = generate::changes(self.rng, self.prefix, self.times());
        let mut batch = Batch::new();
        let mut all_hold = true;
        for change in &changes {
            let (Change::Put(key, _) | Change::Delete(key)) = change else {
                continue;
            };
            let (condition, holds) = if self.rng.random_bool(0.3) {
                self.condition(key)
            } else {
                (Condition::None, true)
            };
            all_hold &= holds;
            match change {
                Change::Put(key, put) => {
                    let (value, attributes) = (put.value.clone(), put.attributes.clone());
                    batch.put_expiring(key, value, attributes, condition, expiry(put.expires_ms));
                }
                _ => drop(batch.delete_if(key, condition)),
            }
        }
        let durability = self.durability();
        let tried = self
            .rng
            .random_bool(0.5)
            .then(|| self.store.try_write(&batch, durability));
        let result = match tried.flatten() {
            Some(committing) => block_on(committing),
            None => self.store.write(batch, durability),
        };
        self.settle(result, all_hold, durability, changes)
    }

    fn stream(&mut self) -> Step {
        let key = self.some_key();
        let put = generate::put(self.rng, self.times());
        let (condition, holds) = self.condition(&key);
        let durability = self.durability();
        let options = WriterOptions {
            length: self.rng.random_bool(0.5).then_some(put.value.len() as u64),
            put: put_options(&put, condition, durability),
        };
        let part_bytes = [700, 4096, 100_000][self.rng.random_range(0..3)];
        let writer = self.store.writer(&key, options);
        let mut writer = self.survive(writer)?;
        for part in put.value.chunks(part_bytes) {
            let appended = writer.append(part);
            self.survive(appended)?;
        }
        self.settle(writer.finish(), holds, durability, vec![Change::Put(key, put)])
    }

    /// An abandoned stream, dropped or finished short of its announced length.
    fn abandoned_stream(&mut self) -> Step {
        let (key, value) = (self.some_key(), generate::value(self.rng));
        let ends_short = self.rng.random_bool(0.5);
        let options = WriterOptions {
            length: ends_short.then_some(value.len() as u64 + 1),
            ..WriterOptions::default()
        };
        let writer = self.store.writer(&key, options);
        let mut writer = self.survive(writer)?;
        let appended = writer.append(&value);
        self.survive(appended)?;
        if ends_short {
            match writer.finish() {
                Err(Error::Invalid(_)) => {}
                other => {
                    self.survive(other)?;
                    panic!("a stream that ended short was taken");
                }
            }
        }
        Ok(())
    }

    fn expect(&self, key: &[u8], found: Option<Object>, state: &State, what: &str) {
        let now_ms = self.machine.now_ms();
        let expected = state.get(key).filter(|held| held.is_there(now_ms));
        let is_right = match (&found, expected) {
            (Some(found), Some(expected)) => expected.is(found),
            (None, None) => true,
            _ => false,
        };
        assert!(
            is_right,
            "{what}: {} holds {:?} instead of {:?} at {now_ms}",
            name(key),
            found.map(|found| (found.version, found.value.len())),
            expected.map(brief)
        );
    }

    fn get(&mut self) -> Step {
        let key = self.some_key();
        self.get_in_ram(&key)?;
        let found = self.store.get(&key);
        let found = self.survive(found)?;
        self.expect(&key, found, &self.now, "get");
        let info = self.store.head(&key);
        let info = self.survive(info)?;
        let home = info.as_ref().map(|info| info.home);
        let reader = self.store.reader(&key);
        let reader = self.survive(reader)?;
        // Others are moved in the background.
        let is_inline = |home: HomeKind| home == HomeKind::Inline;
        let told = reader.map(|reader| is_inline(reader.info().home));
        assert_eq!(home.map(is_inline), told, "home of {}", name(&key));
        let described = info.map(|info| (info.version.0, info.length, info.attributes, info.expires_at.map(ms)));
        let facts = |held: &Held| {
            let length = held.value.len() as u64;
            (held.version, length, held.attributes.clone(), held.expires_ms)
        };
        let expected = self.held(&key).map(facts);
        assert_eq!(described, expected, "head of {}", name(&key));
        Ok(())
    }

    /// Reads a value often, so that it is moved back to flash.
    fn read_often(&mut self) -> Step {
        let key = self.some_key();
        for _ in 0..4 {
            let found = self.store.get(&key);
            let found = self.survive(found)?;
            self.expect(&key, found, &self.now, "get again");
        }
        Ok(())
    }

    fn get_range(&mut self) -> Step {
        let key = self.some_key();
        let length = self.held(&key).map_or(0, |held| held.value.len() as u64);
        let start = self.rng.random_range(0..=length + 10);
        let end = start + self.rng.random_range(0..=length + 10);
        let found = self.store.get_range(&key, start..end);
        let found = self.survive(found)?;
        let expected = self.held(&key).map(|held| {
            let end = end.min(length) as usize;
            held.value.slice((start as usize).min(end)..end)
        });
        assert!(found == expected, "range {start}..{end} of {}", name(&key));
        Ok(())
    }

    fn read_stream(&mut self) -> Step {
        let key = self.some_key();
        let reader = self.store.reader(&key);
        let Some(mut reader) = self.survive(reader)? else {
            assert!(self.held(&key).is_none(), "no stream over {}", name(&key));
            return Ok(());
        };
        let expected = self
            .held(&key)
            .map(|held| held.value.clone())
            .expect("nothing was there");
        let from = self.rng.random_range(0..=expected.len());
        // Concurrent changes must not show in the stream.
        if self.rng.random_bool(0.3) {
            self.put_or_delete()?;
        }
        let mut read = Vec::new();
        let outcome = reader.seek_to(from as u64).map(|()| reader.read_to_end(&mut read));
        if matches!(outcome, Ok(Ok(_))) {
            assert!(read == expected[from..], "the stream over {} differs", name(&key));
            return Ok(());
        }
        assert!(!self.machine.is_powered(), "{outcome:?} with the power on");
        Err(PowerLost)
    }

    fn multi_get(&mut self) -> Step {
        let keys: Vec<Key> = (0..self.rng.random_range(0..30)).map(|_| self.some_key()).collect();
        let found = self.store.multi_get(&keys);
        assert_eq!(found.len(), keys.len());
        for (key, found) in keys.iter().zip(found) {
            let found = self.survive(found)?;
            self.expect(key, found, &self.now, "multi_get");
        }
        Ok(())
    }

    /// A range within this history's prefix.
    fn range(&mut self) -> (ScanRange, Bounds) {
        let (mut low, mut high) = (self.some_key(), self.some_key());
        if low > high {
            std::mem::swap(&mut low, &mut high);
        }
        match self.rng.random_range(0..4) {
            0 => {
                let prefix = format!("{}{:02}", self.prefix, self.rng.random_range(0..7)).into_bytes();
                let mut end = prefix.clone();
                *end.last_mut().expect("a prefix of two digits") += 1;
                (
                    ScanRange::prefix(&prefix),
                    (Bound::Included(prefix), Bound::Excluded(end)),
                )
            }
            1 => {
                let range = ScanRange::prefix(self.prefix).after(&low);
                let mut end = self.prefix.as_bytes().to_vec();
                *end.last_mut().expect("a prefix") += 1;
                (range, (Bound::Excluded(low), Bound::Excluded(end)))
            }
            2 => (
                ScanRange::range(low.clone()..high.clone()),
                (Bound::Included(low), Bound::Excluded(high)),
            ),
            _ => (
                ScanRange::range(low.clone()..=high.clone()),
                (Bound::Included(low), Bound::Included(high)),
            ),
        }
    }

    fn scan(&mut self) -> Step {
        let store = self.store;
        let now = self.now.clone();
        self.check_scan(&now, |range| store.scan(range))
    }

    /// Compares a scan from both ends with a state.
    fn check_scan(&mut self, state: &State, scan: impl FnOnce(ScanRange) -> Result<terrace::Scan>) -> Step {
        let (range, bounds) = self.range();
        let scan = scan(range);
        let mut scan = self.survive(scan)?;
        let now_ms = self.machine.now_ms();
        let expected: Vec<(&Key, &Held)> = if is_empty(&bounds) {
            Vec::new()
        } else {
            state.range(bounds).filter(|(_, held)| held.is_there(now_ms)).collect()
        };
        let mut expected = std::collections::VecDeque::from(expected);
        let mut left: i32 = self.rng.random_range(0..200);
        // With values, as most callers do: such scans pay for order and make chunks, which the next
        // call or another scan reads.
        for _ in 0..self.rng.random_range(0..3) {
            let found = scan.next_values(usize::try_from(left).unwrap());
            for (item, value) in self.survive(found)? {
                let (key, held) = expected.pop_front().expect("a scan gives what is not expected");
                assert_eq!((&item.key[..], item.info.version.0), (&key[..], held.version), "scan");
                assert!(self.survive(value)? == held.value, "a scan's value of {}", name(key));
            }
        }
        let from_both = self.rng.random_bool(0.5);
        let mut changes_left = SCAN_CHANGES_MAX;
        loop {
            if changes_left > 0 && self.rng.random_bool(0.1) {
                changes_left -= 1;
                self.change_beside_scan()?;
            }
            let backwards = from_both && self.rng.random_bool(0.5);
            let (item, wanted) = if backwards {
                (scan.next_back(), expected.pop_back())
            } else {
                (scan.next(), expected.pop_front())
            };
            let item = item.map(|item| self.survive(item)).transpose()?;
            let (item, (key, held)) = match (item, wanted) {
                (None, None) => return Ok(()),
                (Some(item), Some(wanted)) => (item, wanted),
                (item, wanted) => panic!(
                    "a scan gives {:?} where {:?} was expected",
                    item.map(|item| name(&item.key)),
                    wanted.map(|(key, _)| name(key))
                ),
            };
            assert_eq!((&item.key[..], item.info.version.0), (&key[..], held.version), "scan");
            assert_eq!(item.info.attributes, held.attributes);
            assert_eq!(item.info.expires_at.map(ms), held.expires_ms);
            if self.rng.random_bool(0.3) {
                let value = item.value();
                assert!(self.survive(value)? == held.value, "a scan's value of {}", name(key));
            }
            left -= 1;
            if left <= 0 {
                return Ok(());
            }
        }
    }

    /// A change that must not show in a scan under way. The scan keeps segments from being reused,
    /// so it writes only if some are free.
    fn change_beside_scan(&mut self) -> Step {
        if self.rng.random_bool(0.3) {
            return self.flush();
        }
        if self.alone && self.store.stats().log.segments_free >= 6 {
            return self.put_or_delete();
        }
        Ok(())
    }

    fn take_snapshot(&mut self) -> Step {
        // A snapshot keeps segments from being reused; the ring is tiny, and after an open none is
        // free at first.
        if !self.alone || self.snapshots.len() >= 3 || self.store.stats().log.segments_free < 6 {
            return Ok(());
        }
        let snapshot = self.store.snapshot();
        let snapshot = self.survive(snapshot)?;
        assert!(snapshot.version().0 >= self.last_version);
        if self.snapshots.is_empty() {
            self.bytes_since_snapshot = 0;
        }
        self.snapshots.push((snapshot, self.now.clone()));
        Ok(())
    }

    fn read_snapshot(&mut self) -> Step {
        self.snapshots.shuffle(self.rng);
        let Some((snapshot, state)) = self.snapshots.pop() else {
            return Ok(());
        };
        for _ in 0..10 {
            let key = self.some_key();
            let found = snapshot.get(&key);
            let found = self.survive(found)?;
            self.expect(&key, found, &state, "snapshot");
        }
        self.check_scan(&state, |range| snapshot.scan(range))?;
        if self.rng.random_bool(0.7) {
            self.snapshots.push((snapshot, state));
        }
        Ok(())
    }
}
