//! Which values of a segment that is drained get a second chance in the log (FlashStore, section
//! 4.5), and how many.
//!
//! A value that was used since it was written there is written again, the most used first, as far
//! as two bounds allow:
//!
//! - of each segment a part becomes free, however hot it is; so a log full of hot values still
//!   makes room for new ones;
//! - what is written again is paid for by what else was written to the log. So recycling writes at
//!   most a fixed multiple of what others do, and cannot go round by itself.
//!
//! Writes of callers pay for half of their bytes: that bounds the write amplification of flash
//! where everything is read between two writes. Values that were moved back pay for three times
//! theirs: they come because they are read, so there are few of them, and for each of them the
//! least used quarter of a segment leaves and not a hot half.

/// At most this share of a segment is written again.
const SEGMENT_SHARE_MAX_PERCENT: usize = 75;
/// If the hash index is crowded at most this share of the live bytes is: each segment must give
/// slots back.
const CROWDED_SHARE_MAX_PERCENT: usize = 50;
/// Bytes that one byte of a caller's pays for.
const PER_USER_BYTE: f64 = 0.5;
/// Bytes that one byte moved back pays for.
const PER_MOVED_BYTE: f64 = 3.0;
/// Segments' bytes that may be saved up.
const SAVED_SEGMENTS_MAX: f64 = 4.0;

/// What has been paid for and not been spent.
#[derive(Debug)]
pub struct Credit {
    segment_bytes: f64,
    bytes: f64,
    user_bytes: u64,
    moved_bytes: u64,
}

impl Credit {
    /// For a start there is enough for one segment.
    #[allow(clippy::cast_precision_loss)]
    pub const fn new(segment_bytes: u64) -> Self {
        Self {
            segment_bytes: segment_bytes as f64,
            bytes: segment_bytes as f64,
            user_bytes: 0,
            moved_bytes: 0,
        }
    }

    /// So many bytes of callers, and of values moved back, have been written to the log since the
    /// store was opened.
    #[allow(clippy::cast_precision_loss)]
    pub fn written(&mut self, user_bytes: u64, moved_bytes: u64) {
        let user = user_bytes.saturating_sub(self.user_bytes);
        let moved = moved_bytes.saturating_sub(self.moved_bytes);
        self.user_bytes = self.user_bytes.max(user_bytes);
        self.moved_bytes = self.moved_bytes.max(moved_bytes);
        self.bytes += user as f64 * PER_USER_BYTE + moved as f64 * PER_MOVED_BYTE;
        self.bytes = self.bytes.min(self.segment_bytes * SAVED_SEGMENTS_MAX);
    }

    /// Most bytes that may be written again of a segment with `length` bytes of which `live_bytes`
    /// live.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn limit(&self, length: usize, live_bytes: usize, is_crowded: bool) -> usize {
        let mut limit = (length * SEGMENT_SHARE_MAX_PERCENT / 100).min(self.bytes as usize);
        if is_crowded {
            limit = limit.min(live_bytes * CROWDED_SHARE_MAX_PERCENT / 100);
        }
        limit
    }

    /// So much was written again.
    #[allow(clippy::cast_precision_loss)]
    pub fn spend(&mut self, bytes: usize) {
        self.bytes = (self.bytes - bytes as f64).max(0.0);
    }
}

/// Takes of `values` those that are written again: used ones, the most used first, of at most
/// `limit` bytes. Gives them and the others. `facts` says of a value how often it was used, and its
/// bytes.
pub fn choose<T>(mut values: Vec<T>, limit: usize, facts: impl Fn(&T) -> (u8, usize)) -> (Vec<T>, Vec<T>) {
    values.sort_by_key(|value| std::cmp::Reverse(facts(value).0));
    let mut taken_bytes = 0;
    values.into_iter().partition(|value| {
        let (uses, bytes) = facts(value);
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

    #[test]
    fn the_most_used_stay() {
        let values = vec![(0, 10), (1, 10), (3, 10), (2, 10), (1, 10), (3, 30)];
        let (hot, cold) = choose(values, 55, |value| *value);
        assert_eq!(hot, [(3, 10), (3, 30), (2, 10)]);
        assert_eq!(cold, [(1, 10), (1, 10), (0, 10)]);
    }

    #[test]
    fn unused_values_leave_however_much_room_there_is() {
        let (hot, cold) = choose(vec![(0, 10), (0, 10)], 1000, |value| *value);
        assert_eq!((hot.len(), cold.len()), (0, 2));
    }

    #[test]
    fn what_is_written_again_is_bounded_by_what_others_write() {
        let mut credit = Credit::new(1000);
        let mut again = credit.limit(1000, 1000, false);
        assert_eq!(again, 750);
        credit.spend(again);
        // 100 segments of hot values, 20 segments written by callers meanwhile.
        for drained in 1..=100 {
            credit.written(drained * 200, 0);
            let limit = credit.limit(1000, 1000, false);
            credit.spend(limit);
            again += limit;
        }
        assert!((10_000..=11_000).contains(&again), "{again}");
        // Nobody writes any more, so nothing is written again.
        assert_eq!(credit.limit(1000, 1000, false), 0);
        credit.written(20_000, 1000);
        assert_eq!(credit.limit(1000, 1000, false), 750);
        assert_eq!(credit.limit(1000, 400, true), 200);
    }

    #[test]
    fn credit_is_not_saved_up_without_end() {
        let mut credit = Credit::new(1000);
        credit.written(1 << 30, 1 << 30);
        for _ in 0..5 {
            credit.spend(1000);
        }
        assert_eq!(credit.limit(1000, 1000, false), 0);
    }
}
