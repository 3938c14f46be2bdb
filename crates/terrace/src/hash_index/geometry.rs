//! Maps a class to its buckets, and back: the arithmetic that lets a partition have any number of
//! buckets and grow by a few per cent without reading a key.
//!
//! A *class* is a number of `class_bits` bits taken from the key's hash. With `n` buckets, its
//! primary bucket is the upper part of the product `class * n`, and the tag is the remaining
//! information of the lower part (order-preserving reduction and quotienting):
//!
//! ```text
//! class * n  =  bucket * 2^class_bits + rest        0 <= rest < 2^class_bits
//! tag        =  rest >> floor(log2 n)
//! ```
//!
//! Classes of one bucket have rests that are `n` apart, so at least `2^floor(log2 n)` apart, so
//! their tags differ: bucket and tag name exactly one class, the smallest whose product reaches
//! `bucket * 2^class_bits + tag * 2^floor(log2 n)`. A tag has `class_bits - floor(log2 n)` bits.
//! Therefore `class_bits` is `TAG_BITS` plus the log2 of the *smallest* number of buckets the
//! partition ever has, and never changes: larger partitions use fewer bits of the tag, and no bit
//! of the hash that was not stored is ever needed.
//!
//! The alternate bucket is at a distance from the primary one that is computed from the tag alone,
//! so either is found from the other, and a displacement reads neither key nor flash.

use super::slot::{Identity, TAG_BITS};

/// The arithmetic of one partition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Geometry {
    class_bits: u32,
}

/// The two buckets of a class among `n`, and its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) primary: usize,
    pub(super) alternate: usize,
    tag: u64,
}

impl Place {
    /// The class seen from its primary bucket.
    pub(super) fn in_primary(&self) -> Identity {
        Identity::new(self.tag, false)
    }

    /// The class seen from its alternate bucket.
    pub(super) fn in_alternate(&self) -> Identity {
        Identity::new(self.tag, true)
    }

    /// Its two buckets, each with the class seen from there.
    #[inline(always)]
    pub(super) fn sides(&self) -> [(usize, Identity); 2] {
        let (primary, alternate) = (self.in_primary(), self.in_alternate());
        [(self.primary, primary), (self.alternate, alternate)]
    }

    /// The class seen from `bucket`, one of its two.
    pub(super) fn identity_in(&self, bucket: usize) -> Identity {
        Identity::new(self.tag, bucket != self.primary)
    }
}

impl Geometry {
    /// For partitions of at least `buckets_min` buckets, a power of two above 1.
    pub(super) fn new(buckets_min: usize) -> Self {
        debug_assert!(buckets_min.is_power_of_two() && buckets_min > 1);
        Self {
            class_bits: TAG_BITS + buckets_min.ilog2(),
        }
    }

    pub(super) fn class_bits(self) -> u32 {
        self.class_bits
    }

    /// Where `class` may lie among `buckets` buckets.
    #[inline]
    pub(super) fn place(self, class: u64, buckets: usize) -> Place {
        let product = class * buckets as u64;
        let primary = (product >> self.class_bits) as usize;
        let rest = product & ((1 << self.class_bits) - 1);
        let tag = rest >> buckets.ilog2();
        let alternate = primary + distance(tag, buckets);
        Place {
            primary,
            alternate: if alternate < buckets {
                alternate
            } else {
                alternate - buckets
            },
            tag,
        }
    }

    /// The other bucket of a slot that lies in `bucket`.
    #[inline]
    pub(super) fn other_bucket(bucket: usize, identity: Identity, buckets: usize) -> usize {
        let distance = distance(identity.tag(), buckets);
        let other = if identity.is_alternate() {
            bucket + buckets - distance
        } else {
            bucket + distance
        };
        if other < buckets { other } else { other - buckets }
    }

    /// The class of a slot that lies in `bucket`: the inverse of [`Geometry::place`].
    #[inline]
    pub(super) fn class(self, bucket: usize, identity: Identity, buckets: usize) -> u64 {
        let primary = match identity.is_alternate() {
            true => Self::other_bucket(bucket, identity, buckets),
            false => bucket,
        };
        let least = ((primary as u64) << self.class_bits) + (identity.tag() << buckets.ilog2());
        least.div_ceil(buckets as u64)
    }
}

/// Buckets from the primary to the alternate one: 1 to `buckets - 1`, spread by the tag.
#[inline]
fn distance(tag: u64, buckets: usize) -> usize {
    // Multiplicative mixing: neighbouring tags must not have neighbouring alternates. The upper
    // half of the product depends on all bits of the tag.
    let mixed = tag.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    1 + ((mixed * (buckets as u64 - 1)) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    fn check(geometry: Geometry, class: u64, buckets: usize) -> Place {
        let place = geometry.place(class, buckets);
        assert!(place.primary < buckets && place.alternate < buckets && place.primary != place.alternate);
        let (primary, alternate) = (place.in_primary(), place.in_alternate());
        assert_eq!(geometry.class(place.primary, primary, buckets), class);
        assert_eq!(geometry.class(place.alternate, alternate, buckets), class);
        assert_eq!(Geometry::other_bucket(place.primary, primary, buckets), place.alternate);
        assert_eq!(
            Geometry::other_bucket(place.alternate, alternate, buckets),
            place.primary
        );
        place
    }

    #[test]
    fn bucket_and_tag_name_one_class() {
        let mut random = StdRng::seed_from_u64(1);
        for buckets_min in [2, 4, 256, 1024, 1 << 14] {
            let geometry = Geometry::new(buckets_min);
            let last = (1u64 << geometry.class_bits()) - 1;
            for buckets in [0, 1, 2, 5, 77, 1000, 30_000, 1_000_003].map(|more| buckets_min + more) {
                for _ in 0..2_000 {
                    check(geometry, random.random_range(0..=last), buckets);
                }
                check(geometry, 0, buckets);
                assert_eq!(check(geometry, last, buckets).primary, buckets - 1);
            }
        }
    }

    #[test]
    fn every_class_of_a_small_partition_is_told_apart() {
        let geometry = Geometry::new(2);
        for buckets in [2, 3, 7] {
            let places: std::collections::HashSet<_> = (0..1 << geometry.class_bits())
                .map(|class| {
                    let place = check(geometry, class, buckets);
                    (place.primary, place.tag)
                })
                .collect();
            assert_eq!(places.len(), 1 << geometry.class_bits());
        }
    }

    #[test]
    fn growth_keeps_the_order_of_primary_buckets() {
        let geometry = Geometry::new(64);
        let classes = (0..1u64 << geometry.class_bits()).step_by(97);
        let mut last = 0;
        for class in classes {
            let (before, after) = (geometry.place(class, 1000).primary, geometry.place(class, 1063).primary);
            assert!(after >= before && after >= last);
            last = after;
        }
    }
}
