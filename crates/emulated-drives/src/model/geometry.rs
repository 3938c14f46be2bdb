//! Layout of a disk: seek curve, zones, angles.
//!
//! Source: the form of the seek curve (a root for short distances, linear for long ones) is that of
//! Ruemmler and Wilkes, "An introduction to disk drive modeling", IEEE Computer 1994.
//!
//! Invariants: reading on without a pause needs no rotational wait, also across tracks, which are
//! skewed for that.

use super::{Nanoseconds, transfer};
use crate::profile::DiskProfile;

/// Zones of equal rate; a real disk has a similar number.
const ZONES: u64 = 16;
/// A wait this close to a full rotation is a rounding error of no wait.
const WHOLE_TURN: f64 = 0.995;

/// See the module.
#[derive(Debug, Clone)]
pub struct Geometry {
    bytes: u64,
    zone_bytes: u64,
    /// Media rate of each zone, in 10⁶ bytes per second.
    rates: Vec<f64>,
    turn: f64,
    stroke: f64,
    /// Seek time in milliseconds: `constant + root × √d + linear × d`, where d is the distance as a
    /// share of the surface.
    constant: f64,
    root: f64,
    linear: f64,
}

impl Geometry {
    /// The geometry of a drive of `bytes`, spread evenly over the profile's stroke.
    pub fn new(profile: &DiskProfile, bytes: u64) -> Self {
        // The curve passes through the seek times at 0, a third, and all of the surface.
        let third = 1.0_f64 / 3.0;
        let (average, full) = (
            profile.average_seek_ms - profile.track_seek_ms,
            profile.full_seek_ms - profile.track_seek_ms,
        );
        let root = (average - full * third) / (third.sqrt() - third);
        let rate = |zone: u64| {
            let place = (zone as f64 + 0.5) / ZONES as f64 * profile.stroke;
            profile.outer_mb_per_s + (profile.inner_mb_per_s - profile.outer_mb_per_s) * place
        };
        Self {
            bytes,
            zone_bytes: bytes.div_ceil(ZONES).max(1),
            rates: (0..ZONES).map(rate).collect(),
            turn: 60e9 / profile.rpm,
            stroke: profile.stroke,
            constant: profile.track_seek_ms,
            root,
            linear: full - root,
        }
    }

    fn zone(&self, offset: u64) -> u64 {
        (offset / self.zone_bytes).min(ZONES - 1)
    }

    /// Media rate at an offset, in 10⁶ bytes per second.
    pub fn rate(&self, offset: u64) -> f64 {
        self.rates[self.zone(offset) as usize]
    }

    /// Transfer time of bytes.
    pub fn transfer(&self, offset: u64, bytes: u64) -> Nanoseconds {
        transfer(bytes, self.rate(offset))
    }

    fn track_bytes(&self, offset: u64) -> f64 {
        self.rate(offset) * self.turn / 1_000.0
    }

    /// Time from the start until the first byte of `target` is under the head; `settle` is added to
    /// a seek.
    pub fn position(&self, at: Nanoseconds, head: u64, target: u64, settle: Nanoseconds) -> Nanoseconds {
        let distance = head.abs_diff(target);
        let is_near = (distance as f64) < self.track_bytes(target);
        let moved = if is_near { 0 } else { self.seek(distance) + settle };
        moved + self.rotation(at + moved, target)
    }

    fn seek(&self, distance: u64) -> Nanoseconds {
        let share = distance as f64 / self.bytes as f64 * self.stroke;
        let milliseconds = self.constant + self.root * share.sqrt() + self.linear * share;
        (milliseconds.max(0.0) * 1e6) as Nanoseconds
    }

    /// Rotational wait for an offset.
    fn rotation(&self, at: Nanoseconds, target: u64) -> Nanoseconds {
        let start = self.zone(target) * self.zone_bytes;
        let place = ((target - start) as f64 / self.track_bytes(target)).fract();
        let angle = (at as f64 / self.turn).fract();
        let wait = (place - angle).rem_euclid(1.0);
        if wait > WHOLE_TURN {
            0
        } else {
            (wait * self.turn) as Nanoseconds
        }
    }
}
