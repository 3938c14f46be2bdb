//! The mirror: a second copy of each table that is not merged away soon.
//!
//! Tiny values, manifests of large objects and deletes may be in the index alone once the log's
//! segments were reclaimed, so a damaged table would lose them. An open that finds damage replaces
//! damaged tables by their copies before it tries anything else.
//!
//! Invariants: a copy has the number of its table and the checksum of its bytes in its name, and is
//! used only if the list of tables has both and its bytes have this checksum. Tables do not change,
//! so it is the same table then. A copy is synced before it gets its name. One caller makes and
//! removes copies.
//!
//! On failure: there is no copy, or one too many, which the next call removes; the index is
//! unchanged.

use super::{
    OrderedIndex,
    damaged::{remove_note, remove_unreadable_note},
    files::{self, KEPT_DIR, MIRROR_DIR, TABLES_DIR},
    listing::{Listed, Listing},
    open::strays,
    state_copy::{self, State},
};
use crate::{Error, Result, Tier};
use lsm_tree::{AbstractTree as _, Table, TableId};
use parking_lot::Mutex;
use rustix::{
    fs::{Advice, FallocateFlags, fadvise, fallocate},
    io::Errno,
};
use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};
use xxhash_rust::xxh3::Xxh3;

/// Removed by the next open, in the index's directory and in that of the copies, which may be on
/// another file system.
const TEMPORARY: &str = ".tmp-mirror";
/// Maximum bytes copied in one step.
pub const MIRROR_STEP_BYTES: usize = 1 << 20;

/// The name of a table's copy.
fn name(table: &Table) -> String {
    files::copy_name(table.id(), table.checksum().into_u128())
}

/// Length of a table's file.
fn file_bytes(table: &Table) -> io::Result<u64> {
    Ok(fs::metadata(&*table.path)?.len())
}

/// The copies of an open index.
pub(super) struct Mirror {
    dir: PathBuf,
    copies: Mutex<Copies>,
    /// Their total length.
    bytes: AtomicU64,
    /// Bytes written since the open.
    written_bytes: AtomicU64,
    /// Length of all tables when they were last looked at.
    tables_bytes: AtomicU64,
    /// See [`OrderedIndex::set_mirror_room`].
    room_bytes: AtomicU64,
}

#[derive(Default)]
struct Copies {
    /// Lengths by name.
    lengths: HashMap<String, u64>,
    /// When tables without a copy were first seen.
    seen: HashMap<TableId, Instant>,
    /// Tables that cannot be read, or have other bytes than were written.
    damaged: HashSet<TableId>,
}

impl Mirror {
    /// The copies that exist.
    pub fn open(index_dir: &Path) -> Self {
        let dir = index_dir.join(MIRROR_DIR);
        let _ = fs::remove_file(dir.join(TEMPORARY));
        let files = fs::read_dir(&dir).into_iter().flatten().flatten();
        let length = |file: &fs::DirEntry| Some(file.metadata().ok().filter(fs::Metadata::is_file)?.len());
        let lengths: HashMap<String, u64> = files
            .filter_map(|file| Some((file.file_name().into_string().ok()?, length(&file)?)))
            .collect();
        let bytes = lengths.values().sum();
        Self {
            dir,
            bytes: AtomicU64::new(bytes),
            copies: Mutex::new(Copies {
                lengths,
                ..Copies::default()
            }),
            written_bytes: AtomicU64::new(0),
            // Until it has looked: otherwise there would be no room for them.
            tables_bytes: AtomicU64::new(bytes),
            room_bytes: AtomicU64::new(u64::MAX),
        }
    }

    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    /// Removes copies of tables that are no longer there, and those beyond the room, of the newest
    /// tables first.
    fn trim(&self, copies: &mut Copies, tables: &[&Table]) -> io::Result<()> {
        let useful: HashSet<String> = tables.iter().map(|table| name(table)).collect();
        let useless = copies.lengths.keys().filter(|name| !useful.contains(*name));
        for name in useless.cloned().collect::<Vec<_>>() {
            self.remove(copies, &name)?;
        }
        for table in tables {
            if !self.exceeds_room() {
                break;
            }
            self.remove(copies, &name(table))?;
        }
        copies.seen.retain(|id, _| tables.iter().any(|table| table.id() == *id));
        Ok(())
    }

    fn exceeds_room(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.room_bytes.load(Ordering::Acquire)
    }

    fn remove(&self, copies: &mut Copies, name: &str) -> io::Result<()> {
        let Some(bytes) = copies.lengths.get(name).copied() else {
            return Ok(());
        };
        match fs::remove_file(self.dir.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        copies.lengths.remove(name);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// The next table to copy: one of the deepest, which are there longest, of those that are
    /// `settled`.
    fn next<'a>(&self, copies: &mut Copies, tables: &[&'a Table], settled: Duration) -> Option<(&'a Table, u64)> {
        let now = Instant::now();
        let left = self.room_bytes.load(Ordering::Acquire);
        let left = left.saturating_sub(self.bytes.load(Ordering::Relaxed));
        let mut next = None;
        let mut tables_bytes = 0;
        for table in tables {
            // One that is gone is found to be damaged when it is copied.
            let bytes = file_bytes(table).unwrap_or(0);
            tables_bytes += bytes;
            if copies.lengths.contains_key(&name(table)) || copies.damaged.contains(&table.id()) {
                continue;
            }
            let seen = *copies.seen.entry(table.id()).or_insert(now);
            if now.duration_since(seen) >= settled && bytes <= left {
                next = Some((*table, bytes));
            }
        }
        self.tables_bytes.store(tables_bytes, Ordering::Relaxed);
        next
    }

