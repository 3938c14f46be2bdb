//! Reading many values for one call.
//!
//! First what RAM has, on the caller's thread: handing that to others costs more than it takes. For
//! the rest a device is asked, several times side by side ([`crate::io::read_pool`]), and once for
//! records of the log that lie together, as those of one commit do.

use super::{Hit, find_in_ram, get, get_from_ram, in_order, is_wanted, scan::ScanItem, snapshot::Snapshot, take_read};

use crate::cache::{CachedValue, Place};
use crate::{
    Object, Result,
    engine::Engine,
    key_hash,
    log::{
        address::Address,
        format::{Record, record_bytes_max},
        reader::read_stretch,
    },
    metrics::counters::AnsweredBy,
    ordered_index::Home,
};
use bytes::Bytes;
use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

/// Records this near to each other are read at once: to read on costs a device less than another
/// request.
const GAP_BYTES_MAX: u64 = 16 << 10;
/// One read for several records has at most so much, so that several are under way.
const STRETCH_BYTES_MAX: u64 = 256 << 10;

/// How often all keys are read, if some of them changed meanwhile, before they are read by a
/// snapshot, which waits for the applier. Few calls have to be repeated: only those whose own keys
/// are written while they run.
const MOMENT_ATTEMPTS: usize = 3;

/// Reads several objects, all as of one moment. The results are in the order of the keys.
///
/// That moment is the last commit, *s*, up to which all is visible before the reads. An object with
/// a version of at most *s* was there at *s* as it was read: all that came since is newer. What is
/// absent was absent at *s* if nothing has taken it away since ([`Departures`]).
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
    let helpers = &snapshot.engine().helpers;
    let mut read = helpers.each(wanted.collect(), |(at, key, snapshot)| (at, snapshot.get(&key)));
    read.sort_unstable_by_key(|(at, _)| *at);
    read.into_iter().map(|(_, object)| object).collect()
}

/// Each at a moment of its own.
fn read_all<K: AsRef<[u8]>>(engine: &Arc<Engine>, keys: &[K]) -> Vec<Result<Option<Hit>>> {
    let from_ram = |key: &K| get_from_ram(engine, key.as_ref()).transpose();
    let mut hits: Vec<Option<Result<Option<Hit>>>> = keys.iter().map(from_ram).collect();
    let missing = keys.iter().enumerate().filter(|&(at, _)| hits[at].is_none());
    let wanted = missing
        .map(|(at, key)| (at, Bytes::copy_from_slice(key.as_ref()), Arc::clone(engine)))
        .collect();
    let read = engine
        .helpers
        .each(wanted, |(at, key, engine)| (at, get(&engine, &key)));
    for (at, hit) in read {
        hits[at] = Some(hit);
    }
    hits.into_iter().flatten().collect()
}

/// Reads the values of objects that one scan has shown, in their order.
pub fn values(items: Vec<ScanItem>) -> Vec<(ScanItem, Result<Bytes>)> {
    let mut values = copied_values(&items);
    values_in_frames(&items, &mut values);
    let in_ram = |item: &ScanItem| find_in_ram(item.engine(), &item.key, item.entry()).transpose();
    for (item, value) in items.iter().zip(&mut values) {
        if value.is_none() {
            *value = in_ram(item).map(|hit| hit.map(|hit| hit.value));
        }
    }
    if items
        .first()
        .is_some_and(|item| item.by_snapshot(|_, _, _| Ok(())).is_err())
    {
        // What was found may be another commit's. Reading alone says so for each.
        values.fill_with(|| None);
    }
    let missing: Vec<usize> = (0..items.len()).filter(|&at| values[at].is_none()).collect();
    let mut read_for = Vec::new();
    if let Some(&first) = missing.first() {
        let helpers = &items[first].engine().helpers;
        let stretches = stretches(&items, missing);
        read_for.extend(
            stretches
                .iter()
                .filter_map(|stretch| stretch.items.first().map(|(at, _)| *at)),
        );
        let read = helpers.each(stretches, Stretch::read);
        for (at, value) in read.into_iter().flatten() {
            values[at] = Some(value);
        }
    }
    in_order::charge(&items, &values, read_for.into_iter());
    items.into_iter().zip(values.into_iter().flatten()).collect()
}

/// What the entries themselves have of these objects.
fn copied_values(items: &[ScanItem]) -> Vec<Option<Result<Bytes>>> {
    let (mut count, mut bytes) = (0, 0);
    let copied = |item: &ScanItem| {
        let copy = item.entry().sound_copy()?;
        (count, bytes) = (count + 1, bytes + copy.len() as u64);
        Some(Ok(copy.clone()))
    };
    let values = items.iter().map(copied).collect();
    if let Some(engine) = items.first().map(ScanItem::engine) {
        engine.metrics.answered_many(AnsweredBy::Inline, count, bytes);
    }
    values
}

