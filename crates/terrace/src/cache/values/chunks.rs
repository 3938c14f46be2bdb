//! Chunks of the scan cache among the values: segments that scans find by a place of their own, and
//! gets by the places of those of its values of which it is the home in RAM.

use super::{Rank, State, Values, WHOLE_OVERHEAD_BYTES, allocated_bytes};
use crate::cache::{
    Place,
    chunk::{Chunk, Pair},
    index::{CHUNK_AT, Contents, Segment},
    record::{Item, WORD_BYTES},
    table::Slot,
};

/// A scan that makes a chunk earns credit for this many copies of it, with which the frames and
/// segments that its values have left are emptied.
const COPIES_FOR_CHUNK: u64 = 8;

impl Values {
    /// The chunk that is found by a place.
    pub fn chunk(&self, place: Place) -> Option<Chunk> {
        self.index.chunk(place)
    }

    /// RAM of what a slot leads to, and of where that is noted. Walks over all segments.
    pub fn living_bytes(&self) -> u64 {
        let state = self.state.lock();
        let living_bytes = [&state.newcomers, &state.known].map(|queue| {
            let open = queue.open.iter().map(|open| open.number);
            let all = queue.sealed.iter().map(|queued| queued.number).chain(open);
            all.map(|number| self.index.living_bytes(number)).sum::<u64>()
        });
        self.index_bytes() + living_bytes.iter().sum::<u64>()
    }

    /// Keeps a chunk at a place, if there is room. Its values are where they were before; what
    /// moves there has been in RAM and is no newcomer.
    pub fn insert_chunk(&self, place: Place, chunk: &Chunk) {
        let rank = if chunk.is_home() { Rank::Known } else { Rank::Newcomer };
        let bytes = WHOLE_OVERHEAD_BYTES + allocated_bytes(chunk.bytes());
        if bytes > self.capacity_bytes() / 8 {
            return;
        }
        let mut state = self.state.lock();
        if !self.make_room(&mut state, bytes) {
            return;
        }
        let chunk = chunk.clone();
        let segment = Segment::new(Contents::Chunk { place, chunk, bytes });
        segment.add_live(segment.words_of(CHUNK_AT));
        if let Some(number) = self.put_segment(&mut state, rank, segment) {
            self.index.insert(place, number, CHUNK_AT);
        }
    }

    /// The chunk at a place is the home of its values with places from now on. A value without a
    /// home in RAM is added only if `is_new` holds for it; others have one, or have moved
    /// elsewhere. Returns the added ones.
    pub fn move_to_chunk<'c>(
        &self,
        place: Place,
        chunk: &'c Chunk,
        is_new: impl Fn(&Pair<'_>) -> bool,
    ) -> Vec<Pair<'c>> {
        let mut state = self.state.lock();
        let own = self.index.with_slot(place, |found, _| found.slot.segment());
        let Some((number, segment)) = own.and_then(|number| Some((number, self.index.segment(number)?))) else {
            return Vec::new();
        };
        self.index.fetch_slots(chunk.pairs().filter_map(|pair| pair.place));
        let mut came = Vec::with_capacity(chunk.count());
        for (at, pair) in chunk.pairs().enumerate() {
            let Some(from) = pair.place else { continue };
            // Before a slot leads there: a thread that takes it out subtracts these words again.
            segment.add_live(segment.words_of(at));
            let redirected = self.redirect(from, |slot| Some(Slot::new(from.hash(), number, at, slot.uses())));
            if let Some((slot, occupancy)) = redirected {
                self.note_lost_item(&mut state, from, slot, &occupancy);
            } else if is_new(&pair) {
                self.index.insert(from, number, at);
            } else {
                segment.remove_live(at);
                continue;
            }
            came.push(pair);
        }
        self.earn(chunk.bytes() as u64 * COPIES_FOR_CHUNK);
        came
    }

    /// Copies a pair to the second queue's records.
    pub(super) fn copy_pair(&self, state: &mut State, pair: &Pair<'_>) -> Option<(u32, usize)> {
        let item = Item {
            place: pair.place?,
            key: pair.key,
            version: pair.version,
            attributes: pair.attributes,
            value: pair.value,
        };
        let mut record = std::mem::take(&mut state.encoded);
        let is_record =
            item.encode(&mut record).is_some() && record.len() <= Self::record_bytes_max_of(self.segment_words);
        let copied = is_record.then(|| {
            self.append_known(state, record.len() / WORD_BYTES, |segment, at| {
                segment.words(at).write(&record);
            })
        });
        state.encoded = record;
        copied.flatten()
    }
}
