//! Sequence detector: readers that read in order, and their positions (*heads*) in each group, such
//! as a title.
//!
//! Invariant: bounded. In a group the head idle for longest is evicted, among groups the least
//! recently read ones. A head that does not move for long counts as ended.

use super::{forget_quarter, prefetch};
use crate::{
    api::group::{GroupRule, ordinal},
    key_hash,
};
use hashbrown::HashMap;
use parking_lot::Mutex;

/// Heads per group.
const HEADS_MAX: usize = 16;
/// Reads in order before a reader counts as one of the whole group.
const RUN_MIN: u32 = 2;
/// A head that rests this many times as long as usual is removed.
const REST_MAX: f64 = 24.0;
/// Weight of the last rest in the average.
const WEIGHT: f64 = 0.125;
/// Initial value of the average.
const REST_FIRST: f64 = 512.0;

#[derive(Debug, Clone, Copy)]
struct Head {
    ordinal: u64,
    /// Reads in order so far.
    run: u32,
    /// When it last moved, in reads of the store.
    moved_at: f64,
    /// Reads of the store between two moves, on average.
    rest: f64,
}

/// The heads of one group.
#[derive(Debug, Default)]
struct Heads(Vec<Head>);

impl Heads {
    /// The object with this number was read. Returns how many in order its reader has read up to
    /// it; 0 if this one was read before.
    fn read(&mut self, ordinal: u64, now: f64) -> u32 {
        self.0.retain(|head| !head.is_gone(now));
        // The nearest head before it; a reader may skip an object, or read one twice.
        let moved = self
            .0
            .iter_mut()
            .filter(|head| (head.ordinal..=head.ordinal.saturating_add(2)).contains(&ordinal));
        if let Some(head) = moved.max_by_key(|head| head.ordinal) {
            if head.ordinal < ordinal {
                let rest = now - head.moved_at;
                head.rest = if head.run < RUN_MIN {
                    rest
                } else {
                    head.rest + (rest - head.rest) * WEIGHT
                };
                head.run += 1;
                head.ordinal = ordinal;
                head.moved_at = now;
                return head.run;
            }
            return 0;
        }
        if self.0.len() >= HEADS_MAX {
            let oldest = self
                .0
                .iter()
                .enumerate()
                .min_by(|one, other| one.1.moved_at.total_cmp(&other.1.moved_at));
            if let Some((at, _)) = oldest {
                self.0.swap_remove(at);
            }
        }
        self.0.push(Head {
            ordinal,
            run: 1,
            moved_at: now,
            rest: REST_FIRST,
        });
        1
    }

    /// After how many reads of the store the next head will be at this number; `None` if none is
    /// behind it.
    fn reads_until(&self, ordinal: u64, now: f64) -> Option<f64> {
        let until = |head: &Head| (ordinal - head.ordinal) as f64 * head.rest.max(1.0);
        let behind = self
            .0
            .iter()
            .filter(|head| head.ordinal < ordinal && head.run >= RUN_MIN && !head.is_gone(now));
        behind.map(until).min_by(f64::total_cmp)
    }
}

impl Head {
    fn is_gone(&self, now: f64) -> bool {
        now - self.moved_at > self.rest.max(8.0) * REST_MAX
    }
}

/// The heads of many groups.
#[derive(Debug)]
pub(super) struct Sequences {
    groups_max: usize,
    /// By the hash of what their names begin with, each with when it was read last.
    groups: HashMap<u64, (Heads, f64)>,
}

impl Sequences {
    /// No reader yet. At most this many groups are kept.
    pub(super) fn new(groups_max: usize) -> Self {
        Self {
            groups_max,
            groups: HashMap::new(),
        }
    }

    /// The object of a group with this number was read. Returns how many in order its reader has
    /// read up to it; 0 if this one was read before.
    pub(super) fn read(&mut self, group: u64, ordinal: u64, now: f64) -> u32 {
        if self.groups.len() >= self.groups_max && !self.groups.contains_key(&group) {
            forget_quarter(&mut self.groups, |(_, read_at)| *read_at);
        }
        let (heads, read_at) = self.groups.entry(group).or_default();
        *read_at = now;
        heads.read(ordinal, now)
    }

    /// After how many reads of the store the next head of a group will be at this number; `None` if
    /// none is behind it.
    pub(super) fn reads_until(&self, group: u64, ordinal: u64, now: f64) -> Option<f64> {
        self.groups.get(&group)?.0.reads_until(ordinal, now)
    }
}

/// Groups of names that are remembered.
const NAMED_GROUPS_MAX: usize = 1 << 12;

/// Sequential readers by names that are not keys of the large space.
///
/// An application may store a value under another key than the requested one, as the S3 service
/// does with objects that are written as they arrive. The keys read then say nothing about the
/// order. Such an application reports the requested name, gets the expected next name, and looks up
/// the value's key.
#[derive(Debug)]
pub struct NamedReaders {
    rule: GroupRule,
    /// And reads so far.
    state: Mutex<(Sequences, f64)>,
}

