//! Opens a store: index, large space and log, in this order, each by its own recovery; then the
//! whole.
//!
//! The ordered index says up to which seq it has persisted everything. Later frames of the log
//! become the overlay, as if they had just been committed, and the applier applies them in the
//! background. The store therefore serves immediately.

use crate::{
    Error, Options, Result,
    accounting::Accounting,
    admin::{
        lost::Gone,
        repair::rebuild::{self, Rebuilt},
    },
    api::expiry::Expiring,
    blocks::{LargeOptions, LargeSpace, OpenReport, live_bytes_of, unsynced::UnsyncedLarge},
    engine::{Engine, Parts, capacity::fixed_bytes, mark::MarkPayload},
    io::{Disk, FileDisk},
    log::reserve::Reserve,
    log::{
        self,
        commit::{BatchSize, CommitLog},
        format::Body,
        frame::{Frame, FramePool},
        frame_table::FrameTable,
        segments::Segments,
    },
    manifest::Manifest,
    ordered_index::{
        Home, IndexMark, IndexOptions, OrderedIndex, SetAside, mend, noted_damage, noted_unreadable, set_damaged_aside,
    },
    visibility::range_tombstones::{DeletedRange, Ranges},
};
use std::{collections::BTreeMap, ops::Bound, path::Path, sync::Arc};

/// The disk at a tier's directory, unless one is given.
///
/// # Errors
/// Errors of the operating system; [`Error::NotAStore`] if it is only read and there is none.
pub(super) fn disk(given: Option<&Arc<dyn Disk>>, dir: &Path, read_only: bool) -> Result<Arc<dyn Disk>> {
    if let Some(disk) = given {
        return Ok(Arc::clone(disk));
    }
    if read_only && !dir.is_dir() {
        return Err(Error::not_a_store(dir, "there is no such directory; check the path"));
    }
    let disk = FileDisk::new(dir).map_err(|error| Error::io(format!("open {}", dir.display()), &error))?;
    Ok(Arc::new(disk))
}

/// The disks under both tiers. Options that default to device sizes are set then.
///
/// # Errors
/// Errors of the operating system.
pub fn disks(options: &mut Options) -> Result<(Arc<dyn Disk>, Arc<dyn Disk>)> {
    let flash = disk(options.flash_disk.as_ref(), &options.flash_dir, options.read_only)?;
    let large = disk(options.large_disk.as_ref(), &options.large_dir, options.read_only)?;
    let size = |disk: &dyn Disk, dir: &Path| {
        let context = || format!("ask for the size of {}", dir.display());
        disk.total_bytes().map_err(|error| Error::io(context(), &error))
    };
    *options = options.fitted(size(&*flash, &options.flash_dir)?, size(&*large, &options.large_dir)?);
    Ok((flash, large))
}

/// Opens the ordered index, unless it is another store's: that is neither mended nor replaced.
fn try_index(options: &Options, store_id: u64, dir: &Path) -> Result<(OrderedIndex, Option<IndexMark>)> {
    let index_options = IndexOptions {
        cache_bytes: options.tuning.index_cache_bytes,
        guards: !options.read_only,
        ..IndexOptions::on_tier(options.tuning.memtable_bytes, options.flash_capacity_bytes)
    };
    let opened = OrderedIndex::open(dir, index_options)?;
    if let Some(mark) = &opened.1 {
        MarkPayload::check_store(mark, store_id, dir)?;
    }
    Ok(opened)
}

/// Damage found during the open.
#[derive(Debug, Default)]
struct Findings {
    /// Damage, as messages.
    damage: Vec<String>,
    /// Damage that was repaired, as messages.
    mended: Vec<String>,
}

impl Findings {
    fn mended(&mut self, note: String) {
        tracing::warn!("{note}");
        self.mended.push(note);
    }
}

/// Opens the ordered index, and tells what it has lost.
fn open_index(
    options: &Options,
    manifest: &Manifest,
    disks: (&Arc<dyn Disk>, &Arc<dyn Disk>),
    findings: &mut Findings,
) -> Result<(OrderedIndex, Option<IndexMark>)> {
    let (index, mark) = open_or_mend(options, manifest, disks, findings)?;
    for range in index.lost_ranges() {
        let note = range.message();
        tracing::error!("{note}");
        findings.damage.push(note);
    }
    Ok((index, mark))
}

