//! Which segments are evicted when there is no room, and which of their values stay.

use super::{EmptiestSegments, Queue, Queued, Rank, State, Values};
use crate::cache::{
    Place,
    index::{CHUNK_AT, Contents, Segment},
    record::WORD_BYTES,
    table::Slot,
};
use std::sync::Arc;

/// Fraction (1/n) of the room for new values.
const NEWCOMERS_PART: u64 = 10;
/// This many long values get a second chance before one is evicted in any case,
const CHANCES_MAX: usize = 64;
/// or one in this many segments of records, half of which is then evicted in any case.
const CHANCES_OF_SEGMENT: usize = 8;

/// A record of a segment that leaves.
struct Leaving {
    place: Place,
    at: usize,
    words: usize,
    uses: u64,
}

impl Values {
    /// Evicts segments until there is room for this many more bytes, and numbers for new segments
    /// and for second chances. Returns whether there is room now.
    pub(super) fn make_room(&self, state: &mut State, bytes: u64) -> bool {
        let room = self.capacity_bytes().saturating_sub(self.segment_bytes() + bytes);
        let mut chances = CHANCES_MAX;
        let is_full = |state: &State| state.numbers.len() < 2 || self.bytes() + self.index_bytes() > room;
        while is_full(state) && (self.evict_sparse(state) || self.evict(state, &mut chances)) {}
        if self.bytes() + self.index_bytes() + self.segment_bytes() <= room {
            state.spare = None;
        }
        self.bytes() + self.index_bytes() + bytes <= self.capacity_bytes()
    }

    /// Empties the segment with the fewest live words. `false` if none is worth it, or there is no
    /// credit for it.
    fn evict_sparse(&self, state: &mut State) -> bool {
        while let Some(number) = state.emptiest.take() {
            let is_open = |queue: &Queue| queue.open.as_ref().is_some_and(|open| open.number == number);
            let Some(segment) = self.index.segment(number) else {
                continue;
            };
            let (live_words, all_words) = (segment.live_words(), segment.all_words());
            // A long value is no segment of records. It may have the number of one that was noted.
            let is_sparse = all_words > 0 && EmptiestSegments::is_worth(live_words, all_words);
            if is_open(&state.newcomers) || is_open(&state.known) || !is_sparse {
                continue;
            }
            if 2 * live_words > all_words && !self.spend(live_words * WORD_BYTES as u64) {
                state.emptiest.note(number, live_words, all_words);
                return false;
            }
            let queued = Queued {
                number,
                words: self.segment_words,
                bytes: segment.bytes(),
            };
            self.empty(state, Rank::Known, &queued, Some(&segment), &mut { CHANCES_MAX }, true);
            drop(segment);
            self.reclaim(state, number);
            state.stale_queued += 1;
            self.drop_stale(state);
            return true;
        }
        false
    }

    /// Lets a segment go, and keeps its memory for the next if it has records.
    fn reclaim(&self, state: &mut State, number: u32) {
        if let Some(left) = self.release(number).and_then(Arc::into_inner)
            && let Contents::Records(memory) = left.contents
        {
            state.spare = Some(memory);
        }
    }

    /// Lets the first segment of a queue leave. `false` if there is none.
    fn evict(&self, state: &mut State, chances: &mut usize) -> bool {
        let newcomers_have_much = state.newcomers.bytes > self.capacity_bytes() / NEWCOMERS_PART;
        let rank = match (state.newcomers.sealed.is_empty(), state.known.sealed.is_empty()) {
            (true, true) => return false,
            (false, true) => Rank::Newcomer,
            (true, false) => Rank::Known,
            (false, false) if newcomers_have_much => Rank::Newcomer,
            (false, false) => Rank::Known,
        };
        let queue = state.queue(rank);
        let Some(first) = queue.sealed.pop_front() else {
            return false;
        };
        queue.bytes -= first.bytes;
        let segment = self.index.segment(first.number);
        let whole = match segment.as_ref().map(|segment| &segment.contents) {
            Some(Contents::Whole { place, .. }) => Some((*place, 0)),
            Some(Contents::Chunk { place, .. }) => Some((*place, CHUNK_AT)),
            Some(Contents::Records(_)) | None => None,
        };
        if whole.is_some_and(|(place, at)| self.has_chance(place, at, &first, chances)) {
            state.known.bytes += first.bytes;
            state.known.sealed.push_back(first);
            return true;
        }
        match segment.as_ref().map(|segment| &segment.contents) {
            Some(Contents::Whole { place, .. }) => self.leave(*place, first.number, 0),
            Some(_) => self.empty(state, rank, &first, segment.as_deref(), chances, false),
            // Taken out before.
            None => state.stale_queued = state.stale_queued.saturating_sub(1),
        }
        drop(segment);
        self.reclaim(state, first.number);
        state.numbers.push(first.number);
        true
    }

