//! The memory of downloads.
//!
//! Pieces that are read ahead of a client, or that the cache has dropped since, are memory of its
//! download. It comes from a pool that all have, and goes back when the connection has sent them. A
//! download that finds none there holds little, and asks again with each piece. One that is asked
//! for nothing for [`STALL`] loses what it had ahead to those that need memory; it is read again
//! should the client go on.
//!
//! Invariant: besides the cache, downloads have what the pool has, and for each connection a short
//! piece or a short object, since a connection takes no more short pieces while it cannot send
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
/// the rest of the server, less than 300 MB. One sender may have three of four parts.
pub const DOWNLOADS_BYTES_MAX: u64 = 56 << 20;
/// With so many pieces at hand, or fewer, the next are read.
pub const PIECES_LOW: usize = 1;
/// Pieces that a connection has: it takes one while it has less than half of one.
const PIECES_SENT: usize = 2;
/// An object that is no longer needs no memory: it is one piece, which its connection has.
const SHORT_BYTES: u64 = 128 << 10;
/// Most bytes of one download: 24 of one sender read ahead at the same time.
pub const AHEAD_BYTES: u64 = ((PIECES_SENT + PIECES_LOW + PIECES_PER_READ) * PIECE_BYTES) as u64;
/// Reading ahead is of no use to a download that has been asked for nothing for so long: a client
/// that takes 256 KiB a second is served as fast without.
pub const STALL: Duration = Duration::from_secs(1);
/// Stalled downloads are looked for so often at most.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The memory of downloads. Clones have the same.
#[derive(Clone)]
pub struct ReadAhead(Arc<Shared>);

struct Shared {
    pool: Arc<Pool>,
    holders: Mutex<Holders>,
}

/// Downloads that have memory, or had.
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
    /// So many bytes.
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(Shared {
            pool: Pool::new(bytes, bytes / 4 * 3),
            holders: Mutex::new(Holders {
                all: Vec::new(),
                looked: Instant::now(),
            }),
        }))
    }

    /// Begins a download of so many bytes to `sender`: takes memory for it, or has it hold little.
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

    /// Enters a download that has memory, for as long as it is there.
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

    /// As if stalled downloads were looked for then.
    #[cfg(test)]
    pub fn looked_at(&self, then: Instant) {
        self.0.holders.lock().looked = then;
    }

    /// Takes from downloads that have stalled what they have ahead. Whether any had.
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
    /// Gives back what it has ahead, if it was asked for nothing for a while. Whether it did.
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

/// A piece, and the memory it is in.
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
    /// Takes memory to read so many bytes, as far as there is none yet. Whether there is enough.
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

    /// Where the memory is from, if there is some.
    pub fn pool(&self) -> Option<&ReadAhead> {
        self.memory().map(|memory| &memory.ahead)
    }

    fn memory(&self) -> Option<&Arc<Memory>> {
        self.0
            .as_ref()
            .filter(|memory| memory.bytes.load(Ordering::Relaxed) > 0)
    }

    /// A piece that is in this memory, until nothing holds it any more.
    pub fn hold(&self, bytes: Bytes) -> Bytes {
        match self.memory() {
            None => bytes,
            Some(memory) => Bytes::from_owner(Piece {
                bytes,
                _memory: Arc::clone(memory),
            }),
        }
    }

    /// Gives back all but what the connection may have still. Whether that is anything.
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
