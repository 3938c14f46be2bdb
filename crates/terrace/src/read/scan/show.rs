//! What a scan does with the objects that it comes to: it lends them or gives them away.

use super::{Listed, Scan, ScannedObject, Values};
use crate::{
    Result, Version,
    cache::chunk::{Chunk, Pair},
    read::describe::{Brief, object_info},
};
use bytes::Bytes;

/// Where a scan is in a chunk. The chunk stays what the scan's snapshot shows of its range, also
/// when the scan cache has lost it since.
pub(super) struct InChunk {
    pub(super) chunk: Chunk,
    /// Of the next pair.
    pub(super) number: usize,
}

impl std::fmt::Debug for InChunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InChunk")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// Objects that follow.
pub(super) enum More {
    Chunk(InChunk),
    Read(Values),
}

/// Takes objects in key order.
pub(super) trait Show {
    /// Whether it keeps pieces of chunks.
    const KEEPS: bool;

    /// An object in a chunk.
    fn pair(&mut self, chunk: &Chunk, pair: &Pair<'_>) -> Result<()>;

    /// An object of the index, and its value.
    fn read(&mut self, item: Listed, value: Result<Bytes>) -> Result<()>;
}

impl Scan {
    /// Shows the next `count` objects (fewer at the end). Returns their number.
    pub(super) fn show<S: Show>(&mut self, count: usize, show: &mut S) -> Result<usize> {
        let mut shown = 0;
        while shown < count && !self.is_over {
            let wanted = count - shown;
            let more = match self.more(wanted, S::KEEPS)? {
                More::Chunk(at) => self.show_chunk(at, wanted, show)?,
                More::Read(read) => read.show(show)?,
            };
            (shown, self.shown) = (shown + more, self.shown + more);
        }
        Ok(shown)
    }
}

impl Values {
    fn show<S: Show>(self, show: &mut S) -> Result<usize> {
        let count = self.items.len();
        let mut pairs = self.items.into_iter().zip(self.values);
        pairs.try_for_each(|(item, value)| show.read(item, value))?;
        Ok(count)
    }
}

/// Lends keys and values.
pub(super) struct Lend<F>(pub(super) F);

impl<F: FnMut(&[u8], Result<&[u8]>)> Show for Lend<F> {
    const KEEPS: bool = false;

    #[inline]
    fn pair(&mut self, _: &Chunk, pair: &Pair<'_>) -> Result<()> {
        self.0(pair.key, Ok(pair.value));
        Ok(())
    }

    fn read(&mut self, item: Listed, value: Result<Bytes>) -> Result<()> {
        self.0(&item.key, value.as_deref().map_err(Clone::clone));
        Ok(())
    }
}

/// Collects objects with their values.
#[derive(Debug)]
pub(super) struct Collect(pub(super) Vec<(ScannedObject, Result<Bytes>)>);

impl Show for Collect {
    const KEEPS: bool = true;

    fn pair(&mut self, chunk: &Chunk, pair: &Pair<'_>) -> Result<()> {
        let info = Brief {
            version: Version(pair.version),
            length: pair.value.len() as u64,
            checksum: pair.checksum,
            home: pair.home,
            attributes: chunk.piece(pair.attributes),
        }
        .info()?;
        let key = chunk.piece(pair.key);
        self.0.push((ScannedObject { key, info }, Ok(chunk.piece(pair.value))));
        Ok(())
    }

    fn read(&mut self, Listed { key, entry }: Listed, value: Result<Bytes>) -> Result<()> {
        let info = object_info(&entry)?;
        self.0.push((ScannedObject { key, info }, value));
        Ok(())
    }
}
