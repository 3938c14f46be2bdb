//! How much of a segment of copies may be rewritten to reclaim it.
//!
//! The fuller a segment is with copies worth keeping, the more is rewritten per new copy: two
//! others where two thirds are kept, three where three quarters are, seven where seven eighths are.
//! Two are always allowed, and three where there are dozens. But where nearly all of the room is
//! settled and a segment has dozens of copies, segments are seldom less than three quarters full:
//! nothing would be reclaimed any more, and newly popular titles would find no room. So more may be
//! rewritten as long as little is written compared with what is read.

/// At most this share of a segment of many copies is written again in any case,
const SHARE_PERCENT: u64 = 75;
/// and this of one with few. Of four copies three quarters gave less than half a hit more of a
/// hundred for more than twice as much to write.
const SHARE_PERCENT_OF_FEW: u64 = 67;
/// The same while there is credit,
const SHARE_PERCENT_WITH_CREDIT: u64 = 88;
/// if a segment holds many copies, at least as many. With a dozen it would be half as much again to
/// write, and no more hits.
const MANY_COPIES: u64 = 20;
/// Bytes of copies, new and rewritten, that one byte read earns.
const PER_READ_BYTE: f64 = 0.07;
/// Segments' bytes that may be saved up, or owed.
const SEGMENTS_MAX: f64 = 8.0;

/// Whether a segment that has room for `data_bytes` of copies holds many of `bytes`.
pub const fn holds_many(data_bytes: u64, bytes: u64) -> bool {
    bytes * MANY_COPIES <= data_bytes
}

/// Credit that reads have earned and that is not spent.
#[derive(Debug)]
pub struct Credit {
    bytes: f64,
    bytes_max: f64,
    read_bytes: u64,
    written_bytes: u64,
}

impl Credit {
    /// None yet.
    pub const fn new(segment_bytes: u64) -> Self {
        Self {
            bytes: 0.0,
            bytes_max: segment_bytes as f64 * SEGMENTS_MAX,
            read_bytes: 0,
            written_bytes: 0,
        }
    }

    /// Sets the bytes read of objects that may have copies, and the bytes written as copies, since
    /// the store was opened.
    pub fn update(&mut self, read_bytes: u64, written_bytes: u64) {
        let read = read_bytes.saturating_sub(self.read_bytes);
        let written = written_bytes.saturating_sub(self.written_bytes);
        (self.read_bytes, self.written_bytes) = (read_bytes, written_bytes);
        self.bytes = (self.bytes + read as f64 * PER_READ_BYTE - written as f64).clamp(-self.bytes_max, self.bytes_max);
    }

    /// Maximum bytes that may be rewritten of a segment with room for `data_bytes` of copies, for a
    /// copy of `bytes`. Of objects counted one by one many have a low score, so for them it is at
    /// most three quarters.
    pub fn written_again_max(&self, data_bytes: u64, bytes: u64, is_single: bool) -> u64 {
        let percent = match holds_many(data_bytes, bytes) {
            false => SHARE_PERCENT_OF_FEW,
            true if self.bytes > 0.0 && !is_single => SHARE_PERCENT_WITH_CREDIT,
            true => SHARE_PERCENT,
        };
        data_bytes * percent / 100
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_many_reads_and_few_writes_more_may_be_written_again() {
        let mut credit = Credit::new(1_000);
        assert_eq!(credit.written_again_max(1_000, 10, false), 750, "nothing is read yet");
        credit.update(1_000, 0);
        assert_eq!(credit.written_again_max(1_000, 10, false), 880);
        assert_eq!(credit.written_again_max(1_000, 70, false), 670, "a dozen of copies");
        assert_eq!(credit.written_again_max(1_000, 10, true), 750);
        credit.update(1_000, 70);
        assert_eq!(credit.written_again_max(1_000, 10, false), 750, "all of it is spent");
    }

    #[test]
    fn a_long_past_is_neither_saved_up_nor_owed() {
        let mut credit = Credit::new(1_000);
        credit.update(1_000_000, 0);
        credit.update(1_000_000, 8_000);
        assert_eq!(credit.written_again_max(1_000, 10, false), 750);
        credit.update(1_000_000, 1_000_000);
        credit.update(1_115_000, 1_000_000);
        assert_eq!(credit.written_again_max(1_000, 10, false), 880);
    }
}
