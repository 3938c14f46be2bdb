//! Writes on in a store whose index was damaged and cannot be rebuilt from the log: what could be
//! read stays readable, what is written is readable, and log GC and merges go on.

use super::{Answer, Bench, Fixture, Histories, answers, bytes, options, put};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};
use terrace::{Condition, Durability, Options, ScanRange, Store};

/// Keys that are overwritten again and again.
const FILLERS: u64 = 263;

/// What must be readable.
struct Expected<'a> {
    held: &'a mut Histories,
    /// Keys that could be read in the ordered index after it was damaged.
    known: BTreeSet<String>,
    /// Keys that were written or deleted since.
    settled: BTreeSet<String>,
    what: &'a str,
}

impl Expected<'_> {
    /// Reads everything.
    fn check(&self, store: &Store, when: &str) -> BTreeMap<String, Answer> {
        let now = answers(store, self.held, self.what);
        for (key, answer) in &now {
            let is_deleted = self.held[key].last().unwrap().is_none();
            let is_settled = self.settled.contains(key);
            // A merge may drop the tombstone of a key whose entry is lost.
            let may_be_error = is_settled && is_deleted && when != "at once";
            let must_be_right = is_settled || self.known.contains(key);
            let is_right = *answer == Answer::Right || *answer == Answer::Error && (may_be_error || !must_be_right);
            let error = (*answer == Answer::Error).then(|| store.get(key).err());
            assert!(is_right, "{}, {when}: {key} is {answer:?}: {error:?}", self.what);
        }
        self.check_scan(store);
        now
    }

    /// A scan returns each object up to the first error, and none that is not there.
    fn check_scan(&self, store: &Store) {
        let what = self.what;
        let living = self
            .held
            .iter()
            .filter(|(_, history)| history.last().unwrap().is_some());
        let mut living = living.map(|(key, _)| key.as_str());
        for item in store.scan(ScanRange::all()).unwrap() {
            let Ok(item) = item else {
                let verified = store.verify().unwrap();
                assert!(
                    !verified.errors.is_empty(),
                    "{what}: a scan fails, and verify finds nothing"
                );
                return;
            };
            let key = String::from_utf8(item.key.to_vec()).unwrap();
            assert_eq!(Some(key.as_str()), living.next(), "{what}: a scan");
        }
        assert_eq!(living.next(), None, "{what}: a scan ended early");
    }

    /// Overwrites a third of the keys that cannot be read, and deletes another.
    fn settle(&mut self, store: &Store, before: &BTreeMap<String, Answer>) {
        let unreadable = before.iter().filter(|(_, answer)| **answer == Answer::Error);
        for (n, (key, _)) in unreadable.enumerate() {
            match n % 3 {
                0 => put(store, self.held, key, bytes(n as u64 + 8_000, 10 + n * 31 % 5_000)),
                1 => {
                    store.delete_with(key, Condition::None, Durability::Buffered).unwrap();
                    self.held.get_mut(key).unwrap().push(None);
                }
                _ => continue,
            }
            self.settled.insert(key.clone());
        }
    }

    /// Writes until the log was reclaimed, and the index flushed, several times.
    fn write_on(&mut self, store: &Store) {
        let what = self.what;
        let reclaimed = store.stats().log.segments_reclaimed;
        for round in 0..30_u64 {
            for n in 0..60_u64 {
                let key = format!("filler {:03}", (round * 7 + n) % FILLERS);
                put(store, self.held, &key, bytes(round * 60 + n, 2_500));
                self.settled.insert(key);
            }
            store
                .flush()
                .unwrap_or_else(|error| panic!("{what}, round {round}: {error}"));
        }
        let log = store.stats().log;
        assert!(log.segments_reclaimed > reclaimed + 4, "{what}: {log:?}");
    }

    /// Merges go on: what was damaged in part is set aside by the second open at the latest.
    fn check_merges(&mut self, store: &Store) {
        for n in 0..10_u64 {
            put(store, self.held, "filler 000", bytes(n, 2_500));
            store.flush().unwrap();
        }
        let until = Instant::now() + Duration::from_secs(20);
        while store.stats().index.runs >= 20 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let index = store.stats().index;
        assert!(index.runs < 20, "{}: {index:?}", self.what);
    }
}

/// Opens a store again whose answers are `before`, writes on, and returns its answers then.
pub(super) fn go_on(
    fixture: &Fixture,
    copy: &Bench,
    what: &str,
    held: &mut Histories,
    before: &BTreeMap<String, Answer>,
) -> BTreeMap<String, Answer> {
    let open = |when: &str| {
        fixture
            .open(copy)
            .unwrap_or_else(|error| panic!("{what}: {when}: {error}"))
    };
    let store = open("again");
    // A get may find what the ordered index has lost by the hash index, until that is filled again.
    let snapshot = store.snapshot().unwrap();
    let is_known = |key: &&String| before[*key] == Answer::Right && snapshot.get(key).is_ok();
    let known = before.keys().filter(is_known).cloned().collect();
    drop(snapshot);
    let mut expected = Expected {
        held,
        known,
        settled: BTreeSet::new(),
        what,
    };
    expected.settle(&store, before);
    expected.check(&store, "at once");
    expected.write_on(&store);
    expected.check(&store, "later");
    let _ = store.close();
    drop(store);
    let store = open("a third time");
    let now = expected.check(&store, "in a third life");
    expected.check_merges(&store);
    let has_errors = now.values().any(|answer| *answer == Answer::Error);
    assert!(!has_errors || !store.stats().damage.is_empty(), "{what}: not reported");
    let _ = store.close();
    drop(store);
    let reader = Store::open(Options {
        read_only: true,
        ..options(copy, fixture.is_young)
    });
    let reader = reader.unwrap_or_else(|error| panic!("{what}: read-only: {error}"));
    let now = answers(&reader, expected.held, what);
    assert!(now.values().all(|answer| *answer <= Answer::Error), "{what}: read-only");
    now
}
