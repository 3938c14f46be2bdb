//! Memory that the allocator keeps after it was freed, and that other programs cannot use
//! meanwhile.
//!
//! By default jemalloc returns pages over ten seconds, to save system calls; while values of a MiB
//! are allocated and freed these are more than all memory in use. So a server makes it keep them
//! for less.

use tikv_jemalloc_ctl::{Access, AsName, Result};

/// How long freed memory is kept. In jemalloc's default of ten seconds as much gathered as was in
/// use during 700 slow uploads.
const KEPT_MILLISECONDS: isize = 1000;

/// Keeps freed memory only briefly from now on, so that a burst does not add to the next.
///
/// # Errors
/// As [`keep_nothing`].
pub fn keep_briefly() -> Result<()> {
    set_decay(KEPT_MILLISECONDS)
}

/// From now on returns freed memory immediately, and returns all that it keeps.
///
/// # Errors
/// The allocator's error as text; it continues as before.
pub fn keep_nothing() -> Result<()> {
    set_decay(0)
}

/// Returns kept memory, once.
///
/// # Errors
/// As [`keep_nothing`].
pub fn give_back() -> Result<()> {
    let milliseconds: isize = "arenas.dirty_decay_ms\0".name().read()?;
    set_decay(0)?;
    set_decay(milliseconds)
}

/// Sets how long free pages are kept, in present and future arenas.
fn set_decay(milliseconds: isize) -> Result<()> {
    "arenas.dirty_decay_ms\0".name().write(milliseconds)?;
    let arenas: u32 = "arenas.narenas\0".name().read()?;
    for number in 0..arenas {
        // An arena that no thread has used yet is refused, and begins with the setting above.
        let _ = format!("arena.{number}.dirty_decay_ms\0").name().write(milliseconds);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn resident_bytes() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    }

    /// Regression: freed memory was kept, and the kernel killed the server in 256 MiB.
    #[test]
    fn what_is_freed_goes_back_at_once_if_nothing_is_kept() {
        const BYTES: usize = 96 << 20;
        let freed = || {
            drop(std::hint::black_box(vec![1_u8; BYTES]));
        };
        give_back().unwrap();
        let before = resident_bytes();
        freed();
        assert!(resident_bytes() > before + BYTES / 2, "it is kept");
        give_back().unwrap();
        assert!(resident_bytes() < before + BYTES / 2, "it is given back");
        freed();
        assert!(resident_bytes() > before + BYTES / 2, "it is kept again");
        keep_nothing().unwrap();
        freed();
        assert!(resident_bytes() < before + BYTES / 2, "nothing is kept");
    }
}
