//! Turns of uploads: which of them have memory for a body on its way.
//!
//! There is memory for some tens of bodies ([`Pool`]), however many connections there are. An
//! upload that has none takes nothing from its connection, but what was read ahead of it, and waits
//! in line. It gives the memory back after [`TURN_BYTES`], or when its client has let it wait for
//! [`PATIENCE`] in a turn, if another upload waits for it then; what it has by then is written out
//! first. An upload whose client sends nothing stays out of the line: it comes back when there is
//! something to take.
//!
//! An upload that waits for a turn holds no permit of the engine and no lock, and its client is not
//! being waited for meanwhile ([`super::body`]). One that has a turn waits for the engine and for
//! its client only, and for the client for a bounded time: so all come to their turns.

use crate::http::budget::{Pool, Ticket};
use std::{net::IpAddr, pin::pin, sync::Arc, time::Duration};
use terrace_objects::write::PIECE_BYTES;
use tokio::time::{Instant, sleep};

/// What a stream into the store has: writes of a MiB are gathered.
const WRITER_BYTES: usize = 1 << 20;
/// What a long body has on its way: a piece that is hashed and written, one that is being taken,
/// what the connection has read ahead, and the writer's.
pub const LONG_BYTES: usize = 3 * PIECE_BYTES + WRITER_BYTES;
/// Bytes of a turn after which others have theirs: one write to the device.
const TURN_BYTES: usize = WRITER_BYTES;
/// How long the client may let its upload wait in one turn while others want it. One that sends as
/// fast as others are served has all of a turn at hand when it begins.
const PATIENCE: Duration = Duration::from_millis(20);

/// The turns of one upload.
pub struct Turn {
    ticket: Ticket,
    held: u64,
    /// What was taken besides for a value that is kept in RAM as long as it is written.
    spooled: u64,
    /// Bytes until others have their turn.
    left: usize,
    /// How long the client was waited for.
    waited: Duration,
    is_over: bool,
}

impl Turn {
    /// No turn yet, of an upload from there.
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

    /// Waits for a turn with so much memory.
    pub async fn begin(&mut self, bytes: usize) {
        self.held = self.ticket.take_in_turn(bytes as u64).await;
        self.go_on();
    }

    const fn go_on(&mut self) {
        self.left = TURN_BYTES;
        self.waited = Duration::ZERO;
        self.is_over = false;
    }

    /// Whether it has one.
    pub const fn is_held(&self) -> bool {
        self.held > 0
    }

    /// Whether it is to be given back.
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Bytes that it is still good for.
    pub const fn left(&self) -> usize {
        self.left
    }

    /// So many bytes were taken.
    pub fn took(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
        if self.left == 0 {
            if self.ticket.is_wanted() {
                self.is_over = true;
            } else {
                self.go_on();
            }
        }
    }

    /// Whether there is memory for a value of so many bytes that is kept in RAM: beyond what
    /// writers have, it is taken if it is there.
    pub fn covers(&mut self, spooled: usize) -> bool {
        let more = (spooled.saturating_sub(WRITER_BYTES) as u64).saturating_sub(self.spooled);
        let is_covered = more == 0 || self.ticket.take(more).is_ok();
        if is_covered {
            self.spooled += more;
        }
        is_covered
    }

    /// Gives it back: nothing is held any more of what was taken.
    pub fn end(&mut self) {
        let held = std::mem::take(&mut self.held) + std::mem::take(&mut self.spooled);
        if held > 0 {
            self.ticket.give_back(held);
        }
        self.is_over = false;
    }

    /// Waits for what the client sends. `None` if the turn is over before something comes.
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
