//! Which values of a drained segment get a second chance in the log (FlashStore, section 4.5), and
//! how many.
//!
//! A value that was used since it was written there is written again, the most used first, within
//! two bounds:
//!
//! - part of each segment becomes free, however hot it is; so a log full of hot values still makes
//!   room for new ones;
//! - reinsertion spends a credit that other writes to the log earn. So log GC writes at most a
//!   fixed multiple of what others do, and cannot rewrite a log endlessly by itself.
//!
//! Writes of callers earn half of their bytes: that bounds the write amplification of flash where
//! everything is read between two writes. Promoted values earn three times theirs: they come
//! because they are read, so there are few of them, and each of them displaces the least used
//! quarter of a segment and not a hot half.
//!
//! A pinned value counts as the most used. It costs no credit, so pins that need less than the
//! share of each segment are kept whatever is written; of more, a quarter of each segment leaves. A
//! log full of pinned values showed a problem: segments of nothing else gave nothing back, each
//! took a little more room than before, since the next frame does not fit into a segment's end, and
//! finally log GC had no room left to move anything. So the share is one of a segment's contents,
//! not of its length.

/// How often a pinned value counts as used.
pub const PINNED: u8 = u8::MAX;
/// At most this share of a segment is written again.
pub const SEGMENT_SHARE_MAX_PERCENT: usize = 75;
/// The same for pinned values alone, if log GC is short of room.
const SHORT_SHARE_MAX_PERCENT: usize = 50;
/// If the hash index is crowded at most this share of the live bytes is: each segment must give
/// slots back.
const CROWDED_SHARE_MAX_PERCENT: usize = 50;
/// Credit that one byte of a caller's earns, in bytes.
const PER_USER_BYTE: f64 = 0.5;
/// Credit that one promoted byte earns, in bytes.
const PER_MOVED_BYTE: f64 = 3.0;
/// Segments' bytes that may be saved up.
const SAVED_SEGMENTS_MAX: f64 = 4.0;

/// Credit that is earned and not spent.
#[derive(Debug)]
pub struct Credit {
    segment_bytes: f64,
    bytes: f64,
    user_bytes: u64,
    moved_bytes: u64,
}

impl Credit {
    /// For a start there is enough for one segment.
    pub const fn new(segment_bytes: u64) -> Self {
        Self {
            segment_bytes: segment_bytes as f64,
            bytes: segment_bytes as f64,
            user_bytes: 0,
            moved_bytes: 0,
        }
    }

    /// Sets the bytes of callers, and of promoted values, written to the log since the store was
    /// opened.
    pub fn written(&mut self, user_bytes: u64, moved_bytes: u64) {
        let user = user_bytes.saturating_sub(self.user_bytes);
        let moved = moved_bytes.saturating_sub(self.moved_bytes);
        self.user_bytes = self.user_bytes.max(user_bytes);
        self.moved_bytes = self.moved_bytes.max(moved_bytes);
        self.bytes += user as f64 * PER_USER_BYTE + moved as f64 * PER_MOVED_BYTE;
        self.bytes = self.bytes.min(self.segment_bytes * SAVED_SEGMENTS_MAX);
    }

    /// Most bytes that may be written again of a segment.
    pub fn limits(&self, of: Drained) -> Limits {
        let crowded_max = if of.is_crowded {
            of.live_bytes * CROWDED_SHARE_MAX_PERCENT / 100
        } else {
            usize::MAX
        };
        if of.is_short {
            let pinned = (of.held * SHORT_SHARE_MAX_PERCENT / 100).min(crowded_max);
            return Limits { pinned, all: 0 };
        }
        let share = |bytes: usize| (bytes * SEGMENT_SHARE_MAX_PERCENT / 100).min(crowded_max);
        Limits {
            pinned: share(of.held),
            all: share(of.length).min(self.bytes as usize),
        }
    }

    /// This much was rewritten.
    pub fn spend(&mut self, bytes: usize) {
        self.bytes = (self.bytes - bytes as f64).max(0.0);
    }
}

/// A segment that is being drained.
#[derive(Debug, Clone, Copy)]
pub struct Drained {
    /// Its length,
    pub length: usize,
    /// the bytes of its frames,
    pub held: usize,
    /// and those of its records that live and belong in the log.
    pub live_bytes: usize,
    /// The hash index is crowded: each segment must give slots back.
    pub is_crowded: bool,
    /// Log GC is short of space: each segment must free some.
    pub is_short: bool,
}

