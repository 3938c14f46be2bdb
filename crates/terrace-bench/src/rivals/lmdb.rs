//! LMDB: a memory-mapped B+ tree that relies on the kernel's cache.
//!
//! If every write is to be durable, it has its default settings, and each transaction syncs.
//! Otherwise it is opened with `MDB_NOSYNC`, and a synced write calls `mdb_env_sync`. According to
//! its documentation, a power cut between two syncs can then damage the database; no other
//! candidate is allowed that.
#![allow(unsafe_code)]

use super::{KeyValue, Opening, give};
use crate::Outcome;
use ::terrace::Durability;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, WithTls, types::Bytes};
use std::ops::Bound;

/// Address space, not memory: larger than our drives.
const MAP_BYTES: usize = 1 << 40;
/// Most concurrent readers.
const READERS_MAX: u32 = 1024;

/// An open environment with one database.
pub struct Lmdb {
    environment: Env<WithTls>,
    database: Database<Bytes, Bytes>,
    commits_sync: bool,
}

impl Lmdb {
    /// Opens a database.
    pub fn open(opening: &Opening) -> Outcome<Self> {
        let mut options = EnvOpenOptions::new().read_txn_with_tls();
        options.map_size(MAP_BYTES).max_readers(READERS_MAX);
        // Reads are random, and read-ahead would read pages for nothing (lmdb.h advises this if the
        // data are larger than RAM).
        let mut flags = EnvFlags::NO_READ_AHEAD;
        if !opening.every_write_is_synced {
            flags |= EnvFlags::NO_SYNC;
        }
        // Safety: the file is in our directory, which no other program opens, so it is neither
        // changed behind the map nor opened twice. With NO_SYNC only a power cut can damage it.
        let environment = unsafe { options.flags(flags).open(&opening.directory)? };
        let mut transaction = environment.write_txn()?;
        let database = environment.create_database(&mut transaction, None)?;
        transaction.commit()?;
        Ok(Self {
            environment,
            database,
            commits_sync: opening.every_write_is_synced,
        })
    }

    fn sync_if(&self, durability: Durability) -> Outcome {
        if durability == Durability::Sync && !self.commits_sync {
            self.environment.force_sync()?;
        }
        Ok(())
    }
}

impl KeyValue for Lmdb {
    fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Outcome {
        self.put_all(&[(key, value)], durability)
    }

    fn put_all(&self, pairs: &[(&[u8], &[u8])], durability: Durability) -> Outcome {
        let mut transaction = self.environment.write_txn()?;
        for (key, value) in pairs {
            self.database.put(&mut transaction, key, value)?;
        }
        transaction.commit()?;
        self.sync_if(durability)
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Outcome<bool> {
        let transaction = self.environment.read_txn()?;
        Ok(give(self.database.get(&transaction, key)?, value))
    }

    fn delete(&self, key: &[u8], durability: Durability) -> Outcome {
        let mut transaction = self.environment.write_txn()?;
        self.database.delete(&mut transaction, key)?;
        transaction.commit()?;
        self.sync_if(durability)
    }

    fn scan(&self, from: &[u8], count: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Outcome {
        let transaction = self.environment.read_txn()?;
        // LMDB has no empty keys and refuses them as bounds.
        let from = if from.is_empty() {
            Bound::Unbounded
        } else {
            Bound::Included(from)
        };
        for pair in self
            .database
            .range(&transaction, &(from, Bound::Unbounded))?
            .take(count)
        {
            let (key, value) = pair?;
            visit(key, value);
        }
        Ok(())
    }

    fn sync(&self) -> Outcome {
        Ok(self.environment.force_sync()?)
    }

    fn settings(&self) -> String {
        let commits = if self.commits_sync {
            "each commit synced"
        } else {
            "MDB_NOSYNC, mdb_env_sync where durability is asked for"
        };
        format!("{commits}, MDB_NORDAHEAD; cached by the kernel alone")
    }

    fn close(self: Box<Self>) -> Outcome {
        self.environment.force_sync()?;
        self.environment.prepare_for_closing().wait();
        Ok(())
    }
}