    /// Copies a table. `false` if its bytes are damaged or cannot be read.
    fn copy(
        &self,
        table: &Table,
        temporary: &Path,
        mut step: impl FnMut(&mut Step<'_>) -> io::Result<()>,
    ) -> io::Result<bool> {
        let mut from = match File::open(&*table.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            opened => opened?,
        };
        // First: without it all would be copied again and again.
        fs::create_dir_all(&self.dir)?;
        let mut to = File::create(temporary)?;
        // Otherwise a full device would be written to at each attempt.
        let reserved = fallocate(&to, FallocateFlags::KEEP_SIZE, 0, from.metadata()?.len());
        if let Err(full @ (Errno::NOSPC | Errno::DQUOT)) = reserved {
            return Err(full.into());
        }
        let mut hasher = Xxh3::new();
        let mut buffer = vec![0; MIRROR_STEP_BYTES];
        let mut is_done = false;
        while !is_done {
            step(&mut || {
                // What could not be read is missing in the checksum.
                let read = read(&mut from, &mut buffer).unwrap_or(0);
                is_done = read == 0;
                hasher.update(&buffer[..read]);
                to.write_all(&buffer[..read])
            })?;
        }
        if hasher.digest128() != table.checksum().into_u128() {
            return Ok(false);
        }
        step(&mut || to.sync_data())?;
        // No reader needs it soon.
        let _ = fadvise(&to, 0, None, Advice::DontNeed);
        fs::rename(temporary, self.dir.join(name(table)))?;
        Ok(true)
    }
}

/// A step of a copy.
pub type Step<'a> = dyn FnMut() -> io::Result<()> + 'a;

impl OrderedIndex {
    /// Total length of the copies in the mirror, in bytes.
    pub fn mirror_bytes(&self) -> u64 {
        self.mirror.bytes.load(Ordering::Relaxed)
    }

    /// Length of copies of all tables that [`OrderedIndex::mirror_next`] last saw, in bytes.
    pub fn mirror_wanted_bytes(&self) -> u64 {
        self.mirror.tables_bytes.load(Ordering::Relaxed)
    }

    /// Sets how many bytes the mirror may have. What is beyond it is removed by the next
    /// [`OrderedIndex::mirror_next`].
    pub fn set_mirror_room(&self, bytes: u64) {
        self.mirror.room_bytes.store(bytes, Ordering::Release);
    }

    /// Whether it has more than that.
    pub fn mirror_exceeds_room(&self) -> bool {
        self.mirror.exceeds_room()
    }

