//! Bounds on what clients hold of the server: bytes of memory and connections, in all and per
//! sender.
//!
//! A [`Pool`] has an amount; a [`Ticket`] counts the part taken of it, and returns that when it is
//! dropped. A sender may hold a share of the pool, so requests from one address cannot use all of
//! it.
//!
//! Memory is counted where the server collects what a client sends or requests before it can
//! continue: XML and forms, signed chunks, pages of listings. Bytes are counted as they arrive, so
//! a slow sender holds only what was sent. A request for which there is not enough memory is
//! refused.
//!
//! Bodies of objects are streamed, and have a pool of their own: an upload without memory waits for
//! its turn ([`Ticket::take_in_turn`]), the longest waiting first, except those of senders that
//! hold their share. A download without memory holds little ([`super::read_ahead`]). Health probes
//! collect nothing and take nothing.
//!
//! Invariant: an upload for which there is room waits only behind one that has waited longer for
//! the common amount.

use parking_lot::Mutex;
use std::{
    collections::{HashMap, VecDeque},
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::sync::{Notify, oneshot};

/// Most bytes that requests may make the server collect at a time: together with the caches'
/// default sizes well below the memory of the smallest machines.
pub const COLLECTED_BYTES_MAX: u64 = 160 << 20;
/// Most bytes of uploads in flight. With the other memory of 700 connections, and the rest of the
/// server, less than 300 MB.
pub const UPLOADS_BYTES_MAX: u64 = 96 << 20;
/// One sender may have one part of this many: the longest permitted XML body fits into that of the
/// default amount, with its parsed form.
const SHARES: u64 = 2;
/// Memory of a frame of a body besides its bytes: its entry in a list, and its part of the buffer
/// that it arrived in.
const FRAME_COST_BYTES: u64 = 64;

/// The unit that counts as one sender: an address, or the prefix of an IPv6 subscriber.
pub fn sender_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address => address,
    }
}

/// Memory of a frame of a body whose bytes grow by a factor of `weight`.
pub const fn cost_of_frame(bytes: usize, weight: u64) -> u64 {
    bytes as u64 * weight + FRAME_COST_BYTES
}

/// Why nothing more can be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exhausted {
    /// All of it is taken.
    All,
    /// The sender has its share.
    Share,
}

/// An amount, of which each sender may take a share.
#[derive(Debug)]
pub struct Pool {
    most: u64,
    share: u64,
    taken: Mutex<Taken>,
    /// A request began to wait.
    asked: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    all: u64,
    senders: HashMap<IpAddr, u64>,
    /// Waiting requests, the longest first.
    waiting: VecDeque<Waiter>,
    next: u64,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    sender: IpAddr,
    amount: u64,
    granted: oneshot::Sender<()>,
}

impl Pool {
    /// A pool with its full amount.
    pub fn new(most: u64, share: u64) -> Arc<Self> {
        Arc::new(Self {
            most,
            share,
            taken: Mutex::default(),
            asked: Notify::new(),
        })
    }

    /// The pool of memory that requests may make the server collect.
    pub fn memory(most_bytes: u64) -> Arc<Self> {
        Self::new(most_bytes, most_bytes / SHARES)
    }

    /// A ticket of a sender, which holds nothing yet.
    pub fn ticket(self: &Arc<Self>, sender: IpAddr) -> Ticket {
        Ticket {
            pool: Arc::clone(self),
            sender: sender_of(sender),
            amount: AtomicU64::new(0),
        }
    }

    fn room(&self, taken: &Taken, sender: IpAddr, amount: u64) -> Result<(), Exhausted> {
        let of_sender = taken.senders.get(&sender).copied().unwrap_or(0);
        if of_sender.saturating_add(amount) > self.share {
            return Err(Exhausted::Share);
        }
        if taken.all.saturating_add(amount) > self.most {
            return Err(Exhausted::All);
        }
        Ok(())
    }

    fn take(&self, sender: IpAddr, amount: u64) -> Result<(), Exhausted> {
        let mut taken = self.taken.lock();
        self.room(&taken, sender, amount)?;
        taken.add(sender, amount);
        Ok(())
    }

