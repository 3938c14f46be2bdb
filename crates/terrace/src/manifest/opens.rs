//! The count of the opens for writing, on each tier: it shows that one of the two is an older copy.
//!
//! Each tier has the count in `TERRACE.opens`. It is even, and the same on both, while nothing is
//! under way. An open for writing raises the flash tier's by one, then the large tier's by two,
//! then the flash tier's again, each durably and before anything else of the store is written. So
//! an odd count on flash is a raise that was cut short, beside which nothing was written yet.
//!
//! `TERRACE.opens.copy` has the same count, as of the end of the last open at least: without it a
//! tier that has lost one small file would be taken for a copy of before there were counts. A tier
//! has the higher of the two. The copy needs no sync, since it only matters without the other.
//!
//! The count is kept out of the manifest so that programs that know nothing of it can open the
//! store: they leave it as it is on both tiers, where it stays equal. A tier without one counts as
//! 0.

use super::Manifest;
use crate::{
    Error, Options, Result, Tier,
    codec::{is_zero, put_u32, put_u64, u32_at, u64_at},
    io::{Disk, OpenMode, replace},
};
use std::{io, path::Path};

/// Its name begins like the manifest's: it is as much a file of the store's root.
const FILE: &str = "TERRACE.opens";
const COPY: &str = "TERRACE.opens.copy";
const MAGIC: [u8; 8] = *b"TERROPEN";
/// Length of the file: within one sector, which a power cut leaves as it was or as it was written.
const BYTES: usize = 32;

/// The count of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Count {
    Known(u64),
    /// Other bytes. They are no proof that a tier is an older copy.
    Damaged,
}

/// The counts of both tiers, flash first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Opens(Count, Count);

/// The bytes of a count.
pub fn encode(store_id: u64, tier: Tier, count: u64) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[12] = Manifest::number(tier);
    put_u64(&mut bytes, 16, store_id);
    put_u64(&mut bytes, 24, count);
    let checksum = crc32c::crc32c(&bytes[12..]);
    put_u32(&mut bytes, 8, checksum);
    bytes
}

/// The count in these bytes, if they are of this store's tier.
pub fn decode(bytes: &[u8], store_id: u64, tier: Tier) -> Option<u64> {
    let is_sound = bytes.len() == BYTES
        && bytes[..8] == MAGIC
        && u32_at(bytes, 8)? == crc32c::crc32c(&bytes[12..])
        && bytes[12] == Manifest::number(tier)
        && is_zero(&bytes[13..16])
        && u64_at(bytes, 16)? == store_id;
    is_sound.then(|| u64_at(bytes, 24)).flatten()
}

impl Opens {
    /// Reads both.
    ///
    /// # Errors
    /// Errors of the devices.
    pub(super) fn read(store_id: u64, flash: &dyn Disk, large: &dyn Disk) -> Result<Self> {
        let of = |disk: &dyn Disk, tier| {
            read(disk, store_id, tier)
                .map_err(|error| Error::io_on(tier, format!("read {FILE} of the {tier} tier"), &error))
        };
        Ok(Self(of(flash, Tier::Flash)?, of(large, Tier::Large)?))
    }

    /// Refuses two tiers of which one has missed opens of the other.
    ///
    /// # Errors
    /// [`Error::NotAStore`], which names the older one.
    pub(super) fn check(self, options: &Options) -> Result<()> {
        let Self(Count::Known(flash), Count::Known(large)) = self else {
            return Ok(());
        };
        // Cut short before or after the large tier was written.
        let is_raising = !flash.is_multiple_of(2) && flash.abs_diff(large) == 1;
        if flash == large || is_raising {
            return Ok(());
        }
        let (older, dir, newer) = if flash < large {
            (Tier::Flash, &options.flash_dir, Tier::Large)
        } else {
            (Tier::Large, &options.large_dir, Tier::Flash)
        };
        let (of_older, of_newer) = (flash.min(large) / 2, flash.max(large) / 2);
        Err(Error::not_a_store(
            dir,
            format!(
                "the {older} tier is an older copy: the store was opened for writing {of_older} times with it and \
                 {of_newer} times with the {newer} tier, and opening the two together would destroy newer objects; put \
                 the right one back (is its file system mounted?), or accept the loss and run `terrace repair`"
            ),
        ))
    }

