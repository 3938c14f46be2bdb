//! Interface of a cache in front of the blocks: looked up before a block is read for a caller, and
//! notified of reads of the block. The flash cache implements it; blocks depend on nothing else of
//! it.

use std::{fmt::Debug, sync::Arc};

/// The source of a read's bytes; of several, the farthest one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Source {
    /// An image in RAM, because another reader reads the same.
    Ram = 1,
    /// A copy on flash.
    Copy = 2,
    /// An image in RAM that was read ahead.
    Ahead = 3,
    Block = 4,
}

/// An extent that is about to be read.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The key that its value is read for.
    pub key: &'a [u8],
    /// Number of its block.
    pub block: u64,
    /// Where it begins in the block.
    pub offset: u64,
    /// Bytes from its first page to its last.
    pub page_bytes: u64,
    /// Length of its value.
    pub value_bytes: u64,
}

/// A cache in front of the blocks.
pub trait Nearer: Debug + Send + Sync {
    /// Begins to read an extent for a caller. `None` if this extent is never nearer.
    fn begin(self: Arc<Self>, wanted: &Wanted<'_>) -> Option<Box<dyn NearReader>>;

    /// Begins to read an extent ahead of callers. `None` if that is of no use.
    fn begin_ahead(self: Arc<Self>, wanted: &Wanted<'_>) -> Option<Box<dyn NearReader>>;
}

/// One reader of one extent. Positions count from the page in which the extent begins.
pub trait NearReader: Debug + Send + Sync {
    /// Fills `out` with the bytes at `position` if they are nearer than the block.
    fn read(&self, position: u64, out: &mut [u8]) -> bool;

    /// Notifies of bytes that were read from the block at `position`.
    fn gather(&self, position: u64, bytes: &[u8]);

    /// Whether its beginning is nearer than the block.
    fn is_near(&self) -> bool;

    /// The farthest source of anything read so far.
    fn source(&self) -> Option<Source>;

    /// Bytes did not match their checksums. Returns whether a copy may be the cause: it is dropped
    /// then, and the read should be repeated.
    fn blames_copy(&self) -> bool;
}
