//! A partition's slots as bytes, for the checkpoint of the hash index; docs/format.md has the
//! layout.
//!
//! Invariants: the result of [`decode`] has each slot where a partition of that shape looks for it,
//! and at most one per class, like a partition itself. The checksum over the bytes is the
//! checkpoint's; here the bytes may be anything.
//!
//! On failure: bytes that are not an image, or one of another shape, give `None`, before more
//! memory than their length is allocated.

use super::{
    geometry::Geometry,
    partition::{Frozen, Partition},
    slot::Slot,
    table::SLOTS,
};
use crate::codec::Reader;

/// Buckets u32, slots in use u32.
const HEAD_BYTES: usize = 8;

/// Bytes of the image of a partition with this many buckets and used slots.
pub(super) fn image_bytes(buckets: u64, entries: u64) -> u64 {
    HEAD_BYTES as u64 + buckets + entries * 8
}

/// Appends the image of a partition's slots: for each bucket which of its slots are in use, then
/// their words.
pub(super) fn encode(frozen: &Frozen, out: &mut Vec<u8>) {
    let used = frozen.words.iter().filter(|word| **word != 0);
    // A table has below 2^30 buckets.
    for number in [frozen.buckets, used.clone().count()] {
        out.extend_from_slice(&(number as u32).to_le_bytes());
    }
    let mask = |words: &[u64]| (0..SLOTS).fold(0, |mask, slot| mask | u8::from(words[slot] != 0) << slot);
    out.extend(frozen.words.chunks_exact(SLOTS).map(mask));
    used.for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
}

/// Reads the image of a partition of the same shape as `partition`.
pub(super) fn decode(bytes: &[u8], partition: &Partition) -> Option<Frozen> {
    let mut rest = Reader(bytes);
    let (buckets, used) = (rest.u32()? as usize, rest.u32()? as usize);
    let (masks, mut words) = (rest.bytes(buckets)?, rest);
    let counted: usize = masks.iter().map(|mask| mask.count_ones() as usize).sum();
    if counted != used || used.checked_mul(8) != Some(words.0.len()) || !partition.can_have(buckets) {
        return None;
    }
    let mut slots = Vec::with_capacity(buckets * SLOTS);
    for mask in masks {
        for slot in 0..SLOTS {
            let word = if *mask >> slot & 1 == 0 {
                0
            } else {
                words.u64().filter(|word| *word != 0)?
            };
            slots.push(word);
        }
    }
    let frozen = Frozen { buckets, words: slots };
    is_sound(&frozen, partition.geometry()).then_some(frozen)
}

