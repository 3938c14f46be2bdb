//! Random histories, against a model, on a file system of some MiB that accounts for every byte,
//! the index's included, while another process takes and returns the rest of the space.
//!
//! A history is several lives of one store, each a process that ends with a close or during a
//! write. Whatever the device refuses, every acknowledged value is there and every deleted one is
//! gone; deletes work; and once everything is deleted, the store accepts nine tenths of what it
//! accepted when it was new. `TERRACE_MODEL_SECONDS` is the shortest time for which histories are
//! run (two histories if it is not set, on one device and on two), `TERRACE_MODEL_SEED` the first
//! seed.

use super::{
    bench::{bytes, files, take_all_but},
    full::{Device, on_a_small_device},
};
use crate::common::{seed, variable};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    env,
    fs::{self, File, OpenOptions},
    io::Write,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};
use terrace::{Batch, Condition, Durability, Error, Options, PutOptions, ScanRange, Store, WriterOptions};

/// Environment variable of a process that is one life of a store: its seed.
const LIFE: &str = "TERRACE_TEST_LIFE";
/// Environment variable of a process whose store has a device per tier.
const TWO: &str = "TERRACE_TEST_TWO_DEVICES";
const NAME: &str = "faults::full_model::a_full_file_system_keeps_what_it_acknowledged_and_takes_deletes";

/// Mount point of the second device, on the first.
const LARGE_DEVICE: &str = "second";

/// The file with which another process takes space.
const BALLAST: &str = "ballast";

/// Lives of one store.
const LIVES: u64 = 2;
/// Operations of one life.
const STEPS: usize = 80;
/// Number of keys.
const KEYS: u64 = 1_000;
/// Lengths of the values that fill a store.
const FILLING: [usize; 2] = [100_000, 6_000];
/// An emptied store must accept at least this share of what it accepted when it was new.
const AGAIN_PERCENT: u64 = 90;
/// Longest wait for space to become free.
const PATIENCE: Duration = Duration::from_secs(60);

/// The store's contents: seed and length of each value.
pub type Held = BTreeMap<String, (u64, usize)>;

#[derive(Debug, Clone)]
enum Change {
    Put(String, u64, usize),
    Delete(String),
    DeletePrefix(String),
}

impl Change {
    fn apply(&self, held: &mut Held) {
        match self {
            Self::Put(key, seed, length) => drop(held.insert(key.clone(), (*seed, *length))),
            Self::Delete(key) => drop(held.remove(key)),
            Self::DeletePrefix(prefix) => held.retain(|key, _| !key.starts_with(prefix.as_str())),
        }
    }

    fn line(&self) -> String {
        match self {
            Self::Put(key, seed, length) => format!("put {key} {seed} {length}"),
            Self::Delete(key) => format!("delete {key}"),
            Self::DeletePrefix(prefix) => format!("prefix {prefix}"),
        }
    }

    fn of_line(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["put", key, seed, length] => Some(Self::Put(
                key.to_owned(),
                seed.parse().unwrap(),
                length.parse().unwrap(),
            )),
            ["delete", key] => Some(Self::Delete(key.to_owned())),
            ["prefix", prefix] => Some(Self::DeletePrefix(prefix.to_owned())),
            _ => None,
        }
    }
}

/// Changes and their results, in a file that outlives the process.
struct Journal {
    file: File,
    held: Held,
}

impl Journal {
    /// Reads the contents from the lines, and the change that was begun and has no result.
    fn read(path: &Path) -> (Self, Option<Change>) {
        let mut held = Held::new();
        let mut begun: Option<Change> = None;
        for line in fs::read_to_string(path).unwrap_or_default().lines() {
            let change = begun.take();
            match line {
                "done" => change.unwrap().apply(&mut held),
                "refused" => drop(change.unwrap()),
                line => begun = Change::of_line(line),
            }
        }
        let file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        (Self { file, held }, begun)
    }

