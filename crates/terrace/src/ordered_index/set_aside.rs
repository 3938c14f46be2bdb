//! Puts an index with damaged tables into a state without them, for the case that it cannot be
//! built anew.
//!
//! A table that cannot be opened is left out; of one that is damaged in part, the entries before
//! its first damaged block and behind its last are written to a new table. What is missing is in
//! [`LostRange`]s, which a further new table has, with the mark if that is missing. It becomes the
//! newest run, so that its mark is found first. The damaged files are kept, in `damaged-tables`.
//!
//! Invariants: everything that the new state needs is durable before `current` names it, which is
//! one rename; until then nothing was changed but for files that no state names. So a crash leaves
//! the former state, and the next open starts over, or the new one.
//!
//! On failure: the former state, and the reason why there is no other.

use super::{
    IndexMark,
    damaged::remove_note,
    errors,
    files::{self, KEPT_DIR, TABLES_DIR},
    item_seqno,
    listing::{Listed, Listing, Run},
    lost::{self, LostRange},
    mark::MARK_KEY,
    open::{CURRENT_FILE, FILTER_BITS_PER_KEY, LAST_FILTER_BITS_PER_KEY},
    read_triggered::LAST_LEVEL,
    state_copy::{self, State, StateCopy, TableRange},
};
use crate::{Error, Result, Tier};
use lsm_tree::{
    Cache, Checksum, InternalValue, SeqNo, Table, UserKey, ValueType, config::BloomConstructionPolicy, table::Writer,
};
use std::{
    fs::{self, File},
    io::{self, Write as _},
    ops::Bound,
    path::Path,
    sync::Arc,
};

/// `.tmp` files are removed by the next open.
const TEMPORARY: &str = ".tmp-current";
/// RAM for blocks while tables are read once.
const CACHE_BYTES: u64 = 1 << 20;

/// Result of [`set_damaged_aside`].
#[derive(Debug)]
pub enum Outcome {
    /// The index has another state.
    Done {
        /// Tables that were left out or written anew.
        tables: usize,
        /// What was lost with them. The index lists it.
        lost: Vec<LostRange>,
    },
    /// All tables can be read.
    NoDamage,
    /// Too much is missing, for this reason.
    NotPossible(String),
}

/// What is left of a table.
enum Finding {
    /// It can be opened, and read as far as it was.
    Sound { first: Vec<u8>, last: Vec<u8> },
    /// It can be opened.
    Damaged(Parts),
    /// It cannot.
    Gone,
}

/// The readable parts of a table.
struct Parts {
    first: Vec<u8>,
    last: Vec<u8>,
    highest_seqno: SeqNo,
    /// Items before the first damaged block.
    before: Vec<InternalValue>,
    /// Those behind the last, in order. Both are everything if only the filter is damaged.
    behind: Vec<InternalValue>,
    is_missing: bool,
}

impl Parts {
    /// The first key that may be lost, and the first that is not.
    fn gap(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let first = self.before.last().map_or_else(|| self.first.clone(), after);
        // The newest item of this key may be in the damaged block.
        let end = self.behind.first().map_or_else(|| behind(&self.last), after);
        self.is_missing.then_some((first, end))
    }
}