/// Opens the ordered index. One that is damaged is put right: its files from their copies, what has
/// none by building it anew from the log, if the log has all of it.
/// Otherwise damaged tables are set aside, and the index lists which keys it has lost with them.
fn open_or_mend(
    options: &Options,
    manifest: &Manifest,
    disks: (&Arc<dyn Disk>, &Arc<dyn Disk>),
    findings: &mut Findings,
) -> Result<(OrderedIndex, Option<IndexMark>)> {
    let dir = options.flash_dir.join("index");
    let (place, reason, is_usable) = if rebuild::was_cut_short(options)? {
        let reason = "an exchange for a new index was cut short";
        (dir.display().to_string(), reason.to_owned(), false)
    } else {
        let mut opened = try_index(options, manifest.store_id, &dir);
        if matches!(opened, Err(Error::NotAStore { .. })) {
            return opened;
        }
        // A table on a sector that has died is an error of the system, and may have a copy, too.
        let cannot_be_read = matches!(opened, Err(Error::Corruption { .. } | Error::Io { .. }));
        let is_damaged = cannot_be_read || noted_damage(&dir).is_some() || noted_unreadable(&dir);
        if is_damaged && !options.read_only {
            drop(opened);
            mend(&dir)?.into_iter().for_each(|note| findings.mended(note));
            opened = try_index(options, manifest.store_id, &dir);
        }
        match (opened, noted_damage(&dir)) {
            (Ok(opened), Some(_)) if options.read_only => return Ok(opened),
            (Ok(opened), None) => return Ok(opened),
            (Ok(_), Some(noted)) => (dir.display().to_string(), noted, true),
            (Err(Error::Corruption { place, reason }), _) => (place, reason, false),
            (Err(other), _) => return Err(other),
        }
    };
    let refuse = |advice: &str| Error::corruption(place.clone(), format!("{reason}; {advice}"));
    if options.read_only {
        return Err(refuse(
            "open the store for writing, which puts right what it can and serves the rest, or run `terrace repair`",
        ));
    }
    tracing::warn!(
        place,
        reason,
        "the ordered index is damaged and is being built anew from the log"
    );
    match rebuild::rebuild(options, manifest, disks.0, disks.1)? {
        Rebuilt::Done {
            objects,
            elapsed,
            notes,
        } => {
            findings.mended(format!(
                "the ordered index was damaged ({reason}) and was built anew from the log: {objects} objects in {elapsed:.3?}"
            ));
            findings.damage.extend(notes);
        }
        Rebuilt::NotPossible(why) => {
            let not_anew = format!("cannot be built anew from the log alone ({why})");
            let about = format!("({reason}), and {not_anew}");
            set_aside(&dir, is_usable, &about, findings).map_err(|error| match error {
                Error::Corruption { reason: advice, .. } => refuse(&format!("it {not_anew}, {advice}")),
                other => other,
            })?;
        }
    }
    try_index(options, manifest.store_id, &dir)
}

/// Sets damaged tables of the index aside. If that fails, one that is usable stays as it is.
fn set_aside(dir: &Path, is_usable: bool, about: &str, findings: &mut Findings) -> Result<()> {
    let advice = match set_damaged_aside(dir, is_usable) {
        Ok(SetAside::Done { tables, lost }) => {
            findings.mended(format!(
                "the ordered index was damaged {about}: {tables} tables were set aside, and entries in {} ranges of keys are lost",
                lost.len()
            ));
            return Ok(());
        }
        Ok(SetAside::NoDamage) if is_usable => {
            findings.mended(format!(
                "the ordered index was noted as damaged {about}; all of it can be read"
            ));
            return Ok(());
        }
        Ok(SetAside::NoDamage) => "though all its tables can be read; run `terrace repair`".to_owned(),
        Ok(SetAside::NotPossible(missing)) => format!(
            "nor be used without its damaged tables ({missing}); run `terrace repair` to build it from segments, blocks and what is left of it"
        ),
        Err(error) if is_usable => format!("nor without its damaged tables ({error}); run `terrace repair`"),
        Err(error) => return Err(error),
    };
    if !is_usable {
        return Err(Error::corruption("the ordered index", advice));
    }
    let note = format!("the ordered index is damaged in part {about}, {advice}");
    tracing::error!("{note}");
    findings.damage.push(note);
    Ok(())
}

/// Opens the large space.
///
/// # Errors
/// As [`LargeSpace::open`].
pub(super) fn open_large(
    options: &Options,
    manifest: &Manifest,
    disk: &Arc<dyn Disk>,
) -> Result<(LargeSpace, OpenReport)> {
    LargeSpace::open(
        Arc::clone(disk),
        LargeOptions {
            store_id: manifest.store_id,
            split_threshold_bytes: options.split_threshold_bytes,
            direct_io: options.tuning.direct_io,
            read_only: options.read_only,
            capacity_bytes: options.large_capacity_bytes,
        },
    )
}

/// Opens the log's segments.
///
/// # Errors
/// As [`Segments::open`].
pub(super) fn open_segments(options: &Options, manifest: &Manifest, disk: &Arc<dyn Disk>) -> Result<Segments> {
    Segments::open(
        Arc::clone(disk),
        manifest.store_id,
        manifest.segment_bytes,
        options.log_bytes_max(),
        options.tuning.direct_io,
        options.read_only,
    )
}

/// Checks the options for a store with segments of this length.
///
/// # Errors
/// [`Error::Invalid`], and errors of the operating system.
pub(super) fn check_options(options: &Options, segment_bytes: u64, large: &dyn Disk) -> Result<()> {
    let options = Options {
        segment_bytes,
        ..options.clone()
    };
    options.validate()?;
    if options.read_only {
        return Ok(());
    }
    let others_bytes = fixed_bytes(&Reserve::planned(&options, large)?);
    options.validate_flash_capacity(options.flash_capacity_bytes, others_bytes)
}

