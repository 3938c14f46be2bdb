//! The policy on the workload of the study of video tiering, without devices: 300 titles of 466
//! segments, or of ten, 50 sessions that each read a title in order, one in ten gives up; and on
//! objects of one group that is too large to be of one heat. Segments of copies are modelled as
//! `promote` handles them.

#![allow(clippy::unwrap_used, clippy::cast_precision_loss, clippy::cast_possible_truncation)]

use super::{
    admission::{Popularity, Worth},
    credit::{Credit, holds_many},
};
use crate::GroupRule;

const SESSIONS: usize = 50;
const PART_BYTES: u64 = 2_300_000;
/// Segments that cleaning may take before it frees one.
const KEPT_FREE: usize = 3;

/// What is read, and how much flash there is for it.
#[derive(Clone, Copy)]
struct Workload {
    titles: usize,
    parts: usize,
    /// Zipf's.
    exponent: f64,
    /// Copies in a segment, and how many segments copies may have.
    segment: usize,
    segments: usize,
    /// Sessions.
    warm_up: usize,
    measured: usize,
}

/// The study's: 64 MiB of 2.3 MB.
const STUDY: Workload = Workload {
    titles: 300,
    parts: 466,
    exponent: 0.729,
    segment: 29,
    segments: 964,
    warm_up: 800,
    measured: 300,
};
/// A small copy of it: flash of 5 %, of which the log and what is kept free take nine segments.
const TEN_PARTS: Workload = Workload {
    titles: 300,
    parts: 10,
    exponent: 0.271,
    segment: 3,
    segments: 41,
    warm_up: 4500,
    measured: 1500,
};
/// Photos of one group.
const PHOTOS: Workload = Workload {
    titles: 2000,
    parts: 1,
    exponent: 0.6,
    segment: 31,
    segments: 16,
    warm_up: 30_000,
    measured: 10_000,
};

struct Outcome {
    hits: f64,
    /// Copies written per 100 reads, those written again included.
    writes: f64,
    /// Share of the reads that the best fixed choice of titles would answer, with room for as many
    /// as there are segments.
    optimum: f64,
}

impl Workload {
    fn objects(&self) -> usize {
        self.titles * self.parts
    }

    fn copies(&self) -> usize {
        self.segment * self.segments
    }

    fn key(&self, object: usize) -> Vec<u8> {
        if self.parts == 1 {
            return format!("photos/{object}").into_bytes();
        }
        format!("titles/{}/seg-{:04}.ts", object / self.parts, object % self.parts).into_bytes()
    }

    /// Objects of the group of any of them.
    fn group_objects(&self) -> u64 {
        if self.parts == 1 {
            return self.titles as u64;
        }
        self.parts as u64
    }
}

struct Segments {
    workload: Workload,
    list: Vec<Option<Vec<usize>>>,
    place: Vec<Option<usize>>,
    open: [Option<usize>; 2],
    read: u64,
    written: u64,
    credit: Credit,
    looked_to: usize,
    is_passing: Vec<bool>,
    keys: Vec<Vec<u8>>,
}

struct Session {
    title: usize,
    part: usize,
    end: usize,
}

impl Segments {
    fn new(workload: Workload) -> Self {
        let count = workload.segments + KEPT_FREE;
        Self {
            workload,
            list: vec![None; count],
            place: vec![None; workload.objects()],
            open: [None; 2],
            read: 0,
            written: 0,
            credit: Credit::new(workload.segment as u64 * PART_BYTES),
            looked_to: 0,
            is_passing: vec![false; count],
            keys: (0..workload.objects()).map(|object| workload.key(object)).collect(),
        }
    }

    fn has_room(&self) -> bool {
        self.list.iter().flatten().count() < self.workload.segments
    }

    /// Begins a segment of a kind, if there is one.
    fn take(&mut self, which: usize) {
        let Some(next) = self.list.iter().position(Option::is_none) else {
            return;
        };
        self.list[next] = Some(Vec::new());
        self.open[which] = Some(next);
        self.is_passing[next] = which == 1;
    }

    fn fits(&self, which: usize) -> bool {
        let open = self.open[which].and_then(|number| self.list[number].as_ref());
        open.is_some_and(|list| list.len() < self.workload.segment)
    }

