//! Limits the requests per second of a sender: an access key, or an address without a key.
//!
//! Each sender has a token bucket, so short bursts are admitted. A sender without requests for a
//! second has a full bucket and is removed, so the table has the senders of the last seconds, and
//! never more than [`SENDERS_MAX`].

use super::errors::slow_down;
use crate::http::sender_of;
use parking_lot::Mutex;
use s3s::S3Result;
use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};

/// Most senders to remember. If there are more, the rest share one bucket.
const SENDERS_MAX: usize = 1 << 16;
/// Interval of removing senders.
const FORGET_INTERVAL: Duration = Duration::from_secs(1);

/// A sender.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Sender {
    /// An access key.
    Key(String),
    /// An address; of IPv6 the prefix of a subscriber.
    Address(IpAddr),
    /// All senders beyond the limit.
    Others,
}

impl Sender {
    /// The sender at an address.
    pub fn at(address: IpAddr) -> Self {
        Self::Address(sender_of(address))
    }
}

#[derive(Debug)]
struct Bucket {
    left: f64,
    seen: Instant,
}

/// Which senders may continue to send.
#[derive(Debug)]
pub struct Limiter {
    per_second: f64,
    senders: Mutex<(HashMap<Sender, Bucket>, Instant)>,
}

impl Limiter {
    /// Limits each sender to this many requests per second.
    pub fn new(per_second: u32) -> Self {
        Self {
            per_second: f64::from(per_second.max(1)),
            senders: Mutex::new((HashMap::new(), Instant::now())),
        }
    }

    /// Counts a request.
    ///
    /// # Errors
    /// `SlowDown` above the limit.
    pub fn admit(&self, sender: Sender, now: Instant) -> S3Result {
        let mut locked = self.senders.lock();
        let (senders, forgotten) = &mut *locked;
        if now.saturating_duration_since(*forgotten) >= FORGET_INTERVAL {
            *forgotten = now;
            senders.retain(|_, bucket| now.saturating_duration_since(bucket.seen) < FORGET_INTERVAL);
        }
        let is_known = senders.len() < SENDERS_MAX || senders.contains_key(&sender);
        let bucket = senders
            .entry(if is_known { sender } else { Sender::Others })
            .or_insert(Bucket {
                left: self.per_second,
                seen: now,
            });
        let passed = now.saturating_duration_since(bucket.seen).as_secs_f64();
        bucket.left = (bucket.left + passed * self.per_second).min(self.per_second);
        bucket.seen = now;
        if bucket.left < 1.0 {
            return Err(slow_down("Please reduce your request rate."));
        }
        bucket.left -= 1.0;
        Ok(())
    }

    /// Removes a request that counts for another sender.
    pub fn give_back(&self, sender: &Sender) {
        if let Some(bucket) = self.senders.lock().0.get_mut(sender) {
            bucket.left = (bucket.left + 1.0).min(self.per_second);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_sender_has_its_own_share() {
        let limiter = Limiter::new(10);
        let start = Instant::now();
        let one = |at: Instant| limiter.admit(Sender::Key("one".to_owned()), at).is_ok();
        assert_eq!((0..20).filter(|_| one(start)).count(), 10, "a burst");
        let later = start + Duration::from_millis(300);
        assert_eq!((0..20).filter(|_| one(later)).count(), 3, "what has come since");
        assert!(limiter.admit(Sender::Key("two".to_owned()), later).is_ok());
        let much_later = start + Duration::from_secs(100);
        assert_eq!(
            (0..20).filter(|_| one(much_later)).count(),
            10,
            "no more than a second's"
        );
        assert_eq!(limiter.senders.lock().0.len(), 1, "an idle sender is forgotten");
    }

    #[test]
    fn the_table_is_bounded() {
        let limiter = Limiter::new(1);
        let start = Instant::now();
        for number in 0..SENDERS_MAX as u32 {
            let address = IpAddr::V4(number.into());
            assert!(limiter.admit(Sender::at(address), start).is_ok());
        }
        let more = |number: u32| {
            limiter
                .admit(Sender::at(IpAddr::V4((1 << 30 | number).into())), start)
                .is_ok()
        };
        assert_eq!((0..100).filter(|number| more(*number)).count(), 1);
        assert!(limiter.senders.lock().0.len() <= SENDERS_MAX + 1);
    }
}