/// The first key behind this one.
fn behind(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

fn after(item: &InternalValue) -> Vec<u8> {
    behind(&item.key.user_key)
}

/// A missing part: the first key, the first behind it (`None` if that is not known), the highest
/// seqno in it, if it is known.
struct Missing {
    first: Vec<u8>,
    end: Option<Vec<u8>>,
    highest_seqno: Option<SeqNo>,
}

impl Missing {
    /// Whether the mark or lost ranges may be in it.
    fn has_mark(&self) -> bool {
        self.end.as_ref().is_none_or(|end| end.as_slice() > MARK_KEY.as_slice())
    }

    /// The keys of objects in it.
    fn range(&self, applied_seq: u64) -> Option<LostRange> {
        let end = self.end.as_deref().unwrap_or(&MARK_KEY).min(MARK_KEY.as_slice());
        let seq = self
            .highest_seqno
            .map_or(applied_seq, |seqno| seqno >> super::UPGRADE_BITS);
        (self.first.as_slice() < end).then(|| LostRange {
            seq,
            first: self.first.clone(),
            end: end.to_vec(),
        })
    }
}

/// Looks at the tables, and makes a state without the damaged ones. With `is_deep` all blocks are
/// read; otherwise only if all tables can be opened.
///
/// # Errors
/// Errors of the file system: the index is as it was.
pub fn set_damaged_aside(dir: &Path, is_deep: bool) -> Result<Outcome> {
    let failed = |error: io::Error| Error::io_on(Tier::Flash, format!("reading {}", dir.display()), &error);
    let not_possible = |reason: &str| Ok(Outcome::NotPossible(reason.to_owned()));
    let Some(state) = State::present(dir)? else {
        return not_possible("the files that list its tables are damaged, and so is their copy");
    };
    let Some(listing) = Listing::decode(&state.listed) else {
        return not_possible("the file that lists its tables is of another format");
    };
    let copy = state_copy::read(dir).map_err(failed)?;
    let mut work = Work {
        dir,
        listed_in_copy: copy.as_ref().and_then(|copy| Listing::decode(&copy.state.listed)),
        copy,
        state,
        listing,
        applied: None,
        lost: Vec::new(),
        written: 0,
    };
    work.run(is_deep)
}

struct Work<'a> {
    dir: &'a Path,
    copy: Option<StateCopy>,
    /// The tables in the copy, of which it tells what they contain.
    listed_in_copy: Option<Listing>,
    state: State,
    listing: Listing,
    /// The newest mark in the tables that were looked at, in its stored form.
    applied: Option<Vec<u8>>,
    /// The lost ranges in them.
    lost: Vec<(u32, LostRange)>,
    /// Tables written.
    written: u64,
}

