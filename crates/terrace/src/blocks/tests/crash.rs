//! Power cuts at every operation of a history, with all that a cut may leave behind.

use super::*;
use crate::io::{FaultKind, SimDisk, Survival};
use std::collections::BTreeSet;

const SPLIT_BYTES: u64 = 128 << 10;

/// Values that must exist after a power cut.
#[derive(Default)]
struct History {
    /// Synced, and not on their way out.
    durable: Vec<(Vec<u8>, Vec<u8>, LargeValue)>,
    /// Written, perhaps synced: right bytes, or none.
    possible: Vec<(Vec<u8>, Vec<u8>, LargeValue)>,
    /// Committed, and to be synced by the thread that writes the frames of their commits.
    unsynced: Vec<(Vec<u8>, Vec<u8>, LargeValue)>,
    /// Versions that were given to `committed`.
    committed: BTreeSet<u64>,
}

impl History {
    fn keep(&mut self, space: &LargeSpace, key: &[u8], value: &[u8], found: LargeValue, version: u64) -> Result<()> {
        let item = (key.to_vec(), value.to_vec(), found);
        self.possible.push(item.clone());
        space.sync_all(&[found])?;
        self.durable.push(item);
        self.committed.insert(version);
        space.committed(&found, version);
        space.account_live(found.block, found.extent_bytes);
        Ok(())
    }

    /// Commits a value that is synced later, as that of a `Buffered` put is.
    fn keep_unsynced(&mut self, space: &LargeSpace, version: u64) -> Result<()> {
        // A block of its own, which is full with it.
        let value = pattern(200_000, version);
        let found = space.write(b"buffered", b"", &value, version)?;
        let item = (b"buffered".to_vec(), value, found);
        self.possible.push(item.clone());
        self.unsynced.push(item);
        self.committed.insert(version);
        space.committed(&found, version);
        space.account_live(found.block, found.extent_bytes);
        Ok(())
    }

    /// Writes the frames of what was not synced yet: the log has its own device, which may go on
    /// after this one has failed.
    fn sync_rest(&mut self, space: &LargeSpace) {
        let rest = std::mem::take(&mut self.unsynced);
        let synced = rest
            .into_iter()
            .filter(|(_, _, found)| space.sync_all(std::slice::from_ref(found)).is_ok());
        self.durable.extend(synced);
    }

    /// Writes, commits, abandons, seals, deletes, until something fails or all is done.
    fn run(&mut self, space: &LargeSpace) -> Result<()> {
        let outcome = self.rounds(space);
        self.sync_rest(space);
        outcome
    }

    fn rounds(&mut self, space: &LargeSpace) -> Result<()> {
        space.accounting_complete();
        for round in 1..=6_u64 {
            let key = format!("key/{round}").into_bytes();
            let value = pattern(20_000 * round as usize, round);
            let found = space.write(&key, b"attributes", &value, round)?;
            self.keep(space, &key, &value, found, round * 10)?;
            if round % 3 == 0 {
                let value = vec![round as u8; 1_200_000];
                let found = stream(space, b"stream", &value, 300_000)?;
                self.keep(space, b"stream", &value, found, round * 10 + 1)?;
            }
            let given_up = space.write(b"abandoned", b"", &value[..15_000], round)?;
            space.abandoned(&given_up);
            let mut dropped = space.writer(b"dropped", b"", Length::AtLeast(0), round)?;
            if round % 2 == 0 {
                dropped.write(&[7; 1_100_000])?;
            }
            drop(dropped);
            let small: Vec<Vec<u8>> = (0..20)
                .map(|index| pattern(index * 40, round * 100 + index as u64))
                .collect();
            let items: Vec<DestageItem<'_>> = small
                .iter()
                .map(|value| DestageItem {
                    key: b"small",
                    attributes: b"",
                    value,
                    version: round,
                })
                .collect();
            let destaged = space.write_batch(&items, Origin::Recycling)?;
            space.sync_all(&destaged)?;
            for (value, found) in small.iter().zip(&destaged) {
                self.durable.push((b"small".to_vec(), value.clone(), *found));
                space.account_live(found.block, found.extent_bytes);
            }
            self.keep_unsynced(space, round * 10 + 2)?;
            space.seal_ready()?;
            self.sync_rest(space);
            if round == 4 {
                self.delete_blocks(space)?;
            }
        }
        space.close()
    }

    /// Lets everything in some sealed blocks die, and deletes them together.
    fn delete_blocks(&mut self, space: &LargeSpace) -> Result<()> {
        let sealed = space.blocks().into_iter();
        let sealed = sealed.filter(|block| block.state == BlockState::Sealed && block.live_bytes > 0);
        let dead: Vec<u64> = sealed.map(|block| block.number).take(3).collect();
        assert!(dead.len() > 1, "{dead:?}");
        for list in [&mut self.durable, &mut self.possible] {
            list.retain(|(_, _, found)| !dead.contains(&found.block));
        }
        for &number in &dead {
            space.account_dead(number, u64::MAX);
        }
        let asked: Vec<(u64, u64)> = dead.iter().map(|&number| (number, 99)).collect();
        assert_eq!(space.delete(&asked)?, dead);
        Ok(())
    }

