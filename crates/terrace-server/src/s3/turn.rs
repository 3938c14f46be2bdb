//! Turns of uploads, which share a limited memory.
//!
//! There is memory for some tens of bodies ([`Pool`]), however many connections there are. An
//! upload without memory reads nothing from its connection, except what was read ahead, and waits
//! in a queue. It returns the memory after [`TURN_BYTES`], or when its client has sent nothing for
//! [`PATIENCE`] in a turn, if another upload waits then; received bytes are written first. An
//! upload whose client sends nothing is not in the queue: it enters when bytes arrive.
//!
//! A waiting upload holds no engine permit and no lock, and the wait does not count for its
//! client's limits ([`super::body`]). An upload with a turn waits only for the engine and, for a
//! bounded time, for its client, so all get their turns.

use crate::http::budget::{Pool, Ticket};
use std::{net::IpAddr, pin::pin, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

/// Bytes of a body that are hashed and written at a time. Each piece wakes three threads: with a
/// quarter of this, uploads took up to a tenth more processor time (docs/s3.md).
pub const PIECE_BYTES: usize = 1 << 20;
/// Buffer of a stream into the store: writes of a MiB are gathered.
const WRITER_BYTES: usize = 1 << 20;
/// Most bytes that a connection reads ahead of the body.
const READ_AHEAD_BYTES: usize = 256 << 10;
/// Memory of a long body: a piece being hashed and written, one being received, the connection's
/// read-ahead, and the writer's buffer.
pub const LONG_BYTES: usize = 2 * PIECE_BYTES + READ_AHEAD_BYTES + WRITER_BYTES;
/// Length of a turn if others wait: so many pieces that receiving overlaps with writing.
const TURN_BYTES: usize = 4 * PIECE_BYTES;
/// How long a client may be silent in one turn while others wait. A client that is as fast as
/// others are served has a whole turn's bytes ready when it begins.
const PATIENCE: Duration = Duration::from_millis(20);

/// The turns of one upload.
pub struct Turn {
    ticket: Ticket,
    held: u64,
    /// Additional memory for a value that is kept in RAM while it is written.
    spooled: u64,
    /// Remaining bytes of the turn.
    left: usize,
    /// Time spent waiting for the client.
    waited: Duration,
    is_over: bool,
}

impl Turn {
    /// An upload of this sender, without a turn.
    pub fn of(pool: &Arc<Pool>, sender: IpAddr) -> Self {
        Self {
            ticket: pool.ticket(sender),
            held: 0,
            spooled: 0,
            left: 0,
            waited: Duration::ZERO,
            is_over: false,
        }
    }

    /// Waits for a turn with this memory.
    pub async fn begin(&mut self, bytes: usize) {
        self.held = self.ticket.take_in_turn(bytes as u64).await;
        self.go_on();
    }

    const fn go_on(&mut self) {
        self.left = TURN_BYTES;
        self.waited = Duration::ZERO;
        self.is_over = false;
    }

    /// Whether it has a turn.
    pub const fn is_held(&self) -> bool {
        self.held > 0
    }

    /// Whether the turn has ended and must be returned.
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Remaining bytes of the turn.
    pub const fn left(&self) -> usize {
        self.left
    }

    /// Counts received bytes. If others wait, the turn ends with its last byte, or the body's: they
    /// need not wait for the commit.
    pub fn took(&mut self, bytes: usize, is_body_complete: bool) {
        self.left = self.left.saturating_sub(bytes);
        if self.left > 0 && !is_body_complete {
            return;
        }
        if self.ticket.is_wanted() {
            self.is_over = true;
        } else {
            self.go_on();
        }
    }

    /// Whether there is memory for a value of this length in RAM, beyond the writer's buffer; takes
    /// it if so.
    pub fn covers(&mut self, spooled: usize) -> bool {
        let more = (spooled.saturating_sub(WRITER_BYTES) as u64).saturating_sub(self.spooled);
        let is_covered = more == 0 || self.ticket.take(more).is_ok();
        if is_covered {
            self.spooled += more;
        }
        is_covered
    }

    /// Returns the memory: no received bytes are held.
    pub fn end(&mut self) {
        let held = std::mem::take(&mut self.held) + std::mem::take(&mut self.spooled);
        if held > 0 {
            self.ticket.give_back(held);
        }
        self.is_over = false;
    }

    /// Waits for the client's bytes. `None` if the turn ends first.
    pub async fn wait<T>(&mut self, sent: impl Future<Output = T>) -> Option<T> {
        if !self.is_held() {
            return Some(sent.await);
        }
        let (since, patience) = (Instant::now(), PATIENCE.saturating_sub(self.waited));
        let mut sent = pin!(sent);
        let sent = tokio::select! {
            biased;
            sent = sent.as_mut() => Some(sent),
            () = async {
                sleep(patience).await;
                self.ticket.wanted().await;
            } => None,
        };
        self.waited += since.elapsed();
        self.is_over |= sent.is_none();
        sent
    }
}
