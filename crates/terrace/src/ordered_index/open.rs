//! Opening the ordered index.
//!
//! On failure: nothing that a later open needs was changed. Files that no state names (left by an
//! interrupted flush or compaction) are removed here and by the library.

use super::{
    FreeNumber, IndexMark, IndexOptions, Marks, OrderedIndex,
    damaged::DamageNote,
    errors,
    files::TABLES_DIR,
    item_seqno,
    live::Live,
    lost,
    mark::MARK_KEY,
    mirror::Mirror,
    read_triggered::LAST_LEVEL,
    state_copy::{self, State},
    table_bytes::WrittenTables,
    tombstones::Tombstones,
    warm::Warm,
    with_copies::{CopyFilters, CopySlot},
};
use crate::{
    Error, Result, Tier,
    io::{close_to_others, create_private_dir_all},
    mutation::{Mutation, unless},
};
use lsm_tree::{
    AbstractTree as _, AnyTree, Cache, CompressionType, Config, DescriptorTable, SeqNo, SequenceNumberCounter, TableId,
    Tree,
    config::{
        BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry, HashRatioPolicy, PinningPolicy,
    },
};
use parking_lot::Mutex;
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64},
    },
};

/// Bits per key of the bloom filters. An absent key is looked up in every run: those of level 0 and
/// a few deeper ones. At 16 bits a filter has one false positive in some 2,000 lookups, so a dozen
/// filters stay below 0.01 reads.
pub(super) const FILTER_BITS_PER_KEY: f32 = 16.0;
/// The same in the last level, which has one run and nine tenths of the keys: one false positive in
/// 200 lookups. Most absent keys are not looked up here at all, since the hash index and its filter
/// exclude them.
pub(super) const LAST_FILTER_BITS_PER_KEY: f32 = 11.0;
/// Table files kept open. Tables are at most 64 MiB, so this covers an index of 32 GiB without
/// reopening.
const OPEN_FILES_MAX: usize = 512;
/// File naming the current state.
pub(super) const CURRENT_FILE: &str = "current";

impl OrderedIndex {
    /// Opens or creates the index in `dir` and returns the newest mark on flash: commits after its
    /// seq must be replayed. No mark means the index is empty.
    ///
    /// # Errors
    /// `Corruption` if its files are damaged or incomplete: rebuild the index from the log. `Io`,
    /// `OutOfSpace`.
    pub fn open(dir: &Path, options: IndexOptions) -> Result<(Self, Option<IndexMark>)> {
        prepare_directory(dir)?;
        let context = format!("opening the index in {}", dir.display());
        let seqno = SequenceNumberCounter::default();
        let copy_slot = Arc::new(CopySlot::default());
        let config = config(dir, options, seqno.clone(), Arc::clone(&copy_slot));
        let tree = match errors::guarded_read(&context, || config.open())? {
            AnyTree::Standard(tree) => tree,
            AnyTree::Blob(_) => return Err(Error::corruption(&context, "it is not an index of this store")),
        };
        let mark = read_mark(&tree, &context)?;
        let lost = lost::read(&tree, &context)?;
        let applied_seq = mark.as_ref().map_or(0, |mark| mark.applied_seq);
        seqno.fetch_max(item_seqno(applied_seq));
        let highest = tree.get_highest_persisted_seqno().unwrap_or(0);
        if highest > item_seqno(applied_seq) {
            return Err(Error::corruption(
                &context,
                "tables hold commits after their mark; rebuild the index from the log",
            ));
        }
        let free_number = FreeNumber {
            state: tree.current_version().id(),
            seqno: item_seqno(applied_seq),
        };
        let live = Live::of(&tree);
        let index = Self {
            written: WrittenTables::new(&tree, dir.join(TABLES_DIR)),
            tree,
            mirror: Mirror::open(dir),
            dir: dir.to_path_buf(),
            options,
            seqno,
            applied_seq: AtomicU64::new(applied_seq),
            // States before the mark no longer exist.
            watermark_seq: AtomicU64::new(applied_seq),
            applier_taken: AtomicBool::new(false),
            marks: Mutex::new(Marks {
                persisted: mark.clone(),
                ..Marks::default()
            }),
            flushing: Mutex::new(()),
            compacting: Mutex::new(()),
            has_leftovers: AtomicBool::new(false),
            free_number: Mutex::new(free_number),
            failed: Mutex::new(None),
            is_unsure: AtomicBool::new(false),
            flushes: AtomicU64::new(0),
            damage: DamageNote::new(dir, options.guards),
            lost,
            copying: Mutex::new(()),
            live,
            warm: Warm::beside(options.cache_bytes),
            looks: Arc::default(),
            tombstones: Tombstones::default(),
            merge_room_bytes: AtomicU64::new(u64::MAX),
            copy_slot,
        };
        index.copy_state();
        Ok((index, mark))
    }
}

