//! Evaluates the results: means over the runs, costs per read by regression, and the drives' limit.
//!
//! Runs are combined only if they differ in nothing but contender, order, ratio and number. If a
//! directory has several such sets (two scales, two pairs of drives), the largest is used and the
//! other runs are counted as left out.

use super::{
    evaluation::{Contender, Surroundings},
    insert::{self, Inserted, Order},
    paper::{Costs, mean_read_bytes},
    read::{self, RawSettings, Read},
};
use crate::{
    Outcome,
    harness::{
        fio::RawReads,
        place::PlaceTraffic,
        results::{Record, rows},
        setup::{BothTraffic, Setup},
        statistics::{Line, Summary, regress},
    },
    rivals::{Candidate, Figures},
};
use std::collections::BTreeMap;

/// The results of the parts on drives.
#[derive(Debug, Clone, Default)]
pub struct Model {
    /// Runs of figure 9.
    pub inserts: BTreeMap<(Contender, Order), Vec<Inserted>>,
    /// The reading runs, by ratio.
    pub reads: BTreeMap<(Contender, u64), Vec<Read>>,
    /// fio's reads of each drive: mean times over the runs, in microseconds, and the size of a
    /// read.
    pub raw: BTreeMap<Setup, (Summary, u64)>,
    /// Sizes and drives.
    pub surroundings: Option<Surroundings>,
    /// Groups inserted for figure 9.
    pub insert_groups: u64,
    /// Groups read from.
    pub read_groups: u64,
    /// Runs of other sets.
    pub left_out: usize,
}

/// Source of a count of written bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The emulated drives.
    Drives,
    /// The engine.
    Engine,
}

/// The largest set of runs that can be combined: those with the same `set`. The others are counted.
pub fn largest<S, T, K: Ord>(rows: Vec<(S, T)>, left_out: &mut usize, set: impl Fn(&S) -> K) -> Vec<(S, T)> {
    let mut sets = BTreeMap::<K, Vec<_>>::new();
    for row in rows {
        sets.entry(set(&row.0)).or_default().push(row);
    }
    let last = sets.pop_last().map_or_else(Vec::new, |(_, rows)| rows);
    *left_out += sets.values().map(Vec::len).sum::<usize>();
    last
}

impl Model {
    /// Evaluates all results of a directory.
    pub fn of(records: &[Record]) -> Outcome<Self> {
        let mut model = Self::default();
        let inserts = largest(
            rows(records, insert::EXPERIMENT)?,
            &mut model.left_out,
            |settings: &insert::Settings| (settings.groups, format!("{:?}", settings.surroundings)),
        );
        for (settings, inserted) in inserts {
            model.insert_groups = settings.groups;
            let runs = model.inserts.entry((settings.contender, settings.order));
            runs.or_default().push(inserted);
            model.surroundings = Some(settings.surroundings);
        }
        let reads = largest(
            rows(records, read::EXPERIMENT)?,
            &mut model.left_out,
            |settings: &read::Settings| {
                let surroundings = format!("{:?}", settings.surroundings);
                (settings.groups, settings.small_reads, surroundings)
            },
        );
        for (settings, read) in reads {
            model.read_groups = settings.groups;
            let runs = model.reads.entry((settings.contender, settings.ratio));
            runs.or_default().push(read);
            model.surroundings = Some(settings.surroundings);
        }
        let mut raw = BTreeMap::<_, Vec<(RawSettings, RawReads)>>::new();
        for row in rows::<RawSettings, RawReads>(records, read::RAW_EXPERIMENT)? {
            raw.entry(row.0.drive).or_default().push(row);
        }
        model.take_raw(raw);
        Ok(model)
    }

