//! Tests of the media against a reference that keeps every version of every sector.

use crate::media::{Media, Survival};
use crate::random::Random;
use std::fs::File;
use std::os::unix::fs::FileExt;

const SECTOR: usize = 512;
const SECTORS: usize = 64;

/// The possible contents of each sector: the version on the media, and those in memory, oldest
/// first.
struct Reference {
    media: Vec<u64>,
    pending: Vec<(u64, std::ops::Range<usize>)>,
}

impl Reference {
    fn current(&self, sector: usize) -> u64 {
        let pending = self.pending.iter().filter(|(_, range)| range.contains(&sector));
        let newest = pending.map(|(id, _)| *id).max().unwrap_or(0);
        newest.max(self.media[sector])
    }

    /// Settles a write; older ones in memory no longer count in its range.
    fn settle(&mut self, id: u64) {
        if let Some(index) = self.pending.iter().position(|(pending, _)| *pending == id) {
            let (_, range) = self.pending.remove(index);
            for sector in range {
                self.media[sector] = self.media[sector].max(id);
            }
        }
    }

    /// The possible contents of a sector after a cut: the version on the media, or a newer one.
    fn possible(&self, sector: usize) -> Vec<u64> {
        let media = self.media[sector];
        let pending = self
            .pending
            .iter()
            .filter(|(id, range)| range.contains(&sector) && *id > media);
        std::iter::once(media).chain(pending.map(|(id, _)| *id)).collect()
    }
}

fn sector_of(id: u64) -> Vec<u8> {
    id.to_le_bytes().repeat(SECTOR / 8)
}

fn version(data: &[u8]) -> u64 {
    let id = u64::from_le_bytes(data[..8].try_into().unwrap());
    assert_eq!(data, sector_of(id), "a sector is torn inside");
    id
}

fn media(name: &str) -> (tempfile::TempDir, Media, File) {
    let directory = tempfile::tempdir().unwrap();
    let open = || {
        File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(directory.path().join(name))
            .unwrap()
    };
    let file = open();
    file.set_len((SECTOR * SECTORS) as u64).unwrap();
    let media = Media::new(file, SECTOR as u64);
    let again = open();
    (directory, media, again)
}

#[test]
fn any_sequence_of_writes_and_cuts_agrees_with_the_reference() {
    for seed in 0..60 {
        let (_directory, media, file) = media("media");
        let mut random = Random::new(seed);
        let mut reference = Reference {
            media: vec![0; SECTORS],
            pending: Vec::new(),
        };
        let mut id = 0;
        for _ in 0..4 {
            for _ in 0..random.below(120) {
                match random.below(10) {
                    0..6 => {
                        id += 1;
                        let start = random.below(SECTORS as u64) as usize;
                        let end = (start + 1 + random.below(12) as usize).min(SECTORS);
                        media.write(id, (start * SECTOR) as u64, sector_of(id).repeat(end - start).into());
                        reference.pending.push((id, start..end));
                    }
                    6 | 7 if !reference.pending.is_empty() => {
                        let (settled, _) = reference.pending[random.below(reference.pending.len() as u64) as usize];
                        media.settle(settled).unwrap();
                        reference.settle(settled);
                    }
                    8 => {
                        let until = id.saturating_sub(random.below(5));
                        media.settle_until(until).unwrap();
                        for id in 0..=until {
                            reference.settle(id);
                        }
                    }
                    _ => {
                        let read = media.read(0, SECTOR * SECTORS).unwrap();
                        for (sector, data) in read.chunks(SECTOR).enumerate() {
                            assert_eq!(version(data), reference.current(sector), "seed {seed}, sector {sector}");
                        }
                    }
                }
            }
            let modes = [
                Survival::Any,
                Survival::None,
                Survival::All,
                Survival::Random,
                Survival::Prefix,
                Survival::Torn,
            ];
            let mode = modes[random.below(6) as usize];
            let report = media.cut(mode, &mut random).unwrap();
            assert_eq!(report.pending_writes, reference.pending.len() as u64);
            for sector in 0..SECTORS {
                let mut data = [0; SECTOR];
                file.read_exact_at(&mut data, (sector * SECTOR) as u64).unwrap();
                let found = version(&data);
                let possible = reference.possible(sector);
                assert!(
                    possible.contains(&found),
                    "seed {seed}, {mode:?}: sector {sector} has {found} of {possible:?}"
                );
                match report.survival {
                    Survival::None => assert_eq!(Some(&found), possible.first()),
                    Survival::All => assert_eq!(Some(&found), possible.last()),
                    _ => {}
                }
                reference.media[sector] = found;
            }
            reference.pending.clear();
        }
    }
}