    /// Removes copies that are of no use, and copies one table that has been there for `settled`,
    /// if there is one without a copy. `false` if not. It is done in steps of at most
    /// [`MIRROR_STEP_BYTES`], which `step` executes, or ends by an error.
    ///
    /// # Errors
    /// `Corruption` if the table's bytes are not what was written; that is noted for the next open.
    /// `OutOfSpace`, `Io`, and errors of `step`: there is no copy; try again later.
    pub fn mirror_next(&self, settled: Duration, step: impl FnMut(&mut Step<'_>) -> io::Result<()>) -> Result<bool> {
        let failed = |error: io::Error| Error::io_on(Tier::Flash, "copying a table of the index", &error);
        // Keeps the tables' files.
        let state = self.tree.current_version();
        let tables: Vec<&Table> = state.iter_tables().collect();
        let mut copies = self.mirror.copies.lock();
        self.mirror.trim(&mut copies, &tables).map_err(failed)?;
        let Some((table, bytes)) = self.mirror.next(&mut copies, &tables, settled) else {
            return Ok(false);
        };
        let temporary = self.mirror.dir.join(TEMPORARY);
        let copied = self.mirror.copy(table, &temporary, step);
        if !matches!(copied, Ok(true)) {
            let _ = fs::remove_file(&temporary);
        }
        if !copied.map_err(failed)? {
            copies.damaged.insert(table.id());
            let place = table.path.display().to_string();
            let error = Error::corruption(
                place,
                "its bytes cannot be read, or do not have the checksum that the list of tables has",
            );
            self.note_damage(&error);
            return Err(error);
        }
        copies.seen.remove(&table.id());
        copies.lengths.insert(name(table), bytes);
        self.mirror.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.mirror.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(true)
    }
}

impl OrderedIndex {
    /// Reads all copies. Returns a message for each that is damaged; it is removed, unless nothing
    /// may be written, so that its table is copied again.
    pub fn check_mirror(&self) -> Vec<String> {
        let mirror = &self.mirror;
        let names: Vec<String> = mirror.copies.lock().lengths.keys().cloned().collect();
        let is_damaged = |name: &String| {
            let checksum = checksum_of(&mirror.dir.join(name));
            !checksum.is_ok_and(|checksum| name.ends_with(&files::copy_ending(checksum)))
        };
        // Without the lock: all of them may take minutes, in which copies must be able to go.
        let told = names.into_iter().filter(is_damaged).filter_map(|name| {
            let mut copies = mirror.copies.lock();
            // It may have been removed meanwhile, or made anew.
            if !copies.lengths.contains_key(&name) || !is_damaged(&name) {
                return None;
            }
            if self.options.guards {
                // If it fails, the next look finds it again.
                let _ = mirror.remove(&mut copies, &name);
            }
            Some(format!(
                "index/{MIRROR_DIR}/{name}: the copy of a table is damaged; no data is lost"
            ))
        });
        told.collect()
    }
}

/// Puts right what copies can put right in an index that is damaged and not open: first the files
/// that name its state, then its tables. What is among them and is none is moved away. Returns what
/// was done, as messages. If all tables are sound, a note of damage is removed.
///
/// # Errors
/// Errors of the file system: each file is as it was, or put right.
pub fn mend(dir: &Path) -> Result<Vec<String>> {
    let began = Instant::now();
    let failed = |error: io::Error| Error::io_on(Tier::Flash, "mending the index", &error);
    let file = state_copy::mend(dir).map_err(failed)?;
    let mut messages: Vec<String> = file
        .map(|file| format!("the ordered index: {file} was damaged and was written anew from its copy"))
        .into_iter()
        .collect();
    messages.extend(move_strays(dir)?);
    let listing = State::present(dir)?.and_then(|state| Listing::decode(&state.listed));
    let Some(listing) = listing else {
        return Ok(messages);
    };
    let damaged: Vec<Listed> = listing
        .tables()
        .filter(|table| !is_sound(&files::table(dir, table.id), table))
        .copied()
        .collect();
    fs::create_dir_all(dir.join(TABLES_DIR)).map_err(failed)?;
    let mended = damaged.iter().filter_map(|table| take_copy(dir, table).transpose());
    let mended = mended.collect::<io::Result<Vec<()>>>().map_err(failed)?.len();
    if mended > 0 {
        let directories = [dir.join(TABLES_DIR), dir.join(MIRROR_DIR)];
        directories
            .iter()
            .try_for_each(|dir| File::open(dir)?.sync_all())
            .map_err(failed)?;
        messages.push(format!(
            "the ordered index: {} tables were damaged, and {mended} of them were replaced by their copies in {:.3?}",
            damaged.len(),
            began.elapsed()
        ));
    }
    if mended == damaged.len() {
        remove_note(dir).map_err(failed)?;
    }
    remove_unreadable_note(dir).map_err(failed)?;
    Ok(messages)
}

/// Moves what is no table out of the tables' directory.
fn move_strays(dir: &Path) -> Result<Vec<String>> {
    let move_one = |stray: PathBuf| {
        let name = stray.file_name().unwrap_or_default().to_string_lossy();
        let mut places = (0..).map(|number| files::kept_stray(dir, &name, number));
        let to = places.find(|place| !place.exists()).unwrap_or_default();
        fs::create_dir_all(dir.join(KEPT_DIR))
            .and_then(|()| fs::rename(&stray, &to))
            .map_err(|error| {
                let what = format!(
                    "moving {} to {}; move it yourself, it is no table of the index",
                    stray.display(),
                    to.display()
                );
                Error::io_on(Tier::Flash, what, &error)
            })?;
        Ok(format!(
            "the ordered index: {} is no table, and was moved to {}",
            stray.display(),
            to.display()
        ))
    };
    strays(dir)?.into_iter().map(move_one).collect()
}

/// Whether a file has the bytes of a table. One that cannot be read has not.
fn is_sound(path: &Path, table: &Listed) -> bool {
    checksum_of(path).is_ok_and(|checksum| checksum == table.checksum)
}

fn checksum_of(path: &Path) -> io::Result<u128> {
    let mut file = File::open(path)?;
    let mut hasher = Xxh3::new();
    let mut buffer = vec![0; MIRROR_STEP_BYTES];
    loop {
        match read(&mut file, &mut buffer)? {
            0 => return Ok(hasher.digest128()),
            read => hasher.update(&buffer[..read]),
        }
    }
}

/// The next bytes of a file. A signal is no damage.
fn read(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match file.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

/// Puts the copy of a table in its place. `None` if there is none.
fn take_copy(dir: &Path, table: &Listed) -> io::Result<Option<()>> {
    let copy = files::copy(dir, table.id, table.checksum);
    if !is_sound(&copy, table) {
        return Ok(None);
    }
    let place = files::table(dir, table.id);
    match fs::rename(&copy, &place) {
        // The copies are on another file system.
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            let temporary = dir.join(TEMPORARY);
            fs::copy(copy, &temporary)?;
            File::open(&temporary)?.sync_all()?;
            fs::rename(temporary, place)
        }
        renamed => renamed,
    }
    .map(Some)
}