    /// Stores fio's reads of the drives used by the reading runs.
    fn take_raw(&mut self, raw: BTreeMap<Setup, Vec<(RawSettings, RawReads)>>) {
        let Some(surroundings) = &self.surroundings else { return };
        for (drive, runs) in raw {
            let description = if drive == Setup::Hdd {
                &surroundings.hdd
            } else {
                &surroundings.ssd
            };
            let fits = |settings: &RawSettings| {
                settings.description == *description
                    && settings.reads.file_bytes == settings.reads.read_bytes * self.read_groups
            };
            let (mine, others): (Vec<_>, Vec<_>) = runs.into_iter().partition(|(settings, _)| fits(settings));
            self.left_out += others.len();
            let times: Vec<f64> = mine.iter().map(|(_, raw)| raw.mean_us).collect();
            if let (Some(summary), Some((settings, _))) = (Summary::of(&times), mine.first()) {
                self.raw.insert(drive, (summary, settings.reads.read_bytes));
            }
        }
    }

    /// The measured ratios.
    pub fn ratios(&self) -> Vec<u64> {
        let mut ratios: Vec<u64> = self.reads.keys().map(|key| key.1).collect();
        ratios.sort_unstable();
        ratios.dedup();
        ratios
    }

    /// The contenders.
    pub fn contenders(&self) -> Vec<Contender> {
        let took_part = |contender: &Contender| {
            self.reads.keys().any(|key| key.0 == *contender) || self.inserts.keys().any(|key| key.0 == *contender)
        };
        Contender::ALL.into_iter().filter(took_part).collect()
    }

    /// A figure of each reading run.
    fn of_reads(&self, contender: Contender, ratio: u64, figure: impl Fn(&Read) -> f64) -> Option<Summary> {
        let runs = self.reads.get(&(contender, ratio))?;
        Summary::of(&runs.iter().map(figure).collect::<Vec<f64>>())
    }

    /// Reads per second (figure 10).
    pub fn reads_per_second(&self, contender: Contender, ratio: u64) -> Option<Summary> {
        self.of_reads(contender, ratio, Read::per_second)
    }

    /// MB of values per second (figure 12); a MB has 10^6 bytes.
    pub fn read_mb_per_second(&self, contender: Contender, ratio: u64) -> Option<Summary> {
        let sizes = self.surroundings.as_ref()?;
        self.of_reads(contender, ratio, |read| {
            let bytes =
                read.small.count as f64 * sizes.small_bytes as f64 + read.large.count as f64 * sizes.large_bytes as f64;
            bytes / read.seconds / 1e6
        })
    }

    /// MB per second read from a place, counted by the kernel or else the drive (figure 14).
    pub fn device_mb_per_second(
        &self,
        contender: Contender,
        ratio: u64,
        place: fn(&BothTraffic) -> &PlaceTraffic,
    ) -> Option<Summary> {
        let bytes = |read: &Read| {
            let traffic = place(&read.traffic);
            traffic
                .device
                .or(traffic.drive)
                .map(|traffic| traffic.read_bytes as f64 / read.seconds / 1e6)
        };
        let runs = self.reads.get(&(contender, ratio))?;
        Summary::of(&runs.iter().filter_map(bytes).collect::<Vec<f64>>())
    }

    /// Microseconds of a small and a large read, by regression over all runs: the time of a cycle
    /// (`ratio` small reads and a large one) as a function of the ratio.
    pub fn regression(&self, contender: Contender) -> Option<Line> {
        regress(&self.runs_of(contender).filter_map(Read::cycle).collect::<Vec<_>>())
    }

    fn runs_of(&self, contender: Contender) -> impl Iterator<Item = &Read> {
        let of_contender = self.reads.iter().filter(move |(key, _)| key.0 == contender);
        of_contender.flat_map(|(_, runs)| runs)
    }

    /// Table 3 for an engine.
    pub fn costs(&self, engine: Candidate) -> Option<Costs> {
        let [ssd, hdd] = [Setup::Ssd, Setup::Hdd].map(|setup| self.regression(Contender { engine, setup }));
        let (ssd, hdd) = (ssd?, hdd?);
        Some(Costs {
            source: "linear regression of these runs".to_owned(),
            small_ssd_us: ssd.slope,
            large_ssd_us: ssd.intercept,
            small_hdd_us: hdd.slope,
            large_hdd_us: hdd.intercept,
        })
    }