    fn say(&mut self, line: &str) {
        self.file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Records a change, makes it, and records its result. Only a full device may refuse it.
    fn change(&mut self, change: &Change, make: impl FnOnce() -> terrace::Result<()>) -> Result<(), Error> {
        self.say(&change.line());
        let outcome = make();
        match &outcome {
            Ok(()) => {
                change.apply(&mut self.held);
                self.say("done");
            }
            Err(Error::OutOfSpace { .. }) => self.say("refused"),
            Err(error) => panic!("{error}"),
        }
        outcome
    }
}

/// One life of a store.
struct Life<'a> {
    device: &'a Device,
    store: Store,
    journal: Journal,
    rng: StdRng,
    /// Share of puts among the steps.
    puts_percent: u32,
    /// The longest call of each kind: accepted puts, refused puts, deletes.
    longest: [Duration; 3],
    /// Number of refusals.
    refused: u64,
}

fn options(device: &Device, is_two: bool) -> Options {
    Options {
        segment_bytes: 256 << 10,
        split_threshold_bytes: 256 << 10,
        size_threshold_bytes: 32 << 10,
        large_dir: device.dir().join(if is_two { LARGE_DEVICE } else { "large" }),
        ..device.everything()
    }
    .tuned(|tuning| {
        tuning.memtable_bytes = 64 << 10;
        tuning.space_slack_bytes = 256 << 10;
    })
}

