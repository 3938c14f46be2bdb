//! How many connections there may be, in all and of one sender.
//!
//! Who would be one too many in all waits in the operating system's queue. Who has too many himself is told so and closed at
//! once: he must not fill the places of all others. Either is logged, a line per second at most.

use parking_lot::Mutex;
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections at a time if nothing else is said.
pub const CONNECTIONS_DEFAULT: u32 = 1024;
/// Shortest time between two lines of the same kind in the log.
const TELL_INTERVAL: Duration = Duration::from_secs(1);

/// The limits of one listener.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at a time.
    pub all: u32,
    /// Connections of one sender at a time.
    pub of_one: Option<u32>,
}

/// The connections of one listener.
#[derive(Debug)]
pub struct Connections {
    limits: Limits,
    all: Arc<Semaphore>,
    senders: Mutex<HashMap<IpAddr, u32>>,
    full: Mutex<Teller>,
    refused: Mutex<Teller>,
}

/// A connection's place, free again when dropped.
#[derive(Debug)]
pub struct Place {
    connections: Arc<Connections>,
    sender: Option<IpAddr>,
    _permit: Option<OwnedSemaphorePermit>,
}

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

impl Connections {
    /// None yet.
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            all: Arc::new(Semaphore::new(limits.all as usize)),
            senders: Mutex::default(),
            full: Mutex::default(),
            refused: Mutex::default(),
        })
    }

    /// Waits until there is a place for one more.
    pub async fn room(self: &Arc<Self>) -> Place {
        if self.all.available_permits() == 0
            && let Some(times) = self.full.lock().tell(Instant::now())
        {
            let connections = self.limits.all;
            tracing::warn!(
                connections,
                times,
                "all connections are taken; more wait until one ends"
            );
        }
        Place {
            connections: Arc::clone(self),
            sender: None,
            // Never closed, so acquiring does not fail.
            _permit: Arc::clone(&self.all).acquire_owned().await.ok(),
        }
    }
}

impl Place {
    /// Takes the place for a sender. False if he has as many as he may.
    pub fn take(&mut self, peer: IpAddr) -> bool {
        let Some(most) = self.connections.limits.of_one else {
            return true;
        };
        let sender = sender_of(peer);
        let mut senders = self.connections.senders.lock();
        let count = senders.entry(sender).or_default();
        if *count < most {
            *count += 1;
            self.sender = Some(sender);
            return true;
        }
        drop(senders);
        if let Some(times) = self.connections.refused.lock().tell(Instant::now()) {
            tracing::warn!(%sender, connections = most, times, "refused a connection of a sender who has as many as he may");
        }
        false
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(sender) = self.sender else { return };
        let mut senders = self.connections.senders.lock();
        if let Some(count) = senders.get_mut(&sender) {
            *count -= 1;
            if *count == 0 {
                senders.remove(&sender);
            }
        }
    }
}

/// Says when to log something that may happen all the time.
#[derive(Debug, Default)]
struct Teller {
    told: Option<Instant>,
    times: u64,
}

impl Teller {
    /// How often it happened since it was logged last, if it is to be logged now.
    fn tell(&mut self, now: Instant) -> Option<u64> {
        self.times += 1;
        if self
            .told
            .is_some_and(|told| now.saturating_duration_since(told) < TELL_INTERVAL)
        {
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.times))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn each_sender_has_its_places() {
        let connections = Connections::new(Limits {
            all: 5,
            of_one: Some(2),
        });
        let (one, two): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let mut held = Vec::new();
        for (peer, expected) in [(one, true), (one, true), (one, false), (two, true)] {
            let mut place = connections.room().await;
            assert_eq!(place.take(peer), expected, "{peer}");
            if expected {
                held.push(place);
            }
        }
        assert_eq!(connections.all.available_permits(), 2, "who is refused takes no place");
        held.clear();
        assert!(connections.senders.lock().is_empty());
        assert_eq!(connections.all.available_permits(), 5);
    }

    #[tokio::test]
    async fn who_is_one_too_many_waits() {
        let connections = Connections::new(Limits { all: 1, of_one: None });
        let first = connections.room().await;
        let waits = tokio::time::timeout(Duration::from_millis(20), connections.room());
        assert!(waits.await.is_err());
        drop(first);
        connections.room().await;
    }

    #[test]
    fn lines_are_few() {
        let mut teller = Teller::default();
        let start = Instant::now();
        assert_eq!(teller.tell(start), Some(1));
        assert_eq!((teller.tell(start), teller.tell(start)), (None, None));
        assert_eq!(teller.tell(start + TELL_INTERVAL), Some(3));
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
