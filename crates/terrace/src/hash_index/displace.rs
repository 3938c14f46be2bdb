//! Makes room in two full buckets: a breadth-first search for the shortest chain of slots that can
//! each move to their other bucket, the last of them into a vacancy.
//!
//! Invariants:
//! - Moves are made from the vacancy backwards: a slot is written to its new position, then
//!   counted, then overwritten at its old one. So at every moment each class of the partition is in
//!   at least one of its buckets, and a reader that missed it in both has seen the count change.
//! - No bucket is twice on a chain, so no move invalidates a later one.
//!
//! If [`NODES_MAX`] buckets were searched and all are full, nothing has been moved and the caller
//! grows the table. Breadth first keeps chains short: at 97 % load one bucket in five has a
//! vacancy, so a chain of one or two moves is typical.

use super::{
    geometry::{Geometry, Place},
    slot::Slot,
    table::{SLOTS, Table},
};

/// Full buckets searched before giving up.
const NODES_MAX: usize = 256;

/// The two buckets the search starts from.
const ROOTS: usize = 2;

/// A full bucket reached by the search.
#[derive(Debug, Clone, Copy, Default)]
struct Node {
    bucket: u32,
    /// Index of the node it was reached from, and the slot there that could move here.
    parent: u16,
    slot: u8,
}

/// A slot to write: its bucket's number and its index.
pub(super) type Cell = (usize, usize);

/// Finds a slot for a new class at `place`, moving others as needed and calling `moved` once per
/// move. The slot may still hold the word that was moved out of it; the caller overwrites it.
pub(super) fn make_room(table: &Table, place: &Place, buckets: usize, mut moved: impl FnMut()) -> Option<Cell> {
    vacancy(table, place)
        .or_else(|| one_move(table, place, buckets, &mut moved))
        .or_else(|| search(table, place, buckets, moved))
}

/// An empty slot at `place`, in the primary bucket if possible: most lookups then need one cache
/// line.
pub(super) fn vacancy(table: &Table, place: &Place) -> Option<Cell> {
    let buckets = [place.primary, place.alternate].into_iter();
    buckets
        .filter_map(|bucket| Some((bucket, table.bucket(bucket).vacancy()?)))
        .next()
}

/// A slot at `place` whose occupant can move directly to a vacancy: nine cases in ten at 97 % load.
/// All buckets are loaded before one is chosen, so that their cache misses overlap.
#[inline]
fn one_move(table: &Table, place: &Place, buckets: usize, mut moved: impl FnMut()) -> Option<Cell> {
    for bucket in [place.primary, place.alternate] {
        let occupants = table.bucket(bucket).words().map(Slot::from_word);
        let others = occupants.map(|occupant| match occupant {
            Some(occupant) => Geometry::other_bucket(bucket, occupant.identity(), buckets),
            None => bucket,
        });
        let last_words = others.map(|other| table.bucket(other).load(SLOTS - 1));
        // Slots are filled from the front, so the last one is the likeliest vacancy.
        let likely = (0..SLOTS).find(|slot| last_words[*slot] == 0);
        let likely = likely.map(|slot| (slot, SLOTS - 1));
        let found = likely.or_else(|| (0..SLOTS).find_map(|slot| Some((slot, table.bucket(others[slot]).vacancy()?))));
        if let Some((slot, vacancy)) = found {
            move_slot(table, (bucket, slot), (others[slot], vacancy))?;
            moved();
            return Some((bucket, slot));
        }
    }
    None
}

/// Writes the slot at `from` where it may go as well. Reads it again: a reader may have raised its
/// recency since.
fn move_slot(table: &Table, from: Cell, to: Cell) -> Option<()> {
    let mover = Slot::from_word(table.bucket(from.0).load(from.1))?;
    let word = mover.with_identity(mover.identity().flipped()).word();
    table.bucket(to.0).store(to.1, word);
    Some(())
}

fn search(table: &Table, place: &Place, buckets: usize, moved: impl FnMut()) -> Option<Cell> {
    let mut nodes = [Node::default(); NODES_MAX];
    nodes[0].bucket = place.primary as u32;
    nodes[1].bucket = place.alternate as u32;
    let (mut head, mut reached) = (0, ROOTS);
    while head < reached {
        let bucket = nodes[head].bucket as usize;
        for (slot, word) in table.bucket(bucket).words().into_iter().enumerate() {
            let Some(occupant) = Slot::from_word(word) else {
                continue;
            };
            let other = Geometry::other_bucket(bucket, occupant.identity(), buckets);
            if is_on_chain(&nodes, head, other) {
                continue;
            }
            if let Some(vacancy) = table.bucket(other).vacancy() {
                return shift(table, &nodes, (head, slot), (other, vacancy), moved);
            }
            if reached < NODES_MAX {
                nodes[reached] = Node {
                    bucket: other as u32,
                    parent: head as u16,
                    slot: slot as u8,
                };
                reached += 1;
            }
        }
        head += 1;
    }
    None
}

fn is_on_chain(nodes: &[Node; NODES_MAX], mut node: usize, bucket: usize) -> bool {
    while nodes[node].bucket as usize != bucket {
        if node < ROOTS {
            return false;
        }
        node = nodes[node].parent as usize;
    }
    true
}

/// Moves the slot of `node` to `vacancy`, the parent's slot to where that one was, and so on.
fn shift(
    table: &Table,
    nodes: &[Node; NODES_MAX],
    (mut node, mut slot): (usize, usize),
    mut vacancy: Cell,
    mut moved: impl FnMut(),
) -> Option<Cell> {
    loop {
        let bucket = nodes[node].bucket as usize;
        debug_assert!(slot < SLOTS);
        move_slot(table, (bucket, slot), vacancy)?;
        moved();
        vacancy = (bucket, slot);
        if node < ROOTS {
            return Some(vacancy);
        }
        slot = nodes[node].slot as usize;
        node = nodes[node].parent as usize;
    }
}