    fn append(&mut self, object: usize, which: usize) {
        let number = self.open[which].unwrap();
        self.list[number].as_mut().unwrap().push(object);
        self.place[object] = Some(number);
        self.written += 1;
    }

    fn promote(&mut self, object: usize, worth: Worth, popularity: &Popularity) {
        let which = usize::from(worth == Worth::Passing);
        if !self.fits(which) {
            self.open[which] = None;
            if !self.has_room() {
                self.clean(popularity, popularity.bar(&self.keys[object], PART_BYTES));
            }
            if self.open[which].is_none() && self.has_room() {
                self.take(which);
            }
        }
        if self.fits(which) {
            self.append(object, which);
        }
    }

    /// Objects that have their copies in a segment.
    fn living(&self, number: usize) -> impl Iterator<Item = usize> {
        let list = self.list[number].iter().flatten().copied();
        list.filter(move |object| self.place[*object] == Some(number))
    }

    /// The next full segments' least, by what is kept of each.
    fn least(&mut self, is_kept: impl Fn(usize) -> bool) -> (usize, usize) {
        let (mut least, mut looked_at) = ((usize::MAX, 0), 0);
        for _ in 0..self.list.len() {
            self.looked_to = (self.looked_to + 1) % self.list.len();
            let number = self.looked_to;
            if self.open.contains(&Some(number)) || self.list[number].is_none() {
                continue;
            }
            looked_at += 1;
            least = least.min((self.living(number).filter(|object| is_kept(*object)).count(), number));
            if least.0 == 0 || looked_at == 64 {
                break;
            }
        }
        least
    }

    fn clean(&mut self, popularity: &Popularity, bar: Option<f64>) {
        let keys = std::mem::take(&mut self.keys);
        let worth = |object: usize| popularity.worth(&keys[object], PART_BYTES);
        self.credit.update(self.read * PART_BYTES, self.written * PART_BYTES);
        let limit = self
            .credit
            .written_again_max(self.workload.segment as u64, 1, bar.is_some()) as usize;
        let (kept, victim) = self.least(|object| worth(object) != Worth::None);
        let stays = |object: usize| {
            let reaches = |bar| popularity.reaches(bar, &keys[object], PART_BYTES);
            worth(object) != Worth::None && (kept <= limit || bar.is_none_or(reaches))
        };
        let objects: Vec<usize> = self.living(victim).collect();
        let is_of_many = holds_many(self.workload.segment as u64, 1);
        if objects.iter().filter(|object| stays(**object)).count() <= limit {
            for object in objects {
                self.place[object] = None;
                let worth = worth(object);
                let which = usize::from(worth == Worth::Passing);
                if !stays(object) || !popularity.may_stay(worth, is_of_many) {
                    continue;
                }
                if !self.fits(which) {
                    self.take(which);
                }
                if self.fits(which) {
                    self.append(object, which);
                }
            }
            self.list[victim] = None;
        }
        self.keys = keys;
    }

