//! The policy on the workload of the study of video tiering, without devices: 300 titles of 466 segments, 50 sessions that each
//! read a title in order, one in ten gives up. Segments of copies are modelled as `promote` handles them.

#![allow(clippy::unwrap_used, clippy::cast_precision_loss, clippy::cast_possible_truncation)]

use super::{
    GroupRule,
    popularity::{Popularity, Worth},
};

const TITLES: usize = 300;
const PARTS: usize = 466;
const SESSIONS: usize = 50;
/// Copies in a segment: 64 MiB of 2.3 MB.
const SEGMENT: usize = 29;
const PART_BYTES: u64 = 2_300_000;

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

/// Numbers that look random and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        (self.share() * end as f64) as usize
    }

    fn share(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Sessions, by Zipf's law over the titles.
struct Sessions {
    numbers: Numbers,
    weights: Vec<f64>,
    running: Vec<Session>,
    begun: usize,
}

impl Sessions {
    fn new(exponent: f64) -> Self {
        let mut sessions = Self {
            numbers: Numbers(88_172_645_463_325_252),
            weights: (1..=TITLES).map(|rank| (rank as f64).powf(-exponent)).collect(),
            running: Vec::new(),
            begun: 0,
        };
        for _ in 0..SESSIONS {
            let mut session = sessions.begin();
            session.part = sessions.numbers.below(session.end);
            sessions.running.push(session);
        }
        sessions
    }

    fn begin(&mut self) -> Session {
        self.begun += 1;
        let mut at = self.numbers.share() * self.weights.iter().sum::<f64>();
        let title = self.weights.iter().position(|weight| {
            at -= weight;
            at < 0.0
        });
        let gives_up = self.numbers.below(10) == 0;
        Session {
            title: title.unwrap_or(TITLES - 1),
            part: 0,
            end: if gives_up {
                1 + self.numbers.below(PARTS - 1)
            } else {
                PARTS
            },
        }
    }

    fn next_read(&mut self) -> usize {
        let at = self.numbers.below(SESSIONS);
        let Session { title, part, end } = self.running[at];
        if part + 1 < end {
            self.running[at].part += 1;
        } else {
            self.running[at] = self.begin();
        }
        title * PARTS + part
    }
}

fn simulate(exponent: f64, share: f64, warm_up: usize, measured: usize) -> Outcome {
    let mut sessions = Sessions::new(exponent);
    let popularity = Popularity::new(GroupRule::LastSlash);
    let copies = (share * (TITLES * PARTS) as f64) as usize;
    let mut segments = Segments::new(copies);
    popularity.set_space(copies as u64 * PART_BYTES, 0);
    let (mut reads, mut hits, mut written_before) = (0_u64, 0_u64, None);
    while sessions.begun < warm_up + measured {
        if written_before.is_none() && sessions.begun >= warm_up {
            (reads, hits, written_before) = (0, 0, Some(segments.written));
        }
        let object = sessions.next_read();
        let worth = popularity.read(&segments.keys[object], PART_BYTES).worth;
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
    }
    let fitting = (share * TITLES as f64) as usize;
    let weights = &sessions.weights;
    Outcome {
        hits: hits as f64 / reads as f64,
        writes: (segments.written - written_before.unwrap_or_default()) as f64 / reads as f64 * 100.0,
        optimum: weights[..fitting].iter().sum::<f64>() / weights.iter().sum::<f64>(),
    }
}

#[test]
fn hits_come_near_the_best_fixed_choice_with_few_writes() {
    let outcome = simulate(0.729, 0.2, 800, 300);
    let Outcome { hits, optimum, writes } = outcome;
    assert!(hits > optimum - 0.05, "{hits:.3} of {optimum:.3}");
    assert!(writes < 20.0, "{writes:.1} writes per 100 reads");
}