    fn take_or_queue(&self, sender: IpAddr, amount: u64) -> Option<(u64, oneshot::Receiver<()>)> {
        let mut taken = self.taken.lock();
        if !self.is_awaited(&taken, sender) && self.room(&taken, sender, amount).is_ok() {
            taken.add(sender, amount);
            return None;
        }
        let (granted, told) = oneshot::channel();
        let number = taken.next;
        taken.next += 1;
        taken.waiting.push_back(Waiter {
            number,
            sender,
            amount,
            granted,
        });
        drop(taken);
        self.asked.notify_waiters();
        Some((number, told))
    }

    /// Whether a request waits for memory that this sender holds, or for the common amount.
    fn is_awaited(&self, taken: &Taken, sender: IpAddr) -> bool {
        let waits_for_it = |waiter: &Waiter| {
            waiter.sender == sender || self.room(taken, waiter.sender, waiter.amount) == Err(Exhausted::All)
        };
        taken.waiting.iter().any(waits_for_it)
    }

    /// Grants waiting requests the available amount.
    fn grant(&self, taken: &mut Taken) {
        let (mut at, mut has_its_share) = (0, None);
        while let Some(waiter) = taken.waiting.get(at) {
            let (sender, amount) = (waiter.sender, waiter.amount);
            let room = if has_its_share == Some(sender) {
                Err(Exhausted::Share)
            } else {
                self.room(taken, sender, amount)
            };
            match room {
                Err(Exhausted::All) => return,
                Err(Exhausted::Share) => {
                    has_its_share = Some(sender);
                    at += 1;
                }
                Ok(()) => {
                    taken.add(sender, amount);
                    // A request that stopped waiting has left the queue.
                    let _ = taken.waiting.remove(at).map(|waiter| waiter.granted.send(()));
                }
            }
        }
    }

    fn give_back(&self, sender: IpAddr, amount: u64) {
        let mut taken = self.taken.lock();
        taken.subtract(sender, amount);
        self.grant(&mut taken);
    }
}

impl Taken {
    fn add(&mut self, sender: IpAddr, amount: u64) {
        self.all += amount;
        *self.senders.entry(sender).or_default() += amount;
    }

    fn subtract(&mut self, sender: IpAddr, amount: u64) {
        self.all -= amount;
        if let Some(of_sender) = self.senders.get_mut(&sender) {
            *of_sender -= amount;
            if *of_sender == 0 {
                self.senders.remove(&sender);
            }
        }
    }
}

/// A place in the queue. Dropping it before its turn leaves the queue.
struct InLine<'a> {
    ticket: &'a Ticket,
    number: u64,
    amount: u64,
    is_taken: bool,
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        if self.is_taken {
            return;
        }
        let pool = &self.ticket.pool;
        let mut taken = pool.taken.lock();
        match taken.waiting.iter().position(|waiter| waiter.number == self.number) {
            Some(at) => drop(taken.waiting.remove(at)),
            // It was granted meanwhile.
            None => taken.subtract(self.ticket.sender, self.amount),
        }
        pool.grant(&mut taken);
    }
}

/// A sender's part of a pool, until it is dropped.
#[derive(Debug)]
pub struct Ticket {
    pool: Arc<Pool>,
    sender: IpAddr,
    amount: AtomicU64,
}

impl Ticket {
    /// Takes an amount.
    ///
    /// # Errors
    /// If it is not available; nothing is taken then.
    pub fn take(&self, amount: u64) -> Result<(), Exhausted> {
        self.pool.take(self.sender, amount)?;
        self.amount.fetch_add(amount, Ordering::Relaxed);
        Ok(())
    }

    /// Takes an amount, or all that a sender may have if that is less, after waiting for its turn.
    /// Returns the amount.
    pub async fn take_in_turn(&self, amount: u64) -> u64 {
        let amount = amount.min(self.pool.share);
        if let Some((number, told)) = self.pool.take_or_queue(self.sender, amount) {
            let mut place = InLine {
                ticket: self,
                number,
                amount,
                is_taken: false,
            };
            // The pool outlives the waiting requests, so they are always notified.
            place.is_taken = told.await.is_ok();
        }
        self.amount.fetch_add(amount, Ordering::Relaxed);
        amount
    }

    /// Whether a request waits for memory that this one holds.
    pub fn is_wanted(&self) -> bool {
        self.pool.is_awaited(&self.pool.taken.lock(), self.sender)
    }

