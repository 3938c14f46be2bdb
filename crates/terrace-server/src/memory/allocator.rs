//! What the allocator keeps of what was freed, which no other program can have meanwhile.
//!
//! By itself jemalloc gives pages back over ten seconds, so that they need not be asked for again;
//! while values of a MiB come and go these are more than all that is in use. So a server has it
//! keep them for less.

use tikv_jemalloc_ctl::{Access, AsName, Result};

/// How long what is freed is kept. In the ten seconds of jemalloc's own default as much gathered as
/// was in use while 700 uploads went on slowly.
const KEPT_MILLISECONDS: isize = 1000;

/// From now on keeps what is freed for a moment only, so that a burst is not added to the next.
///
/// # Errors
/// As [`keep_nothing`].
pub fn keep_briefly() -> Result<()> {
    set_decay(KEPT_MILLISECONDS)
}

/// From now on gives back at once what is freed, and all that is kept.
///
/// # Errors
/// The allocator's, in words; it goes on as before.
pub fn keep_nothing() -> Result<()> {
    set_decay(0)
}

/// Gives back what is kept, once.
///
/// # Errors
/// As [`keep_nothing`].
pub fn give_back() -> Result<()> {
    let milliseconds: isize = "arenas.dirty_decay_ms\0".name().read()?;
    set_decay(0)?;
    set_decay(milliseconds)
}

/// How long free pages are kept, in the arenas that are there and in those that will be.
fn set_decay(milliseconds: isize) -> Result<()> {
    "arenas.dirty_decay_ms\0".name().write(milliseconds)?;
    let arenas: u32 = "arenas.narenas\0".name().read()?;
    for number in 0..arenas {
        // An arena that no thread has used yet is refused, and begins with what was set above.
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

    /// As the server's allocator was: what it had freed stayed, and the kernel ended it in 256 MiB.
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
