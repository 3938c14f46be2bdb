//! A history: many lives of one store, with their statistics.

use super::{
    journal::{Journal, Violation},
    life::{self, Life, Moment, Plan},
    machine::{Machine, Place},
    mutations::{Focus, Mutant},
    plan::{Before, early, plan},
};
use crate::Outcome;
use rand::{Rng, SeedableRng, rngs::StdRng};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Histories shorter than this many cycles need not meet any mechanism.
const CYCLES_MIN: u64 = 10;
/// Histories of at least this many cycles must meet every mechanism.
const CYCLES_FOR_ALL: u64 = 50;
/// Share of cycles on a new store of their own.
const YOUNG_SHARE: f64 = 0.12;
/// A short history that has not met every mechanism is extended up to this many times its length.
const LONGER_MAX: u64 = 5;
/// Lives needed, for each one expected, in which a hole is left where a frame fits: few short lives
/// leave one.
const LIVES_AROUND_HOLES: u64 = 3;
/// The same for lives with torn frames; one in sixty ends the log with one.
const LIVES_WITH_TORN_FRAMES: u64 = 5;

/// A failure and its cycle.
#[derive(Debug)]
pub struct Caught {
    /// The cycle.
    pub cycle: u64,
    /// What.
    pub violation: Violation,
}

/// Result of a history.
#[derive(Debug)]
pub struct History {
    /// Its statistics.
    pub tally: Tally,
    /// The failure, if there was one.
    pub caught: Option<Caught>,
}

/// Statistics of lives.
#[derive(Debug, Default)]
pub struct Tally {
    /// Cycles run.
    pub cycles: u64,
    /// Cycles requested.
    asked: u64,
    lives: u64,
    cuts: u64,
    ended_in_recovery: u64,
    young: u64,
    done: BTreeMap<String, u64>,
    durable: u64,
    reads: u64,
    lost: u64,
    unheard: u64,
    recycled: u64,
    flushes: u64,
    reinserted_bytes: u64,
    destaged_bytes: u64,
    events: BTreeMap<String, u64>,
    seconds: f64,
}

impl Tally {
    fn count(&mut self, life: &Life, plan: &Plan) {
        self.lives += 1;
        self.cuts += u64::from(plan.is_cut);
        self.ended_in_recovery += u64::from(life.ended_in_recovery);
        for (kind, count) in &life.done {
            *self.done.entry(kind.clone()).or_default() += count;
        }
        for (event, count) in &life.events {
            *self.events.entry(event.clone()).or_default() += count;
        }
        self.durable += life.durable;
        self.reads += life.reads;
        self.recycled += life.counts.recycled;
        self.flushes += life.counts.flushes;
        self.reinserted_bytes += life.counts.reinserted_bytes;
        self.destaged_bytes += life.counts.destaged_bytes;
        self.count_judgement(life);
    }

    fn count_judgement(&mut self, life: &Life) {
        if let Some(survived) = life.survived {
            self.lost += survived.lost;
            self.unheard += survived.unheard;
        }
    }

    fn event(&self, name: &str) -> u64 {
        self.events.get(name).copied().unwrap_or(0)
    }

    /// Checks that the history met the mechanisms it should: otherwise it proves nothing.
    ///
    /// # Errors
    /// What it did not meet. A short history need not meet everything.
    pub fn is_meaningful(&self, has_power: bool) -> Outcome {
        if self.asked < CYCLES_MIN {
            println!("too short to say what it must have met: under {CYCLES_MIN} cycles");
        }
        let missed = self.missed(has_power);
        if missed.is_empty() {
            return Ok(());
        }
        Err(format!("the history proves nothing: it had no {}", missed.join(", no ")).into())
    }

