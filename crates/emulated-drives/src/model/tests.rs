//! Tests of the models, in virtual time: a host with one request at a time, or with several.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::profile::{DiskProfile, FlashProfile};
use crate::random::Random;
use std::collections::HashSet;

const GIB: u64 = 1 << 30;
const SECOND: Nanoseconds = 1_000_000_000;

/// A host with several requests under way.
struct Host {
    model: Box<dyn Model>,
    now: Nanoseconds,
    next_id: u64,
    events: Vec<Event>,
    settled: HashSet<u64>,
}

impl Host {
    fn new(profile: &str, bytes: u64) -> Self {
        let profile = Profile::find(profile).unwrap();
        Self {
            model: build(&profile, bytes, 1),
            now: 0,
            next_id: 1,
            events: Vec::new(),
            settled: HashSet::new(),
        }
    }

    fn submit(&mut self, operation: Operation, offset: u64, bytes: u64) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.model.submit(
            self.now,
            Request {
                id,
                operation,
                offset,
                bytes,
            },
        );
        id
    }

    /// Advances until a request completes; returns those that did.
    fn wait(&mut self) -> Vec<u64> {
        loop {
            let at = self
                .model
                .next_event()
                .expect("a request is under way, so something must happen");
            self.events.clear();
            self.model.advance(at, &mut self.events);
            let mut completed = Vec::new();
            for event in &self.events {
                match event {
                    Event::Completed { id, at } => {
                        completed.push(*id);
                        self.now = self.now.max(*at);
                    }
                    Event::Settled { id, .. } => assert!(self.settled.insert(*id), "write {id} settled twice"),
                }
            }
            if !completed.is_empty() {
                return completed;
            }
        }
    }

    fn execute(&mut self, operation: Operation, offset: u64, bytes: u64) -> Nanoseconds {
        let begun = self.now;
        let id = self.submit(operation, offset, bytes);
        assert_eq!(self.wait(), vec![id]);
        self.now - begun
    }

    fn rest(&mut self, time: Nanoseconds) {
        self.now += time;
        let mut events = Vec::new();
        self.model.advance(self.now, &mut events);
        self.settled.extend(events.iter().filter_map(|event| match event {
            Event::Settled { id, .. } => Some(*id),
            Event::Completed { .. } => None,
        }));
    }

    /// The rate of one thread over some seconds, in 10⁶ bytes per second.
    fn rate(&mut self, operation: Operation, is_random: bool, bytes: u64, span: u64, seconds: u64) -> f64 {
        let mut random = Random::new(7);
        let (begun, mut offset, mut total) = (self.now, 0, 0);
        while self.now < begun + seconds * SECOND {
            offset = if is_random {
                random.below(span / bytes) * bytes
            } else {
                (offset + bytes) % span
            };
            self.execute(operation, offset, bytes);
            total += bytes;
        }
        total as f64 * 1_000.0 / (self.now - begun) as f64
    }
}

fn disk(profile: &str) -> DiskProfile {
    match Profile::find(profile).unwrap().kind {
        Kind::Disk(disk) => disk,
        other => panic!("not a disk: {other:?}"),
    }
}

fn flash() -> FlashProfile {
    match Profile::find("intel-320").unwrap().kind {
        Kind::Flash(flash) => flash,
        other => panic!("not flash: {other:?}"),
    }
}

fn with(model: Box<dyn Model>) -> Host {
    Host {
        model,
        ..Host::new("nvme", GIB)
    }
}

fn is_near(found: f64, target: f64) -> bool {
    (found / target - 1.0).abs() < 0.10
}

#[test]
fn every_target_of_every_profile_is_met_by_its_model() {
    for name in Profile::names() {
        let profile = Profile::find(name).unwrap();
        for target in &profile.targets {
            let access = rates::Access::parse(&target.access, target.bytes).unwrap();
            let mut model = build(&profile, 4 * GIB, 1);
            let rate = rates::rate(model.as_mut(), access, 34 * GIB / 10, 8, 7);
            let wanted = target.mb_per_s;
            assert!(
                is_near(rate, wanted),
                "{name} {} {}: {rate} for {wanted}",
                target.access,
                target.bytes
            );
        }
    }
}

