//! The file that says by which rules a store's values were placed last, and whether all of them are
//! where they belong.
//!
//! It is written when a store is opened by other rules than it names, before anything is written by
//! those; so whatever happens then, an open by the rules before finds that it has to look at
//! everything again. And once more when everything is in its place.
//!
//! On failure: without a sound file a store counts as not settled, which costs a walk over the
//! index.

use crate::{
    Error, Result, Tier,
    codec::{is_zero, u64_at},
    io::{Disk, OpenMode, replace},
};
use std::path::Path;

/// Its name begins like the manifest's: it is the store's.
const FILE: &str = "TERRACE.placed";
const MAGIC: [u8; 4] = *b"TRPL";
const FORMAT_VERSION: u32 = 1;
const BYTES: usize = 24;

/// What the file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    /// Of the rules.
    pub fingerprint: u64,
    /// Everything is where it belongs.
    pub is_settled: bool,
}

impl Record {
    pub(super) fn encode(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.fingerprint.to_le_bytes());
        bytes[16] = u8::from(self.is_settled);
        let checksum = crc32c::crc32c(&bytes[..20]);
        bytes[20..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let (body, checksum) = bytes.split_last_chunk::<4>()?;
        let is_sound = body[..4] == MAGIC
            && body[4..8] == FORMAT_VERSION.to_le_bytes()
            && crc32c::crc32c(body) == u32::from_le_bytes(*checksum)
            && body[16] <= 1
            && is_zero(&body[17..]);
        let fingerprint = u64_at(body, 8)?;
        is_sound.then_some(Self {
            fingerprint,
            is_settled: body[16] == 1,
        })
    }

    /// What the file says, if it is there and sound.
    pub(super) fn read(disk: &dyn Disk) -> Option<Self> {
        let file = disk.open(Path::new(FILE), OpenMode::READ).ok()?;
        let mut bytes = [0; BYTES + 1];
        let length = file.read_up_to_at(&mut bytes, 0).ok()?;
        Self::decode(&bytes[..length])
    }

    /// Writes the file; durable when this returns.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn write(self, disk: &dyn Disk) -> Result<()> {
        replace(disk, FILE, &self.encode())
            .map_err(|error| Error::io_on(Tier::Flash, "write by which rules values are placed", &error))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::io::{SimDisk, Survival};

    const RECORD: Record = Record {
        fingerprint: 0x1122_3344_5566_7788,
        is_settled: true,
    };

    #[test]
    fn golden_bytes() {
        let hex: String = RECORD.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "5452504c01000000887766554433221101000000eb85e920");
        assert_eq!(Record::decode(&RECORD.encode()), Some(RECORD));
    }

    #[test]
    fn a_flipped_bit_or_another_length_is_no_record() {
        let bytes = RECORD.encode();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Record::decode(&flipped), None, "bit {bit}");
        }
        assert_eq!(Record::decode(&bytes[..BYTES - 1]), None);
        assert_eq!(Record::decode(&[&bytes[..], &[0]].concat()), None);
    }

    #[test]
    fn after_a_power_cut_it_is_the_one_before_or_the_new_one() {
        let later = Record {
            fingerprint: 7,
            is_settled: false,
        };
        for survival in Survival::ALL {
            for operations in 0..8 {
                let disk = SimDisk::new(operations);
                RECORD.write(&disk).unwrap();
                disk.cut_after(operations);
                let wrote = later.write(&disk).is_ok();
                disk.power_cut();
                disk.set_survival(survival);
                disk.restore_power();
                let found = Record::read(&disk);
                assert!(found == Some(later) || !wrote && found == Some(RECORD), "{found:?}");
            }
        }
    }
}
