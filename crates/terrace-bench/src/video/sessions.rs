//! The workload of the study of video tiering: titles cut into segments, and sessions that each
//! read a title in order.

use rand::{Rng, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};

/// Concurrent sessions in the study.
pub const SESSIONS: usize = 50;
/// Share of the sessions that stop before the end.
const ABANDONED: f64 = 0.1;

/// The catalogue. Objects are numbered title by title.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Catalogue {
    /// How many titles.
    pub titles: usize,
    /// Segments of a title.
    pub parts: usize,
}

impl Catalogue {
    /// The study's catalogue.
    pub const PUBLISHED: Self = Self {
        titles: 300,
        parts: 466,
    };

    /// Segments of all titles.
    pub const fn objects(self) -> usize {
        self.titles * self.parts
    }

    /// The key of an object.
    pub fn key(self, object: usize) -> String {
        format!("titles/{:03}/seg-{:04}.ts", object / self.parts, object % self.parts)
    }
}

/// Distribution of titles.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Zipf's exponent.
    pub exponent: f64,
    /// Two titles swap their ranks after this many sessions; 0: never.
    pub swap_every: u64,
}

impl Choice {
    fn weights(self, titles: usize) -> Vec<f64> {
        (1..=titles).map(|rank| (rank as f64).powf(-self.exponent)).collect()
    }

    /// Hit ratio of the best fixed set of titles, with space for `share` of the catalogue.
    pub fn optimum(self, titles: usize, share: f64) -> f64 {
        let weights = self.weights(titles);
        let fitting = (share * titles as f64) as usize;
        weights[..fitting].iter().sum::<f64>() / weights.iter().sum::<f64>()
    }
}

/// A session: reads a title from its beginning.
#[derive(Debug, Clone, Copy)]
pub struct Session {
    /// The title.
    pub title: usize,
    /// The number of its segments that are read.
    pub parts: usize,
}

/// Generates sessions.
#[derive(Debug)]
pub struct Titles {
    choice: Choice,
    catalogue: Catalogue,
    weights: Vec<f64>,
    total: f64,
    ranking: Vec<usize>,
    /// Sessions generated so far.
    pub begun: u64,
    rng: StdRng,
}

impl Titles {
    /// Before the first session.
    pub fn new(catalogue: Catalogue, choice: Choice, seed: u64) -> Self {
        let weights = choice.weights(catalogue.titles);
        Self {
            choice,
            catalogue,
            total: weights.iter().sum(),
            weights,
            ranking: (0..catalogue.titles).collect(),
            begun: 0,
            rng: StdRng::seed_from_u64(seed),
        }
    }

    /// The next session.
    pub fn begin(&mut self) -> Session {
        let Catalogue { titles, parts } = self.catalogue;
        self.begun += 1;
        if self.choice.swap_every > 0 && self.begun.is_multiple_of(self.choice.swap_every) {
            let (one, other) = (self.rng.random_range(0..titles), self.rng.random_range(0..titles));
            self.ranking.swap(one, other);
        }
        let mut at = self.rng.random::<f64>() * self.total;
        let rank = self.weights.iter().position(|weight| {
            at -= weight;
            at < 0.0
        });
        let parts = if self.rng.random_bool(ABANDONED) {
            self.rng.random_range(1..parts)
        } else {
            parts
        };
        Session {
            title: self.ranking[rank.unwrap_or(titles - 1)],
            parts,
        }
    }
}

/// The interleaved reads of many sessions.
#[derive(Debug)]
pub struct Sessions {
    /// Generates their sessions.
    pub titles: Titles,
    /// The sessions, each with its next segment.
    running: Vec<(Session, usize)>,
}

impl Sessions {
    /// Begins with sessions at random positions in their titles.
    pub fn new(mut titles: Titles) -> Self {
        let mut running = Vec::new();
        for _ in 0..SESSIONS {
            let session = titles.begin();
            let part = titles.rng.random_range(0..session.parts);
            running.push((session, part));
        }
        Self { titles, running }
    }

    /// The number of the next object that is read, from 0.
    pub fn next_read(&mut self) -> usize {
        let at = self.titles.rng.random_range(0..SESSIONS);
        let (session, part) = self.running[at];
        if part + 1 >= session.parts {
            self.running[at] = (self.titles.begin(), 0);
        } else {
            self.running[at].1 += 1;
        }
        session.title * self.titles.catalogue.parts + part
    }
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
        let Catalogue { titles, parts } = Catalogue::PUBLISHED;
        let mut sessions = Sessions::new(Titles::new(Catalogue::PUBLISHED, choice, 3));
        let mut reads = vec![0_u64; titles];
        let mut first_parts = 0_u64;
        for _ in 0..400_000 {
            let object = sessions.next_read();
            reads[object / parts] += 1;
            first_parts += u64::from(object.is_multiple_of(parts));
        }
        let top: u64 = reads[..30].iter().sum();
        let expected = choice.optimum(titles, 0.1);
        assert!(
            (top as f64 / 400_000.0 - expected).abs() < 0.06,
            "{top} of 400000, expected {expected}"
        );
        // Each session begins once; nine in ten read all segments.
        assert!((780..1100).contains(&first_parts), "{first_parts}");
    }

    #[test]
    fn the_optimum_is_that_of_zipf() {
        let choice = Choice {
            exponent: 0.271,
            swap_every: 0,
        };
        assert!((choice.optimum(300, 0.2) - 0.304).abs() < 0.001);
        assert!((choice.optimum(300, 1.0) - 1.0).abs() < 1e-9);
    }
}
