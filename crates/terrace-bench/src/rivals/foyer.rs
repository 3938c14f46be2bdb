//! foyer: a hybrid cache in Rust, in RAM and on from there on flash. It is here for the role of a
//! cache: it keeps nothing that was promised to last, and may forget.
//!
//! Both its write policies take part: values go to flash when they are inserted, or when RAM lets
//! go of them. Its calls are asynchronous; what is in RAM is answered without a runtime, the rest
//! is waited for by the caller.

use super::{Figures, KeyValue, Lookups, Opening};
use crate::Outcome;
use ::foyer::{
    BlockEngineConfig, DeviceBuilder, FsDeviceBuilder, HybridCache, HybridCacheBuilder, HybridCachePolicy,
    PsyncIoEngineConfig, RecoverMode,
};
use ::terrace::Durability;
use tokio::runtime::{Builder, Runtime};

/// What it keeps beside key and value in RAM: the record with its links, two vectors, the place in
/// the table (by jemalloc's classes of sizes). Without it the process would outgrow its bound.
const RECORD_BYTES: usize = 160;
/// Least room on flash, and that where nothing is known of the data; else it is twice the data.
const FLASH_BYTES_MIN: u64 = 256 << 20;
const FLASH_BYTES_UNKNOWN: u64 = 2 << 30;
/// What it collects for one write to flash, of its caches: its default is 16 MiB.
const BUFFER_BYTES: usize = 16 << 20;
/// What may wait for flash; more is dropped. Its documents advise twice the buffer.
const WAITING_BYTES: usize = 2 * BUFFER_BYTES;

/// An open cache.
pub struct Foyer {
    cache: HybridCache<Vec<u8>, Vec<u8>>,
    runtime: Runtime,
    lookups: Lookups,
    settings: String,
}

impl Foyer {
    /// Opens an empty cache; values go to flash when they are inserted, or when they leave RAM.
    ///
    /// # Errors
    /// foyer's, or if its threads cannot be started.
    pub fn open(opening: &Opening, writes_on_insertion: bool) -> Outcome<Self> {
        let flash_bytes = match opening.expected_objects * opening.expected_object_bytes {
            0 => FLASH_BYTES_UNKNOWN,
            bytes => (2 * bytes).max(FLASH_BYTES_MIN),
        };
        let (policy, when) = if writes_on_insertion {
            (HybridCachePolicy::WriteOnInsertion, "inserted")
        } else {
            (HybridCachePolicy::WriteOnEviction, "evicted from RAM")
        };
        // The buffer is there twice: one is filled while the other is written.
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

    /// There is nothing it could make durable.
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