    fn check(&self, space: &LargeSpace, context: &str) {
        for (key, value, found) in &self.durable {
            let bytes = read(space, key, found).unwrap_or_else(|error| panic!("{context}: {error}"));
            assert!(bytes == value[..], "{context}: wrong bytes");
        }
        for (key, value, found) in &self.possible {
            match read(space, key, found) {
                Ok(bytes) => assert!(bytes == value[..], "{context}: wrong bytes"),
                Err(Error::Corruption { .. }) => {}
                Err(error) => panic!("{context}: {error}"),
            }
        }
        let mut scanned = BTreeSet::new();
        for block in space.blocks() {
            let scan = space.scan_block(block.number).unwrap();
            for extent in scan.filter_map(Result::ok) {
                scanned.insert((block.number, extent.offset));
                if extent.header.key != b"small"
                    && let Some(version) = extent.version
                {
                    assert!(
                        self.committed.contains(&version),
                        "{context}: version {version} was never committed"
                    );
                }
            }
        }
        for (_, _, found) in &self.durable {
            assert!(
                scanned.contains(&(found.block, found.offset)),
                "{context}: not found by a scan"
            );
        }
    }
}

fn open_sim(disk: &SimDisk) -> Result<(LargeSpace, OpenReport)> {
    LargeSpace::open(Arc::new(disk.clone()), options(SPLIT_BYTES))
}

/// Opens after a cut, checks, writes on, closes, opens again, checks again.
fn survive(disk: &SimDisk, history: &History, context: &str) {
    let (space, report) = open_sim(disk).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(
        report.missing.is_empty() && report.foreign.is_empty(),
        "{context}: {report:?}"
    );
    history.check(&space, context);
    let value = pattern(10_000, 3);
    let found = space.write(b"after", b"", &value, 1).unwrap();
    space.sync_all(&[found]).unwrap();
    space.committed(&found, 1000);
    space.close().unwrap();
    drop(space);
    disk.power_cycle(Survival::Nothing);
    let (space, report) = open_sim(disk).unwrap();
    assert_eq!(report, OpenReport::default(), "{context}: after a clean close");
    assert_eq!(read(&space, b"after", &found).unwrap(), value);
    for (key, value, found) in &history.durable {
        assert!(
            read(&space, key, found).unwrap() == value[..],
            "{context}: after writing on"
        );
    }
}

#[test]
fn synced_values_survive_a_cut_at_every_operation() {
    let whole = SimDisk::new(1);
    let (space, _) = open_sim(&whole).unwrap();
    History::default().run(&space).unwrap();
    let operations = whole.operations();
    assert!(operations > 100, "{operations}");
    for cut in 0..operations {
        let survival = Survival::ALL[cut as usize % Survival::ALL.len()];
        let disk = SimDisk::new(cut);
        disk.set_survival(survival);
        disk.cut_after(cut);
        let mut history = History::default();
        let ended = open_sim(&disk).and_then(|(space, _)| history.run(&space));
        assert!(
            ended.is_err() || cut + 1 >= operations,
            "the cut at {cut} went unnoticed"
        );
        disk.power_cut();
        disk.restore_power();
        survive(
            &disk,
            &history,
            &format!("cut after {cut} operations, {survival:?} survives"),
        );
    }
}

#[test]
fn cuts_during_recovery_lose_nothing() {
    for seed in 0..40 {
        let disk = SimDisk::new(seed);
        disk.cut_after(20 + seed * 3);
        let mut history = History::default();
        let _ = open_sim(&disk).and_then(|(space, _)| history.run(&space));
        disk.power_cycle(Survival::Random);
        for again in 0..8 {
            disk.cut_after(again);
            let _ = open_sim(&disk);
            disk.power_cycle(Survival::Random);
        }
        survive(&disk, &history, &format!("seed {seed}"));
    }
}

#[test]
fn failures_of_the_device_never_lose_what_was_synced() {
    for seed in 0..120 {
        let kind = if seed % 2 == 0 {
            FaultKind::Sync
        } else {
            FaultKind::Write
        };
        let disk = SimDisk::new(seed);
        disk.fail_after(seed / 2, kind);
        let mut history = History::default();
        let opened = open_sim(&disk);
        if let Ok((space, _)) = &opened {
            assert!(history.run(space).is_err());
            let context = format!("seed {seed}, {kind:?}");
            for (key, value, found) in &history.durable {
                assert!(read(space, key, found).unwrap() == value[..], "{context}: reads go on");
            }
            if kind == FaultKind::Sync {
                disk.set_fault(None);
                assert!(
                    matches!(space.write(b"k", b"", b"v", 1), Err(Error::Failed(_))),
                    "{context}"
                );
            }
        }
        drop(opened);
        disk.set_fault(None);
        disk.power_cycle(Survival::Random);
        survive(&disk, &history, &format!("seed {seed}, {kind:?}"));
    }
}
