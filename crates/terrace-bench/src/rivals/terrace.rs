//! Terrace as a candidate. Without a second directory both tiers are on one drive.

use super::{Figures, KeyValue, Opening, give};
use crate::Outcome;
use ::terrace::{Batch, Condition, Durability, Options, PutOptions, ScanRange, Store};

/// Values that a scan reads per batch.
const SCAN_BATCH: usize = 64;
/// RAM of an entry of the index, with its part of filters and block indexes, and half as much again
/// for blocks that compactions bring into the cache: with keys of 16 bytes it took 83 bytes per
/// object.
const INDEX_BYTES_PER_OBJECT: u64 = 120;
/// A memtable holds this fraction of all entries, so that it is rarely sealed.
const MEMTABLE_PART: u64 = 3;
/// A key that no workload uses.
const UNUSED_KEY: &[u8] = b"\0terrace-bench";

/// An open store.
#[derive(Debug)]
pub struct Terrace {
    store: Store,
    settings: String,
}

impl Terrace {
    /// Opens a store. Its caches get the RAM of [`Opening`]: the index what its entries need, but
    /// at most a quarter, or a sixteenth if the values are inline; the values get the rest. Without
    /// `cached` values are not cached.
    pub fn open(opening: &Opening, cached: bool) -> Outcome<Self> {
        let options = options(opening, cached);
        let mut settings = format!(
            "value cache {} MiB, index cache {} MiB, memtable {} MiB, inline up to {} B",
            options.cache_bytes >> 20,
            options.tuning.index_cache_bytes >> 20,
            options.tuning.memtable_bytes >> 20,
            options.tuning.inline_bytes_max,
        );
        if opening.flash_capacity_bytes.is_some() {
            settings += &format!(
                ", flash log {} KiB in segments of {} KiB",
                options.log_capacity_bytes.unwrap_or_default() >> 10,
                options.segment_bytes >> 10
            );
        }
        Ok(Self {
            store: Store::open(options)?,
            settings,
        })
    }

    /// Opens a store with these options, and waits until its hash index is filled.
    pub fn filled(options: Options) -> Outcome<Self> {
        let store = Store::open(options)?;
        while store.stats().hash_index.refilling {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let settings = String::new();
        Ok(Self { store, settings })
    }
}

fn options(opening: &Opening, cached: bool) -> Options {
    let flash = opening.directory.join("flash");
    let large = opening
        .large_directory
        .as_ref()
        .unwrap_or(&opening.directory)
        .join("large");
    let mut options = Options::on_tiers(flash, large);
    if let Some(bytes) = opening.inline_bytes_max {
        options.tuning.inline_bytes_max = bytes;
    }
    let entries_bytes = match opening.expected_objects {
        0 => u64::MAX,
        objects => objects.saturating_mul(INDEX_BYTES_PER_OBJECT).max(1 << 20),
    };
    let memtable_bytes_max = (opening.cache_bytes / 8).min(entries_bytes / MEMTABLE_PART);
    let memtable_bytes = options.tuning.memtable_bytes.min(memtable_bytes_max).max(1 << 20);
    // If values are inline, only the index's tables are read, and the kernel caches them: it gets
    // the remaining RAM.
    let index_bytes_max = match opening.expected_object_bytes {
        bytes if (1..=options.tuning.inline_bytes_max).contains(&bytes) => opening.cache_bytes / 16,
        _ => opening.cache_bytes / 4,
    };
    let index_cache_bytes = entries_bytes.min(index_bytes_max);
    let overlay_bytes = options.tuning.overlay_bytes.min(opening.cache_bytes / 16).max(1 << 20);
    // Objects being copied between two drives. On one drive there are no copies. (64 MiB for them
    // used to be in addition to the caches' RAM.)
    let staging_bytes = match opening.large_directory {
        Some(_) => options.tuning.staging_bytes.min(opening.cache_bytes / 8),
        None => 0,
    };
    // Two memtables: one being filled and one being flushed.
    let others_bytes = index_cache_bytes + 2 * memtable_bytes + overlay_bytes + staging_bytes;
    let cache_bytes = opening.cache_bytes - others_bytes.min(opening.cache_bytes);
    options.tuning.overlay_bytes = overlay_bytes;
    options.tuning.memtable_bytes = memtable_bytes;
    options.tuning.index_cache_bytes = index_cache_bytes;
    options.tuning.staging_bytes = staging_bytes;
    options.cache_bytes = if cached { cache_bytes } else { 0 };
    if let Some(bytes) = opening.flash_capacity_bytes {
        // Sixty-four segments, so that recycling has small steps.
        options.segment_bytes = (bytes / 64).next_multiple_of(64 << 10).clamp(256 << 10, 64 << 20);
        options.log_capacity_bytes = Some(bytes.max(8 * options.segment_bytes));
        options.size_threshold_bytes = options.size_threshold_bytes.min(options.segment_bytes / 4);
    }
    options
}

impl KeyValue for Terrace {
    fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Outcome {
        let options = PutOptions {
            durability,
            ..PutOptions::default()
        };
        self.store.put_with(key, value, &options)?;
        Ok(())
    }