fn config(dir: &Path, options: IndexOptions, seqno: SequenceNumberCounter, copy_slot: Arc<CopySlot>) -> Config {
    // The second counter follows the first for transactions on top of the library; it is not read
    // here.
    Config::new(dir, seqno, SequenceNumberCounter::default())
        .use_cache(Arc::new(Cache::with_capacity_bytes(options.cache_bytes)))
        .use_descriptor_table(Some(Arc::new(DescriptorTable::new(OPEN_FILES_MAX))))
        .data_block_compression_policy(CompressionPolicy::all(CompressionType::None))
        .data_block_hash_ratio_policy(HashRatioPolicy::all(0.0))
        .filter_policy(filters())
        .with_compaction_filter_factory(Some(Arc::new(CopyFilters(copy_slot))))
        // Filters and block indexes are not partitioned and stay in RAM: a lookup costs at most one
        // device read per run.
        .filter_block_partitioning_policy(PinningPolicy::all(false))
        .index_block_partitioning_policy(PinningPolicy::all(false))
        .filter_block_pinning_policy(PinningPolicy::all(true))
        .index_block_pinning_policy(PinningPolicy::all(true))
}

fn filters() -> FilterPolicy {
    let bloom = |bits| FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(bits));
    let mut levels = vec![bloom(FILTER_BITS_PER_KEY); LAST_LEVEL];
    levels.push(bloom(LAST_FILTER_BITS_PER_KEY));
    FilterPolicy::new(levels)
}

fn read_mark(tree: &Tree, context: &str) -> Result<Option<IndexMark>> {
    match errors::guarded_read(context, || tree.get(MARK_KEY, SeqNo::MAX))? {
        Some(bytes) => IndexMark::decode(&bytes)
            .map(Some)
            .ok_or_else(|| Error::corruption(context, "the mark is damaged; rebuild the index from the log")),
        None if tree.table_count() > 0 => Err(Error::corruption(
            context,
            "tables but no mark; rebuild the index from the log",
        )),
        None => Ok(None),
    }
}

/// Creates the directory durably, removes temporary files of an interrupted rename, and verifies
/// the state. Without the file that names the state the library would begin with an empty index and
/// overwrite the tables, so this is refused if there was a state.
fn prepare_directory(dir: &Path) -> Result<()> {
    let context = |what: &str, path: &Path| format!("{what} {}", path.display());
    let fail = |what: &str, path: &Path, error: &io::Error| Error::io_on(Tier::Flash, context(what, path), error);
    let existed = dir.try_exists().map_err(|error| fail("looking for", dir, &error))?;
    // The library creates files by the umask; the directory excludes other users.
    create_private_dir_all(dir).map_err(|error| fail("creating", dir, &error))?;
    close_to_others(dir);
    if !existed {
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.map_or_else(|| PathBuf::from("."), Path::to_path_buf);
        unless(Mutation::IndexDirectory, || File::open(&parent)?.sync_all())
            .map_err(|error| fail("syncing", &parent, &error))?;
    }
    for item in fs::read_dir(dir).map_err(|error| fail("listing", dir, &error))? {
        let item = item.map_err(|error| fail("listing", dir, &error))?;
        if item.file_name().to_string_lossy().starts_with(".tmp") {
            fs::remove_file(item.path()).map_err(|error| fail("removing", &item.path(), &error))?;
        }
    }
    // The library panics, or gives no reason.
    if let Some(stray) = strays(dir)?.first() {
        return Err(Error::corruption(
            stray.display().to_string(),
            "it is no table of the index",
        ));
    }
    let tables = dir.join(TABLES_DIR);
    // The copy of a state was written after the file that names one.
    let has_tables =
        fs::read_dir(&tables).is_ok_and(|mut items| items.next().is_some()) || dir.join(state_copy::FILE).exists();
    match fs::read(dir.join(CURRENT_FILE)) {
        // The library writes the checksum of the file that lists the tables, but does not verify
        // it.
        Ok(current) => State::named_by(dir, &current)?.map(drop).ok_or_else(|| {
            Error::corruption(
                dir.display().to_string(),
                "the file that lists the tables is gone; rebuild the index from the log",
            )
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !has_tables => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::corruption(
            dir.display().to_string(),
            "no file says which tables are current; rebuild the index from the log",
        )),
        Err(error) => Err(fail("reading", &dir.join(CURRENT_FILE), &error)),
    }
}

/// What is among the tables and cannot be one: directories, and files with other names.
pub(super) fn strays(dir: &Path) -> Result<Vec<PathBuf>> {
    let tables = dir.join(TABLES_DIR);
    let failed = |error: io::Error| Error::io_on(Tier::Flash, format!("listing {}", tables.display()), &error);
    let is_stray = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // The library passes over a Mac's files about files.
        let is_passed_over = name == ".DS_Store" || name.starts_with("._");
        !is_passed_over && (path.is_dir() || name.parse::<TableId>().is_err())
    };
    let paths = match fs::read_dir(&tables) {
        Ok(items) => items.map(|item| Ok(item?.path())).collect::<io::Result<Vec<_>>>(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    };
    Ok(paths.map_err(failed)?.into_iter().filter(is_stray).collect())
}