    /// The mechanisms that a history of this length should have met and has not.
    fn missed(&self, has_power: bool) -> Vec<&'static str> {
        if self.asked < CYCLES_MIN {
            return Vec::new();
        }
        let mut met = vec![
            ("acknowledged Sync commits", self.durable),
            ("versions read while they were written", self.reads),
            ("segments recycled", self.recycled),
            ("index flushes", self.flushes),
            ("bytes destaged", self.destaged_bytes),
            ("sealed blocks", self.event("sealed a block")),
            ("deleted blocks", self.event("deleted a dead block")),
        ];
        if has_power {
            met.push(("cuts", self.cuts));
        }
        if self.asked >= CYCLES_FOR_ALL {
            met.extend([
                ("compactions", self.event("compacted the index")),
                ("bytes written again into the log", self.reinserted_bytes),
                ("lost buffered commits", self.lost),
                ("end during recovery", self.ended_in_recovery),
                ("store that was just made", self.young),
            ]);
        }
        met.iter()
            .filter(|(_, count)| *count == 0)
            .map(|(name, _)| *name)
            .collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} cycles, {} lives of the writer in {:.0} s: {} power cuts, {} kills; {} of them during recovery, {} of a young store",
            self.cycles,
            self.lives,
            self.seconds,
            self.cuts,
            self.lives - self.cuts,
            self.ended_in_recovery,
            self.young
        )?;
        let list = |counts: &BTreeMap<String, u64>| {
            let counts: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
            counts.join(", ")
        };
        writeln!(
            f,
            "acknowledged: {}; {} of them Sync; {} versions read; {} Buffered ones lost, {} there without acknowledgement",
            list(&self.done),
            self.durable,
            self.reads,
            self.lost,
            self.unheard
        )?;
        writeln!(
            f,
            "segments recycled {}, index flushes {}, MiB reinserted {:.1}, MiB destaged {:.1}",
            self.recycled,
            self.flushes,
            mebibytes(self.reinserted_bytes),
            mebibytes(self.destaged_bytes)
        )?;
        writeln!(f, "events: {}", list(&self.events))
    }
}

#[allow(clippy::cast_precision_loss)]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Runs histories on one machine.
struct Runner<'a> {
    machine: Machine,
    has_power: bool,
    rng: StdRng,
    mutant: Option<&'a Mutant>,
    verbose: bool,
    tally: Tally,
    lives: u64,
    /// Set by a signal: the run then removes its drives before it ends.
    interrupted: Arc<AtomicBool>,
}

