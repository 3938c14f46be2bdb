//! System calls missing in the standard library: direct I/O, allocating space, one write of many
//! buffers.
//!
//! On failure: `enable` returns false where the file system has no direct I/O, `preallocate` fails
//! with `Unsupported` where it cannot allocate; other errors are the operating system's.

use crate::io::PAGE_BYTES;
use std::{fs::File, io};

/// Makes `file` bypass the page cache. False if the file system refuses.
///
/// The flag is set after opening: an open that creates the file and is refused because of
/// `O_DIRECT` may leave the file behind, and creating it once more would then fail.
pub(super) fn enable(file: &File) -> io::Result<bool> {
    use rustix::{
        fs::{OFlags, fcntl_getfl, fcntl_setfl},
        io::Errno,
    };
    match fcntl_setfl(file, fcntl_getfl(file)? | OFlags::DIRECT) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Lets `file` go through the page cache again.
pub(super) fn disable(file: &File) -> io::Result<()> {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    Ok(fcntl_setfl(file, fcntl_getfl(file)? - OFlags::DIRECT)?)
}

/// In which units a direct `file` can be read: what the kernel says (since Linux 6.1), else a page.
pub(super) fn unit_bytes(file: &File) -> usize {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    let told = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
    told.filter(|told| told.stx_mask & StatxFlags::DIOALIGN.bits() != 0)
        .map(|told| told.stx_dio_offset_align as usize)
        .filter(|bytes| bytes.is_power_of_two() && *bytes <= PAGE_BYTES)
        .unwrap_or(PAGE_BYTES)
}

/// Reserves the first `bytes` of `file` and makes it at least that long.
pub(super) fn preallocate(file: &File, bytes: u64) -> io::Result<()> {
    use rustix::{
        fs::{FallocateFlags, fallocate},
        io::Errno,
    };
    // The system call refuses an empty range.
    if bytes == 0 {
        return Ok(());
    }
    match rustix::io::retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, bytes)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Err(io::ErrorKind::Unsupported.into()),
        result => Ok(result?),
    }
}

/// Writes `buffers` one behind the other in one call. Returns how much of them it wrote, which may
/// be nothing.
pub(super) fn write_vectored(file: &File, buffers: &[&[u8]], offset: u64) -> io::Result<usize> {
    /// Limit of the system call; the caller writes the rest.
    const BUFFERS_MAX: usize = 1024;
    let slices: Vec<io::IoSlice<'_>> = buffers
        .iter()
        .take(BUFFERS_MAX)
        .map(|buffer| io::IoSlice::new(buffer))
        .collect();
    Ok(rustix::io::pwritev(file, &slices, offset)?)
}
