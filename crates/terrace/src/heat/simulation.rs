//! The policy on the workload of the study of video tiering, without devices: 300 titles of 466 segments, 50 sessions that each
//! read a title in order, one in ten gives up. Segments of copies are modelled as `promote` handles them.

#![allow(clippy::unwrap_used, clippy::cast_precision_loss, clippy::cast_possible_truncation)]

use super::{
    GroupRule,
    popularity::{Popularity, Worth},
};
use rand::{Rng, SeedableRng, rngs::StdRng};

const TITLES: usize = 300;
const PARTS: usize = 466;
const SESSIONS: usize = 50;
/// Copies in a segment: 64 MiB of 2.3 MB.
const SEGMENT: usize = 28;
const PART_BYTES: u64 = 2_300_000;

struct Workload {
    exponent: f64,
    /// Two titles change places each time so many sessions have begun; 0 for never.
    swap_every: usize,
}

struct Outcome {
    hits: f64,
    /// Copies written per 100 reads.
    writes: f64,
    /// Share of the reads that the best fixed choice of titles would answer.
    optimum: f64,
}

struct Segments {
    list: Vec<Vec<usize>>,
    place: Vec<Option<usize>>,
    free: Vec<usize>,
    open: [usize; 2],
    written: u64,
    looked_to: usize,
    is_passing: Vec<bool>,
    keys: Vec<Vec<u8>>,
}

struct Session {
    title: usize,
    part: usize,
    end: usize,
}

fn key(object: usize) -> Vec<u8> {
    format!("titles/{}/seg-{:04}.ts", object / PARTS, object % PARTS).into_bytes()
}

impl Segments {
    fn new(copies: usize) -> Self {
        let count = (copies / SEGMENT).max(8);
        let mut free: Vec<usize> = (0..count).rev().collect();
        let open = [free.pop().unwrap(), free.pop().unwrap()];
        Self {
            list: vec![Vec::new(); count],
            place: vec![None; TITLES * PARTS],
            free,
            open,
            written: 0,
            looked_to: 0,
            is_passing: vec![false; count],
            keys: (0..TITLES * PARTS).map(key).collect(),
        }
    }

    fn append(&mut self, object: usize, worth: Worth) -> bool {
        let which = usize::from(worth == Worth::Passing);
        if self.list[self.open[which]].len() >= SEGMENT {
            let Some(next) = self.free.pop() else { return false };
            self.open[which] = next;
            self.is_passing[next] = worth == Worth::Passing;
        }
        self.list[self.open[which]].push(object);
        self.place[object] = Some(self.open[which]);
        self.written += 1;
        true
    }

    fn clean(&mut self, popularity: &Popularity) {
        let keys = std::mem::take(&mut self.keys);
        let worth = |object: usize| popularity.worth(&keys[object], PART_BYTES);
        while self.free.len() < 2 {
            let mut least = (usize::MAX, 0);
            for _ in 0..self.list.len().min(64) {
                self.looked_to = (self.looked_to + 1) % self.list.len();
                let number = self.looked_to;
                if self.open.contains(&number) || self.free.contains(&number) {
                    continue;
                }
                let mut kept = 0;
                for &object in &self.list[number] {
                    kept += usize::from(self.place[object] == Some(number) && worth(object) != Worth::None);
                    if kept >= least.0 {
                        break;
                    }
                }
                least = least.min((kept, number));
            }
            let victim = least.1;
            let mut recopied = 0;
            for object in std::mem::take(&mut self.list[victim]) {
                if self.place[object] != Some(victim) {
                    continue;
                }
                self.place[object] = None;
                let worth = worth(object);
                if worth != Worth::None && recopied < SEGMENT * 3 / 4 && self.append(object, worth) {
                    recopied += 1;
                }
            }
            self.free.push(victim);
        }
        self.keys = keys;
    }

    /// Bytes of copies in segments for passing ones.
    fn passing_bytes(&self) -> u64 {
        let bytes = |number: usize| {
            let here = self.list[number]
                .iter()
                .filter(|object| self.place[**object] == Some(number));
            here.count() as u64 * PART_BYTES
        };
        (0..self.list.len())
            .filter(|number| self.is_passing[*number])
            .map(bytes)
            .sum()
    }
}

