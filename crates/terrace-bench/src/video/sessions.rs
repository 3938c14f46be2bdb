//! The workload of the study of video tiering: titles cut into segments, sessions that each read a title in order.

use rand::{Rng, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};

/// Titles in the catalogue.
pub const TITLES: usize = 300;
/// Segments of a title.
pub const PARTS: usize = 466;
/// Sessions at a time.
pub const SESSIONS: usize = 50;
/// Share of the sessions that give up before the end.
const ABANDONED: f64 = 0.1;

/// How titles are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Zipf's exponent.
    pub exponent: f64,
    /// Two titles change their places in the ranking each time so many sessions have begun; 0: never.
    pub swap_every: u64,
}

impl Choice {
    fn weights(self) -> Vec<f64> {
        (1..=TITLES).map(|rank| (rank as f64).powf(-self.exponent)).collect()
    }

    /// Share of the reads that the best fixed set of titles answers, with room for `share` of the catalogue.
    #[must_use]
    pub fn optimum(self, share: f64) -> f64 {
        let weights = self.weights();
        let fitting = (share * TITLES as f64) as usize;
        weights[..fitting].iter().sum::<f64>() / weights.iter().sum::<f64>()
    }
}

#[derive(Debug, Clone, Copy)]
struct Session {
    title: usize,
    part: usize,
    end: usize,
}

/// Reads, one after the other.
#[derive(Debug)]
pub struct Sessions {
    choice: Choice,
    weights: Vec<f64>,
    total: f64,
    titles: Vec<usize>,
    running: Vec<Session>,
    /// Sessions begun so far.
    pub begun: u64,
    rng: StdRng,
}

impl Sessions {
    /// Sessions under way, each somewhere in its title.
    #[must_use]
    pub fn new(choice: Choice, seed: u64) -> Self {
        let weights = choice.weights();
        let mut sessions = Self {
            choice,
            total: weights.iter().sum(),
            weights,
            titles: (0..TITLES).collect(),
            running: Vec::new(),
            begun: 0,
            rng: StdRng::seed_from_u64(seed),
        };
        for _ in 0..SESSIONS {
            let mut session = sessions.begin();
            session.part = sessions.rng.random_range(0..session.end);
            sessions.running.push(session);
        }
        sessions
    }

    fn begin(&mut self) -> Session {
        self.begun += 1;
        if self.choice.swap_every > 0 && self.begun.is_multiple_of(self.choice.swap_every) {
            let (one, other) = (self.rng.random_range(0..TITLES), self.rng.random_range(0..TITLES));
            self.titles.swap(one, other);
        }
        let mut at = self.rng.random::<f64>() * self.total;
        let rank = self.weights.iter().position(|weight| {
            at -= weight;
            at < 0.0
        });
        let end = if self.rng.random_bool(ABANDONED) {
            self.rng.random_range(1..PARTS)
        } else {
            PARTS
        };
        Session {
            title: self.titles[rank.unwrap_or(TITLES - 1)],
            part: 0,
            end,
        }
    }

    /// The next object that is read: its number, from 0.
    pub fn next_read(&mut self) -> usize {
        let at = self.rng.random_range(0..SESSIONS);
        let Session { title, part, end } = self.running[at];
        if part + 1 >= end {
            self.running[at] = self.begin();
        } else {
            self.running[at].part += 1;
        }
        title * PARTS + part
    }
}

/// The key of an object.
#[must_use]
pub fn key(object: usize) -> String {
    format!("titles/{:03}/seg-{:04}.ts", object / PARTS, object % PARTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_read_in_order_and_titles_by_their_weight() {
        let choice = Choice {
            exponent: 0.729,
            swap_every: 0,
        };
        let mut sessions = Sessions::new(choice, 3);
        let mut reads = vec![0_u64; TITLES];
        let mut first_parts = 0_u64;
        for _ in 0..400_000 {
            let object = sessions.next_read();
            reads[object / PARTS] += 1;
            first_parts += u64::from(object.is_multiple_of(PARTS));
        }
        let top: u64 = reads[..30].iter().sum();
        let expected = choice.optimum(0.1);
        assert!(
            (top as f64 / 400_000.0 - expected).abs() < 0.06,
            "{top} of 400000, expected {expected}"
        );
        // Each session begins once; nine in ten read all parts.
        assert!((780..1100).contains(&first_parts), "{first_parts}");
    }

    #[test]
    fn the_optimum_is_that_of_zipf() {
        let choice = Choice {
            exponent: 0.271,
            swap_every: 0,
        };
        assert!((choice.optimum(0.2) - 0.304).abs() < 0.001);
        assert!((choice.optimum(1.0) - 1.0).abs() < 1e-9);
    }
}
