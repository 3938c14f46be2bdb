//! Many lives of one store, and what they came through.

use super::{
    journal::{Journal, Violation},
    life::{self, Life, Moment, Plan},
    machine::{Machine, Place},
    mutations::Mutant,
    workload::MOODS,
    writer::TOLD,
};
use crate::Outcome;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

/// A failure, and when.
#[derive(Debug)]
pub struct Caught {
    /// In which cycle.
    pub cycle: u64,
    /// What.
    pub violation: Violation,
}

/// What a history came to.
#[derive(Debug)]
pub struct History {
    /// What it came through.
    pub tally: Tally,
    /// What went wrong.
    pub caught: Option<Caught>,
}

/// What lives came through.
#[derive(Debug, Default)]
pub struct Tally {
    cycles: u64,
    cuts: u64,
    kills: u64,
    ended_in_recovery: u64,
    done: BTreeMap<String, u64>,
    durable: u64,
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
        self.cycles += 1;
        self.cuts += u64::from(plan.is_cut);
        self.kills += u64::from(!plan.is_cut);
        self.ended_in_recovery += u64::from(life.ended_in_recovery);
        for (kind, count) in &life.done {
            *self.done.entry(kind.clone()).or_default() += count;
        }
        for (event, count) in &life.events {
            *self.events.entry(event.clone()).or_default() += count;
        }
        self.durable += life.durable;
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

    /// A history that meets no mechanism proves nothing.
    ///
    /// # Errors
    /// What it did not meet. A history of a few cycles need not meet everything.
    pub fn is_meaningful(&self, has_power: bool) -> Outcome {
        const CYCLES_MIN: u64 = 10;
        if self.cycles < CYCLES_MIN {
            println!("too short to say what it must have met: under {CYCLES_MIN} cycles");
            return Ok(());
        }
        let mut met = vec![
            ("acknowledged Sync commits", self.durable),
            ("segments recycled", self.recycled),
            ("index flushes", self.flushes),
            ("compactions", self.event("compacted the index")),
            ("bytes written again into the log", self.reinserted_bytes),
            ("bytes destaged", self.destaged_bytes),
            ("sealed blocks", self.event("sealed a block")),
            ("deleted blocks", self.event("deleted a dead block")),
        ];
        if has_power {
            met.extend([
                ("cuts", self.cuts),
                ("cuts during recovery", self.ended_in_recovery),
                ("lost buffered commits", self.lost),
            ]);
        }
        let missed: Vec<&str> = met
            .iter()
            .filter(|(_, count)| *count == 0)
            .map(|(name, _)| *name)
            .collect();
        if missed.is_empty() {
            Ok(())
        } else {
            Err(format!("the history proves nothing: it had no {}", missed.join(", no ")).into())
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} cycles in {:.0} s: {} power cuts, {} kills, {} of them during recovery",
            self.cycles, self.seconds, self.cuts, self.kills, self.ended_in_recovery
        )?;
        let done: Vec<String> = self
            .done
            .iter()
            .map(|(kind, count)| format!("{count} {kind}"))
            .collect();
        writeln!(
            f,
            "acknowledged: {}; {} of them Sync; {} Buffered ones lost, {} there without acknowledgement",
            done.join(", "),
            self.durable,
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
        let events: Vec<String> = self
            .events
            .iter()
            .map(|(event, count)| format!("{event} {count}"))
            .collect();
        writeln!(f, "events: {}", events.join(", "))
    }
}

#[allow(clippy::cast_precision_loss)]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// How a life goes, by chance.
fn plan(rng: &mut StdRng, life: u64, has_power: bool) -> Plan {
    let moment = match rng.random_range(0..100) {
        0..12 => Moment::Opening(Duration::from_micros(rng.random_range(0..250_000))),
        12..32 => Moment::Acknowledgements(rng.random_range(1..12)),
        32..67 => Moment::Event {
            name: TOLD.choose(rng).copied().unwrap_or(TOLD[0]),
            nth: rng.random_range(1..20),
            delay: Duration::from_micros(
                [0, rng.random_range(0..3_000), rng.random_range(0..60_000)][rng.random_range(0..3)],
            ),
        },
        _ => Moment::Time(Duration::from_micros(rng.random_range(2_000..1_800_000))),
    };
    Plan {
        life,
        mood: rng.random_range(0..MOODS.len()),
        seed: rng.random(),
        page_cache: rng.random_bool(0.15),
        moment,
        is_cut: has_power && rng.random_bool(0.85),
        large_first: rng.random_bool(0.5),
    }
}

/// Runs a history on a new store.
///
/// # Errors
/// If the machinery fails, which says nothing of the store.
pub fn run(place: &Place, cycles: u64, seed: u64, mutant: Option<&Mutant>, verbose: bool) -> Outcome<History> {
    let started = Instant::now();
    let mut machine = Machine::create(place, seed)?;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut tally = Tally::default();
    let mut journal = Journal::default();
    let mut caught = None;
    for cycle in 1..=cycles + 1 {
        let mut plan = plan(&mut rng, cycle, place.is_cut());
        if cycle > cycles {
            // To judge the last cycle.
            plan.moment = Moment::Checked;
            plan.is_cut = false;
        }
        let began = Instant::now();
        let life = life::run(&mut machine, &plan, std::mem::take(&mut journal), mutant)?;
        if cycle <= cycles {
            tally.count(&life, &plan);
        } else {
            tally.count_judgement(&life);
        }
        if verbose {
            report(cycle, &plan, &life, began.elapsed());
        }
        if let Some(violation) = life.violation {
            if mutant.is_none() {
                print_circumstances(cycle, &plan, &life.notes);
            }
            caught = Some(Caught { cycle, violation });
            break;
        }
        journal = life.journal;
    }
    tally.seconds = started.elapsed().as_secs_f64();
    machine.remove()?;
    Ok(History { tally, caught })
}

fn report(cycle: u64, plan: &Plan, life: &Life, took: Duration) {
    let done: u64 = life.done.values().sum();
    println!(
        "{cycle:4} {:8} {:?}{}{} {} objects, {done} done, {:?}, {} recycled, {} flushes, {} KiB destaged, {} pending, {:.1} s",
        plan.mood_name(),
        plan.moment,
        if plan.is_cut { "" } else { " kill" },
        if plan.page_cache { " page-cache" } else { "" },
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
