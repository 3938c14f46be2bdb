//! RocksDB: levelled, or with values in blob files (BlobDB); on two drives with `db_paths`, which
//! is `cf_paths` for its only column family.
//!
//! The settings are those of its guide (wiki: "Setup Options and Basic Tuning", "BlobDB", "RocksDB
//! Tuning Guide"), without compression: values are random bytes, and no candidate compresses.

use super::{Figures, KeyValue, Opening};
use crate::Outcome;
use ::terrace::Durability;
use rocksdb::{BlockBasedOptions, Cache, DB, DBCompressionType, DBPath, Options, WriteBatch, WriteOptions, properties};

/// Smallest value in blob files.
const BLOB_BYTES_MIN: u64 = 1 << 10;
/// Its default number of levels.
const LEVELS: usize = 7;

/// An open database.
pub struct RocksDb {
    database: DB,
    settings: String,
}

impl RocksDb {
    /// Opens a database, with blob files or without.
    pub fn open(opening: &Opening, blobs: bool) -> Outcome<Self> {
        let memtable_bytes = (opening.cache_bytes / 8).clamp(1 << 20, 64 << 20);
        let cache_bytes = opening.cache_bytes - (2 * memtable_bytes).min(opening.cache_bytes);
        let cache = Cache::new_lru_cache(usize::try_from(cache_bytes)?);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_compression_type(DBCompressionType::None);
        options.set_write_buffer_size(usize::try_from(memtable_bytes)?);
        options.set_bytes_per_sync(1 << 20);
        options.set_max_background_jobs(6);
        options.set_level_compaction_dynamic_level_bytes(true);
        options.set_block_based_table_factory(&table_options(&cache));
        let mut settings = format!(
            "no compression, block cache {} MiB with indexes and filters in it, memtable {} MiB, blocks of 16 KiB, Bloom filter of 10 \
             bits, 6 background jobs, dynamic levels",
            cache_bytes >> 20,
            memtable_bytes >> 20
        );
        if blobs {
            options.set_enable_blob_files(true);
            options.set_min_blob_size(BLOB_BYTES_MIN);
            options.set_enable_blob_gc(true);
            options.set_blob_cache(&cache);
            settings += ", blob files for values from 1 KiB on, their garbage collection on, blobs cached";
        }
        if let Some(large) = &opening.large_directory {
            std::fs::create_dir_all(large)?;
            let flash_bytes = opening.flash_capacity_bytes.unwrap_or(64 << 30);
            // It puts a level on flash if there is space for all of it, and assumes that the level
            // of fresh tables is as large as the first: both fit, and the next one, ten times as
            // large, is on the disk.
            let level_bytes = (flash_bytes / 4).clamp(1 << 20, 256 << 20);
            options.set_max_bytes_for_level_base(level_bytes);
            options.set_target_file_size_base((level_bytes / 4).min(64 << 20));
            // Otherwise data that the disk has not taken yet accumulates above, in four times the
            // space of flash. With this limit writers wait, as they do for Terrace's disk.
            let tables = i32::try_from(level_bytes / memtable_bytes)?.max(4);
            options.set_level_zero_slowdown_writes_trigger(tables);
            options.set_level_zero_stop_writes_trigger(tables + tables / 2);
            options.set_soft_pending_compaction_bytes_limit(usize::try_from(flash_bytes / 8)?);
            options.set_hard_pending_compaction_bytes_limit(usize::try_from(flash_bytes / 4)?);
            options.set_db_paths(&[
                DBPath::new(&opening.directory, flash_bytes)?,
                DBPath::new(large, u64::MAX >> 1)?,
            ]);
            settings += &format!(
                ", db_paths: {} MiB on flash, the rest on the second drive; first level {} MiB, writers slow down at {tables} tables above it or \
                 {} MiB to be compacted",
                flash_bytes >> 20,
                level_bytes >> 20,
                flash_bytes >> 23,
            );
        }
        Ok(Self {
            database: DB::open(&options, &opening.directory)?,
            settings,
        })
    }
}

fn table_options(cache: &Cache) -> BlockBasedOptions {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(cache);
    table.set_block_size(16 << 10);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_bloom_filter(10.0, false);
    table
}

fn writing(durability: Durability) -> WriteOptions {
    let mut options = WriteOptions::default();
    options.set_sync(durability == Durability::Sync);
    options
}

impl KeyValue for RocksDb {
    fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Outcome {
        Ok(self.database.put_opt(key, value, &writing(durability))?)
    }

    fn put_all(&self, pairs: &[(&[u8], &[u8])], durability: Durability) -> Outcome {
        let mut batch = WriteBatch::default();
        for (key, value) in pairs {
            batch.put(key, value);
        }
        Ok(self.database.write_opt(batch, &writing(durability))?)
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Outcome<bool> {
        value.clear();
        let found = self.database.get_pinned(key)?;
        if let Some(found) = &found {
            value.extend_from_slice(found);
        }
        Ok(found.is_some())
    }

    fn delete(&self, key: &[u8], durability: Durability) -> Outcome {
        Ok(self.database.delete_opt(key, &writing(durability))?)
    }

    fn scan(&self, from: &[u8], count: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Outcome {
        // The other iterator copies each key and value.
        let mut pairs = self.database.raw_iterator();
        pairs.seek(from);
        for _ in 0..count {
            let Some((key, value)) = pairs.item() else {
                break;
            };
            visit(key, value);
            pairs.next();
        }
        Ok(pairs.status()?)
    }

    fn sync(&self) -> Outcome {
        Ok(self.database.flush_wal(true)?)
    }

    fn flush(&self) -> Outcome {
        Ok(self.database.flush()?)
    }

    fn ram_bytes(&self) -> Option<u64> {
        let of = |name| self.database.property_int_value(name).ok().flatten();
        Some(
            of(properties::BLOCK_CACHE_USAGE)?
                + of(properties::CUR_SIZE_ALL_MEM_TABLES)?
                + of(properties::ESTIMATE_TABLE_READERS_MEM)?,
        )
    }

    fn figures(&self) -> Figures {
        let of = |name| self.database.property_int_value(name).ok().flatten();
        let files = |level| -> Option<u64> {
            let name = properties::num_files_at_level(level);
            self.database.property_value(&name).ok().flatten()?.parse().ok()
        };
        let files: Option<Vec<u64>> = (0..LEVELS).map(files).collect();
        let levels = files
            .as_ref()
            .map(|files| files.iter().filter(|&&count| count > 0).count() as u64);
        // Each table of the first level is a run.
        let first = files.as_ref().and_then(|files| files.first().copied());
        let runs = levels.zip(first).map(|(levels, first)| levels - first.min(1) + first);
        Figures {
            // Filters and block indexes are among its blocks.
            cache_bytes: of(properties::BLOCK_CACHE_USAGE),
            levels,
            runs,
            table_bytes: of(properties::TOTAL_SST_FILES_SIZE),
            ..Figures::default()
        }
    }

    fn settings(&self) -> String {
        self.settings.clone()
    }

    fn close(self: Box<Self>) -> Outcome {
        self.sync()
    }
}
