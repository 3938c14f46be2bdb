//! One writing thread: operations of every kind on its own keys, and on a few shared ones.
//!
//! It knows the contents of its own keys exactly, so it checks every condition, read and snapshot.
//! It ends at the first failed call.

use crate::{
    Outcome,
    protocol::{Change, Held, Said},
    workload::{self, Mood, SHARED_KEYS, attributes, op, own_key, shared_key, value},
};
use rand::{Rng, rngs::StdRng, seq::IndexedRandom};
use std::{
    collections::BTreeMap,
    io::Read,
    sync::{
        Mutex,
        mpsc::{Receiver, SyncSender},
    },
    time::{Duration, Instant},
};
use terrace::{
    Batch, Condition, Durability, Error, Object, PutOptions, Result, Snapshot, Store, Version, WriterOptions,
};

/// Longest age of a snapshot: it keeps segments from being reused, and there are few.
const SNAPSHOT_AGE_MAX: Duration = Duration::from_millis(120);
/// Pause between two reads through it.
const SNAPSHOT_PAUSE: Duration = Duration::from_micros(500);

/// A call failed, because the power is off or after a failed check was reported.
struct Ended;

type Step = std::result::Result<(), Ended>;

/// State of one writing thread.
pub struct Caller<'a> {
    store: &'a Store,
    life: u64,
    number: u64,
    mood: &'a Mood,
    /// Contents of its own keys.
    held: BTreeMap<String, Held>,
    rng: StdRng,
    count: u64,
    /// Channel for its snapshots; one caller has it.
    snapshots: Option<SyncSender<Taken>>,
    /// Where it publishes the key that it is changing.
    under_way: Option<&'a Mutex<String>>,
}

/// A snapshot, and the contents of its caller's keys when it was taken.
pub struct Taken {
    snapshot: Snapshot,
    held: BTreeMap<String, Held>,
}

/// Reads through snapshots, each for some time. In a separate thread: a caller may wait for a
/// segment that a snapshot keeps from being reused.
pub fn check_snapshots(taken: &Receiver<Taken>, mut rng: StdRng) {
    while let Ok(Taken { snapshot, held }) = taken.recv() {
        let taken_at = Instant::now();
        let keys: Vec<&String> = held.keys().collect();
        while let Some(key) = keys.choose(&mut rng)
            && taken_at.elapsed() < SNAPSHOT_AGE_MAX
        {
            let outcome = match snapshot.get(key) {
                Ok(found) => expect("snapshot", key, found.as_ref(), held.get(*key).copied()),
                Err(error) => failed("snapshot", &error),
            };
            if outcome.is_err() {
                return;
            }
            std::thread::sleep(SNAPSHOT_PAUSE);
        }
    }
}

impl<'a> Caller<'a> {
    /// A caller on a store that holds `held`.
    pub fn new(
        store: &'a Store,
        life: u64,
        number: u64,
        mood: &'a Mood,
        held: &BTreeMap<String, Held>,
        rng: StdRng,
        snapshots: Option<SyncSender<Taken>>,
    ) -> Self {
        let prefix = own_key(number, 0);
        let prefix = prefix.trim_end_matches(|digit: char| digit.is_ascii_digit());
        let own = held.iter().filter(|(key, _)| key.starts_with(prefix));
        Self {
            store,
            life,
            number,
            mood,
            held: own.map(|(key, held)| (key.clone(), *held)).collect(),
            rng,
            count: 0,
            snapshots,
            under_way: None,
        }
    }

    /// The same, publishing the key that it is changing.
    pub fn telling(self, under_way: &'a Mutex<String>) -> Self {
        let under_way = Some(under_way);
        Self { under_way, ..self }
    }

    /// Writes until a call fails.
    pub fn run(mut self) {
        while self.step().is_ok() {
            if self.mood.pause_us > 0 {
                let pause = self.rng.random_range(0..self.mood.pause_us);
                std::thread::sleep(Duration::from_micros(pause));
            }
        }
    }

    fn step(&mut self) -> Step {
        match self.rng.random_range(0..100) {
            0..50 => self.put(),
            50..60 => self.delete(),
            60..72 => self.batch(),
            72..80 => self.stream(),
            80..85 => self.swap(),
            85..95 => self.read(),
            _ => self.take_snapshot(),
        }
    }