#[test]
fn a_prefix_keeps_earlier_writes_before_later_ones() {
    for seed in 0..40 {
        let (_directory, media, _file) = media("media");
        for id in 1..=20 {
            media.write(id, id * SECTOR as u64, sector_of(id).into());
        }
        media.cut(Survival::Prefix, &mut Random::new(seed)).unwrap();
        let read = media.read(0, SECTOR * SECTORS).unwrap();
        let kept: Vec<bool> = read
            .chunks(SECTOR)
            .skip(1)
            .take(20)
            .map(|data| version(data) != 0)
            .collect();
        assert!(
            kept.is_sorted_by(|earlier, later| earlier >= later),
            "seed {seed}: {kept:?}"
        );
    }
}

#[test]
fn every_mode_loses_and_keeps_as_it_says_for_some_seed() {
    let mut lost_earlier = false;
    let mut torn = false;
    for seed in 0..40 {
        for mode in [Survival::Random, Survival::Torn] {
            let (_directory, media, _file) = media("media");
            for id in 1..=8 {
                media.write(id, (id - 1) * 8 * SECTOR as u64, sector_of(id).repeat(8).into());
            }
            media.cut(mode, &mut Random::new(seed)).unwrap();
            let read = media.read(0, SECTOR * SECTORS).unwrap();
            let kept: Vec<usize> = read
                .chunks(8 * SECTOR)
                .map(|write| write.chunks(SECTOR).filter(|data| version(data) != 0).count())
                .collect();
            lost_earlier |= kept.windows(2).any(|pair| pair[0] == 0 && pair[1] == 8);
            torn |= kept.iter().any(|count| (1..8).contains(count));
            assert!(mode == Survival::Torn || kept.iter().all(|count| [0, 8].contains(count)));
        }
    }
    assert!(lost_earlier && torn);
}

#[test]
fn the_same_seed_gives_the_same_cut() {
    let cut = |seed| {
        let (_directory, media, _file) = media("media");
        for id in 1..=30 {
            media.write(id, (id * 2 % 60) * SECTOR as u64, sector_of(id).repeat(3).into());
        }
        media.cut(Survival::Any, &mut Random::branch(seed, 1)).unwrap();
        media.read(0, SECTOR * SECTORS).unwrap()
    };
    assert!((0..10).all(|seed| cut(seed) == cut(seed)));
    assert!((0..10).any(|seed| cut(seed) != cut(seed + 1)));
}

#[test]
fn bit_rot_flips_single_bits_of_data_alone() {
    let directory = tempfile::tempdir().unwrap();
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(directory.path().join("media"))
        .unwrap();
    file.set_len(1 << 30).unwrap();
    file.write_all_at(&[0x55; 65_536], 512 << 20).unwrap();
    let media = Media::new(file, 512);
    let flipped = media.rot(3, &mut Random::new(1)).unwrap();
    assert_eq!(flipped.len(), 3);
    assert!(
        flipped
            .iter()
            .all(|offset| (512 << 20..(512 << 20) + 65_536).contains(offset))
    );
    let data = media.read(512 << 20, 65_536).unwrap();
    let changed: u32 = data.iter().map(|byte| (byte ^ 0x55).count_ones()).sum();
    assert!((1..=3).contains(&changed));
}
