//! Reading many values for one call.
//!
//! First values in RAM. Then values in the log, in batches of device reads ([`from_log`]). The
//! others need the ordered index or a block, or are damaged: they are read like single values, by
//! threads in parallel.

use super::{
    Hit, Located, from_log, get, in_order, is_wanted, locate_in_ram, scan::Listed, snapshot::Snapshot, value_in_ram,
};

use crate::{
    Object, Result, engine::Engine, key_hash, log::format::record_bytes_max, metrics::counters::AnsweredBy,
    ordered_index::Home,
};
use bytes::Bytes;
use std::{ops::Range, sync::Arc};

/// Attempts to read all keys without a change to any of them meanwhile, before they are read by a
/// snapshot, which waits for the applier. Few calls have to be repeated: only those whose own keys
/// are written while they run.
const MOMENT_ATTEMPTS: usize = 3;

/// Cached values that are prefetched in parallel, and bytes of each: they fit into the processor's
/// L1 cache.
const FETCHED_TOGETHER: usize = 32;
const FETCHED_BYTES_MAX: usize = 1 << 10;

/// Reads several objects, all as of one moment. The results are in the order of the keys.
///
/// That moment is the last commit, *s*, up to which everything is visible before the reads. An
/// object with a version of at most *s* was present at *s* as it was read: later changes have
/// higher versions. An absent key was absent at *s* if nothing was deleted since ([`Departures`]).
///
/// [`Departures`]: crate::log::departures::Departures
pub fn multi_get<K: AsRef<[u8]>>(engine: &Arc<Engine>, keys: &[K]) -> Vec<Result<Option<Object>>> {
    let object = |hit: Result<Option<Hit>>| hit.and_then(|hit| hit.map(Hit::into_object).transpose());
    for _ in 0..MOMENT_ATTEMPTS {
        let seq = engine.log.moment();
        let hits = read_all(engine, keys);
        let was_so = |(key, hit): (&K, &Result<Option<Hit>>)| match hit {
            Ok(Some(hit)) => hit.version.0 <= seq,
            Ok(None) => engine.log.frames.departures.none_since(seq, key_hash(key.as_ref())),
            Err(_) => true,
        };
        if keys.iter().zip(&hits).all(was_so) {
            return hits.into_iter().map(object).collect();
        }
    }
    match Snapshot::take_for_good(engine) {
        Ok(snapshot) => read_all_by(&snapshot, keys),
        Err(error) => keys.iter().map(|_| Err(error.clone())).collect(),
    }
}

fn read_all_by<K: AsRef<[u8]>>(snapshot: &Snapshot, keys: &[K]) -> Vec<Result<Option<Object>>> {
    let wanted = keys.iter().enumerate();
    let wanted = wanted.map(|(at, key)| (at, Bytes::copy_from_slice(key.as_ref()), snapshot.clone()));
    let queue = &snapshot.engine().read_queue;
    let mut read = queue.each(wanted.collect(), |(at, key, snapshot)| (at, snapshot.get(&key)));
    read.sort_unstable_by_key(|(at, _)| *at);
    read.into_iter().map(|(_, object)| object).collect()
}

/// Each as of its own seq.
fn read_all<K: AsRef<[u8]>>(engine: &Arc<Engine>, keys: &[K]) -> Vec<Result<Option<Hit>>> {
    let presence = engine.presence();
    let mut wanted = Vec::new();
    let mut near = |(at, key)| match locate_in_ram(engine, key, &presence) {
        Ok(Located::Here(hit)) => Some(Ok(hit)),
        Ok(Located::Record(found)) => {
            let start = found.address.bytes();
            wanted.push(from_log::Wanted {
                at,
                key,
                version: None,
                bytes: start..start + found.read_bytes_max,
            });
            None
        }
        Ok(Located::InBlock | Located::Elsewhere) => None,
        Err(error) => Some(Err(error)),
    };
    let numbered = keys.iter().map(AsRef::as_ref).enumerate();
    let mut hits: Vec<Option<Result<Option<Hit>>>> = numbered.map(&mut near).collect();
    from_log::read(engine, wanted, |at, hit| {
        hits[at] = Some(Ok(hit.living(keys[at].as_ref(), &presence)));
    });
    let missing = keys.iter().enumerate().filter(|&(at, _)| hits[at].is_none());
    let missing = missing.map(|(at, key)| (at, Bytes::copy_from_slice(key.as_ref()), Arc::clone(engine)));
    let missing: Vec<_> = missing.collect();
    for (at, hit) in engine
        .read_queue
        .each(missing, |(at, key, engine)| (at, get(&engine, &key)))
    {
        hits[at] = Some(hit);
    }
    hits.into_iter().flatten().collect()
}

/// Reads the values of objects that one scan has shown, in their order. Says how many of them RAM
/// had not.
pub fn values(snapshot: &Snapshot, items: &[Listed]) -> (Vec<Result<Bytes>>, usize) {
    let mut values = values_in_ram(snapshot, items);
    let missing = values.iter().filter(|value| value.is_none()).count();
    read_missing(snapshot, items, &mut values);
    (values.into_iter().flatten().collect(), missing)
}

