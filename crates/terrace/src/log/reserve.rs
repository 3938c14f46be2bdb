//! Space on the flash tier's file system that is reserved for operations that free space on a full
//! device.
//!
//! A full device is freed by deletes, and the space they free can be reused only once the ordered
//! index has persisted them, which needs space itself. So a file of some memtables' length is kept
//! from the time the store is opened. An operation that frees space and finds the device full
//! deletes the file and uses its space; new data is refused from then on, until the file exists
//! again. It is a preallocated file and not a count of bytes, since other programs fill devices as
//! well, and since the index writes its own files.
//!
//! If the large tier is on the same device, a block's length is reserved as well, in a file of that
//! tier: the space of scattered deleted values is freed by moving the live values between them,
//! which are written first.
//!
//! It is used by flushes of the index; by compactions, once flushes wait for them; for log segments
//! of commits that free space; by block GC, if blocks are on the same device. Each has its own
//! part, whichever comes first: some segments are for the commits, and until the file exists again,
//! a commit that creates other segments leaves on the device the space of these and of the index
//! and block GC, and one of their own the space of a flush; block GC leaves the index's space. Log
//! GC restores the file as soon as the device has more room than that.
//!
//! Invariant: the file has no contents. After any crash it may be missing, cut or left over; an
//! open creates it anew.