/// Most bytes that are written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Of pinned values,
    pub pinned: usize,
    /// and of all together, before one that is not pinned.
    pub all: usize,
}

/// Selects from `values` those to be reinserted: used ones, the most used first, within `limits`.
/// Returns them and the others. `facts` returns the number of uses and the bytes of a value.
pub fn choose<T>(mut values: Vec<T>, limits: Limits, facts: impl Fn(&T) -> (u8, usize)) -> (Vec<T>, Vec<T>) {
    values.sort_by_key(|value| std::cmp::Reverse(facts(value).0));
    let mut taken_bytes = 0;
    values.into_iter().partition(|value| {
        let (uses, bytes) = facts(value);
        let limit = if uses == PINNED { limits.pinned } else { limits.all };
        let takes = uses > 0 && taken_bytes + bytes <= limit;
        if takes {
            taken_bytes += bytes;
        }
        takes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn limits(pinned: usize, all: usize) -> Limits {
        Limits { pinned, all }
    }

    /// A segment of 1000 bytes.
    const fn drained(live_bytes: usize) -> Drained {
        Drained {
            length: 1000,
            held: 900,
            live_bytes,
            is_crowded: false,
            is_short: false,
        }
    }

    fn all(credit: &Credit, live_bytes: usize) -> usize {
        credit.limits(drained(live_bytes)).all
    }

    #[test]
    fn the_most_used_stay() {
        let values = vec![(0, 10), (1, 10), (3, 10), (2, 10), (1, 10), (3, 30)];
        let (hot, cold) = choose(values, limits(0, 55), |value| *value);
        assert_eq!(hot, [(3, 10), (3, 30), (2, 10)]);
        assert_eq!(cold, [(1, 10), (1, 10), (0, 10)]);
    }

    #[test]
    fn unused_values_leave_however_much_room_there_is() {
        let (hot, cold) = choose(vec![(0, 10), (0, 10)], limits(1000, 1000), |value| *value);
        assert_eq!((hot.len(), cold.len()), (0, 2));
    }

    #[test]
    fn what_is_pinned_stays_first_and_needs_no_credit() {
        let mut credit = Credit::new(1000);
        credit.spend(900);
        let limits = credit.limits(drained(900));
        assert_eq!(limits, self::limits(675, 100));
        let (hot, cold) = choose(vec![(3, 50), (PINNED, 300), (1, 10), (PINNED, 300)], limits, |value| {
            *value
        });
        assert_eq!(hot, [(PINNED, 300), (PINNED, 300)]);
        assert_eq!(cold, [(3, 50), (1, 10)], "what is pinned takes their part");
        let (hot, _) = choose(vec![(3, 50), (PINNED, 30)], limits, |value| *value);
        assert_eq!(hot, [(PINNED, 30), (3, 50)]);
        // A segment with only pinned values gives a quarter of its bytes back,
        let (hot, _) = choose(vec![(PINNED, 100); 9], limits, |value| *value);
        assert_eq!(hot.len(), 6);
        // and half if space is short; then no other values stay.
        let short = Drained {
            is_short: true,
            ..drained(900)
        };
        assert_eq!(credit.limits(short), self::limits(450, 0));
    }

    #[test]
    fn what_is_written_again_is_bounded_by_what_others_write() {
        let mut credit = Credit::new(1000);
        let mut again = all(&credit, 1000);
        assert_eq!(again, 750);
        credit.spend(again);
        // 100 segments of hot values, 20 segments written by callers meanwhile.
        for drained in 1..=100 {
            credit.written(drained * 200, 0);
            let limit = all(&credit, 1000);
            credit.spend(limit);
            again += limit;
        }
        assert!((10_000..=11_000).contains(&again), "{again}");
        // Nothing is written any more, so nothing is rewritten.
        assert_eq!(all(&credit, 1000), 0);
        credit.written(20_000, 1000);
        assert_eq!(all(&credit, 1000), 750);
        let crowded = Drained {
            is_crowded: true,
            ..drained(400)
        };
        assert_eq!(credit.limits(crowded), limits(200, 200));
    }

    #[test]
    fn credit_is_not_saved_up_without_end() {
        let mut credit = Credit::new(1000);
        credit.written(1 << 30, 1 << 30);
        for _ in 0..5 {
            credit.spend(1000);
        }
        assert_eq!(all(&credit, 1000), 0);
    }
}