/// Whether a history has a device per tier.
const fn has_two(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

pub const fn durable() -> PutOptions {
    PutOptions {
        attributes: terrace::Attributes::new(),
        durability: Durability::Sync,
        condition: Condition::None,
        expiry: terrace::Expiry::Never,
    }
}

impl<'a> Life<'a> {
    fn begin(device: &'a Device, is_two: bool, journal: &Path, seed: u64) -> Self {
        let store = Store::open(options(device, is_two)).unwrap();
        let (mut journal, begun) = Journal::read(journal);
        if let Some(change) = begun {
            // The previous process ended during this change.
            let mut changed = journal.held.clone();
            change.apply(&mut changed);
            let is_done = has(&store, &changed).is_ok();
            journal.say(if is_done { "done" } else { "refused" });
            if is_done {
                journal.held = changed;
            }
        }
        has(&store, &journal.held).unwrap();
        let mut rng = StdRng::seed_from_u64(seed);
        let puts_percent = [0, 40, 80][rng.random_range(0..3)];
        Self {
            device,
            store,
            journal,
            rng,
            puts_percent,
            longest: [Duration::ZERO; 3],
            refused: 0,
        }
    }

    fn put(&mut self, key: String, length: usize) -> bool {
        let seed = self.rng.random();
        let change = Change::Put(key.clone(), seed, length);
        let (store, is_streamed) = (&self.store, length > 32 << 10 && self.rng.random_bool(0.5));
        let put = || {
            let value = bytes(seed, length);
            if !is_streamed {
                return store.put_with(&key, value, &durable()).map(drop);
            }
            let mut writer = store.writer(&key, WriterOptions::default())?;
            for part in value.chunks(50_000) {
                writer.append(part)?;
            }
            writer.finish().map(drop)
        };
        let began = Instant::now();
        let is_taken = self.journal.change(&change, put).is_ok();
        self.refused += u64::from(!is_taken);
        let longest = &mut self.longest[usize::from(!is_taken)];
        *longest = began.elapsed().max(*longest);
        is_taken
    }

    fn delete(&mut self, change: &Change) {
        let store = &self.store;
        let began = Instant::now();
        let deleted = self.journal.change(change, || match change {
            Change::Delete(key) if key.ends_with('7') => {
                // With a marker in the same batch, as S3 does.
                let mut batch = Batch::new();
                batch.delete(key);
                store.write(batch, Durability::Sync).map(drop)
            }
            Change::Delete(key) => store.delete(key).map(drop),
            Change::DeletePrefix(prefix) => store.delete_prefix(prefix, Durability::Sync).map(drop),
            Change::Put(..) => unreachable!(),
        });
        if let Err(error) = deleted {
            panic!("a delete is refused: {error}; {:#?}", self.store.stats());
        }
        self.longest[2] = began.elapsed().max(self.longest[2]);
    }

    fn any_key(&mut self) -> String {
        format!(
            "{:02}/{:03}",
            self.rng.random_range(0..10),
            self.rng.random_range(0..KEYS / 10)
        )
    }

    fn any_held(&mut self) -> Option<(String, usize)> {
        let count = self.journal.held.len();
        let at = self.rng.random_range(0..count.max(1));
        let found = self.journal.held.iter().nth(at);
        found.map(|(key, (_, length))| (key.clone(), *length))
    }

    fn any_length(&mut self) -> usize {
        match self.rng.random_range(0..10) {
            0..2 => self.rng.random_range(0..64),
            2..7 => self.rng.random_range(64..20_000),
            7..9 => self.rng.random_range(40_000..200_000),
            _ => self.rng.random_range(300_000..900_000),
        }
    }

    /// Puts until some are refused, most of them of one kind.
    fn fill_up(&mut self) {
        let most = [50, 4_000, 20_000, 100_000][self.rng.random_range(0..4)];
        for _ in 0..1_000 {
            let key = self.any_key();
            let length = if self.rng.random_bool(0.8) {
                most
            } else {
                self.any_length()
            };
            self.put(key, length);
            if self.refused > 0 {
                break;
            }
        }
    }

    fn step(&mut self) {
        match self.rng.random_range(0..100) {
            at if at < self.puts_percent => {
                let (key, length) = (self.any_key(), self.any_length());
                self.put(key, length);
            }
            at if at < 87 => {
                if let Some((key, _)) = self.any_held() {
                    self.delete(&Change::Delete(key));
                }
            }
            87..93 => {
                if let Some((key, length)) = self.any_held() {
                    self.put(key, length);
                }
            }
            93 => {
                let prefix = format!("{:02}/{}", self.rng.random_range(0..10), self.rng.random_range(0..10));
                self.delete(&Change::DeletePrefix(prefix));
            }
            94 => self.others(),
            _ => {
                let key = self.any_key();
                let found = self.store.get(&key).unwrap().map(|object| object.value);
                let held = self.journal.held.get(&key);
                assert!(
                    found == held.map(|(seed, length)| bytes(*seed, *length).into()),
                    "{key}"
                );
            }
        }
    }

    /// Another process takes all but a few pages of the device while the store has its reserve, and
    /// returns them.
    fn others(&mut self) {
        if self.store.stats().reserve_bytes == 0 {
            return;
        }
        let ballast = self.device.dir().join(BALLAST);
        take_all_but(&ballast, 4096 * self.rng.random_range(0..64));
        for _ in 0..self.rng.random_range(1..10) {
            let (key, length) = (self.any_key(), self.any_length());
            self.put(key, length);
        }
        fs::remove_file(&ballast).unwrap();
    }
}

/// Whether the store holds exactly this.
pub fn has(store: &Store, held: &Held) -> Result<(), String> {
    let found: Vec<_> = store
        .scan(ScanRange::all())
        .unwrap()
        .map(|item| item.unwrap())
        .collect();
    let keys = found.iter().map(|item| String::from_utf8(item.key.to_vec()).unwrap());
    if !keys.clone().eq(held.keys().cloned()) {
        let found: Vec<String> = keys.collect();
        return Err(format!("{found:?} instead of {:?}", held.keys()));
    }
    for (key, (seed, length)) in held {
        let value = store.get(key).unwrap().map(|object| object.value);
        if value != Some(bytes(*seed, *length).into()) {
            return Err(format!("{key} has other bytes"));
        }
    }
    Ok(())
}

/// Counts the objects accepted until one is refused.
fn fill(store: &Store, prefix: &str) -> u64 {
    let mut taken = 0;
    for length in FILLING {
        let value = bytes(1, length);
        for n in 0.. {
            match store.put_with(
                format!("fill/{prefix}/{length}/{n:05}"),
                &value,
                &super::bench::BUFFERED,
            ) {
                Ok(_) => taken += length as u64,
                Err(Error::OutOfSpace { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    taken
}

fn empty(store: &Store) {
    let all = store.scan(ScanRange::all()).unwrap();
    let keys: Vec<_> = all.map(|item| item.unwrap().key).collect();
    for key in keys {
        store.delete_with(&key, Condition::None, Durability::Buffered).unwrap();
    }
}

/// The part of a history that one process runs.
fn live(device: &Device, seed: u64) {
    let journal = env::current_dir().unwrap().join("journal");
    let mut life = Life::begin(device, env::var_os(TWO).is_some(), &journal, seed);
    if life.rng.random_bool(0.8) {
        life.fill_up();
    }
    let steps = life.rng.random_range(STEPS / 2..STEPS);
    for _ in 0..steps {
        life.step();
    }
    let (bytes, refused) = (
        life.journal.held.values().map(|(_, length)| length).sum::<usize>(),
        life.refused,
    );
    eprintln!(
        "{steps} steps, {bytes} bytes, {refused} refused, longest {:?}",
        life.longest
    );
    if life.rng.random_bool(0.3) {
        has(&life.store, &life.journal.held).unwrap();
        life.store.close().unwrap();
        return;
    }
    let pause = Duration::from_micros(life.rng.random_range(0..3_000));
    std::thread::spawn(move || {
        std::thread::sleep(pause);
        std::process::abort();
    });
    loop {
        life.step();
    }
}

fn history(device: &Device, seed: u64) {
    let is_two = has_two(seed);
    let fresh = || Store::open(options(device, is_two)).unwrap();
    let store = fresh();
    let began = Instant::now();
    let first = fill(&store, "first");
    eprintln!("{first} bytes go in: {:?}", began.elapsed());
    empty(&store);
    store.close().unwrap();
    drop(store);
    let place = tempfile::tempdir().unwrap();
    for life in 0..LIVES {
        let mut process = Command::new(env::current_exe().unwrap());
        process.args(["--exact", NAME, "--nocapture"]).current_dir(place.path());
        if is_two {
            process.env(TWO, "1");
        }
        let ended = process.env(LIFE, (seed * LIVES + life).to_string()).output().unwrap();
        let text = String::from_utf8_lossy(&ended.stderr);
        eprint!("life {life}: {text}");
        assert!(!text.contains("panicked"), "life {life} of seed {seed}: {text}");
    }
    // A process that was killed while the ballast file existed did not remove it.
    if let Ok(file) = fs::metadata(device.dir().join(BALLAST)) {
        eprintln!("the ballast file still has {} bytes", file.len());
        fs::remove_file(device.dir().join(BALLAST)).unwrap();
    }
    let life = Life::begin(device, is_two, &place.path().join("journal"), 0);
    let store = life.store;
    eprintln!("the lives are over: {:?}", began.elapsed());
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
    empty(&store);
    eprintln!("it is empty: {:?}", began.elapsed());
    let until = Instant::now() + PATIENCE;
    let mut again = 0;
    let mut rounds = 0;
    while again * 100 < first * AGAIN_PERCENT {
        assert!(
            Instant::now() < until,
            "seed {seed}: {again} bytes go in again of {first}; {:#?}",
            store.stats()
        );
        again += fill(&store, &format!("again/{rounds}"));
        rounds += 1;
        eprintln!("{again} bytes go in again: {:?}", began.elapsed());
    }
    empty(&store);
    store.close().unwrap();
    drop(store);
    let store = fresh();
    has(&store, &Held::new()).unwrap();
    drop(store);
    for tier in ["flash", "large", LARGE_DEVICE] {
        for file in files(&device.dir().join(tier)) {
            fs::remove_file(file).unwrap();
        }
    }
}

#[test]
fn a_full_file_system_keeps_what_it_acknowledged_and_takes_deletes() {
    if let Some(seed) = env::var(LIFE).ok().and_then(|seed| seed.parse().ok()) {
        live(&Device::here(), seed);
        return;
    }
    on_a_small_device(NAME, |device| {
        assert!(device.mount(&["-o", "remount,size=6m"]));
        for tier in ["flash", "large", LARGE_DEVICE] {
            fs::create_dir(device.dir().join(tier)).unwrap();
        }
        assert!(device.mount_second(LARGE_DEVICE, "size=4m"));
        let time = Duration::from_secs(variable("TERRACE_MODEL_SECONDS").unwrap_or(0));
        let first = seed();
        let began = Instant::now();
        for seed in first.. {
            history(device, seed);
            eprintln!("history {seed}: {:?}", began.elapsed());
            if seed > first && began.elapsed() >= time {
                break;
            }
        }
    });
}
