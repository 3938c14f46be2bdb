//! What the store counts beside its objects, held against the index and the files: objects and
//! bytes by home, what lives in each segment and block, and what the files take.

use super::{Hands, bytes, timed_options};
use crate::{
    Attributes, Batch, Durability, Expiry, HomeKind, Options, PutOptions, ScanRange, Store, WriterOptions,
    hash_index::HashIndex,
    io::{PAGE_BYTES, SimDisk},
    log::{
        address::Address,
        format::record_bytes_max,
        reader::{Found, read_record},
        segments::SegmentState,
    },
    ordered_index::Home,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    fs,
    ops::Bound,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

const KEYS: u32 = 300;

fn options(dir: &Path, hands: &Hands, rng: &mut StdRng) -> Options {
    Options {
        cache_bytes: [0, 256 << 10][rng.random_range(0..2)],
        ..timed_options(dir, hands)
    }
    .tuned(|tuning| {
        tuning.order_bytes_per_second = 1 << 30;
        tuning.sweep_price_percent = 0;
    })
}

/// Lengths at which a record is of another class than a bare value, and of each home.
fn length(rng: &mut StdRng) -> usize {
    match rng.random_range(0..10) {
        0..2 => rng.random_range(0..64),
        2..6 => rng.random_range(65..300),
        6..9 => rng.random_range(300..8_000),
        _ => rng.random_range(8_000..40_000),
    }
}

fn put_options(rng: &mut StdRng) -> PutOptions {
    let attributes = match rng.random_range(0..3) {
        0 => Attributes::new().with("a", bytes(7, rng.random_range(1..2_000))),
        _ => Attributes::new(),
    };
    PutOptions {
        attributes,
        durability: Durability::Buffered,
        expiry: match rng.random_range(0..6) {
            0 => Expiry::After(Duration::from_millis(rng.random_range(1..2_000))),
            _ => Expiry::Never,
        },
        ..PutOptions::default()
    }
}

fn key(rng: &mut StdRng) -> String {
    let number = rng.random_range(0..KEYS);
    format!("{}/{number:03}{}", number % 5, "k".repeat(number as usize % 3 * 60))
}

fn step(store: &Store, hands: &Hands, rng: &mut StdRng) {
    match rng.random_range(0..100) {
        0..50 => {
            let value = bytes(rng.random(), length(rng));
            store.put_with(key(rng), value, &put_options(rng)).map(drop).unwrap();
        }
        50..60 => {
            let mut batch = Batch::new();
            for _ in 0..rng.random_range(1..20) {
                batch.put(key(rng), bytes(rng.random(), length(rng).min(400)));
            }
            store.write(batch, Durability::Buffered).map(drop).unwrap();
        }
        60..68 => drop(store.delete(key(rng)).unwrap()),
        68 => {
            let range = ScanRange::prefix(format!("{}/{}", rng.random_range(0..5), rng.random_range(0..3)));
            store.delete_range(range, Durability::Buffered).map(drop).unwrap();
        }
        69..75 => hands.advance(Duration::from_millis(rng.random_range(0..300))),
        75..85 => {
            let key = key(rng);
            (0..4).for_each(|_| drop(store.get(&key).unwrap()));
        }
        85..95 => {
            let range = ScanRange::prefix(format!("{}/", rng.random_range(0..5)));
            for (_, value) in store.scan(range).unwrap().next_values(60).unwrap() {
                value.unwrap();
            }
        }
        _ => store.flush().unwrap(),
    }
}

/// Objects and bytes by home, and bytes by segment.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counted {
    objects: [u64; 3],
    /// Of values in the log it is not known of each how long it was that is gone.
    bytes: [u64; 2],
    segments: BTreeMap<u32, u64>,
}

/// What the index says.
fn by_index(store: &Store) -> Counted {
    let engine = store.engine();
    let segments = &engine.log.segments;
    let mut counted = Counted::default();
    let (all, seq) = ((Bound::Unbounded, Bound::Unbounded), engine.index.applied_seq());
    for item in engine.index.scan(all, seq).unwrap() {
        let (key, entry) = item.unwrap();
        counted.objects[entry.home.kind() as usize] += 1;
        match entry.home {
            Home::Inline(_) => counted.bytes[0] += entry.length,
            Home::Block(_) => counted.bytes[1] += entry.length,
            Home::Flash { address } => {
                let expected = record_bytes_max(key.len(), entry.attributes.len(), entry.length);
                let address = Address::new(address).unwrap();
                let read = read_record(segments, address, expected as usize, |record| {
                    (record.key == key).then(|| record.record_bytes() as u64)
                });
                // Moved, since the index was asked.
                let Ok((Found::Record(Some(record_bytes)), _)) = read else {
                    continue;
                };
                let number = (address.bytes() / segments.segment_bytes()) as u32;
                *counted.segments.entry(number).or_default() += HashIndex::read_bytes_max(record_bytes);
            }
        }
    }
    counted
}

/// What is counted as it comes and goes.
fn by_account(store: &Store) -> Counted {
    let engine = store.engine();
    let of = |home| engine.accounting.stats(home);
    let homes = [HomeKind::Inline, HomeKind::Flash, HomeKind::Block];
    let mut objects = [0; 3];
    homes
        .iter()
        .for_each(|home| objects[*home as usize] = of(*home).objects);
    let in_use = engine.log.segments.iter().filter(|segment| {
        let state = segment.state();
        !matches!(state, SegmentState::Free | SegmentState::Copies) && segment.live_bytes() > 0
    });
    Counted {
        objects,
        bytes: [HomeKind::Inline, HomeKind::Block].map(|home| of(home).bytes),
        segments: in_use.map(|segment| (segment.number, segment.live_bytes())).collect(),
    }
}