    /// Whether a long value or a chunk was read, and may stay for that.
    fn has_chance(&self, place: Place, at: usize, queued: &Queued, chances: &mut usize) -> bool {
        let was_read = self.index.with_slot_of(place, queued.number, at, |found| {
            let uses = found.slot.uses();
            uses > 0 && found.replace(Some(Slot::new(place.hash(), queued.number, at, uses - 1)))
        });
        let may_stay = *chances > 0 && was_read == Some(true);
        *chances -= usize::from(may_stay);
        may_stay
    }

    /// The value at a word of a segment, or its chunk, is not found there any more.
    pub(super) fn leave(&self, place: Place, number: u32, at: usize) {
        let left = self
            .index
            .with_slot_of(place, number, at, |found| found.leave(place.hash()));
        if left == Some(true) {
            self.index.note_gone(place);
        }
    }

    /// Takes the read records out of an evicted segment, the most read first; the others are
    /// evicted. Once many have had a second chance, half of a segment's records are evicted in any
    /// case. All records of a sparse segment (`is_sparse`) stay, read or not: it frees room
    /// nevertheless.
    fn empty(
        &self,
        state: &mut State,
        rank: Rank,
        queued: &Queued,
        segment: Option<&Segment>,
        chances: &mut usize,
        is_sparse: bool,
    ) {
        let Some(segment) = segment else { return };
        let mut records = self.records(queued, segment);
        records.sort_by_key(|record| std::cmp::Reverse(record.uses));
        let mut words_left = if *chances < CHANCES_OF_SEGMENT {
            self.segment_words / 2
        } else {
            self.segment_words
        };
        *chances = chances.saturating_sub(CHANCES_OF_SEGMENT);
        for record in &records {
            let stays = (record.uses > 0 || is_sparse)
                && record.words <= words_left
                && self.give_chance(state, rank, queued.number, segment, record);
            if stays {
                words_left -= record.words;
            } else {
                self.leave(record.place, queued.number, record.at);
            }
        }
        if let Contents::Chunk { place, .. } = &segment.contents {
            self.leave(*place, queued.number, CHUNK_AT);
        }
    }

    /// The records of a segment that a slot leads to.
    fn records(&self, queued: &Queued, segment: &Segment) -> Vec<Leaving> {
        let mut records = Vec::new();
        let mut add = |place, at, words| {
            let uses = 0;
            records.push(Leaving { place, at, words, uses });
        };
        match &segment.contents {
            Contents::Records(_) => {
                let mut at = 0;
                while at < queued.words
                    && let Some(head) = segment.head(at)
                {
                    add(head.place, at, head.words());
                    at += head.words();
                }
            }
            Contents::Chunk { chunk, .. } => {
                for (at, pair) in chunk.pairs().enumerate() {
                    if let Some(place) = pair.place {
                        add(place, at, segment.words_of(at));
                    }
                }
            }
            Contents::Whole { .. } => {}
        }
        self.index.fetch_slots(records.iter().map(|record| record.place));
        let uses_of = |record: &Leaving| {
            self.index
                .with_slot_of(record.place, queued.number, record.at, |found| found.slot.uses())
        };
        records.retain_mut(|record| {
            let uses = uses_of(record);
            record.uses = uses.unwrap_or(0);
            uses.is_some()
        });
        records
    }

    /// Copies a record behind the others of the second queue.
    fn give_chance(&self, state: &mut State, rank: Rank, number: u32, segment: &Segment, record: &Leaving) -> bool {
        let copied = match &segment.contents {
            Contents::Chunk { chunk, .. } => chunk.pair(record.at).and_then(|pair| self.copy_pair(state, &pair)),
            _ => self.append_known(state, record.words, |to, at| {
                let mut words = segment.words(record.at);
                words.0 = &words.0[..record.words];
                to.words(at).copy_from(words);
            }),
        };
        let Some((to, at)) = copied else { return false };
        let uses = if rank == Rank::Newcomer {
            0
        } else {
            record.uses.saturating_sub(1)
        };
        let slot = Slot::new(record.place.hash(), to, at, uses);
        let moved = self
            .index
            .with_slot_of(record.place, number, record.at, |found| found.replace(Some(slot)));
        moved == Some(true)
    }

    /// Appends a record to the second queue without making room: what leaves has more.
    pub(super) fn append_known(
        &self,
        state: &mut State,
        words: usize,
        write: impl FnOnce(&Segment, usize),
    ) -> Option<(u32, usize)> {
        if !self.has_open(state, Rank::Known, words) {
            self.open(state, Rank::Known)?;
        }
        Self::append_to_open(state, Rank::Known, words, write)
    }
}