#[test]
fn every_profile_completes_settles_and_flushes_whatever_comes() {
    for (name, seed) in Profile::names()
        .into_iter()
        .flat_map(|name| (0..4).map(move |seed| (name, seed)))
    {
        let mut host = Host::new(name, GIB);
        let mut random = Random::new(seed);
        let (mut under_way, mut writes, mut completed) = (HashSet::new(), HashSet::new(), HashSet::new());
        let mut must_settle = None;
        for _ in 0..1500 {
            host.now += random.below(2_000_000);
            let (offset, bytes) = (random.below(GIB / 4096 - 64) * 4096, (1 + random.below(64)) * 4096);
            let operation = match random.below(30) {
                0 if must_settle.is_none() => Operation::Flush,
                1..12 => Operation::Read,
                _ => Operation::Write,
            };
            let id = host.submit(operation, offset, bytes);
            under_way.insert(id);
            match operation {
                Operation::Flush => must_settle = Some((id, &writes & &completed)),
                Operation::Write => {
                    writes.insert(id);
                }
                Operation::Read => {}
            }
            while under_way.len() > random.below(40) as usize {
                for id in host.wait() {
                    assert!(
                        under_way.remove(&id),
                        "{name}: {id} completed twice, or was never asked"
                    );
                    completed.insert(id);
                    if let Some((_, before)) = must_settle.take_if(|(flush, _)| *flush == id) {
                        assert!(before.is_subset(&host.settled), "{name}: a flush left writes in memory");
                    }
                }
            }
        }
        while !under_way.is_empty() {
            for id in host.wait() {
                under_way.remove(&id);
            }
        }
        host.rest(600 * SECOND);
        assert_eq!(
            host.settled, writes,
            "{name}: in time everything reaches the media, and nothing else does"
        );
    }
}

#[test]
fn the_same_requests_give_the_same_times() {
    for name in Profile::names() {
        let run = || {
            let mut host = Host::new(name, GIB);
            let mut random = Random::new(3);
            let times = (0..300).map(|step| {
                let operation = if step % 3 == 0 {
                    Operation::Write
                } else {
                    Operation::Read
                };
                host.execute(operation, random.below(GIB / 4096) * 4096, 4096)
            });
            times.collect::<Vec<_>>()
        };
        assert_eq!(run(), run(), "{name}");
    }
}

#[test]
fn a_disk_is_faster_near_its_head_and_with_a_queue() {
    let far = Host::new("maxtor-7l250s0", GIB).rate(Operation::Read, true, 4096, GIB, 20);
    let near = Host::new("maxtor-7l250s0", GIB).rate(Operation::Read, true, 4096, GIB / 64, 20);
    assert!(near > far * 1.2, "short seeks: {near} against {far}");

    let mut host = Host::new("maxtor-7l250s0", GIB);
    let mut random = Random::new(1);
    let (mut done, mut under_way) = (0, 0);
    while done < 1_000 {
        while under_way < 32 {
            host.submit(Operation::Read, random.below(GIB / 4096) * 4096, 4096);
            under_way += 1;
        }
        let completed = host.wait().len();
        (done, under_way) = (done + completed, under_way - completed);
    }
    let queued = done as f64 * 4.096e6 / host.now as f64;
    assert!(queued > far * 1.7, "a queue of 32: {queued} against {far}");
}

#[test]
fn a_disk_without_a_write_cache_waits_for_the_platter() {
    let profile = DiskProfile {
        write_cache_bytes: 0,
        ..disk("maxtor-7l250s0")
    };
    let mut host = with(Box::new(disk::Disk::new(profile, GIB)));
    let mut random = Random::new(5);
    for _ in 0..200 {
        let id = host.next_id;
        host.execute(Operation::Write, random.below(GIB / 4096) * 4096, 4096);
        assert!(host.settled.contains(&id), "what is answered is on the media");
    }
    let average = host.now / 200;
    assert!((7_000_000..12_000_000).contains(&average), "{average} ns");
}

#[test]
fn a_disk_answers_from_its_cache_and_writes_back_when_idle() {
    let mut host = Host::new("maxtor-7l250s0", GIB);
    assert!(
        host.execute(Operation::Write, GIB / 2, 4096) < 200_000,
        "into the cache"
    );
    assert!(host.settled.is_empty());
    assert!(host.execute(Operation::Read, GIB / 2, 4096) < 200_000, "from the cache");
    host.rest(SECOND);
    assert_eq!(host.settled.len(), 1);
    assert!(host.execute(Operation::Flush, 0, 0) < 200_000, "nothing left to do");
    host.execute(Operation::Write, 0, 4096);
    assert!(host.execute(Operation::Flush, 0, 0) > 500_000, "a seek");
    assert_eq!(host.settled.len(), 2);
}

