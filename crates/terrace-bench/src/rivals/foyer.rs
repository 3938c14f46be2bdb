//! foyer: a hybrid cache in Rust, in RAM and on flash. As a cache it persists nothing and may
//! evict.
//!
//! Both of its write policies take part: values are written to flash when they are inserted, or
//! when they are evicted from RAM. Its calls are asynchronous; values in RAM are returned without a
//! runtime, for others the caller waits.

use super::{Figures, KeyValue, Lookups, Opening};
use crate::Outcome;
use ::foyer::{
    BlockEngineConfig, DeviceBuilder, FsDeviceBuilder, HybridCache, HybridCacheBuilder, HybridCachePolicy,
    PsyncIoEngineConfig, RecoverMode,
};
use ::terrace::Durability;
use tokio::runtime::{Builder, Runtime};

/// RAM per record besides key and value: the record with its links, two vectors, the slot in the
/// table (in jemalloc's size classes). Without it the process would exceed its limit.
const RECORD_BYTES: usize = 160;
/// Its buffer for a write to flash, a part of its caches; its default is 16 MiB.
const BUFFER_BYTES: usize = 16 << 20;
/// Bytes that may wait for flash; more is dropped. Its documentation advises twice the buffer.
const WAITING_BYTES: usize = 2 * BUFFER_BYTES;

/// An open cache.
pub struct Foyer {
    cache: HybridCache<Vec<u8>, Vec<u8>>,
    runtime: Runtime,
    lookups: Lookups,
    settings: String,
}

impl Foyer {
    /// Opens an empty cache that writes values to flash on insertion, or on eviction from RAM.
    pub fn open(opening: &Opening, writes_on_insertion: bool) -> Outcome<Self> {
        let flash_bytes = opening.flash_bytes_of_cache();
        let (policy, when) = if writes_on_insertion {
            (HybridCachePolicy::WriteOnInsertion, "inserted")
        } else {
            (HybridCachePolicy::WriteOnEviction, "evicted from RAM")
        };
        // There are two buffers: one is filled while the other is written.
        let buffers = 2 * BUFFER_BYTES as u64;
        let ram_bytes = (opening.cache_bytes.saturating_sub(buffers)).max(opening.cache_bytes / 2);
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let device = FsDeviceBuilder::new(opening.directory.join("foyer"))
            .with_capacity(usize::try_from(flash_bytes)?)
            .with_direct(true)
            .build()?;
        let engine = BlockEngineConfig::new(device)
            .with_buffer_pool_size(BUFFER_BYTES)
            .with_submit_queue_size_threshold(WAITING_BYTES);
        let opened = HybridCacheBuilder::new()
            .with_name("terrace-bench")
            .with_policy(policy)
            .with_flush_on_close(false)
            .memory(usize::try_from(ram_bytes)?)
            .with_weighter(|key: &Vec<u8>, value: &Vec<u8>| key.len() + value.len() + RECORD_BYTES)
            .storage()
            .with_io_engine_config(PsyncIoEngineConfig::new())
            .with_engine_config(engine)
            .with_recover_mode(RecoverMode::None)
            .build();
        let cache = runtime.block_on(opened)?;
        let settings = format!(
            "foyer 0.22, {} MiB of RAM ({RECORD_BYTES} bytes counted beside each key and value), {} MiB on flash by direct I/O, buffers of \
             16 MiB and twice that may wait, written when {when}; the rest its defaults",
            ram_bytes >> 20,
            flash_bytes >> 20
        );
        Ok(Self {
            cache,
            runtime,
            lookups: Lookups::default(),
            settings,
        })
    }
}

impl KeyValue for Foyer {
    fn put(&self, key: &[u8], value: &[u8], _: Durability) -> Outcome {
        self.cache.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Outcome<bool> {
        value.clear();
        let found = match self.cache.get(key).try_unwrap() {
            Ok(in_ram) => Some(in_ram),
            Err(asked) => self.runtime.block_on(asked)?,
        };
        self.lookups.count(found.is_some());
        let Some(entry) = found else {
            return Ok(false);
        };
        value.extend_from_slice(entry.value());
        Ok(true)
    }

    fn delete(&self, key: &[u8], _: Durability) -> Outcome {
        self.cache.remove(key);
        Ok(())
    }

    fn scan(&self, _: &[u8], _: usize, _: &mut dyn FnMut(&[u8], &[u8])) -> Outcome {
        Err("foyer has no order to scan in".into())
    }

    /// It has no durability.
    fn sync(&self) -> Outcome {
        Ok(())
    }

    fn ram_bytes(&self) -> Option<u64> {
        Some(self.cache.memory().usage() as u64)
    }

    fn figures(&self) -> Figures {
        self.lookups.figures()
    }

    fn settings(&self) -> String {
        self.settings.clone()
    }

    fn close(self: Box<Self>) -> Outcome {
        Ok(self.runtime.block_on(self.cache.close())?)
    }
}
