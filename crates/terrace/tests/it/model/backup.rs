//! Backups of a store while it is written: segments are recycled, the index is flushed and
//! compacted, blocks are sealed and deleted. Each backup must verify, and the restored store must
//! hold exactly the history up to the backup's last commit, which must lie between those before and
//! after the call.

use super::{
    history::History,
    machine::{Machine, assert_sound, contents},
    state::{Journal, State, apply},
    watchdog::Watchdog,
};
use crate::common::{self, variable};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};
use terrace::{BackupOptions, BackupProgress, BackupReport, RestoreOptions, Store};

/// Commits between two backups in `cargo test`. Each backup is restored and compared, and while
/// writers are slow there is time for ever more of them: 65 of one store on a busy machine. Longer
/// runs (`TERRACE_MODEL_SECONDS`) take one after the other.
const COMMITS_APART: u64 = 100;

/// Coverage of a run.
#[derive(Debug, Default)]
struct Tally {
    backups: u64,
    segments_reclaimed: u64,
    compactions: u64,
    blocks_deleted: u64,
    copied_bytes: u64,
    linked_bytes: u64,
    reused_bytes: u64,
}

struct Taken {
    dir: PathBuf,
    report: BackupReport,
    committed: (u64, u64),
}

/// The state after commit `seq`.
fn state_at(base: &State, journal: &Journal, seq: u64) -> State {
    let mut state = base.clone();
    for (version, changes) in journal.commits.range(..=seq) {
        apply(&mut state, *version, changes);
    }
    state
}

/// Takes backups, incremental or full, until the writers have ended.
fn backups_until(store: &Store, dir: &tempfile::TempDir, rng: &mut StdRng, writers: &AtomicUsize) -> Vec<Taken> {
    let mut taken: Vec<Taken> = Vec::new();
    let apart = variable("TERRACE_MODEL_SECONDS").map_or(COMMITS_APART, |_| 0);
    let mut next = 0;
    while writers.load(Ordering::SeqCst) > 0 {
        if store.stats().queue.committed_seq < next {
            std::thread::sleep(Duration::from_millis(2));
            continue;
        }
        let options = BackupOptions {
            onto: taken
                .last()
                .filter(|_| rng.random_bool(0.7))
                .map(|last| last.dir.clone()),
            copy: rng.random_bool(0.3),
            ..BackupOptions::default()
        };
        let target = dir.path().join(format!("backup-{}", taken.len()));
        let before = store.stats().queue.committed_seq;
        let report = store.backup(&target, &options).unwrap();
        let after = store.stats().queue.committed_seq;
        next = after + apart;
        taken.push(Taken {
            dir: target,
            report,
            committed: (before, after),
        });
        std::thread::sleep(Duration::from_millis(rng.random_range(0..40)));
    }
    taken
}

fn check(machine: &Machine, taken: &Taken, expected: &State) {
    let Taken { dir, report, committed } = taken;
    let version = report.version.0;
    assert!(
        (committed.0..=committed.1).contains(&version),
        "a backup of commit {version}, taken while {committed:?} were committed"
    );
    let verified = Store::verify_backup(dir, &BackupProgress::default()).unwrap();
    assert_eq!(verified.errors, [""; 0], "{report:?}");
    assert_eq!(verified.version, report.version);
    let restored_dir = tempfile::tempdir().unwrap();
    let options = machine.elsewhere(restored_dir.path());
    let restored = Store::restore(dir, &options, &RestoreOptions::default()).unwrap();
    assert_eq!(restored.bytes, report.bytes);
    let store = Store::open(options).unwrap();
    assert_eq!(store.stats().damage, [""; 0]);
    // The clock has stopped: the writers advanced it.
    let mut expected = expected.clone();
    expected.retain(|_, held| held.is_there(machine.now_ms()));
    assert!(contents(&store) == expected, "the backup of commit {version} differs");
    assert_sound(&store);
    // The restored store can be written. (Recycling may have been first.)
    let next = store.put("after the restore", b"goes on").unwrap();
    assert!(next.0 > version);
}

fn history(seed: u64, real: bool, tally: &mut Tally) {
    let mut rng = StdRng::seed_from_u64(seed);
    let machine = if real {
        Machine::on_real_disks(&mut rng)
    } else {
        Machine::new(&mut rng)
    };
    let store = machine.open().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let prefixes = ["a/", "b/", "c/"];
    let writers = AtomicUsize::new(prefixes.len());
    let mut backup_rng = StdRng::seed_from_u64(rng.random());
    let seeds: Vec<u64> = prefixes.iter().map(|_| rng.random()).collect();
    let (journals, taken) = std::thread::scope(|scope| {
        let callers: Vec<_> = prefixes
            .iter()
            .zip(seeds)
            .map(|(prefix, seed)| {
                let (machine, store, writers) = (&machine, &store, &writers);
                scope.spawn(move || {
                    let _writer = Writer(writers);
                    let mut rng = StdRng::seed_from_u64(seed);
                    let mut history = History::new(machine, store, &mut rng, prefix, false, State::new());
                    history.run(1_500).unwrap();
                    history.journal
                })
            })
            .collect();
        let taken = backups_until(&store, &dir, &mut backup_rng, &writers);
        let journals: Vec<Journal> = callers.into_iter().map(|caller| caller.join().unwrap()).collect();
        (journals, taken)
    });
    let mut journal = Journal::default();
    journals.into_iter().for_each(|part| journal.merge(part));
    let stats = store.stats();
    tally.segments_reclaimed += stats.log.segments_reclaimed;
    tally.compactions += stats.index.compactions;
    tally.blocks_deleted += machine.blocks_deleted();
    for taken in &taken {
        check(
            &machine,
            taken,
            &state_at(&State::new(), &journal, taken.report.version.0),
        );
        tally.backups += 1;
        tally.copied_bytes += taken.report.copied_bytes;
        tally.linked_bytes += taken.report.linked_bytes;
        tally.reused_bytes += taken.report.reused_bytes;
    }
    assert_sound(&store);
}

/// Decrements the count of writers when dropped, also after a panic.
struct Writer<'a>(&'a AtomicUsize);

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs histories until the time is over, and longer if not every mechanism occurred, which depends
/// on the machine and on chance.
fn run(name: &str, real: bool, is_meaningful: fn(&Tally) -> bool) {
    let seconds = variable("TERRACE_MODEL_SECONDS").unwrap_or(10);
    let mut seed = common::seed();
    let start = Instant::now();
    let mut tally = Tally::default();
    let watchdog = Watchdog::of(name);
    loop {
        println!("{name}: TERRACE_MODEL_SEED={seed}");
        watchdog.begins(seed);
        history(seed, real, &mut tally);
        seed += 1;
        let seconds_max = if is_meaningful(&tally) { seconds } else { 10 * seconds };
        if start.elapsed() >= Duration::from_secs(seconds_max) {
            break;
        }
    }
    println!("{name}: {tally:?}");
    assert!(is_meaningful(&tally), "{tally:?}");
}

fn met_most(tally: &Tally) -> bool {
    tally.backups > 0 && tally.segments_reclaimed > 0 && tally.copied_bytes > 0
}

#[test]
fn backups_while_a_store_is_written_on_simulated_disks() {
    run("backups", false, met_most);
}

#[test]
fn backups_while_a_store_is_written_with_links_on_real_disks() {
    let met_all = |tally: &Tally| met_most(tally) && tally.linked_bytes > 0 && tally.reused_bytes > 0;
    run("backups with links", true, met_all);
}
