//! Gets of short values that are in RAM in chunks alone.

use super::*;
use crate::{
    cache::{Place, chunk::Pair},
    key_hash,
};

/// Takes a value out of the cache, where it is by its place.
fn leave_to_chunk(store: &Store, key: &str) {
    let engine = store.engine();
    // After an open it is filled first.
    let found = || engine.hash_index.lookup(key_hash(key.as_bytes()));
    eventually("filling", || found().is_some());
    let place = found().and_then(|found| Place::in_log(&engine.log.segments, found.address));
    engine.cache.take(place.unwrap());
}

/// What a value counted up to that a get would take out of a chunk, after everything that was
/// acknowledged.
pub(super) fn count_in_chunk(store: &Store, key: &str) -> Option<u64> {
    let engine = store.engine();
    engine.log.wait_applied().unwrap();
    let count = |pair: &Pair<'_>| u64::from_le_bytes(pair.value[..8].try_into().unwrap());
    engine.scan_cache.pair_of(key.as_bytes(), count)
}

/// Each get read the device, and put a second copy of the value into the cache.
#[test]
fn what_was_scanned_is_got_without_a_read() {
    let dir = tempfile::tempdir().unwrap();
    let (store, written) = with_short_values(dir.path());
    store.close().unwrap();
    // Without frames in RAM.
    let store = Store::open(Options {
        cache_bytes: 8 << 20,
        ..small_options(dir.path())
    })
    .unwrap();
    let snapshot = store.snapshot().unwrap();
    for _ in 0..2 {
        assert_eq!(all(&store), written);
        // What scans have paid for is not a change of what is in chunks.
        let copied = || store.stats().scan_order.copied;
        eventually("copying", || copied() > 200);
    }
    let reads = || store.stats().reads.flash_reads;
    let before = reads();
    assert!(before > 0);
    let leave_all = || written.iter().for_each(|(key, _)| leave_to_chunk(&store, key));
    leave_all();
    for (key, value) in &written {
        assert_eq!(&*store.get(key).unwrap().unwrap().value, value, "{key}");
        assert_eq!(&*snapshot.get(key).unwrap().unwrap().value, value, "{key}");
    }
    let keys: Vec<&str> = written.iter().map(|(key, _)| key.as_str()).collect();
    for (object, (key, value)) in store.multi_get(&keys).into_iter().zip(&written) {
        assert_eq!(&*object.unwrap().unwrap().value, value, "{key}");
    }
    assert_eq!((reads(), store.stats().scan_cache.dropped), (before, 0));
    assert!(store.get("k0005").unwrap().is_none(), "between keys of a chunk");
}

#[test]
fn what_has_died_since_the_scan_is_not_got_out_of_its_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let hands = Hands::new();
    let options = Options {
        cache_bytes: 8 << 20,
        ..timed_options(dir.path(), &hands)
    };
    let store = Store::open(options.clone()).unwrap();
    for number in 0..60 {
        let options = PutOptions {
            expiry: [Expiry::Never, Expiry::After(Duration::from_secs(60))][number as usize % 2],
            ..PutOptions::default()
        };
        store
            .put_with(key(number), bytes(number.into(), 100), &options)
            .unwrap();
    }
    store.close().unwrap();
    let store = Store::open(options.tuned(|tuning| tuning.expire_interval = Duration::MAX)).unwrap();
    for _ in 0..2 {
        assert_eq!(all(&store).len(), 60);
    }
    let in_chunk = |number| {
        store
            .engine()
            .scan_cache
            .pair_of(key(number).as_bytes(), |_| ())
            .is_some()
    };
    (0..60).for_each(|number| leave_to_chunk(&store, &key(number)));
    store.delete(key(10)).unwrap();
    store.engine().log.wait_applied().unwrap();
    assert!(!in_chunk(10) && store.get(key(10)).unwrap().is_none());
    for _ in 0..2 {
        assert_eq!(all(&store).len(), 59);
    }
    hands.advance(Duration::from_secs(61));
    assert!(in_chunk(21) && store.get(key(21)).unwrap().is_none(), "it has expired");
    assert!(in_chunk(20) && store.get(key(20)).unwrap().is_some());
}
