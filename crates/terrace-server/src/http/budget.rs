//! What clients may hold of the server: bytes of memory and connections, in all and of one sender.
//!
//! A [`Pool`] has an amount; what is taken of it is a [`Ticket`], which gives it back when it is
//! dropped. A sender may hold a share of the pool and no more, so whoever comes from one address
//! cannot take the place of everybody else.
//!
//! Memory is counted where the server collects what a client sends or asks for before it can go on:
//! XML and forms, signed chunks, pages of listings. Bytes are counted as they arrive, so who sends
//! slowly holds only what was sent. What passes in pieces of bounded size (bodies of objects,
//! downloads) is bounded by the number of connections. Probes of the server's health collect
//! nothing and take nothing.

use parking_lot::Mutex;
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Most bytes that requests may make the server collect at the same time: together with the caches'
/// default sizes well below what the smallest machines have.
pub const COLLECTED_BYTES_MAX: u64 = 160 << 20;
/// One sender may have one of so many parts: of the most there is, the longest XML body there may
/// be fits, with what it becomes when it is read.
const SHARES: u64 = 2;
/// What keeping one frame of a body costs besides its bytes: its entry in a list, and its part of
/// the buffer it came in.
const FRAME_COST_BYTES: u64 = 64;

/// Who counts as one sender: an address; of IPv6 what one subscriber has.
pub fn sender_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address => address,
    }
}

/// What keeping a frame of a body costs whose bytes become `weight` times as many.
pub const fn cost_of_frame(bytes: usize, weight: u64) -> u64 {
    bytes as u64 * weight + FRAME_COST_BYTES
}

/// Why nothing more is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exhausted {
    /// All of it is taken.
    All,
    /// The sender has its share.
    Share,
}

/// An amount, of which each sender may have a share.
#[derive(Debug)]
pub struct Pool {
    most: u64,
    share: u64,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: u64,
    senders: HashMap<IpAddr, u64>,
}

impl Pool {
    /// Nothing is taken yet.
    pub fn new(most: u64, share: u64) -> Arc<Self> {
        Arc::new(Self {
            most,
            share,
            taken: Mutex::default(),
        })
    }

    /// The memory that requests may make the server collect.
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

    fn take(&self, sender: IpAddr, amount: u64) -> Result<(), Exhausted> {
        let mut taken = self.taken.lock();
        let of_sender = taken.senders.get(&sender).copied().unwrap_or(0).saturating_add(amount);
        let of_all = taken.all.saturating_add(amount);
        if of_sender > self.share {
            return Err(Exhausted::Share);
        }
        if of_all > self.most {
            return Err(Exhausted::All);
        }
        taken.all = of_all;
        taken.senders.insert(sender, of_sender);
        Ok(())
    }

    fn give_back(&self, sender: IpAddr, amount: u64) {
        let mut taken = self.taken.lock();
        taken.all -= amount;
        if let Some(of_sender) = taken.senders.get_mut(&sender) {
            *of_sender -= amount;
            if *of_sender == 0 {
                taken.senders.remove(&sender);
            }
        }
    }
}

/// What a sender holds of a pool, until it is dropped.
#[derive(Debug)]
pub struct Ticket {
    pool: Arc<Pool>,
    sender: IpAddr,
    amount: AtomicU64,
}

impl Ticket {
    /// Takes so much more.
    ///
    /// # Errors
    /// Nothing is taken then.
    pub fn take(&self, amount: u64) -> Result<(), Exhausted> {
        self.pool.take(self.sender, amount)?;
        self.amount.fetch_add(amount, Ordering::Relaxed);
        Ok(())
    }

    /// Gives so much back of what was taken with this ticket.
    pub fn give_back(&self, amount: u64) {
        self.amount.fetch_sub(amount, Ordering::Relaxed);
        self.pool.give_back(self.sender, amount);
    }

    /// Whose it is.
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

    #[test]
    fn addresses_of_one_subscriber_are_one() {
        let of = |text: &str| sender_of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:3::4"), of("2001:db8:1:2:ffff::"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
