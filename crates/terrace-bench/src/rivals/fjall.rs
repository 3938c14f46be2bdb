//! fjall: an LSM tree in Rust, with values of 1 KiB and more in separate files, as its
//! documentation advises.
//!
//! A write reaches the kernel before it is acknowledged; a synced one uses `SyncData` (fdatasync)
//! of the journal.

use super::{KeyValue, Opening, give};
use crate::Outcome;
use ::terrace::Durability;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode};

/// All data is in one keyspace.
pub struct Fjall {
    database: Database,
    keyspace: Keyspace,
    settings: String,
}

impl Fjall {
    /// Opens a database: a quarter of the RAM is for memtables, the rest for its cache.
    pub fn open(opening: &Opening) -> Outcome<Self> {
        let memtable_bytes = (opening.cache_bytes / 8).clamp(1 << 20, 64 << 20);
        let cache_bytes = opening.cache_bytes - (2 * memtable_bytes).min(opening.cache_bytes);
        let database = Database::builder(&opening.directory).cache_size(cache_bytes).open()?;
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(memtable_bytes)
                .with_kv_separation(Some(KvSeparationOptions::default()))
        };
        let keyspace = database.keyspace("values", options)?;
        let settings = format!(
            "no compression, cache {} MiB, memtable {} MiB, values from 1 KiB on separate, the rest its defaults",
            cache_bytes >> 20,
            memtable_bytes >> 20
        );
        Ok(Self {
            database,
            keyspace,
            settings,
        })
    }

    fn persist_if(&self, durability: Durability) -> Outcome {
        match durability {
            Durability::Buffered => Ok(()),
            Durability::Sync => self.sync(),
        }
    }
}

impl KeyValue for Fjall {
    fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Outcome {
        self.keyspace.insert(key, value)?;
        self.persist_if(durability)
    }

    fn put_all(&self, pairs: &[(&[u8], &[u8])], durability: Durability) -> Outcome {
        let mut batch = self.database.batch();
        for (key, value) in pairs {
            batch.insert(&self.keyspace, *key, *value);
        }
        batch.commit()?;
        self.persist_if(durability)
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Outcome<bool> {
        Ok(give(self.keyspace.get(key)?, value))
    }

    fn delete(&self, key: &[u8], durability: Durability) -> Outcome {
        self.keyspace.remove(key)?;
        self.persist_if(durability)
    }

    fn scan(&self, from: &[u8], count: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Outcome {
        for guard in self.keyspace.range(from..).take(count) {
            let (key, value) = guard.into_inner()?;
            visit(&key, &value);
        }
        Ok(())
    }

    fn sync(&self) -> Outcome {
        Ok(self.database.persist(PersistMode::SyncData)?)
    }

    fn flush(&self) -> Outcome {
        self.sync()?;
        Ok(self.keyspace.rotate_memtable_and_wait()?)
    }

    fn ram_bytes(&self) -> Option<u64> {
        Some(self.database.cache_size() + self.database.write_buffer_size())
    }

    fn settings(&self) -> String {
        self.settings.clone()
    }

    fn close(self: Box<Self>) -> Outcome {
        self.sync()
    }
}