    /// Counts an open for writing; durable when this returns. Must be done after the check, and
    /// before anything else is written. Returns a note if a count was damaged.
    ///
    /// # Errors
    /// Errors of the devices, except a full one: the objects of a full store can only be deleted
    /// once it is open. What is left is accepted by the next open, as after a crash.
    pub(super) fn raise(self, store_id: u64, flash: &dyn Disk, large: &dyn Disk) -> Result<Option<String>> {
        let write = |disk: &dyn Disk, tier, count| write(disk, store_id, tier, count);
        let raise = || {
            let mut count = self.settled();
            // After a raise that was cut short, or damage. The next raise begins from equal counts,
            // so that a crash within it leaves nothing that is taken for an older copy.
            if self != Self(Count::Known(count), Count::Known(count)) {
                write(large, Tier::Large, count)?;
                write(flash, Tier::Flash, count)?;
            }
            write(flash, Tier::Flash, count + 1)?;
            count += 2;
            write(large, Tier::Large, count)?;
            write(flash, Tier::Flash, count)?;
            copy(large, store_id, Tier::Large, count)?;
            copy(flash, store_id, Tier::Flash, count)
        };
        match raise() {
            Err(error @ Error::OutOfSpace { .. }) => tracing::warn!("this open for writing is not counted: {error}"),
            outcome => outcome?,
        }
        let is_damaged = [self.0, self.1].contains(&Count::Damaged);
        Ok(is_damaged.then(|| format!("{FILE} was damaged and was written anew")))
    }

    /// Makes both counts the same, above any before: a tier that a repair went without is an
    /// older copy from then on. For the end of a repair. A crash in between leaves tiers that
    /// are refused, as before the repair.
    ///
    /// # Errors
    /// Errors of the devices.
    pub(super) fn settle(self, store_id: u64, flash: &dyn Disk, large: &dyn Disk) -> Result<()> {
        let count = self.settled() + 2;
        write(large, store_id, Tier::Large, count)?;
        write(flash, store_id, Tier::Flash, count)?;
        copy(large, store_id, Tier::Large, count)?;
        copy(flash, store_id, Tier::Flash, count)
    }

    /// The even number that is not below either.
    fn settled(self) -> u64 {
        let known = |count| match count {
            Count::Known(count) => count,
            Count::Damaged => 0,
        };
        known(self.0).max(known(self.1)).next_multiple_of(2)
    }
}

fn read(disk: &dyn Disk, store_id: u64, tier: Tier) -> io::Result<Count> {
    let of = |name: &str| -> io::Result<Option<Count>> {
        let file = match disk.open(Path::new(name), OpenMode::READ) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = [0; BYTES];
        let length = file.read_up_to_at(&mut bytes, 0)?;
        let count = decode(&bytes[..length], store_id, tier);
        Ok(Some(count.map_or(Count::Damaged, Count::Known)))
    };
    Ok(match (of(FILE)?, of(COPY)?) {
        (Some(Count::Known(one)), Some(Count::Known(other))) => Count::Known(one.max(other)),
        (Some(Count::Known(count)), _) | (_, Some(Count::Known(count))) => Count::Known(count),
        (None, None) => Count::Known(0),
        _ => Count::Damaged,
    })
}

/// Writes the count, durably.
fn write(disk: &dyn Disk, store_id: u64, tier: Tier, count: u64) -> Result<()> {
    write_over(disk, FILE, &encode(store_id, tier, count), true)
        .map_err(|error| Error::io_on(tier, format!("write {FILE} of the {tier} tier"), &error))
}

/// Writes the copy of a count that is durable.
fn copy(disk: &dyn Disk, store_id: u64, tier: Tier, count: u64) -> Result<()> {
    write_over(disk, COPY, &encode(store_id, tier, count), false)
        .map_err(|error| Error::io_on(tier, format!("write {COPY} of the {tier} tier"), &error))
}

/// Writes over a file: a full file system has room for that, and one sync is enough.
fn write_over(disk: &dyn Disk, name: &str, bytes: &[u8], is_synced: bool) -> io::Result<()> {
    match disk.open(Path::new(name), OpenMode::WRITE) {
        Ok(file) => {
            file.write_all_at(bytes, 0)?;
            if is_synced { file.sync_data() } else { Ok(()) }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => replace(disk, name, bytes),
        Err(error) => Err(error),
    }
}