    /// Mean measured microseconds of a small and of a large read.
    pub fn timed(&self, contender: Contender) -> Option<(f64, f64)> {
        let mean = |of: fn(&Read) -> (u64, f64)| {
            let (count, sum) = self.runs_of(contender).map(of).fold((0, 0.0), |sum, (count, mean)| {
                (sum.0 + count, sum.1 + count as f64 * mean)
            });
            (count > 0).then(|| sum / count as f64)
        };
        Some((
            mean(|read| (read.small.count, read.small.mean_us))?,
            mean(|read| (read.large.count, read.large.mean_us))?,
        ))
    }

    /// Reads per second if only the drives' own reads took time: Hybrid.
    pub fn limit(&self, ratio: u64) -> Option<f64> {
        let (small, large) = (self.raw.get(&Setup::Ssd)?.0.mean, self.raw.get(&Setup::Hdd)?.0.mean);
        let ratio = ratio as f64;
        Some(1e6 * (ratio + 1.0) / (ratio * small + large))
    }

    /// MB per second of a predicted rate of reads (equation 5).
    pub fn mb_of(&self, reads_per_second: f64, ratio: u64) -> f64 {
        let sizes = self
            .surroundings
            .as_ref()
            .map_or((0.0, 0.0), |sizes| (sizes.small_bytes as f64, sizes.large_bytes as f64));
        reads_per_second * mean_read_bytes(sizes.0, sizes.1, ratio as f64) / 1e6
    }

    /// A figure of each inserting run.
    fn of_inserts(
        &self,
        contender: Contender,
        order: Order,
        figure: impl Fn(&Inserted) -> Option<f64>,
    ) -> Option<Summary> {
        let runs = self.inserts.get(&(contender, order))?;
        Summary::of(&runs.iter().filter_map(figure).collect::<Vec<f64>>())
    }

    /// Objects inserted per second until durable (figure 9 a).
    pub fn objects_per_second(&self, contender: Contender, order: Order) -> Option<Summary> {
        self.of_inserts(contender, order, |run| {
            Some(2.0 * run.write.count as f64 / run.durable_seconds)
        })
    }

    /// Bytes put in an inserting run.
    fn put_bytes(&self, run: &Inserted) -> Option<f64> {
        Some(run.write.count as f64 * self.surroundings.as_ref()?.sizes().group() as f64)
    }

    /// MB inserted per second until durable (figure 9 b).
    pub fn insert_mb_per_second(&self, contender: Contender, order: Order) -> Option<Summary> {
        self.of_inserts(contender, order, |run| {
            Some(self.put_bytes(run)? / run.durable_seconds / 1e6)
        })
    }

    /// MB written to a place in an inserting run, counted by the kernel or else the drive.
    pub fn written_mb(
        &self,
        contender: Contender,
        order: Order,
        place: fn(&BothTraffic) -> &PlaceTraffic,
    ) -> Option<Summary> {
        self.of_inserts(contender, order, |run| {
            let traffic = place(&run.traffic);
            traffic
                .drive
                .or(traffic.device)
                .map(|traffic| traffic.written_bytes as f64 / 1e6)
        })
    }

    /// Write amplification: from the drives' counters if both are emulated, else from the engine's.
    pub fn write_amplification(&self, contender: Contender, order: Order) -> Option<(Summary, Source)> {
        let by_drives = self.of_inserts(contender, order, |run| {
            let written = run.traffic.ssd.drive?.written_bytes + run.traffic.hdd.drive?.written_bytes;
            Some(written as f64 / self.put_bytes(run)?)
        });
        if let Some(summary) = by_drives {
            return Some((summary, Source::Drives));
        }
        let by_engine = self.of_inserts(contender, order, |run| {
            // LevelDB's count does not include its log, to which each byte is written once.
            let log = f64::from(u8::from(contender.engine == Candidate::LevelDb));
            Some(run.engine.written_bytes? as f64 / self.put_bytes(run)? + log)
        });
        by_engine.map(|summary| (summary, Source::Engine))
    }

    /// A count of the engine over the inserting runs.
    pub fn engine_count(
        &self,
        contender: Contender,
        order: Order,
        figure: fn(&Figures) -> Option<u64>,
    ) -> Option<Summary> {
        self.of_inserts(contender, order, |run| figure(&run.engine).map(|count| count as f64))
    }
}