impl NamedReaders {
    /// No reader yet.
    pub fn new(rule: GroupRule) -> Self {
        Self {
            rule,
            state: Mutex::new((Sequences::new(NAMED_GROUPS_MAX), 0.0)),
        }
    }

    /// Counts a read of `name`. Returns the object that its reader will read next, if it has
    /// advanced in order.
    #[must_use]
    pub fn read(&self, name: &[u8]) -> Option<Vec<u8>> {
        let prefix = self.rule.group(name);
        let ordinal = ordinal(&name[prefix.len()..])?;
        let (sequences, now) = &mut *self.state.lock();
        *now += 1.0;
        let run = sequences.read(key_hash(prefix), ordinal, *now);
        (run >= prefetch::RUN_MIN).then(|| self.rule.successor(name))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_readers_of_one_group_are_two_heads() {
        let mut heads = Heads::default();
        for step in 0..10 {
            heads.read(100 + step, step as f64 * 20.0);
            heads.read(step, step as f64 * 20.0 + 10.0);
        }
        let mut ordinals: Vec<u64> = heads.0.iter().map(|head| head.ordinal).collect();
        ordinals.sort_unstable();
        assert_eq!(ordinals, [9, 109]);
        // The one at 9 comes by 59 in 50 of its moves, each every 20 reads.
        assert_eq!(heads.reads_until(59, 200.0), Some(50.0 * 20.0));
        assert_eq!(heads.reads_until(9, 200.0), None);
    }

    #[test]
    fn a_sequence_that_rests_too_long_is_forgotten() {
        let mut heads = Heads::default();
        for step in 0..5 {
            heads.read(step, step as f64 * 10.0);
        }
        assert!(heads.reads_until(7, 100.0).is_some());
        assert_eq!(heads.reads_until(7, 400.0), None);
    }

    #[test]
    fn one_read_is_no_reader() {
        let mut heads = Heads::default();
        assert_eq!(heads.read(3, 0.0), 1);
        assert_eq!(heads.reads_until(5, 1.0), None);
    }

    #[test]
    fn a_run_counts_what_was_read_in_order() {
        let mut heads = Heads::default();
        let runs: Vec<u32> = [7, 8, 8, 10, 3]
            .into_iter()
            .map(|ordinal| heads.read(ordinal, 1.0))
            .collect();
        assert_eq!(runs, [1, 2, 0, 3, 1]);
    }

    /// An object named `…/18446744073709551615` made debug builds panic at the second read, and
    /// others count in a circle.
    #[test]
    fn the_last_number_there_is_is_read_like_others() {
        let mut heads = Heads::default();
        let runs: Vec<u32> = [u64::MAX - 1, u64::MAX, u64::MAX, 0]
            .into_iter()
            .map(|ordinal| heads.read(ordinal, 1.0))
            .collect();
        assert_eq!(runs, [1, 2, 0, 1]);
        assert_eq!(heads.reads_until(u64::MAX, 1.0), None);
    }

    #[test]
    fn heads_are_bounded() {
        let mut heads = Heads::default();
        for number in 0..100 {
            heads.read(number * 1000, number as f64);
        }
        assert_eq!(heads.0.len(), HEADS_MAX);
    }

    fn read(readers: &NamedReaders, name: &str) -> Option<String> {
        let next = readers.read(name.as_bytes());
        next.map(|next| String::from_utf8_lossy(&next).into_owned())
    }

    #[test]
    fn a_sequence_is_known_from_its_third_step_on() {
        let readers = NamedReaders::new(GroupRule::LastSlash);
        assert_eq!(read(&readers, "v/a/seg-008.ts"), None);
        assert_eq!(read(&readers, "v/b/seg-009.ts"), None);
        assert_eq!(read(&readers, "v/a/seg-009.ts"), None);
        assert_eq!(read(&readers, "v/a/seg-010.ts").as_deref(), Some("v/a/seg-011.ts"));
        assert_eq!(read(&readers, "v/a/seg-010.ts"), None, "once for each step");
        assert_eq!(
            read(&readers, "v/a/seg-200.ts"),
            None,
            "a reader that jumps begins anew"
        );
        assert_eq!(read(&readers, "v/a/index"), None);
    }

    #[test]
    fn groups_are_bounded() {
        let readers = NamedReaders::new(GroupRule::LastSlash);
        for group in 0..NAMED_GROUPS_MAX + 10 {
            assert_eq!(read(&readers, &format!("{group}/1")), None);
        }
        assert!(readers.state.lock().0.groups.len() <= NAMED_GROUPS_MAX);
        let late = NAMED_GROUPS_MAX + 9;
        assert_eq!(read(&readers, &format!("{late}/2")), None);
        assert_eq!(read(&readers, &format!("{late}/3")), Some(format!("{late}/4")));
    }
}
