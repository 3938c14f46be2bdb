//! When objects expire: the caller's form, and the stored form.
//!
//! The stored form of attributes begins with the expiry, if there is one, as an item whose name is
//! empty (no attribute has such a name). So it is stored wherever attributes are: in the record,
//! the entry and the block, and is kept by moves.
//!
//! Invariant: an object is absent from its expiry on, by the clock at the time of the call.
//! Applying the log does not depend on it.
//!
//! On failure: an item that is not exactly an expiry makes the attributes undecodable, so damage is
//! reported when the object is read, and the object never counts as expired.

use crate::{
    ATTRIBUTES_BYTES_MAX, Attributes, Clock, Error, Result,
    api::clock::{NEVER_MS, to_ms},
};
use parking_lot::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// When an object expires: from then on it is absent, and its space is reclaimed. Stored in
/// milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Expiry {
    /// Never.
    #[default]
    Never,
    /// At this time of the store's clock. A time in the past makes the object absent immediately.
    At(SystemTime),
    /// This long after the call; for a stream, after the call that begins it.
    After(Duration),
}

impl Expiry {
    /// In milliseconds, as it is stored.
    pub(crate) fn resolve(self, clock: &Clock) -> Option<u64> {
        match self {
            Self::Never => None,
            Self::At(time) => Some(to_ms(time).max(1)),
            Self::After(wait) => {
                let wait = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                // The largest number means "none" for the earliest expiry.
                Some(clock.now_ms().saturating_add(wait).clamp(1, NEVER_MS - 1))
            }
        }
    }
}

/// A stored time as the interface returns it. A time that the system cannot represent becomes about
/// the last one it can.
pub(crate) fn from_ms(ms: u64) -> SystemTime {
    let far = UNIX_EPOCH + Duration::from_secs(1 << 38);
    UNIX_EPOCH.checked_add(Duration::from_millis(ms)).unwrap_or(far)
}

/// A lower bound of the time at which the first object expires.
#[derive(Debug)]
pub struct Expiring(Mutex<Bounds>);

#[derive(Debug, Clone, Copy)]
struct Bounds {
    earliest_ms: u64,
    /// Of objects put since the running pass began.
    since_ms: u64,
}

impl Expiring {
    /// Starts with the value in the index's mark.
    pub const fn starting_at(earliest_ms: u64) -> Self {
        Self(Mutex::new(Bounds {
            earliest_ms,
            since_ms: NEVER_MS,
        }))
    }

    /// No object in the index expires before this.
    pub fn earliest_ms(&self) -> u64 {
        self.0.lock().earliest_ms
    }

    /// An object with this expiry is in the index now.
    pub fn put(&self, expires_ms: u64) {
        let mut bounds = self.0.lock();
        bounds.earliest_ms = bounds.earliest_ms.min(expires_ms);
        bounds.since_ms = bounds.since_ms.min(expires_ms);
    }

    /// A pass over the index begins.
    pub fn pass_begins(&self) {
        self.0.lock().since_ms = NEVER_MS;
    }

    /// The pass has dropped expired objects; this is the earliest expiry of the others it visited.
    pub fn pass_ends(&self, earliest_ms: u64) {
        let mut bounds = self.0.lock();
        bounds.earliest_ms = earliest_ms.min(bounds.since_ms);
    }
}

/// An empty name, and the length of the time.
const HEAD: [u8; 6] = [0, 0, 8, 0, 0, 0];
const ITEM_BYTES: usize = HEAD.len() + 8;

/// The stored form of attributes and expiry.
///
/// # Errors
/// [`Error::Invalid`] if it is too long, or as [`Attributes::encode`].
pub fn encode(attributes: &Attributes, expires_ms: Option<u64>) -> Result<Vec<u8>> {
    let attributes = attributes.encode()?;
    let Some(expires_ms) = expires_ms else {
        return Ok(attributes);
    };
    if attributes.len() + ITEM_BYTES > ATTRIBUTES_BYTES_MAX {
        return Err(Error::invalid(format!(
            "attributes of an object that expires are longer than {} bytes",
            ATTRIBUTES_BYTES_MAX - ITEM_BYTES
        )));
    }
    Ok([&HEAD[..], &expires_ms.to_le_bytes(), &attributes].concat())
}