    fn durability(&mut self) -> Durability {
        if self.rng.random_bool(self.mood.buffered) {
            Durability::Buffered
        } else {
            Durability::Sync
        }
    }

    fn some_key(&mut self) -> String {
        own_key(self.number, self.rng.random_range(0..self.mood.keys))
    }

    /// A condition on one of its own keys, and whether it holds.
    fn condition(&mut self, key: &str) -> (Condition, bool) {
        let version = self.held.get(key).map(|held| held.version);
        match self.rng.random_range(0..12) {
            0 => (Condition::Absent, version.is_none()),
            1 => (Condition::Present, version.is_some()),
            2 => {
                let wanted = version.unwrap_or(1);
                (Condition::VersionIs(Version(wanted)), version == Some(wanted))
            }
            _ => (Condition::None, true),
        }
    }

    /// Reports the start of an operation, and returns its number.
    fn announce(&mut self, kind: &str, durability: Durability, changes: &[Change]) -> u64 {
        let op = op(self.life, self.number, self.count);
        self.count += 1;
        Said::Try {
            op,
            is_sync: durability == Durability::Sync,
            kind: kind.to_owned(),
            changes: changes.to_vec(),
        }
        .say();
        if let (Some(change), Some(under_way)) = (changes.first(), self.under_way)
            && let Ok(mut key) = under_way.lock()
        {
            key.clone_from(&change.key);
        }
        op
    }

    /// Reports the end of an operation. `holds`: whether its condition does, if known.
    fn settle(&mut self, op: u64, result: Result<Version>, holds: Option<bool>, changes: &[Change]) -> Step {
        match result {
            Ok(version) => {
                Said::Done { op, version: version.0 }.say();
                if holds == Some(false) {
                    return broken(format!(
                        "condition: operation {op:x} passed where its condition does not hold"
                    ));
                }
                for change in changes.iter().filter(|change| change.key.starts_with("own/")) {
                    match change.put {
                        Some(length) => {
                            let version = version.0;
                            self.held.insert(change.key.clone(), Held { version, op, length })
                        }
                        None => self.held.remove(&change.key),
                    };
                }
                Ok(())
            }
            Err(Error::ConditionFailed { key, reason }) => {
                Said::Refused { op }.say();
                if holds == Some(true) {
                    return broken(format!("condition: one that holds failed: {key}: {reason}"));
                }
                Ok(())
            }
            Err(error) => failed("write", &error),
        }
    }

    fn put(&mut self) -> Step {
        let (key, length, durability) = (self.some_key(), self.mood.length(&mut self.rng), self.durability());
        let (condition, holds) = self.condition(&key);
        self.put_if("put", key, length, durability, condition, Some(holds))
    }

    /// A conditional put; `holds`: whether it must succeed, if known.
    fn put_if(
        &mut self,
        kind: &'static str,
        key: String,
        length: u64,
        durability: Durability,
        condition: Condition,
        holds: Option<bool>,
    ) -> Step {
        let changes = [Change::new(&key, Some(length))];
        let op = self.announce(kind, durability, &changes);
        let options = options(op, &key, durability, condition);
        let result = self.store.put_with(&key, value(op, &key, length), &options);
        self.settle(op, result, holds, &changes)
    }

    fn delete(&mut self) -> Step {
        let (key, durability) = (self.some_key(), self.durability());
        let (condition, holds) = self.condition(&key);
        let changes = [Change::new(&key, None)];
        let op = self.announce("delete", durability, &changes);
        let result = self.store.delete_with(&key, condition, durability);
        self.settle(op, result, Some(holds), &changes)
    }

    fn batch(&mut self) -> Step {
        let durability = self.durability();
        let mut changes: BTreeMap<String, Change> = BTreeMap::new();
        for _ in 0..self.rng.random_range(2..6) {
            let key = self.some_key();
            let put = self.rng.random_bool(0.85).then(|| self.mood.length(&mut self.rng));
            changes.insert(key.clone(), Change { key, put });
        }
        let changes: Vec<Change> = changes.into_values().collect();
        let (condition, holds) = self.condition(&changes[0].key.clone());
        let op = self.announce("batch", durability, &changes);
        let mut batch = Batch::new();
        for (at, change) in changes.iter().enumerate() {
            let condition = if at == 0 { condition } else { Condition::None };
            match change.put {
                Some(length) => {
                    let bytes = value(op, &change.key, length);
                    batch.put_with(&change.key, bytes, attributes(op, &change.key), condition);
                }
                None => drop(batch.delete_if(&change.key, condition)),
            }
        }
        let result = self.store.write(batch, durability);
        self.settle(op, result, Some(holds), &changes)
    }