/// Reads the values of these objects that are missing.
pub fn read_missing(snapshot: &Snapshot, items: &[Listed], values: &mut [Option<Result<Bytes>>]) {
    let engine = snapshot.engine();
    let read_for = values_in_log(snapshot, items, values);
    let missing = items.iter().enumerate().filter(|&(at, _)| values[at].is_none());
    let missing: Vec<_> = missing.map(|(at, item)| (at, item.clone(), snapshot.clone())).collect();
    let read_alone = |(at, item, snapshot): (usize, Listed, Snapshot)| (at, item.value(&snapshot));
    for (at, value) in engine.read_queue.each(missing, read_alone) {
        values[at] = Some(value);
    }
    in_order::charge(engine, items, values, read_for.into_iter());
}

/// The values of these objects that are in RAM.
pub fn values_in_ram(snapshot: &Snapshot, items: &[Listed]) -> Vec<Option<Result<Bytes>>> {
    let engine = snapshot.engine();
    let mut values = copied_values(engine, items);
    values_in_frames(engine, items, &mut values);
    let missing: Vec<usize> = (0..items.len()).filter(|at| values[*at].is_none()).collect();
    for together in missing.chunks(FETCHED_TOGETHER) {
        let place = |at: &usize| {
            let entry = &items[*at].entry;
            Some((
                engine.place_of(&entry.home)?,
                usize::try_from(entry.length).ok()?.min(FETCHED_BYTES_MAX),
            ))
        };
        let places: Vec<_> = together.iter().filter_map(place).collect();
        engine.cache.fetch(&places);
        for at in together {
            let item = &items[*at];
            let hit = value_in_ram(engine, &item.key, &item.entry).transpose();
            values[*at] = hit.map(|hit| hit.map(|hit| hit.value));
        }
    }
    if snapshot.read(|_| Ok(())).is_err() {
        // The values found may be of another commit. Reading each alone decides that.
        values.fill_with(|| None);
    }
    values
}

/// What the log has of these objects. Returns for each read of the device one object that it was
/// for.
fn values_in_log(snapshot: &Snapshot, items: &[Listed], values: &mut [Option<Result<Bytes>>]) -> Vec<usize> {
    let missing = items.iter().enumerate().filter(|&(at, _)| values[at].is_none());
    let wanted = missing.filter_map(|(at, item)| {
        Some(from_log::Wanted {
            at,
            key: &item.key,
            version: Some(item.entry.version),
            bytes: in_ring(item)?,
        })
    });
    let wanted: Vec<_> = wanted.collect();
    if wanted.is_empty() {
        return Vec::new();
    }
    let read = snapshot.read(|_| {
        Ok(from_log::read(snapshot.engine(), wanted, |at, hit| {
            values[at] = Some(Ok(hit.value))
        }))
    });
    read.unwrap_or_default()
}

/// The values of these objects that are copied in their entries.
fn copied_values(engine: &Engine, items: &[Listed]) -> Vec<Option<Result<Bytes>>> {
    let (mut count, mut bytes) = (0, 0);
    let copied = |item: &Listed| {
        let copy = item.entry.sound_copy()?;
        (count, bytes) = (count + 1, bytes + copy.len() as u64);
        Some(Ok(copy.clone()))
    };
    let values = items.iter().map(copied).collect();
    engine.metrics.answered_many(AnsweredBy::Inline, count, bytes);
    values
}

/// Values of these objects in frames in RAM: most recent writes.
fn values_in_frames(engine: &Engine, items: &[Listed], values: &mut [Option<Result<Bytes>>]) {
    let place = |(item, value): (&Listed, &Option<Result<Bytes>>)| {
        let record = in_ring(item).filter(|_| value.is_none())?;
        let length = usize::try_from(record.end - record.start).ok()?;
        Some((engine.log.segments.place(record.start)?, length))
    };
    let places: Vec<_> = items.iter().zip(values.iter()).map(place).collect();
    if places.iter().all(Option::is_none) {
        return;
    }
    let (mut count, mut bytes) = (0, 0);
    engine.log.frames.at_each(&places, |at, record| {
        if is_wanted(record, &items[at].key, Some(items[at].entry.version)) {
            let value = Bytes::copy_from_slice(record.body.value());
            (count, bytes) = (count + 1, bytes + value.len() as u64);
            values[at] = Some(Ok(value));
        }
    });
    engine.metrics.answered_many(AnsweredBy::Cache, count, bytes);
}

/// Where an object's record is in the ring, at most, if it is there.
fn in_ring(item: &Listed) -> Option<Range<u64>> {
    let entry = &item.entry;
    let Home::Flash { address } = entry.home else {
        return None;
    };
    Some(address..address + record_bytes_max(item.key.len(), entry.attributes.len(), entry.length))
}