    /// Bytes of copies in segments for passing ones.
    fn passing_bytes(&self) -> u64 {
        (0..self.list.len())
            .filter(|number| self.is_passing[*number])
            .map(|number| self.living(number).count() as u64 * PART_BYTES)
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
    workload: Workload,
    numbers: Numbers,
    /// Sums of the weights of the titles up to each.
    sums: Vec<f64>,
    running: Vec<Session>,
    begun: usize,
}

impl Sessions {
    fn new(workload: Workload) -> Self {
        let mut sum = 0.0;
        let mut add = |rank: usize| {
            sum += (rank as f64).powf(-workload.exponent);
            sum
        };
        let mut sessions = Self {
            workload,
            numbers: Numbers(88_172_645_463_325_252),
            sums: (1..=workload.titles).map(&mut add).collect(),
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
        let at = self.numbers.share() * self.sums[self.workload.titles - 1];
        let title = self.sums.partition_point(|sum| *sum <= at);
        let parts = self.workload.parts;
        let gives_up = self.numbers.below(10) == 0 && parts > 1;
        Session {
            title: title.min(self.workload.titles - 1),
            part: 0,
            end: if gives_up {
                1 + self.numbers.below(parts - 1)
            } else {
                parts
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
        title * self.workload.parts + part
    }
}

fn simulate(workload: Workload) -> Outcome {
    let mut sessions = Sessions::new(workload);
    let popularity = Popularity::new(GroupRule::LastSlash);
    let mut segments = Segments::new(workload);
    let space_bytes = workload.copies() as u64 * PART_BYTES;
    popularity.set_space(space_bytes, 0);
    let (mut hits, mut before) = (0_u64, None);
    while sessions.begun < workload.warm_up + workload.measured {
        if before.is_none() && sessions.begun >= workload.warm_up {
            (hits, before) = (0, Some((segments.read, segments.written)));
        }
        let object = sessions.next_read();
        let worth = popularity.read(&segments.keys[object], PART_BYTES).worth;
        while let Some(group) = popularity.unmeasured() {
            let objects = workload.group_objects();
            popularity.measured(&group, objects, objects * PART_BYTES);
        }
        segments.read += 1;
        if segments.place[object].is_some() {
            hits += 1;
        } else if worth != Worth::None {
            let open = segments.open;
            segments.promote(object, worth, &popularity);
            if segments.open != open {
                popularity.set_space(space_bytes, segments.passing_bytes());
            }
        }
    }
    let (read_before, written_before) = before.unwrap_or_default();
    let reads = (segments.read - read_before) as f64;
    let (fitting, sums) = (workload.copies() / workload.parts, &sessions.sums);
    Outcome {
        hits: hits as f64 / reads,
        writes: (segments.written - written_before) as f64 / reads * 100.0,
        optimum: sums[fitting - 1] / sums[workload.titles - 1],
    }
}

#[track_caller]
fn check(workload: Workload, below_optimum_max: f64, writes_max: f64) {
    let Outcome { hits, optimum, writes } = simulate(workload);
    println!("{hits:.3} of {optimum:.3}, {writes:.1} writes per 100 reads");
    assert!(hits > optimum - below_optimum_max, "{hits:.3} of {optimum:.3}");
    assert!(writes < writes_max, "{writes:.1} writes per 100 reads");
}

#[test]
fn hits_come_near_the_best_fixed_choice_with_few_writes() {
    check(STUDY, 0.05, 20.0);
}

/// If the set of popular objects hardly changes, segments with dozens of copies are seldom less
/// than three quarters full. Then none was cleaned, and newly popular objects found no room: 0.595
/// of 0.597 instead of 0.604.
#[test]
fn what_becomes_popular_finds_room_among_full_segments() {
    let half = Workload {
        exponent: 0.271,
        segments: 2_401,
        warm_up: 3_000,
        measured: 600,
        ..STUDY
    };
    check(half, 0.0, 9.0);
}

/// Readers on their way used to take all of it from the settled titles: 0.08 of 0.28.
#[test]
fn little_flash_keeps_what_is_popular_beside_readers_on_their_way() {
    let exponent = 0.729;
    check(Workload { exponent, ..TEN_PARTS }, 0.05, 8.0);
}

/// Segments full of what is worth keeping used to be cleaned all the same: 30 writes for 100 reads.
#[test]
fn segments_of_few_copies_are_not_written_again_and_again() {
    check(TEN_PARTS, 0.02, 9.0);
}

/// Segments of four copies, three of them worth keeping, used to be cleaned: 6.5 writes for 100
/// reads, and half a hit more.
#[test]
fn two_thirds_of_a_segment_of_few_copies_are_kept_at_most() {
    let half = Workload {
        segment: 4,
        segments: 356,
        warm_up: 2_250,
        measured: 1_350,
        ..TEN_PARTS
    };
    check(half, 0.03, 4.0);
}

/// Copies for readers on their way used to be written again with the rest of their segment: 6.8
/// writes for 100 reads, and two more hits.
#[test]
fn readers_on_their_way_cost_little_where_segments_hold_a_dozen() {
    let half = Workload {
        segment: 14,
        segments: 94,
        ..TEN_PARTS
    };
    check(half, 0.05, 5.0);
}

/// All that were read twice are worth a copy. They used to drive out each other: more than 300
/// writes for 100 reads.
#[test]
fn objects_of_one_group_give_way_only_to_better_ones() {
    check(PHOTOS, 0.1, 20.0);
    let exponent = 0.9;
    check(Workload { exponent, ..PHOTOS }, 0.1, 20.0);
}
