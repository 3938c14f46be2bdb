//! Pieces of RAM with values, sorted by how little of each is live, for choosing what to empty
//! first.
//!
//! A piece is noted whenever its live part has shrunk by an eighth. So the same one may be in
//! several lists, or may have been freed: after taking one, check whether it still exists.

use std::collections::VecDeque;

/// Number of classes by live fraction.
const PARTS: u64 = 8;
/// Maximum number of pieces in each list. An emptied piece leaves its notes in the lists of fuller
/// pieces, which may not be used for long: beyond this the oldest note is dropped, and its piece is
/// evicted in its normal order.
const NOTES_MAX: usize = 1 << 13;

/// See the module. Only pieces with fewer than `WORTH` eighths live are worth emptying: with
/// others, much would be copied for little room.
#[derive(Debug)]
pub struct Emptiest<T, const WORTH: usize>([VecDeque<T>; WORTH]);

impl<T, const WORTH: usize> Default for Emptiest<T, WORTH> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| VecDeque::new()))
    }
}

/// Whole eighths of a piece that are live.
fn eighths(living: u64, all: u64) -> usize {
    let eighths = living.saturating_mul(PARTS) / all.max(1);
    usize::try_from(eighths).unwrap_or(usize::MAX)
}

impl<T, const WORTH: usize> Emptiest<T, WORTH> {
    /// Whether a piece with this live size is worth emptying.
    pub fn is_worth(living: u64, all: u64) -> bool {
        eighths(living, all) < WORTH
    }

    /// Whether a piece must be noted, since its live size has fallen to a lower class.
    pub fn has_fallen(before: u64, living: u64, all: u64) -> bool {
        Self::is_worth(living, all) && eighths(living, all) < eighths(before, all)
    }

    /// Notes a piece.
    pub fn note(&mut self, piece: T, living: u64, all: u64) {
        if let Some(list) = self.0.get_mut(eighths(living, all)) {
            if list.len() >= NOTES_MAX {
                list.pop_front();
            }
            list.push_back(piece);
        }
    }

    /// The piece with the smallest live fraction; of several the one noted first.
    pub fn take(&mut self) -> Option<T> {
        self.0.iter_mut().find_map(VecDeque::pop_front)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(VecDeque::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emptiest_comes_first() {
        type Pieces = Emptiest<u32, 4>;
        let mut pieces = Pieces::default();
        assert!(Pieces::is_worth(499, 1000) && !Pieces::is_worth(500, 1000) && Pieces::is_worth(0, 0));
        assert!(Pieces::has_fallen(500, 499, 1000) && Pieces::has_fallen(1000, 0, 1000));
        assert!(!Pieces::has_fallen(499, 400, 1000) && !Pieces::has_fallen(1000, 600, 1000));
        for (piece, living) in [(1, 400), (2, 130), (3, 700), (4, 249), (5, 0)] {
            pieces.note(piece, living, 1000);
        }
        let taken: Vec<_> = std::iter::from_fn(|| pieces.take()).collect();
        assert_eq!(taken, [5, 2, 4, 1]);
        assert!(pieces.is_empty());
    }

    /// Each emptied frame left up to five notes forever.
    #[test]
    fn notes_of_what_has_left_do_not_gather() {
        let mut pieces = Emptiest::<usize, 4>::default();
        for piece in 0..3 * NOTES_MAX {
            for living in [300, 200, 0] {
                pieces.note(piece, living, 1000);
            }
            assert_eq!(pieces.take(), Some(piece));
        }
        let left: Vec<_> = std::iter::from_fn(|| pieces.take()).collect();
        assert_eq!(left.len(), 2 * NOTES_MAX);
        assert!(left.iter().all(|piece| *piece >= 2 * NOTES_MAX), "the last ones");
    }
}