    /// Returns when one does.
    pub async fn wanted(&self) {
        loop {
            let asked = self.pool.asked.notified();
            if self.is_wanted() {
                return;
            }
            asked.await;
        }
    }

    /// Returns a part of what this ticket has taken.
    pub fn give_back(&self, amount: u64) {
        self.amount.fetch_sub(amount, Ordering::Relaxed);
        self.pool.give_back(self.sender, amount);
    }

    /// The sender.
    pub const fn sender(&self) -> IpAddr {
        self.sender
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let amount = *self.amount.get_mut();
        if amount > 0 {
            self.pool.give_back(self.sender, amount);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::{
        pin::Pin,
        task::{Context, Waker},
    };

    #[test]
    fn what_is_taken_comes_back() {
        let pool = Pool::new(10, 6);
        let (one, two): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let (first, second) = (pool.ticket(one), pool.ticket(two));
        first.take(4).unwrap();
        assert_eq!(
            pool.ticket(one).take(3),
            Err(Exhausted::Share),
            "shares are of senders, not of tickets"
        );
        first.take(2).unwrap();
        assert_eq!(first.take(1), Err(Exhausted::Share));
        second.take(4).unwrap();
        assert_eq!(second.take(1), Err(Exhausted::All));
        first.give_back(5);
        second.take(1).unwrap();
        drop((first, second));
        let taken = pool.taken.lock();
        assert!(taken.all == 0 && taken.senders.is_empty());
    }

    /// Polls once.
    fn is_there(waiting: &mut Pin<Box<impl Future<Output = u64>>>) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        waiting.as_mut().poll(&mut context).is_ready()
    }

    #[test]
    fn the_longest_waiting_comes_first() {
        let pool = Pool::new(10, 10);
        let of = |number: u8| pool.ticket([10, 0, 0, number].into());
        let (first, long, short) = (of(1), of(2), of(3));
        first.take(6).unwrap();
        let mut longs = Box::pin(long.take_in_turn(8));
        assert!(!first.is_wanted() && !is_there(&mut longs) && first.is_wanted());
        let mut shorts = Box::pin(short.take_in_turn(2));
        assert!(!is_there(&mut shorts), "there is room, and one waits longer");
        first.give_back(3);
        assert!(!is_there(&mut longs) && !is_there(&mut shorts));
        first.give_back(3);
        assert!(is_there(&mut shorts) && is_there(&mut longs));
        assert!(!long.is_wanted());
    }

    #[test]
    fn a_sender_with_its_share_does_not_block_others() {
        let pool = Pool::new(10, 5);
        let (greedy, other) = (pool.ticket([10, 0, 0, 1].into()), pool.ticket([10, 0, 0, 2].into()));
        let again = pool.ticket([10, 0, 0, 1].into());
        greedy.take(5).unwrap();
        let mut waiting = Box::pin(again.take_in_turn(1));
        assert!(!is_there(&mut waiting) && greedy.is_wanted() && !other.is_wanted());
        assert!(is_there(&mut Box::pin(other.take_in_turn(100))), "all that it may have");
        assert!(!is_there(&mut waiting));
        greedy.give_back(1);
        assert!(is_there(&mut waiting));
    }

    #[test]
    fn a_dropped_wait_leaves_the_queue() {
        let pool = Pool::new(10, 10);
        let of = |number: u8| pool.ticket([10, 0, 0, number].into());
        let (first, gone, granted, last) = (of(1), of(2), of(3), of(4));
        first.take(10).unwrap();
        let mut goes = Box::pin(gone.take_in_turn(10));
        let mut goes_later = Box::pin(granted.take_in_turn(10));
        let mut stays = Box::pin(last.take_in_turn(10));
        assert!(!is_there(&mut goes) && !is_there(&mut goes_later) && !is_there(&mut stays));
        drop(goes);
        first.give_back(10);
        assert!(!is_there(&mut stays), "it is the next one's");
        drop(goes_later);
        assert!(is_there(&mut stays), "that one has left the line");
        drop(stays);
        drop((first, gone, granted, last));
        let taken = pool.taken.lock();
        assert!(taken.all == 0 && taken.senders.is_empty() && taken.waiting.is_empty());
    }

    #[test]
    fn addresses_of_one_subscriber_are_one() {
        let of = |text: &str| sender_of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:3::4"), of("2001:db8:1:2:ffff::"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