/// What frames in RAM have of these objects: most of what was written lately.
fn values_in_frames(items: &[ScanItem], values: &mut [Option<Result<Bytes>>]) {
    let Some(engine) = items.first().map(ScanItem::engine) else {
        return;
    };
    let place = |(item, value): (&ScanItem, &Option<Result<Bytes>>)| {
        let record = if value.is_none() { in_ring(item) } else { 0..0 };
        let length = usize::try_from(record.end - record.start).ok()?;
        engine
            .log
            .segments
            .place(record.start)
            .filter(|_| length > 0)
            .map(|place| (place, length))
    };
    let places: Vec<_> = items.iter().zip(values.iter()).map(place).collect();
    if places.iter().all(Option::is_none) {
        return;
    }
    let (mut count, mut bytes) = (0, 0);
    engine.log.frames.at_each(&places, |at, record| {
        if is_wanted(record, &items[at].key, Some(items[at].entry().version)) {
            let value = Bytes::copy_from_slice(record.body.value());
            (count, bytes) = (count + 1, bytes + value.len() as u64);
            values[at] = Some(Ok(value));
        }
    });
    engine.metrics.answered_many(AnsweredBy::Cache, count, bytes);
}

/// Objects that are read at once, with their numbers in the scan.
struct Stretch {
    /// Where in the ring; empty if they, or rather the one, are elsewhere.
    bytes: Range<u64>,
    items: Vec<(usize, ScanItem)>,
}

/// What to read for the objects with these numbers.
fn stretches(items: &[ScanItem], wanted: Vec<usize>) -> Vec<Stretch> {
    let mut wanted: Vec<_> = wanted.into_iter().map(|at| (in_ring(&items[at]), at)).collect();
    wanted.sort_by_key(|(bytes, at)| (bytes.start, *at));
    let mut stretches: Vec<Stretch> = Vec::with_capacity(wanted.len());
    for (bytes, at) in wanted {
        let item = (at, items[at].clone());
        let segment_bytes = items[at].engine().log.segments.segment_bytes();
        match stretches.last_mut() {
            Some(last) if goes_on(&last.bytes, &bytes, segment_bytes) => {
                last.bytes.end = last.bytes.end.max(bytes.end);
                last.items.push(item);
            }
            _ => stretches.push(Stretch {
                bytes,
                items: vec![item],
            }),
        }
    }
    stretches
}

/// Where an object's record is in the ring, at most; empty if it is not there.
fn in_ring(item: &ScanItem) -> Range<u64> {
    let entry = item.entry();
    match entry.home {
        Home::Flash { address } => {
            address..address + record_bytes_max(item.key.len(), entry.attributes.len(), entry.length)
        }
        Home::Inline(_) | Home::Block(_) => 0..0,
    }
}

/// Whether `next`, which begins no earlier, is read with `stretch`.
fn goes_on(stretch: &Range<u64>, next: &Range<u64>, segment_bytes: u64) -> bool {
    !stretch.is_empty()
        && stretch.start / segment_bytes == next.start / segment_bytes
        && next.start <= stretch.end + GAP_BYTES_MAX
        && next.end <= stretch.start + STRETCH_BYTES_MAX
}

impl Stretch {
    fn read(self) -> Vec<(usize, Result<Bytes>)> {
        let mut values = if self.items.len() > 1 {
            self.read_at_once()
        } else {
            vec![None]
        };
        // One alone, and those of which it is not clear what their places hold: as any single
        // value.
        let numbered = self.items.iter().zip(values.iter_mut());
        numbered
            .map(|((at, item), value)| (*at, value.take().map_or_else(|| item.value(), Ok)))
            .collect()
    }

    /// The values whose records are sound and theirs, by one read.
    fn read_at_once(&self) -> Vec<Option<Bytes>> {
        let mut values = vec![None; self.items.len()];
        let Some((_, first)) = self.items.first() else {
            return values;
        };
        let engine = first.engine();
        let places: Vec<_> = self.items.iter().map(|(_, item)| in_ring(item).start).collect();
        let places: Vec<_> = places.into_iter().map_while(Address::new).collect();
        let take = |at: usize, record: &Record<'_>| {
            let item = &self.items[at].1;
            if record.key != item.key || record.version() != item.entry().version.0 {
                return;
            }
            let place = Place::in_log(&engine.log.segments, places[at]);
            values[at] = Some(take_read(engine, place, record.key, CachedValue::of_record(record)).value);
        };
        // What fails here fails for the single values too, with the error that belongs to each.
        let _ = first.by_snapshot(|engine, _, _| {
            let _read = engine.paces.flash.read();
            let reads = read_stretch(&engine.log.segments, &self.bytes, &places, take)?;
            engine.metrics.flash_reads.fetch_add(reads, Ordering::Relaxed);
            Ok(())
        });
        values
    }
}