impl Runner<'_> {
    /// Runs and reports one life. The result contains a violation, if any.
    fn live(&mut self, cycle: u64, plan: &Plan, journal: Journal) -> Outcome<Life> {
        let began = Instant::now();
        let life = life::run(&mut self.machine, plan, journal, self.mutant)?;
        if self.interrupted.load(Ordering::Relaxed) {
            return Err("interrupted".into());
        }
        if self.verbose {
            report(cycle, plan, &life, began.elapsed());
        }
        if life.violation.is_some() && self.mutant.is_none() {
            print_circumstances(cycle, plan, &life.notes);
        }
        Ok(life)
    }

    fn next_life(&mut self) -> u64 {
        self.lives += 1;
        self.lives
    }

    /// A life without writes, to check the state after the previous one.
    fn look(&mut self, cycle: u64, journal: Journal) -> Outcome<Life> {
        let number = self.next_life();
        let looking = Plan {
            moment: Moment::Checked,
            is_cut: false,
            ..plan(&mut self.rng, number, self.has_power, Before::default())
        };
        let life = self.live(cycle, &looking, journal)?;
        self.tally.count_judgement(&life);
        Ok(life)
    }

    /// A cycle on a new store, cut once or a few times soon after it is made.
    fn new_store(&mut self, cycle: u64) -> Outcome<Option<Violation>> {
        self.machine.turn_to(Some(&format!("young-{cycle}")));
        let mut life = Life::default();
        for _ in 0..self.rng.random_range(1..4) {
            let number = self.next_life();
            let plan = early(&mut self.rng, number, self.has_power);
            life = self.live(cycle, &plan, std::mem::take(&mut life.journal))?;
            self.tally.count(&life, &plan);
            self.tally.young += 1;
            if life.violation.is_some() {
                break;
            }
        }
        if life.violation.is_none() {
            let journal = std::mem::take(&mut life.journal);
            life = self.look(cycle, journal)?;
        }
        if life.violation.is_none() {
            self.machine.remove_store()?;
        }
        self.machine.turn_to(None);
        Ok(life.violation)
    }

    fn focus(&self) -> Option<Focus> {
        self.mutant.and_then(Mutant::focus)
    }

    /// Whether a history without a mutation still lacks a mechanism.
    fn has_missed(&self) -> bool {
        self.mutant.is_none() && !self.tally.missed(self.has_power).is_empty()
    }

    /// All cycles; the last one is checked by a life without writes.
    fn run(&mut self, cycles: u64) -> Outcome<Option<Caught>> {
        let mut journal = Journal::default();
        let mut before = Before::default();
        self.tally.asked = cycles;
        let cycles = match self.focus() {
            Some(Focus::Holes) => cycles * LIVES_AROUND_HOLES,
            Some(Focus::TornFrames) => cycles * LIVES_WITH_TORN_FRAMES,
            _ => cycles,
        };
        let mut cycle = 0;
        while cycle < cycles || (cycle < cycles * LONGER_MAX && self.has_missed()) {
            cycle += 1;
            self.tally.cycles = cycle;
            let focus = self.focus();
            let young_share = match focus {
                Some(Focus::Young) => 0.6,
                Some(Focus::Holes | Focus::TornFrames) => 0.0,
                _ => YOUNG_SHARE,
            };
            before.focus = focus;
            let violation = if self.rng.random_bool(young_share) {
                self.new_store(cycle)?
            } else {
                let number = self.next_life();
                let plan = plan(&mut self.rng, number, self.has_power, before);
                let life = self.live(cycle, &plan, std::mem::take(&mut journal))?;
                self.tally.count(&life, &plan);
                before = Before {
                    left_cached: !plan.is_cut && plan.page_cache && !life.ended_in_recovery,
                    pending_writes: life.pending_writes,
                    focus,
                };
                journal = life.journal;
                life.violation
            };
            if let Some(violation) = violation {
                return Ok(Some(Caught { cycle, violation }));
            }
        }
        let last = self.look(cycle, journal)?;
        Ok(last.violation.map(|violation| Caught { cycle, violation }))
    }
}

/// Runs a history on a new store.
///
/// # Errors
/// If the test machinery fails, which says nothing about the store.
pub fn run(place: &Place, cycles: u64, seed: u64, mutant: Option<&Mutant>, verbose: bool) -> Outcome<History> {
    let started = Instant::now();
    let mut runner = Runner {
        machine: Machine::create(place, seed)?,
        has_power: place.is_cut(),
        rng: StdRng::seed_from_u64(seed),
        mutant,
        verbose,
        tally: Tally::default(),
        lives: 0,
        interrupted: Arc::default(),
    };
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&runner.interrupted))?;
    }
    let caught = runner.run(cycles)?;
    let Runner { machine, mut tally, .. } = runner;
    tally.seconds = started.elapsed().as_secs_f64();
    machine.remove()?;
    Ok(History { tally, caught })
}

fn report(cycle: u64, plan: &Plan, life: &Life, took: Duration) {
    let done: u64 = life.done.values().sum();
    println!(
        "{cycle:4} {:8} {:?}{}{}{} {} objects, {done} done, {:?}, {} recycled, {} flushes, {} KiB destaged, {} pending, {:.1} s",
        plan.mood_name(),
        plan.moment,
        if plan.is_cut { "" } else { " kill" },
        if plan.page_cache { " page-cache" } else { "" },
        if plan.has_neighbour { " neighbour" } else { "" },
        life.objects,
        life.survived,
        life.counts.recycled,
        life.counts.flushes,
        life.counts.destaged_bytes >> 10,
        life.pending_writes,
        took.as_secs_f64(),
    );
}

fn print_circumstances(cycle: u64, plan: &Plan, notes: &[String]) {
    println!("cycle {cycle}: {plan:?}");
    for note in notes {
        println!("  the engine said: {note}");
    }
}