/// Splits the stored form into expiry and attributes. `None` if it begins with neither.
#[inline]
#[must_use]
pub fn split(stored: &[u8]) -> Option<(Option<u64>, &[u8])> {
    if !stored.starts_with(&[0, 0]) {
        return Some((None, stored));
    }
    let (time, attributes) = stored.strip_prefix(&HEAD)?.split_first_chunk::<8>()?;
    let expires_ms = u64::from_le_bytes(*time);
    (expires_ms > 0 && expires_ms < NEVER_MS).then_some((Some(expires_ms), attributes))
}

/// When the object with these stored attributes expires.
#[inline]
#[must_use]
pub fn of(stored: &[u8]) -> Option<u64> {
    split(stored)?.0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn golden_bytes() {
        let attributes = Attributes::new().with("a", [9]);
        let bytes = encode(&attributes, Some(0x0807_0605_0403_0201)).unwrap();
        let expected = [
            &[0, 0, 8, 0, 0, 0][..],
            &[1, 2, 3, 4, 5, 6, 7, 8],
            &[1, 0, 1, 0, 0, 0, b'a', 9],
        ]
        .concat();
        assert_eq!(bytes, expected);
        let (expires_ms, rest) = split(&bytes).unwrap();
        assert_eq!(expires_ms, Some(0x0807_0605_0403_0201));
        assert_eq!(Attributes::decode(rest), Some(attributes.clone()));
        let plain = encode(&attributes, None).unwrap();
        assert_eq!(split(&plain), Some((None, &expected[14..])));
        assert_eq!(split(&[]), Some((None, &[][..])));
    }

    #[test]
    fn what_is_no_expiry_is_refused_and_never_expires() {
        let bytes = encode(&Attributes::new(), Some(5)).unwrap();
        for length in 2..bytes.len() {
            assert_eq!(split(&bytes[..length]), None, "{length} bytes");
        }
        for wrong in [0, NEVER_MS] {
            let bytes = [&HEAD[..], &wrong.to_le_bytes()].concat();
            assert_eq!((split(&bytes), of(&bytes)), (None, None));
        }
        let other_length = [&[0, 0, 7, 0, 0, 0][..], &[1; 8]].concat();
        assert_eq!(split(&other_length), None);
        // Twice: the second is an attribute without a name, which is invalid.
        let twice = [bytes.clone(), bytes].concat();
        assert_eq!(Attributes::decode(split(&twice).unwrap().1), None);
    }

    #[test]
    fn times_are_kept_in_milliseconds_and_within_bounds() {
        let clock = Clock::new(|| UNIX_EPOCH + Duration::from_micros(7_500));
        assert_eq!(Expiry::Never.resolve(&clock), None);
        assert_eq!(Expiry::After(Duration::from_millis(5)).resolve(&clock), Some(12));
        assert_eq!(Expiry::After(Duration::MAX).resolve(&clock), Some(NEVER_MS - 1));
        assert_eq!(Expiry::At(UNIX_EPOCH).resolve(&clock), Some(1));
        assert_eq!(Expiry::At(UNIX_EPOCH - Duration::from_secs(9)).resolve(&clock), Some(1));
        let time = UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
        assert_eq!(from_ms(Expiry::At(time).resolve(&clock).unwrap()), time);
        assert!(from_ms(NEVER_MS - 1) > time);
    }

    #[test]
    fn the_earliest_expiry_is_never_later_than_in_truth() {
        let expiring = Expiring::starting_at(NEVER_MS);
        expiring.put(50);
        expiring.put(70);
        assert_eq!(expiring.earliest_ms(), 50);
        expiring.pass_begins();
        expiring.put(60);
        assert_eq!(expiring.earliest_ms(), 50, "until the pass is over");
        expiring.pass_ends(70);
        assert_eq!(expiring.earliest_ms(), 60);
        expiring.pass_begins();
        expiring.pass_ends(NEVER_MS);
        assert_eq!(expiring.earliest_ms(), NEVER_MS);
    }

    #[test]
    fn attributes_of_the_greatest_length_leave_no_room_for_an_expiry() {
        let full = Attributes::new().with("a", vec![0; ATTRIBUTES_BYTES_MAX - 7]);
        assert_eq!(encode(&full, None).unwrap().len(), ATTRIBUTES_BYTES_MAX);
        assert!(matches!(encode(&full, Some(5)), Err(Error::Invalid(_))));
        let fits = Attributes::new().with("a", vec![0; ATTRIBUTES_BYTES_MAX - 7 - ITEM_BYTES]);
        assert_eq!(encode(&fits, Some(5)).unwrap().len(), ATTRIBUTES_BYTES_MAX);
    }
}