use crate::{
    Error, Options, Result, Tier,
    io::{Disk, FileDisk, OpenMode},
};
use parking_lot::Mutex;
use std::{
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// The file, in the directory of each tier that has a part.
const FILE: &str = "TERRACE.reserve";
/// Its length in memtables, in addition to its segments: the maximum number that wait to be
/// flushed, one for later deletes, and the amount that a compaction of small tables holds twice for
/// a moment.
const MEMTABLES: u64 = 4;
/// Segments for the commits that free space, whose records are dead once they are applied.
const FREEING_SEGMENTS: u32 = 1;
/// Segments for `Replacing` commits, whose new values stay live. Without free space, a block is
/// drained once a tenth of it is dead; by default a segment is a 64th of the device, so if a
/// quarter of their length replaces scattered values, these segments are used up when an eighth is
/// dead.
const REPLACING_SEGMENTS: u32 = 2;
/// How much more than its length, without the segments for `Replacing` commits, must be available
/// before it is created again, as a fraction (1/n): with less, the next operation that frees space
/// would use it again at once.
const MARGIN_DIVISOR: u64 = 4;
/// Blocks of space left to block GC if it shares the device: as many as the large tier keeps from
/// callers.
const CLEANING_BLOCKS: u64 = 2;
/// Minimum interval between attempts to create it again.
const RESTORE_INTERVAL: Duration = Duration::from_millis(50);

/// Space to be left on the device while the reserve is in use; 0 while it exists.
#[derive(Debug, Clone, Default)]
pub struct Left {
    /// Left by creators of segments to the index and to block GC.
    pub by_segments: Arc<AtomicU64>,
    /// Left by block GC to the index.
    pub by_cleaning: Arc<AtomicU64>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Reserve {
    /// Its files, the flash tier first, with their lengths; none for a read-only store.
    files: Vec<(FileDisk, u64)>,
    /// Its total length.
    bytes: u64,
    /// Of these, the part for the index,
    index_bytes: u64,
    /// and the part for the index and block GC.
    others_bytes: u64,
    /// Space that must be left in addition when it is created again.
    margin_bytes: u64,
    /// Space that new data leaves to block GC on a shared device.
    cleaning_bytes: u64,
    is_shared: bool,
    is_whole: AtomicBool,
    segment_bytes: u64,
    /// It is in use, and the commits may still take this many of its segments.
    segments: AtomicU32,
    left: Left,
    tried_at: Mutex<Option<Instant>>,
}

impl Reserve {
    /// Creates it. A device without room for it is no error: data can still be read and deleted.
    ///
    /// # Errors
    /// Errors of the operating system, if the directory cannot be used.
    pub fn open(options: &Options, large: &dyn Disk) -> Result<Self> {
        if options.read_only {
            return Ok(Self::none());
        }
        let reserve = Self::planned(options, large)?;
        if let Err(error) = reserve.make() {
            // It may have been used before the open, all of it or all except the commits' part.
            reserve.begin_use();
            while reserve.segments_left() > 0 && !reserve.has_room_for_segments() {
                reserve.take_segment();
            }
            tracing::warn!(
                %error,
                bytes = reserve.bytes,
                "the flash device has no room for the reserve: nothing new is taken until something was deleted"
            );
        }
        Ok(reserve)
    }

    /// What it will be, before it is created.
    ///
    /// # Errors
    /// Errors of the operating system, if the directory cannot be used.
    pub fn planned(options: &Options, large: &dyn Disk) -> Result<Self> {
        let dir = &options.flash_dir;
        let disk = FileDisk::new(dir).map_err(|error| Error::io_on(Tier::Flash, dir.display().to_string(), &error))?;
        let is_shared = on_one_device(&disk, large);
        let block_bytes = if is_shared { options.split_threshold_bytes } else { 0 };
        let cleaning_bytes = CLEANING_BLOCKS * block_bytes;
        let index_bytes = MEMTABLES * options.tuning.memtable_bytes;
        let others_bytes = index_bytes + block_bytes;
        let of_segments = |segments: u32| u64::from(segments) * options.segment_bytes;
        let bytes = others_bytes + of_segments(FREEING_SEGMENTS + REPLACING_SEGMENTS);
        let mut files = vec![(disk, bytes - block_bytes)];
        if let Some(dir) = large.host_path(Path::new("")).filter(|_| is_shared) {
            let disk = FileDisk::new(&dir);
            files.push((
                disk.map_err(|error| Error::io_on(Tier::Large, dir.display().to_string(), &error))?,
                block_bytes,
            ));
        }
        Ok(Self {
            is_shared,
            files,
            bytes,
            index_bytes,
            others_bytes,
            margin_bytes: (bytes - of_segments(REPLACING_SEGMENTS)) / MARGIN_DIVISOR + cleaning_bytes,
            cleaning_bytes,
            is_whole: AtomicBool::new(false),
            segment_bytes: options.segment_bytes,
            segments: AtomicU32::new(0),
            left: Left::default(),
            tried_at: Mutex::default(),
        })
    }

    /// The reserve of a read-only store.
    pub fn none() -> Self {
        Self {
            is_whole: AtomicBool::new(true),
            ..Self::default()
        }
    }

    fn make(&self) -> io::Result<()> {
        self.remove();
        let made = self.files.iter().try_for_each(|(disk, bytes)| {
            let file = disk.open(Path::new(FILE), OpenMode::CREATE)?;
            file.allocate(*bytes)
        });
        match made {
            Ok(()) => {
                self.segments.store(0, Ordering::Release);
                self.left.by_segments.store(0, Ordering::Release);
                self.left.by_cleaning.store(0, Ordering::Release);
                self.is_whole.store(true, Ordering::Release);
            }
            Err(_) => drop(self.remove()),
        }
        made
    }

    /// Deletes the files. True if there were any.
    fn remove(&self) -> bool {
        let removed = self.files.iter().map(|(disk, _)| disk.remove(Path::new(FILE)).is_ok());
        removed.fold(false, |any, one| any | one)
    }

    /// Gives its space to operations that free space. False if it was in use already.
    pub fn give_up(&self) -> bool {
        if self.files.is_empty() {
            return false;
        }
        // A second caller returns when the first is done, and the parts are set before the space is
        // free: otherwise two segments would be created from it, and the index would have none.
        let mut tried_at = self.tried_at.lock();
        if !self.is_whole() {
            return false;
        }
        *tried_at = Some(Instant::now());
        self.begin_use();
        // No new data is accepted from here on, so that nothing else takes the space. The warning
        // that the store is full is given elsewhere (`accounting::fill`).
        self.is_whole.store(false, Ordering::Release);
        tracing::info!(bytes = self.bytes, "the flash device is full: its reserve is used");
        self.remove()
    }

    /// From now on each user has its part.
    fn begin_use(&self) {
        self.leave_segments(FREEING_SEGMENTS + REPLACING_SEGMENTS);
        if self.is_shared {
            self.left.by_cleaning.store(self.index_bytes, Ordering::Release);
        }
    }

    /// The commits may use so many more segments of it.
    fn leave_segments(&self, segments: u32) {
        self.segments.store(segments, Ordering::Release);
        let segments_bytes = u64::from(segments) * self.segment_bytes;
        self.left
            .by_segments
            .store(self.others_bytes + segments_bytes, Ordering::Release);
    }

    /// What one flush of the index takes: left by commits even for their own segments. Block GC
    /// may use the space of these meanwhile, and without a flush nothing that it empties is free.
    pub const fn flush_bytes(&self) -> u64 {
        self.index_bytes / MEMTABLES
    }

    /// Segments of it that the commits may still use while it is in use.
    pub fn segments_left(&self) -> u32 {
        self.segments.load(Ordering::Acquire)
    }

    /// Takes one of the segments for commits that free space. False if none is left, or the reserve
    /// is not in use.
    pub fn take_segment(&self) -> bool {
        let _at_once = self.tried_at.lock();
        let left = self.segments_left().checked_sub(1);
        left.map(|left| self.leave_segments(left)).is_some()
    }

    /// The segment could not be created, or has returned its space to the device: the commits may
    /// use one more again.
    pub fn return_segment(&self) {
        let _at_once = self.tried_at.lock();
        if !self.is_whole() {
            self.leave_segments((self.segments_left() + 1).min(FREEING_SEGMENTS + REPLACING_SEGMENTS));
        }
    }

    /// Whether the device has room for the commits' segments and one flush of the index: if not,
    /// some of them were used before the open.
    fn has_room_for_segments(&self) -> bool {
        let Some((disk, _)) = self.files.first() else {
            return false;
        };
        let path = Path::new(FILE);
        let wanted = u64::from(self.segments_left()) * self.segment_bytes + self.flush_bytes();
        let tried = disk.open(path, OpenMode::CREATE).and_then(|file| file.allocate(wanted));
        drop(disk.remove(path));
        tried.is_ok()
    }

    /// The space to be left on the device.
    pub fn left(&self) -> Left {
        self.left.clone()
    }

    /// Creates it again if the device has room. True if it did.
    pub fn restore(&self) -> bool {
        let Some((disk, _)) = self.files.first() else {
            return false;
        };
        if self.is_whole() {
            return false;
        }
        let mut tried_at = self.tried_at.lock();
        if tried_at.is_some_and(|at| at.elapsed() < RESTORE_INTERVAL) {
            return false;
        }
        *tried_at = Some(Instant::now());
        let is_restored = self.has_room(disk) && self.make().is_ok();
        if is_restored {
            tracing::info!("the flash device has room again: its reserve is restored");
        }
        is_restored
    }

    fn has_room(&self, disk: &FileDisk) -> bool {
        let wanted = self.bytes + self.margin_bytes;
        disk.available_bytes().is_ok_and(|bytes| bytes >= wanted)
    }

    /// Whether it is in use, and the device has room for it.
    pub fn is_coming(&self) -> bool {
        !self.is_whole() && self.files.first().is_some_and(|(disk, _)| self.has_room(disk))
    }

    /// Space that new data leaves to block GC: 0 if blocks have a device of their own.
    pub const fn cleaning_bytes(&self) -> u64 {
        self.cleaning_bytes
    }

    /// Whether the large tier is on the same device.
    pub const fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Whether it exists, so that it is not in use.
    pub fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Acquire)
    }

    /// Its length while it exists; 0 otherwise.
    pub fn bytes(&self) -> u64 {
        if self.is_whole() { self.bytes } else { 0 }
    }

    /// Its length on the flash tier, whether it exists or not.
    pub fn flash_bytes(&self) -> u64 {
        self.files.first().map_or(0, |(_, bytes)| *bytes)
    }

    /// Its length on the large tier, while it exists.
    pub fn large_bytes(&self) -> u64 {
        self.bytes().saturating_sub(self.flash_bytes())
    }

    /// Why new data is refused on a tier; `None` if it is accepted.
    pub fn refusal(&self, tier: Tier) -> Option<Error> {
        if self.is_whole() {
            return None;
        }
        let reason = format!(
            "the flash device is full, and its reserve of {} bytes is used for deletes; nothing new is taken until it is \
             restored",
            self.bytes
        );
        Some(Error::no_room(tier, reason))
    }
}