/// Whether each slot has an address, lies in a bucket of its class, and is the only one of it.
fn is_sound(frozen: &Frozen, geometry: Geometry) -> bool {
    let bucket = |number: usize| &frozen.words[number * SLOTS..][..SLOTS];
    (0..frozen.buckets).all(|number| {
        let words = bucket(number);
        words.iter().enumerate().all(|(at, word)| {
            let Some(slot) = Slot::from_word(*word) else {
                return true;
            };
            let identity = slot.identity();
            let class = geometry.class(number, identity, frozen.buckets);
            if slot.address().is_none() || class >> geometry.class_bits() != 0 {
                return false;
            }
            let place = geometry.place(class, frozen.buckets);
            let own = if identity.is_alternate() {
                place.alternate
            } else {
                place.primary
            };
            let is_twice =
                |others: &[u64], other: super::slot::Identity| others.iter().any(|word| other.matches(*word));
            // The other bucket is compared from one side only.
            own == number
                && place.identity_in(number) == identity
                && !is_twice(&words[at + 1..], identity)
                && !(identity.is_alternate() && is_twice(bucket(place.primary), place.in_primary()))
        })
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{hash_index::slot::SizeClass, log::address::Address};
    use rand::{Rng, SeedableRng, rngs::StdRng};

    const BUCKETS_MIN: usize = 4;

    fn partition() -> Partition {
        Partition::new(BUCKETS_MIN, 1 << 10)
    }

    fn filled(count: usize, seed: u64) -> (Partition, Vec<(u64, Address)>) {
        let partition = partition();
        let mut random = StdRng::seed_from_u64(seed);
        let class_bits = partition.geometry().class_bits();
        let classes: std::collections::BTreeSet<u64> = (0..count)
            .map(|_| random.random::<u64>() >> (64 - class_bits))
            .collect();
        let entries: Vec<_> = (classes.into_iter().enumerate())
            .map(|(at, class)| (class, Address::new((at as u64 + 1) * 16).unwrap()))
            .collect();
        for (class, address) in &entries {
            partition.insert(*class, SizeClass::of(class % 5_000), *address);
            (0..class % 4).for_each(|_| assert!(partition.lookup(*class).is_some()));
        }
        (partition, entries)
    }

    fn bytes_of(partition: &Partition) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(&partition.image(), &mut bytes);
        bytes
    }

    #[test]
    fn an_image_is_the_partition_again() {
        for count in [0, 1, 30, 700, 5_000] {
            let (from, entries) = filled(count, count as u64);
            let bytes = bytes_of(&from);
            assert_eq!(bytes.len() as u64, image_bytes(from.slots() / 8, from.entries()));
            let to = partition();
            to.restore(&decode(&bytes, &to).unwrap());
            assert_eq!((to.entries(), to.slots()), (from.entries(), from.slots()));
            assert_eq!(to.image(), from.image(), "recency and sizes, too");
            // It grows and changes like the other one.
            let address = Address::new(1 << 30).unwrap();
            for (at, (class, _)) in entries.iter().enumerate() {
                if at % 3 == 0 {
                    assert_eq!(to.remove(*class), from.remove(*class));
                } else {
                    assert_eq!(
                        to.insert(class ^ 1, SizeClass::of(9), address),
                        from.insert(class ^ 1, SizeClass::of(9), address)
                    );
                }
            }
            assert_eq!(to.image(), from.image());
        }
    }

    #[test]
    fn bytes_that_are_no_image_are_refused() {
        let (from, _) = filled(300, 1);
        let bytes = bytes_of(&from);
        let empty = partition();
        assert!(decode(&bytes, &empty).is_some());
        for end in 0..bytes.len() {
            assert_eq!(decode(&bytes[..end], &empty), None, "cut to {end}");
        }
        let longer = [bytes.clone(), vec![0; 8]].concat();
        assert_eq!(decode(&longer, &empty), None);
        assert_eq!(
            decode(&bytes, &Partition::new(BUCKETS_MIN, BUCKETS_MIN)),
            None,
            "more buckets than allowed"
        );
        assert_eq!(
            decode(&bytes, &Partition::new(2 * BUCKETS_MIN, 1 << 10)),
            None,
            "another shape"
        );
        let mut huge = bytes.clone();
        huge[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(decode(&huge, &empty), None);
    }

    /// Applies `change` to the words of an image with their places, and returns the result.
    fn changed(from: &Partition, change: impl FnOnce(&mut Vec<u64>)) -> Option<Frozen> {
        let mut frozen = from.image();
        change(&mut frozen.words);
        let mut bytes = Vec::new();
        encode(&frozen, &mut bytes);
        decode(&bytes, &partition())
    }

    #[test]
    fn a_slot_that_could_lie_is_refused() {
        let (from, entries) = filled(20, 3);
        assert!(changed(&from, |_| ()).is_some());
        let used = |words: &[u64]| words.iter().position(|word| *word != 0).unwrap();
        let without_address = |words: &mut Vec<u64>| {
            let at = used(words);
            words[at] = words[at] >> 36 << 36 | 1 << 38;
        };
        assert_eq!(changed(&from, without_address), None);
        let twice_in_a_bucket = |words: &mut Vec<u64>| {
            let bucket = words
                .chunks_exact_mut(SLOTS)
                .find(|bucket| bucket.contains(&0) && bucket.iter().any(|word| *word != 0));
            let bucket = bucket.unwrap();
            let (free, held) = (bucket.iter().position(|word| *word == 0).unwrap(), used(bucket));
            bucket[free] = bucket[held] ^ 1;
        };
        assert_eq!(changed(&from, twice_in_a_bucket), None);
        let in_both_buckets = |words: &mut Vec<u64>| {
            let put = |words: &mut Vec<u64>, bucket: usize, identity: super::super::slot::Identity, address| {
                let slots = &mut words[bucket * SLOTS..][..SLOTS];
                let at = slots.iter().position(|word| identity.matches(*word) || *word == 0)?;
                slots[at] = Slot::new(identity, SizeClass::of(1), address).word();
                Some(())
            };
            let done = entries.iter().find_map(|(class, address)| {
                let place = from.geometry().place(*class, from.slots() as usize / SLOTS);
                let mut changed = words.clone();
                put(&mut changed, place.primary, place.in_primary(), *address)?;
                put(&mut changed, place.alternate, place.in_alternate(), *address)?;
                Some(changed)
            });
            *words = done.unwrap();
        };
        assert_eq!(changed(&from, in_both_buckets), None);
        // With eight buckets a tag has 18 bits.
        let (from, _) = filled(60, 3);
        assert_eq!(from.slots(), 64);
        let of_no_class = |words: &mut Vec<u64>| {
            let at = used(words);
            words[at] |= 1 << 63;
        };
        assert_eq!(changed(&from, of_no_class), None);
    }

    #[test]
    fn golden_bytes() {
        let partition = Partition::new(2, 2);
        // Class 0 lies in the first slot of bucket 0, the last class of all in that of bucket 1.
        let last = (1 << partition.geometry().class_bits()) - 1;
        partition.insert(0, SizeClass::of(1000), Address::new(0x50).unwrap());
        partition.insert(last, SizeClass::of(100), Address::new(0xF0).unwrap());
        partition.lookup(last);
        let hex: String = bytes_of(&partition).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            concat!(
                "02000000",
                "02000000",
                "01",
                "01",
                "0500000080010000",
                "0f00000010e0ffff"
            )
        );
    }
}