#[test]
fn a_flush_makes_later_writes_of_a_disk_wait() {
    let mut host = Host::new("maxtor-7l250s0", GIB);
    let mut random = Random::new(5);
    for _ in 0..50 {
        host.execute(Operation::Write, random.below(GIB / 4096) * 4096, 4096);
    }
    let flush = host.submit(Operation::Flush, 0, 0);
    let write = host.submit(Operation::Write, 0, 4096);
    assert_eq!(host.wait(), vec![flush]);
    assert_eq!(host.wait(), vec![write]);
}

#[test]
fn a_disk_forgets_its_cache_without_power() {
    let mut host = Host::new("maxtor-7l250s0", GIB);
    host.execute(Operation::Write, 0, 4096);
    host.submit(Operation::Read, GIB / 2, 4096);
    host.model.power_cycle(host.now);
    assert_eq!(host.model.next_event(), None);
    host.rest(SECOND);
    assert!(host.settled.is_empty());
    assert!(host.execute(Operation::Read, GIB / 4, 4096) > 500_000);
}

#[test]
fn small_random_writes_make_an_ssd_collect_garbage() {
    // Small, with small blocks, so that it is full soon and its spare space is that of the profile.
    let bytes = 256 << 20;
    let new = |aged_share| {
        let profile = FlashProfile {
            aged_share,
            block_pages: 32,
            write_buffer_bytes: 1 << 20,
            ..flash()
        };
        with(Box::new(flash::Flash::new(profile, bytes, 1)))
    };
    let (mut fresh, mut aged, mut sequential) = (new(0.0), new(1.0), new(0.0));
    let first = fresh.rate(Operation::Write, true, 16_384, bytes, 1);
    assert_eq!(fresh.model.internals().pages_moved, 0);
    let later = aged.rate(Operation::Write, true, 16_384, bytes, 4);
    let internals = aged.model.internals();
    assert!(internals.pages_moved > 10_000 && internals.blocks_erased > 100);
    assert!(
        later < first * 0.75,
        "garbage collection shows: {later} against {first}"
    );
    // Sequential writes leave blocks that are garbage as a whole.
    let smooth = sequential.rate(Operation::Write, false, 16_384, bytes, 10);
    let internals = sequential.model.internals();
    assert!(internals.blocks_erased > 1_000 && internals.pages_moved < internals.blocks_erased);
    assert!(smooth > first * 0.95, "{smooth} against {first}");
}

#[test]
fn a_mapping_table_never_loses_a_page() {
    let profile = FlashProfile {
        block_pages: 16,
        channels: 3,
        spare_share: 0.1,
        ..flash()
    };
    let pages = 1_000;
    let mut mapping = mapping::Mapping::new(&profile, pages * 4096, 1);
    let mut random = Random::new(9);
    for step in 0..40_000 {
        let channel = mapping.pick(&[step, step / 2, 0]);
        mapping.write(random.below(pages), channel);
    }
    mapping.check();
}

#[test]
fn a_read_of_a_disk_does_not_wait_for_all_cached_writes() {
    let mut host = Host::new("maxtor-7l250s0", GIB);
    let mut random = Random::new(5);
    for _ in 0..3_000 {
        host.execute(Operation::Write, random.below(GIB / 4096) * 4096, 4096);
    }
    for _ in 0..20 {
        let write = host.submit(Operation::Write, random.below(GIB / 4096) * 4096, 4096);
        let read = host.submit(Operation::Read, random.below(GIB / 4096) * 4096, 4096);
        let begun = host.now;
        let mut waiting = HashSet::from([write, read]);
        while waiting.contains(&read) {
            for id in host.wait() {
                waiting.remove(&id);
            }
        }
        assert!(host.now - begun < 50_000_000, "a turn, perhaps after one write");
        while !waiting.is_empty() {
            for id in host.wait() {
                waiting.remove(&id);
            }
        }
    }
}

#[test]
fn a_link_carries_one_transfer_at_a_time_and_fills_gaps() {
    let mut link = Link::default();
    assert_eq!(link.book(0, 400, 30), 430);
    assert_eq!(link.book(1, 100, 30), 130, "before what was booked for later");
    assert_eq!(link.book(1, 390, 30), 460, "no room before");
    assert_eq!(link.book(1, 100, 300), 760, "the gap is too short");
    assert_eq!(link.book(1_000, 0, 10), 1_010);
    assert_eq!(link.booked.len(), 1);
}