/// Whether two tiers share free space.
fn on_one_device(flash: &FileDisk, large: &dyn Disk) -> bool {
    let device = |path: Option<PathBuf>| Some(std::fs::metadata(path?).ok()?.dev());
    let flash = device(flash.host_path(Path::new("")));
    flash.is_some() && flash == device(large.host_path(Path::new("")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn small(dir: &Path) -> Options {
        let options = Options {
            segment_bytes: 256 << 10,
            split_threshold_bytes: 128 << 10,
            ..Options::new(dir)
        };
        options.tuned(|tuning| tuning.memtable_bytes = 64 << 10)
    }

    /// The index took the reserve and used some pages of it. The commits, which were to get a
    /// segment from the rest beyond the whole parts of the others, got none: a delete was refused
    /// after ten seconds though there was room.
    #[test]
    fn whoever_gives_it_up_the_commits_have_a_segment_and_the_others_keep_their_parts() {
        let dir = tempfile::tempdir().unwrap();
        let options = small(dir.path());
        let large = FileDisk::new(&options.large_dir).unwrap();
        let reserve = Reserve::open(&options, &large).unwrap();
        let left = || {
            let Left {
                by_segments,
                by_cleaning,
            } = reserve.left();
            (by_segments.load(Ordering::Acquire), by_cleaning.load(Ordering::Acquire))
        };
        assert!(reserve.is_whole() && reserve.is_shared());
        assert_eq!(reserve.bytes(), (4 * 64 + 3 * 256 + 128) << 10);
        assert_eq!(left(), (0, 0), "the file keeps their parts");
        assert!(!reserve.take_segment());
        assert!(reserve.give_up() && !reserve.give_up());
        assert_eq!(left(), ((4 * 64 + 3 * 256 + 128) << 10, (4 * 64) << 10));
        for taken in 1..=3 {
            assert!(reserve.take_segment());
            let rest = (4 * 64 + (3 - taken) * 256 + 128) << 10;
            assert_eq!(left(), (rest, (4 * 64) << 10), "of which the others see nothing");
        }
        assert!(!reserve.take_segment(), "three segments");
        reserve.return_segment();
        assert_eq!(left(), ((4 * 64 + 256 + 128) << 10, (4 * 64) << 10), "one was not made");
        assert!(reserve.take_segment() && !reserve.take_segment());
        (0..5).for_each(|_| reserve.return_segment());
        let all = ((4 * 64 + 3 * 256 + 128) << 10, (4 * 64) << 10);
        assert_eq!(
            left(),
            all,
            "of more that the log gives back the rest is no part of the reserve"
        );
        while !reserve.restore() {
            std::thread::yield_now();
        }
        assert_eq!(left(), (0, 0));
        assert!(!reserve.take_segment(), "it is in the file again");
    }

    /// Four deletes waited on a full device and requested the reserve at the same moment. The
    /// second saw it in use before the index's part was set, and created a segment as well; no
    /// flush had room after that, and each delete was refused after ten seconds.
    #[test]
    fn whoever_comes_second_knows_what_is_left_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let options = small(dir.path());
        let large = FileDisk::new(&options.large_dir).unwrap();
        for _ in 0..500 {
            let reserve = Reserve::open(&options, &large).unwrap();
            // With a barrier the threads would start too far apart.
            let ready = AtomicU64::new(0);
            let ask = || {
                ready.fetch_add(1, Ordering::AcqRel);
                while ready.load(Ordering::Acquire) < 2 {
                    std::hint::spin_loop();
                }
                let gave = reserve.give_up();
                let left = reserve.left.by_segments.load(Ordering::Acquire);
                (gave, left)
            };
            let (one, other) = std::thread::scope(|scope| {
                let one = scope.spawn(ask);
                (ask(), one.join().unwrap())
            });
            assert!(one.0 != other.0, "one of them gave it up");
            assert!(one.1 > 0 && other.1 > 0, "{one:?} {other:?}");
        }
    }
}