fn simulate(workload: &Workload, share: f64, sessions: usize, measured: usize) -> Outcome {
    let mut rng = StdRng::seed_from_u64(7);
    let weights: Vec<f64> = (1..=TITLES)
        .map(|rank| (rank as f64).powf(-workload.exponent))
        .collect();
    let total: f64 = weights.iter().sum();
    let mut title_of_rank: Vec<usize> = (0..TITLES).collect();
    let popularity = Popularity::new(GroupRule::LastSlash);
    let copies = (share * (TITLES * PARTS) as f64) as usize;
    let mut segments = Segments::new(copies);
    popularity.set_space(copies as u64 * PART_BYTES, 0);
    let mut begun = 0;
    let mut begin = |rng: &mut StdRng, begun: &mut usize| {
        *begun += 1;
        if workload.swap_every > 0 && *begun % workload.swap_every == 0 {
            title_of_rank.swap(rng.random_range(0..TITLES), rng.random_range(0..TITLES));
        }
        let mut at = rng.random::<f64>() * total;
        let rank = weights.iter().position(|weight| {
            at -= weight;
            at < 0.0
        });
        Session {
            title: title_of_rank[rank.unwrap_or(TITLES - 1)],
            part: 0,
            end: if rng.random_bool(0.1) {
                rng.random_range(1..PARTS)
            } else {
                PARTS
            },
        }
    };
    let mut running: Vec<Session> = (0..SESSIONS).map(|_| begin(&mut rng, &mut begun)).collect();
    for session in &mut running {
        session.part = rng.random_range(0..session.end);
    }
    let (mut reads, mut hits, mut written_before) = (0_u64, 0_u64, 0);
    while begun < sessions + measured {
        let session = rng.random_range(0..SESSIONS);
        let Session { title, part, end } = running[session];
        let object = title * PARTS + part;
        let worth = popularity.read(&segments.keys[object], PART_BYTES);
        while let Some(group) = popularity.unmeasured() {
            popularity.measured(&group, PARTS as u64, PARTS as u64 * PART_BYTES);
        }
        reads += 1;
        if segments.place[object].is_some() {
            hits += 1;
        } else if worth != Worth::None {
            segments.append(object, worth);
            if segments.free.len() < 2 {
                segments.clean(&popularity);
                popularity.set_space(copies as u64 * PART_BYTES, segments.passing_bytes());
            }
        }
        if part + 1 >= end {
            running[session] = begin(&mut rng, &mut begun);
            if begun == sessions {
                (reads, hits, written_before) = (0, 0, segments.written);
            }
        } else {
            running[session].part += 1;
        }
    }
    let fitting = (share * TITLES as f64) as usize;
    Outcome {
        hits: hits as f64 / reads as f64,
        writes: (segments.written - written_before) as f64 / reads as f64 * 100.0,
        optimum: weights[..fitting].iter().sum::<f64>() / total,
    }
}

/// The full table takes minutes; `cargo test --release -p terrace heat::simulation -- --ignored --nocapture` prints it.
#[test]
#[ignore = "prints a table; takes minutes"]
fn table() {
    for (exponent, swap_every) in [(0.271, 0), (0.271, 20), (0.729, 0)] {
        println!("exponent {exponent}, a swap every {swap_every} sessions");
        for share in [0.05, 0.1, 0.2, 0.3, 0.4, 0.5] {
            let workload = Workload { exponent, swap_every };
            let outcome = simulate(&workload, share, 6_000, 3_000);
            println!(
                "  flash {share:.2}: {:.1} % hits, fixed optimum {:.1} %, {:.1} writes per 100 reads",
                outcome.hits * 100.0,
                outcome.optimum * 100.0,
                outcome.writes
            );
        }
    }
}

#[test]
fn hits_come_near_the_best_fixed_choice_with_few_writes() {
    let workload = Workload {
        exponent: 0.729,
        swap_every: 0,
    };
    let outcome = simulate(&workload, 0.2, 800, 300);
    assert!(
        outcome.hits > outcome.optimum - 0.05,
        "{:.3} of {:.3}",
        outcome.hits,
        outcome.optimum
    );
    assert!(outcome.writes < 20.0, "{:.1}", outcome.writes);
}