impl Work<'_> {
    fn run(&mut self, is_deep: bool) -> Result<Outcome> {
        let mut found = self.look(is_deep)?;
        let is_sound = |found: &[Finding]| found.iter().all(|finding| matches!(finding, Finding::Sound { .. }));
        if is_sound(&found) && !is_deep {
            found = self.look(true)?;
        }
        let failed = |error: io::Error| Error::io_on(Tier::Flash, "setting damaged tables aside", &error);
        if is_sound(&found) {
            remove_note(self.dir).map_err(failed)?;
            return Ok(Outcome::NoDamage);
        }
        let missing = self.missing(&found);
        if missing.iter().any(Missing::has_mark) && !self.take_mark_from_copy() {
            return Ok(Outcome::NotPossible(
                "the mark that says how much of the log is in it is lost, and `copy` is missing or older".to_owned(),
            ));
        }
        let mark = self.applied.as_deref().and_then(IndexMark::decode);
        let Some(mark) = mark else {
            return Ok(Outcome::NotPossible("its mark cannot be read".to_owned()));
        };
        let lost: Vec<_> = missing.iter().filter_map(|part| part.range(mark.applied_seq)).collect();
        let next = self.lost.iter().map(|(number, _)| number + 1).max().unwrap_or(0);
        self.lost.extend((next..).zip(lost.iter().cloned()));
        let tables = found
            .iter()
            .filter(|finding| !matches!(finding, Finding::Sound { .. }))
            .count();
        self.keep_damaged(&found).map_err(failed)?;
        self.list_anew(found)?;
        let has_mark = missing.iter().any(Missing::has_mark);
        if has_mark || !lost.is_empty() {
            self.list_lost(&mark)?;
        }
        let Some(listed) = self.listing.encode() else {
            return Ok(Outcome::NotPossible("it has too many runs".to_owned()));
        };
        let state = State {
            number: self.state.number + 1,
            listed,
        };
        self.install(&state).map_err(failed)?;
        remove_note(self.dir).map_err(failed)?;
        Ok(Outcome::Done { tables, lost })
    }

    /// Looks at all tables, in the order of the list, the newest first. Notes mark and lost ranges.
    fn look(&mut self, is_deep: bool) -> Result<Vec<Finding>> {
        (self.applied, self.lost) = (None, Vec::new());
        let tables: Vec<_> = self.listing.tables().copied().collect();
        tables.iter().map(|listed| self.look_at(listed, is_deep)).collect()
    }

    fn look_at(&mut self, listed: &Listed, is_deep: bool) -> Result<Finding> {
        let whole = self.open(listed, true);
        let only_filter = |error| match error {
            Error::Corruption { .. } => self.open(listed, false),
            error => Err(error),
        };
        let has_filter = whole.is_ok();
        let table = match whole.or_else(only_filter) {
            Err(Error::Corruption { .. }) => return Ok(Finding::Gone),
            table => table?,
        };
        let parts = if is_deep || !has_filter {
            Some(read_parts(&table)?)
        } else {
            None
        };
        let noted = match self.note_mark(&table) {
            Err(Error::Corruption { .. }) => false,
            noted => noted.map(|()| true)?,
        };
        let is_sound = has_filter && noted && parts.as_ref().is_none_or(|parts| !parts.is_missing);
        if is_sound {
            return Ok(Finding::Sound {
                first: table.metadata.key_range.min().to_vec(),
                last: table.metadata.key_range.max().to_vec(),
            });
        }
        Ok(Finding::Damaged(match parts {
            Some(parts) => parts,
            None => read_parts(&table)?,
        }))
    }

    fn open(&self, listed: &Listed, pins_filter: bool) -> Result<Table> {
        let path = files::table(self.dir, listed.id);
        let context = path.display().to_string();
        let table = errors::guarded_read(&context, || {
            Table::recover(
                path,
                Checksum::from_raw(listed.checksum),
                listed.global_seqno,
                0,
                Arc::new(Cache::with_capacity_bytes(CACHE_BYTES)),
                None,
                pins_filter,
                true,
                Arc::default(),
            )
        })?;
        if table.id() == listed.id {
            return Ok(table);
        }
        Err(Error::corruption(context, format!("it is table {}", table.id())))
    }

    /// Notes the mark and the lost ranges that are in a table.
    fn note_mark(&mut self, table: &Table) -> Result<()> {
        if table.metadata.key_range.max().as_ref() < MARK_KEY.as_slice() {
            return Ok(());
        }
        let items = errors::guarded_read("reading the mark", || {
            let from = (Bound::Included(UserKey::from(MARK_KEY.as_slice())), Bound::Unbounded);
            table.range(from).collect::<lsm_tree::Result<Vec<_>>>()
        })?;
        for item in items {
            let key = &item.key.user_key;
            if key.as_ref() == MARK_KEY.as_slice() {
                // The first is the newest: versions are in this order, as tables are.
                self.applied.get_or_insert_with(|| item.value.to_vec());
            } else if let (Some(number), Some(range)) = (lost::number_of(key), LostRange::decode(&item.value)) {
                self.lost.push((number, range));
            } else {
                return Err(Error::corruption(
                    "the ordered index",
                    "a lost range in it cannot be read",
                ));
            }
        }
        Ok(())
    }

    /// What the findings lack.
    fn missing(&self, found: &[Finding]) -> Vec<Missing> {
        let mut missing = Vec::new();
        let mut at = 0;
        for run in self.listing.levels.iter().flatten() {
            let findings = &found[at..at + run.len()];
            at += run.len();
            for (place, finding) in findings.iter().enumerate() {
                match finding {
                    Finding::Sound { .. } => {}
                    Finding::Damaged(parts) => missing.extend(parts.gap().map(|(first, end)| Missing {
                        first,
                        end: Some(end),
                        highest_seqno: Some(parts.highest_seqno),
                    })),
                    Finding::Gone => missing.push(self.missing_table(run, findings, place)),
                }
            }
        }
        missing
    }

    /// The range of a table that cannot be opened: as the copy has it, else that between the tables
    /// beside it.
    fn missing_table(&self, run: &Run, findings: &[Finding], place: usize) -> Missing {
        if let Some(range) = self.range_in_copy(&run[place]) {
            return Missing {
                first: range.first.clone(),
                end: Some(behind(&range.last)),
                highest_seqno: Some(range.highest_seqno),
            };
        }
        let bounds = |(finding, listed): (&Finding, &Listed)| match finding {
            Finding::Sound { first, last } => Some((first.clone(), last.clone())),
            Finding::Damaged(parts) => Some((parts.first.clone(), parts.last.clone())),
            Finding::Gone => self
                .range_in_copy(listed)
                .map(|range| (range.first.clone(), range.last.clone())),
        };
        let mut before = findings[..place].iter().zip(run).rev();
        let mut after = findings[place + 1..].iter().zip(&run[place + 1..]);
        Missing {
            first: before.find_map(bounds).map_or_else(Vec::new, |(_, last)| behind(&last)),
            end: after.find_map(bounds).map(|(first, _)| first),
            highest_seqno: None,
        }
    }

    fn range_in_copy(&self, listed: &Listed) -> Option<&TableRange> {
        let is_same = self.listed_in_copy.as_ref()?.tables().any(|other| other == listed);
        let details = self.copy.as_ref()?.details.as_ref().filter(|_| is_same);
        details?.tables.iter().find(|table| table.id == listed.id)
    }

    /// Takes mark and lost ranges from the copy, if it is of this state.
    fn take_mark_from_copy(&mut self) -> bool {
        let copy = self.copy.as_ref().filter(|copy| copy.state == self.state);
        let Some(details) = copy.and_then(|copy| copy.details.as_ref()) else {
            return false;
        };
        self.applied = Some(details.mark.clone());
        self.lost.clone_from(&details.lost);
        true
    }

    /// Links the damaged files to where they are kept, or copies them.
    fn keep_damaged(&self, found: &[Finding]) -> io::Result<()> {
        let kept = self.dir.join(KEPT_DIR);
        fs::create_dir_all(&kept)?;
        let damaged = self.listing.tables().zip(found);
        for (listed, _) in damaged.filter(|(_, finding)| !matches!(finding, Finding::Sound { .. })) {
            let (id, state) = (listed.id, self.state.number);
            let (table, place) = (files::table(self.dir, id), files::kept(self.dir, id, state));
            match fs::hard_link(&table, &place).map_err(|error| error.kind()) {
                Ok(()) | Err(io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) => {}
                // Another file system, or one without links.
                Err(_) => {
                    fs::copy(table, &place)?;
                    File::open(place)?.sync_all()?;
                }
            }
        }
        File::open(&kept)?.sync_all()?;
        File::open(self.dir)?.sync_all()
    }

    /// Leaves damaged tables out of the list, or replaces them by what is left of them.
    fn list_anew(&mut self, found: Vec<Finding>) -> Result<()> {
        let mut found = found.into_iter();
        let levels = std::mem::take(&mut self.listing.levels);
        // Above all tables of the former state.
        self.written = levels
            .iter()
            .flatten()
            .flatten()
            .map(|listed| listed.id + 1)
            .max()
            .unwrap_or(0);
        for (level, runs) in levels.into_iter().enumerate() {
            let mut kept: Vec<Run> = Vec::new();
            for run in runs {
                let mut tables = Run::new();
                for listed in run {
                    match found.next() {
                        Some(Finding::Damaged(parts)) => {
                            let items = parts.before.into_iter().chain(parts.behind);
                            tables.extend(self.write_table(level, items)?);
                        }
                        Some(Finding::Gone) | None => {}
                        Some(Finding::Sound { .. }) => tables.push(listed),
                    }
                }
                kept.extend((!tables.is_empty()).then_some(tables));
            }
            self.listing.levels.push(kept);
        }
        Ok(())
    }

    /// Adds a table with the mark and all lost ranges, before all others.
    fn list_lost(&mut self, mark: &IndexMark) -> Result<()> {
        let seqno = item_seqno(mark.applied_seq);
        let item = |key: Vec<u8>, value: Vec<u8>| InternalValue::from_components(key, value, seqno, ValueType::Value);
        self.lost.sort_by_key(|(number, _)| *number);
        let mut items = vec![item(MARK_KEY.to_vec(), mark.encode())];
        items.extend(
            self.lost
                .iter()
                .map(|(number, range)| item(lost::item_key(*number), range.encode())),
        );
        let table = self.write_table(0, items.into_iter())?;
        if let Some(newest) = self.listing.levels.first_mut() {
            newest.insert(0, table.into_iter().collect());
        }
        Ok(())
    }

    /// Writes a table, durably. `None` if there is nothing in it.
    fn write_table(&mut self, level: usize, items: impl Iterator<Item = InternalValue>) -> Result<Option<Listed>> {
        let id = self.written;
        self.written += 1;
        let path = files::table(self.dir, id);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io_on(
                    Tier::Flash,
                    format!("removing {}", path.display()),
                    &error,
                ));
            }
            _ => {}
        }
        let bits = if level < LAST_LEVEL {
            FILTER_BITS_PER_KEY
        } else {
            LAST_FILTER_BITS_PER_KEY
        };
        let finished = errors::guarded_write("writing a table of the index", || {
            // There are seven levels.
            let mut writer =
                Writer::new(path, id, level as u8)?.use_bloom_policy(BloomConstructionPolicy::BitsPerKey(bits));
            for item in items {
                writer.write(item)?;
            }
            writer.finish()
        })?;
        Ok(finished.map(|(id, checksum)| Listed {
            id,
            checksum: checksum.into_u128(),
            global_seqno: 0,
        }))
    }

    /// Makes a state the current one.
    fn install(&self, state: &State) -> io::Result<()> {
        let write = |path: &Path, bytes: &[u8]| {
            let mut file = File::create(path)?;
            file.write_all(bytes)?;
            file.sync_all()
        };
        write(&self.dir.join(state.name()), &state.listed)?;
        File::open(self.dir.join(TABLES_DIR))?.sync_all()?;
        File::open(self.dir)?.sync_all()?;
        let temporary = self.dir.join(TEMPORARY);
        write(&temporary, &state.current())?;
        fs::rename(&temporary, self.dir.join(CURRENT_FILE))?;
        File::open(self.dir)?.sync_all()
    }
}

/// Reads a table as far as possible, from both ends.
fn read_parts(table: &Table) -> Result<Parts> {
    let mut parts = Parts {
        first: table.metadata.key_range.min().to_vec(),
        last: table.metadata.key_range.max().to_vec(),
        highest_seqno: table.get_highest_seqno(),
        before: Vec::new(),
        behind: Vec::new(),
        is_missing: false,
    };
    if !read_until_damage(table.iter(), &mut parts.before)? {
        parts.is_missing = !read_until_damage(table.iter().rev(), &mut parts.behind)?;
        parts.behind.reverse();
        if !parts.is_missing {
            parts.before.clear();
        }
    }
    Ok(parts)
}

/// Whether it could be read to its end.
fn read_until_damage(
    mut items: impl Iterator<Item = lsm_tree::Result<InternalValue>>,
    into: &mut Vec<InternalValue>,
) -> Result<bool> {
    loop {
        match errors::guarded_read("reading a table of the index", || items.next().transpose()) {
            Ok(Some(item)) => into.push(item),
            Ok(None) => return Ok(true),
            Err(Error::Corruption { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}