    fn put_all(&self, pairs: &[(&[u8], &[u8])], durability: Durability) -> Outcome {
        let mut batch = Batch::new();
        for (key, value) in pairs {
            batch.put(key, value.to_vec());
        }
        self.store.write(batch, durability)?;
        Ok(())
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Outcome<bool> {
        Ok(give(self.store.get(key)?.map(|object| object.value), value))
    }

    fn delete(&self, key: &[u8], durability: Durability) -> Outcome {
        self.store.delete_with(key, Condition::None, durability)?;
        Ok(())
    }

    fn scan(&self, from: &[u8], count: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Outcome {
        let mut scan = self.store.scan(ScanRange::range(from..))?;
        let mut left = count;
        while left > 0 {
            let mut outcome = Ok(());
            let found = scan.visit_values(left.min(SCAN_BATCH), |key, value| match value {
                Ok(value) => visit(key, value),
                Err(error) => outcome = Err(error),
            })?;
            outcome?;
            if found == 0 {
                break;
            }
            left -= found;
        }
        Ok(())
    }

    fn sync(&self) -> Outcome {
        // A synced commit makes earlier ones durable, and this is the smallest.
        Ok(self
            .store
            .delete_with(UNUSED_KEY, Condition::None, Durability::Sync)
            .map(drop)?)
    }

    fn flush(&self) -> Outcome {
        Ok(self.store.flush()?)
    }

    fn ram_bytes(&self) -> Option<u64> {
        Some(self.store.stats().ram.total_bytes())
    }

    fn figures(&self) -> Figures {
        let stats = self.store.stats();
        let written = &stats.written;
        let filter_bytes = stats.index.pinned_bytes;
        let blocks_bytes = stats.ram.index_blocks_bytes.saturating_sub(filter_bytes);
        Figures {
            cache_bytes: Some(stats.ram.values_bytes + stats.ram.recent_bytes + blocks_bytes),
            hash_index_bytes: Some(stats.ram.hash_index_bytes),
            filter_bytes: Some(filter_bytes),
            levels: Some(stats.index.levels),
            runs: Some(stats.index.runs),
            table_bytes: Some(stats.index.bytes),
            merged_bytes: Some(stats.index.compacted_bytes),
            flushes: Some(stats.index.flushes),
            compactions: Some(stats.index.compactions),
            written_bytes: Some(
                written.flash_user_bytes
                    + written.flash_padding_bytes
                    + written.flash_reinserted_bytes
                    + written.index_bytes
                    + written.compaction_bytes
                    + written.large_user_bytes
                    + written.large_destaged_bytes
                    + written.large_cleaned_bytes,
            ),
            device_reads: Some(stats.reads.flash_reads + stats.reads.block_reads + stats.index.block_reads),
            ..Figures::default()
        }
    }

    fn settings(&self) -> String {
        self.settings.clone()
    }

    fn close(self: Box<Self>) -> Outcome {
        Ok(self.store.close()?)
    }
}