    fn stream(&mut self) -> Step {
        let (key, length, durability) = (self.some_key(), self.mood.length(&mut self.rng), self.durability());
        let (condition, holds) = self.condition(&key);
        let is_known = self.rng.random_bool(0.5);
        let kind = if is_known { "stream" } else { "endless-stream" };
        let changes = [Change::new(&key, Some(length))];
        let op = self.announce(kind, durability, &changes);
        let options = WriterOptions {
            length: is_known.then_some(length),
            put: options(op, &key, durability, condition),
        };
        let part_bytes = self.rng.random_range(500..50_000);
        let result = self.store.writer(&key, options).and_then(|mut stream| {
            let bytes = value(op, &key, length);
            bytes.chunks(part_bytes).try_for_each(|part| stream.append(part))?;
            stream.finish()
        });
        self.settle(op, result, Some(holds), &changes)
    }

    /// A put on a shared key, unless another caller has written there meanwhile.
    fn swap(&mut self) -> Step {
        let key = shared_key(self.rng.random_range(0..SHARED_KEYS));
        let durability = self.durability();
        let length = self.mood.length(&mut self.rng);
        let condition = match self.store.head(&key) {
            Ok(Some(info)) => Condition::VersionIs(info.version),
            Ok(None) => Condition::Absent,
            Err(error) => return failed("head", &error),
        };
        self.put_if("swap", key, length, durability, condition, None)
    }

    fn read(&mut self) -> Step {
        let key = self.some_key();
        let expected = self.held.get(&key).copied();
        let (what, found) = if self.rng.random_bool(0.7) {
            ("get", self.store.get(&key).map_err(Into::into))
        } else {
            ("reader", read_stream(self.store, &key))
        };
        match found {
            Ok(found) => expect(what, &key, found.as_ref(), expected),
            Err(error) => failed(what, &error),
        }
    }

    fn take_snapshot(&mut self) -> Step {
        if let Some(snapshots) = &self.snapshots {
            match self.store.snapshot() {
                // The checking thread may be busy with the previous one.
                Ok(snapshot) => drop(snapshots.try_send(Taken {
                    snapshot,
                    held: self.held.clone(),
                })),
                Err(error) => return failed("snapshot", &error),
            }
        }
        Ok(())
    }
}

fn options(op: u64, key: &str, durability: Durability, condition: Condition) -> PutOptions {
    PutOptions {
        attributes: attributes(op, key),
        durability,
        condition,
        ..PutOptions::default()
    }
}

/// Reads an object as a stream.
fn read_stream(store: &Store, key: &str) -> Outcome<Option<Object>> {
    let Some(mut reader) = store.reader(key)? else {
        return Ok(None);
    };
    let info = reader.info().clone();
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes)?;
    Ok(Some(Object {
        version: info.version,
        attributes: info.attributes,
        value: bytes.into(),
    }))
}

fn broken(text: String) -> Step {
    Said::Broken(text).say();
    Err(Ended)
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> Step {
    Said::Failed(format!("{what}: {error}")).say();
    Err(Ended)
}

/// Compares what a read found with what is expected.
fn expect(what: &str, key: &str, found: Option<&Object>, expected: Option<Held>) -> Step {
    let Some(object) = found else {
        return match expected {
            None => Ok(()),
            Some(held) => broken(format!("{what}: {key}: nothing instead of {held:?}")),
        };
    };
    let op = match workload::origin(key, &object.value, &object.attributes) {
        Ok(op) => op,
        Err(reason) => return broken(format!("{what}: {reason}")),
    };
    let held = Held {
        version: object.version.0,
        op,
        length: object.value.len() as u64,
    };
    if expected == Some(held) {
        Ok(())
    } else {
        broken(format!("{what}: {key}: {held:?} instead of {expected:?}"))
    }
}
