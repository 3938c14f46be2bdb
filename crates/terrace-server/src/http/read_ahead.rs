//! The memory of downloads.
//!
//! Pieces that are prefetched for a client, or that the cache has evicted since, are memory of its
//! download. It comes from a shared pool, and is returned when the connection has sent them. A
//! download without memory holds little, and tries again with each piece. One whose client requests
//! nothing for [`STALL`] loses its prefetched pieces to downloads that need memory; they are read
//! again if the client continues.
//!
//! Invariant: besides the cache, downloads hold the pool, and for each connection a short piece or
//! a short object, since a connection takes no more short pieces while it cannot send
//! ([`super::connections`]).

use super::{
    budget::{Pool, Ticket},
    download::Source,
};
use bytes::Bytes;
use parking_lot::Mutex;
use std::{
    net::IpAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use terrace_objects::{read::PIECES_PER_READ, write::PIECE_BYTES};

/// Most bytes of downloads besides the cache: with a short piece for each of 700 connections, and
/// the rest of the server, less than 300 MB. One sender may hold three quarters.
pub const DOWNLOADS_BYTES_MAX: u64 = 56 << 20;
/// With this many pieces or fewer the next are read.
pub const PIECES_LOW: usize = 1;
/// Pieces of a connection: it takes one while it has less than half of one.
const PIECES_SENT: usize = 2;
/// An object up to this length needs no memory: it is one piece, held by its connection.
const SHORT_BYTES: u64 = 128 << 10;
/// Most bytes of one download: 24 of one sender can prefetch at a time.
pub const AHEAD_BYTES: u64 = ((PIECES_SENT + PIECES_LOW + PIECES_PER_READ) * PIECE_BYTES) as u64;
/// Prefetching does not help a download that has requested nothing for this long: a client that
/// reads 256 KiB a second is as fast without.
pub const STALL: Duration = Duration::from_secs(1);
/// Shortest interval between searches for stalled downloads.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The memory of downloads, shared by clones.
#[derive(Clone)]
pub struct ReadAhead(Arc<Shared>);

struct Shared {
    pool: Arc<Pool>,
    holders: Mutex<Holders>,
}

/// Downloads that have, or had, memory.
struct Holders {
    all: Vec<Weak<dyn Holder>>,
    looked: Instant,
}

impl Default for ReadAhead {
    fn default() -> Self {
        Self::new(DOWNLOADS_BYTES_MAX)
    }
}

impl std::fmt::Debug for ReadAhead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ReadAhead").field(&self.0.pool).finish()
    }
}

impl ReadAhead {
    /// A pool of this many bytes.
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(Shared {
            pool: Pool::new(bytes, bytes / 4 * 3),
            holders: Mutex::new(Holders {
                all: Vec::new(),
                looked: Instant::now(),
            }),
        }))
    }

    /// Begins a download of this many bytes to `sender`: takes memory for it, or makes it hold
    /// little.
    pub fn begin(&self, sender: IpAddr, source: &mut impl Source, bytes: u64) -> Held {
        if source.length() <= SHORT_BYTES {
            return Held(None);
        }
        let held = Held(Some(Arc::new(Memory {
            ticket: self.0.pool.ticket(sender),
            bytes: AtomicU64::new(0),
            ahead: self.clone(),
        })));
        source.hold_little(!held.take(bytes));
        held
    }

    /// Registers a download that has memory, for its lifetime.
    pub fn enter(&self, holder: Weak<dyn Holder>) {
        let all = &mut self.0.holders.lock().all;
        all.retain(|holder| holder.strong_count() > 0);
        all.push(holder);
    }

    /// A place of a sender in the pool.
    #[cfg(test)]
    pub fn ticket(&self, sender: IpAddr) -> Ticket {
        self.0.pool.ticket(sender)
    }

    /// Searches for stalled downloads as of this time.
    #[cfg(test)]
    pub fn looked_at(&self, then: Instant) {
        self.0.holders.lock().looked = then;
    }

    /// Takes the prefetched pieces of stalled downloads. Returns whether there were any.
    fn take_from_stalled(&self) -> bool {
        let all: Vec<_> = match self.0.holders.try_lock() {
            Some(mut holders) if holders.looked.elapsed() >= LOOK_INTERVAL => {
                holders.looked = Instant::now();
                holders.all.iter().filter_map(Weak::upgrade).collect()
            }
            _ => return false,
        };
        all.iter().filter(|holder| holder.give_up()).count() > 0
    }
}

/// A download that may have memory.
pub trait Holder: Send + Sync {
    /// Returns its prefetched pieces, if its client has stalled. Returns whether it did.
    fn give_up(&self) -> bool;
}

/// The memory of one download. A short object needs none.
#[derive(Clone)]
pub struct Held(Option<Arc<Memory>>);

struct Memory {
    ticket: Ticket,
    bytes: AtomicU64,
    ahead: ReadAhead,
}

/// A piece, and its memory.
struct Piece {
    bytes: Bytes,
    _memory: Arc<Memory>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Held {
    /// Takes memory for reads of this many bytes, less what it has. Returns whether that succeeded.
    pub fn take(&self, bytes: u64) -> bool {
        let Some(memory) = &self.0 else { return true };
        let piece_bytes = PIECE_BYTES as u64;
        let has = memory.bytes.load(Ordering::Relaxed);
        // They may begin and end within pieces.
        let needed = (bytes.min(AHEAD_BYTES).next_multiple_of(piece_bytes) + piece_bytes).min(AHEAD_BYTES);
        let more = needed.saturating_sub(has);
        let take = || memory.ticket.take(more).is_ok();
        let has_enough = more == 0 || take() || memory.ahead.take_from_stalled() && take();
        if has_enough {
            memory.bytes.fetch_add(more, Ordering::Relaxed);
        }
        has_enough
    }

    /// The pool of the memory, if it has any.
    pub fn pool(&self) -> Option<&ReadAhead> {
        self.memory().map(|memory| &memory.ahead)
    }

    fn memory(&self) -> Option<&Arc<Memory>> {
        self.0
            .as_ref()
            .filter(|memory| memory.bytes.load(Ordering::Relaxed) > 0)
    }

    /// A piece that holds this memory until its last clone is dropped.
    pub fn hold(&self, bytes: Bytes) -> Bytes {
        match self.memory() {
            None => bytes,
            Some(memory) => Bytes::from_owner(Piece {
                bytes,
                _memory: Arc::clone(memory),
            }),
        }
    }

    /// Returns all memory except what the connection may still hold. Returns whether it was any.
    pub fn give_back(&self) -> bool {
        let kept = (PIECES_SENT * PIECE_BYTES) as u64;
        let Some(memory) = self.memory() else { return false };
        let more = memory.bytes.load(Ordering::Relaxed).saturating_sub(kept);
        if more > 0 {
            memory.bytes.fetch_sub(more, Ordering::Relaxed);
            memory.ticket.give_back(more);
        }
        more > 0
    }
}