/// Compares both, at a moment at which nothing is moved. (That nothing was moved by the end was not
/// enough: what was committed before and applied meanwhile was in the account alone.)
fn check(store: &Store) {
    let log = &store.engine().log;
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        store.flush().unwrap();
        log.wait_applied().unwrap();
        let seq = log.committed_seq();
        let is_still = || log.committed_seq() == seq && log.applied_seq() == seq && log.frames.released_seq() == seq;
        if is_still() {
            let (index, account) = (by_index(store), by_account(store));
            if is_still() {
                assert_eq!(account, index);
                return;
            }
        }
        assert!(Instant::now() < until, "it never stands still");
    }
}

fn bytes_of_files(dir: &Path, extension: &str) -> Vec<u64> {
    let files = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    let of_kind = files.filter(|path| path.extension().is_some_and(|found| found == extension));
    of_kind.map(|path| fs::metadata(path).unwrap().len()).collect()
}

/// Segments counted values for what their slots said when they came, and for what their entries
/// said when they were dropped, moved or overwritten by something elsewhere. Those with attributes
/// seemed to live for ever, and some were taken for dead which were not.
#[test]
fn what_is_counted_is_what_is_there() {
    let began = Instant::now();
    let mut met = [0_u64; 8];
    for seed in 0.. {
        let (dir, hands) = (tempfile::tempdir().unwrap(), Hands::new());
        let mut rng = StdRng::seed_from_u64(seed);
        let store = Store::open(options(dir.path(), &hands, &mut rng)).unwrap();
        for _ in 0..6 {
            for _ in 0..rng.random_range(50..700) {
                step(&store, &hands, &mut rng);
            }
            check(&store);
        }
        let stats = store.stats();
        let these = [
            stats.scan_order.moved,
            stats.scan_order.copied,
            stats.scan_order.sweeps,
            stats.log.segments_reclaimed,
            stats.written.large_destaged_bytes,
            stats.expire.dropped_expired,
            stats.expire.dropped_deleted,
            stats.large.blocks_reclaimed,
        ];
        met.iter_mut().zip(these).for_each(|(met, these)| *met += these);
        store.close().unwrap();
        let engine = store.engine();
        let files = bytes_of_files(&dir.path().join("large/blocks"), "blk");
        assert_eq!(
            engine.large.totals().allocated_bytes,
            files.iter().sum::<u64>(),
            "seed {seed}"
        );
        let files = bytes_of_files(&dir.path().join("flash/segments"), "seg");
        let whole = files.iter().filter(|bytes| **bytes > PAGE_BYTES as u64).count();
        assert_eq!(engine.log.segments.created() as usize, whole, "seed {seed}");
        let is_enough = met.iter().all(|count| *count > 0);
        if is_enough || began.elapsed() > Duration::from_secs(60) {
            assert!(is_enough, "{met:?}");
            return;
        }
    }
}

/// What a caller does with large values, on a disk that refuses room now and then.
fn large_step(store: &Store, rng: &mut StdRng) -> crate::Result<()> {
    let name = format!("l/{}", rng.random_range(0..40));
    let value = bytes(rng.random(), rng.random_range(1_000..300_000));
    let options = PutOptions {
        durability: [Durability::Buffered, Durability::Sync][rng.random_range(0..2)],
        ..PutOptions::default()
    };
    match rng.random_range(0..10) {
        0..4 => store.put_with(name, value, &options).map(drop),
        4..7 => {
            let length = rng.random_bool(0.5).then_some(value.len() as u64);
            let mut writer = store.writer(name, WriterOptions { length, put: options })?;
            for part in value.chunks(50_000) {
                writer.append(part)?;
                if rng.random_bool(0.1) {
                    // It is given up.
                    return Ok(());
                }
            }
            writer.finish().map(drop)
        }
        _ => store.delete(name).map(drop),
    }
}

/// A block whose footer found no room was counted a page longer at each attempt, and a store with a
/// capacity said that it was full. Of what is refused, given up or cut short nothing is left in the
/// account of room.
#[test]
fn what_blocks_take_is_counted_right_though_the_disk_refuses_room() {
    for seed in 0..12 {
        let (dir, hands, disk) = (tempfile::tempdir().unwrap(), Hands::new(), SimDisk::new(seed));
        let mut rng = StdRng::seed_from_u64(seed);
        let on_disk = Options {
            large_disk: Some(Arc::new(disk.clone())),
            ..options(dir.path(), &hands, &mut rng)
        };
        let store = Store::open(on_disk).unwrap();
        for _ in 0..rng.random_range(50..250) {
            if rng.random_bool(0.2) {
                disk.refuse_growth(rng.random_range(0..6), rng.random_range(1..4));
            }
            match large_step(&store, &mut rng) {
                Ok(()) | Err(crate::Error::OutOfSpace { .. }) => {}
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
        disk.refuse_growth(0, 0);
        store.flush().unwrap();
        check(&store);
        let verified = store.verify().unwrap();
        assert_eq!(verified.errors, [""; 0], "seed {seed}");
        store.close().unwrap();
        let blocks = disk.files().into_iter().filter(|file| file.ends_with(".blk"));
        let there: u64 = blocks.map(|file| disk.read_file(&file).unwrap().len() as u64).sum();
        let totals = store.engine().large.totals();
        assert_eq!(
            (totals.allocated_bytes, totals.rest_bytes),
            (there, there),
            "seed {seed}"
        );
    }
}