/// Opens everything. No thread runs yet.
///
/// # Errors
/// [`Error::NotAStore`], [`Error::Corruption`], the devices'.
pub fn open(mut options: Options) -> Result<Engine> {
    let (flash_disk, large_disk) = disks(&mut options)?;
    let mut findings = Findings::default();
    let check = |segment_bytes| check_options(&options, segment_bytes, &*large_disk);
    let manifest = Manifest::open(&options, &*flash_disk, &*large_disk, check, &mut findings.mended)?;
    options.segment_bytes = manifest.segment_bytes;
    let (index, mark) = open_index(&options, &manifest, (&flash_disk, &large_disk), &mut findings)?;
    let (large, report) = open_large(&options, &manifest, &large_disk)?;
    let Findings { mut damage, mended } = findings;
    damage.extend(report.losses());
    let accounting = Accounting::default();
    let persisted_seq = mark.as_ref().map_or(0, |mark| mark.applied_seq);
    let payload = mark
        .as_ref()
        .map_or_else(|| Ok(MarkPayload::empty()), MarkPayload::of)?;
    accounting.restore(payload.homes);
    restore_live(&large, payload.live, &index, persisted_seq)?;
    let segments = open_segments(&options, &manifest, &flash_disk)?;
    segments.free_over_uses(&payload.over_uses);
    segments.note_swept(&payload.swept);
    let pool = Arc::new(FramePool::for_overlay(options.tuning.overlay_bytes));
    let mut recovered = log::recover::recover(&segments, persisted_seq, Arc::clone(&pool), options.read_only)?;
    damage.append(&mut recovered.damage);
    damage.extend(Gone::of(&payload.in_use, &segments, &report).name_lost(&index, &segments, &recovered.frames));
    let mut ranges = payload.ranges;
    ranges.extend(
        recovered
            .frames
            .iter()
            .flat_map(|frame| replayed_ranges(frame, persisted_seq)),
    );
    let unsynced = Arc::new(UnsyncedLarge::new(large.clone()));
    let syncing = Arc::clone(&unsynced);
    let large_sync = Box::new(move |turn| syncing.sync(turn));
    let mut log = CommitLog::new(
        segments,
        pool,
        Arc::new(FrameTable::starting_at(
            persisted_seq,
            options.tuning.overlay_bytes,
            FrameTable::share_of(options.cache_bytes),
        )),
        recovered,
        persisted_seq,
        large_sync,
    );
    log.ranges = Ranges::starting_with(ranges);
    log.batch = BatchSize::of(&options.tuning);
    set_reserve_aside(&options, &mut log, &large)?;
    Engine::new(Parts {
        options,
        manifest,
        flash_disk,
        log,
        index: Arc::new(index),
        large,
        unsynced,
        accounting,
        expiring: Expiring::starting_at(payload.earliest_ms),
        persisted_seq: persisted_seq.into(),
        damage,
        mended,
    })
}

/// Creates the reserve, and sets how much of the device creators of segments and blocks leave.
fn set_reserve_aside(options: &Options, log: &mut CommitLog, large: &LargeSpace) -> Result<()> {
    log.reserve = Arc::new(Reserve::open(options, &**large.disk())?);
    let left = log.reserve.left();
    large.leave_to_index(Arc::clone(&left.by_cleaning));
    log.segments.leave_of_reserve(left);
    Ok(())
}

/// Tells the large space what lives in its blocks.
fn restore_live(large: &LargeSpace, live: Option<Vec<(u64, u64)>>, index: &OrderedIndex, seq: u64) -> Result<()> {
    let live = match live {
        Some(live) => live,
        None => {
            tracing::info!("counting what lives in blocks: the index's mark counts in another way");
            count_live(index, seq)?.into_iter().collect()
        }
    };
    large.restore_live(&live);
    Ok(())
}

/// Live bytes of blocks, as the index has them.
///
/// # Errors
/// Errors of the index.
pub(super) fn count_live(index: &OrderedIndex, seq: u64) -> Result<BTreeMap<u64, u64>> {
    let mut counted = BTreeMap::new();
    for item in index.scan((Bound::Unbounded, Bound::Unbounded), seq)? {
        if let Home::Block(extent) = item?.1.home {
            *counted.entry(extent.block).or_default() += live_bytes_of(extent.extent_bytes);
        }
    }
    Ok(counted)
}

/// Range deletions in a frame that are not in the index's mark.
fn replayed_ranges(frame: &Frame, persisted_seq: u64) -> Vec<DeletedRange> {
    let view = frame.view();
    let records = view.records().filter(|(_, record)| record.seq > persisted_seq);
    records
        .filter_map(|(_, record)| match record.body {
            Body::DeleteRange { end } => Some(DeletedRange {
                seq: record.seq,
                start: record.key.into(),
                end: end.into(),
            }),
            _ => None,
        })
        .collect()
}
