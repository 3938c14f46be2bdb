//! What commands and the page need to know of S3: objects whose bytes are in values of their own.

use super::{
    Shared,
    access::decide::Claim,
    keyspace,
    read::{self, Opened},
    record::{self, Facts},
};
use bytes::{Buf as _, Bytes};
use s3s::S3ErrorCode;
use std::{
    io::{self, Read},
    time::Duration,
};
use terrace::{Batch, Condition, Durability, Error, ObjectInfo, Store, Version};

/// Whether a key is the system's, which only the server and `terrace key` may change.
pub fn is_system(key: &[u8]) -> bool {
    key.starts_with(keyspace::SYSTEM_PREFIX.as_bytes())
}

/// Whether the bytes of an object are in values of its own.
pub fn has_values(info: &ObjectInfo) -> bool {
    record::values(&info.attributes).is_some()
}

/// How long an object is, wherever its bytes are.
pub fn length(info: &ObjectInfo) -> u64 {
    Facts::of(info).length
}

/// The bytes of an object that has values of its own.
pub struct Values {
    store: Store,
    /// For the first piece, which may be refused; an answer that has begun goes on.
    guarded: Option<Store>,
    wait_max: Duration,
    opened: Opened,
    piece: Bytes,
}

impl Values {
    /// What the store knows of the object.
    pub fn info(&self) -> ObjectInfo {
        self.opened.info.clone()
    }

    /// Reads on at `offset`, which is at most the length.
    ///
    /// # Errors
    /// The store's.
    pub fn seek_to(&mut self, offset: u64) -> terrace::Result<()> {
        self.piece = Bytes::new();
        let end = self.opened.facts.length;
        let sought = self.opened.seek(offset.min(end)..end);
        sought.map_err(|error| of_s3(&error, self.wait_max))
    }

    /// The next piece; empty at the end.
    ///
    /// # Errors
    /// The store's.
    pub fn next_piece(&mut self) -> terrace::Result<Bytes> {
        if !self.piece.is_empty() {
            return Ok(std::mem::take(&mut self.piece));
        }
        let guarded = self.guarded.take();
        let piece = self.opened.next_piece(guarded.as_ref().unwrap_or(&self.store));
        piece.map_err(|error| of_s3(&error, self.wait_max))
    }
}

/// Opens an object that has values of its own, which are kept for as long as it is open. `None` for any other. `shared` is what
/// a server that has the store open shares; of a store that nobody has open, anything.
///
/// # Errors
/// The store's.
pub fn open(store: &Store, key: &[u8], shared: &Shared) -> terrace::Result<Option<Values>> {
    open_values(&Claim::of_operator(), store, key, shared)
}

/// What the page may show of a bucket, or of what an import keeps where one would be.
pub struct Shown(Claim);

impl Shown {
    /// Of the bucket that `key` is in.
    ///
    /// # Errors
    /// The store's.
    pub fn of(store: &Store, key: &[u8]) -> terrace::Result<Self> {
        let name = key.split(|byte| *byte == b'/').next().unwrap_or_default();
        let name = std::str::from_utf8(name).unwrap_or_default();
        Claim::of_page(store, name).map(Self)
    }

    /// Whether an object is shown.
    pub fn has(&self, info: &ObjectInfo) -> bool {
        self.0.on(&Facts::of(info)).is_ok()
    }

    /// Opens an object that has values of its own, as [`open`] does. `None` also for one that is
    /// not shown.
    ///
    /// # Errors
    /// The store's.
    pub fn open(&self, store: &Store, key: &[u8], shared: &Shared) -> terrace::Result<Option<Values>> {
        open_values(&self.0, store, key, shared)
    }
}

fn open_values(claim: &Claim, store: &Store, key: &[u8], shared: &Shared) -> terrace::Result<Option<Values>> {
    if !store.head(key)?.is_some_and(|info| has_values(&info)) {
        return Ok(None);
    }
    let (guarded, wait_max) = (shared.guarded(store), shared.large_wait.unwrap_or_default());
    let opened = match read::open(&guarded, &shared.collector, key, claim) {
        Err(error) if *error.code() == S3ErrorCode::AccessDenied => None,
        opened => opened.map_err(|error| of_s3(&error, wait_max))?,
    };
    Ok(opened.map(|opened| Values {
        store: store.clone(),
        guarded: Some(guarded),
        wait_max,
        opened,
        piece: Bytes::new(),
    }))
}

fn of_s3(error: &s3s::S3Error, wait_max: Duration) -> Error {
    if *error.code() == S3ErrorCode::SlowDown {
        return Error::Busy { wait_max };
    }
    Error::corruption(
        "an object of several values",
        error.message().unwrap_or("it cannot be read"),
    )
}

impl Read for Values {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.piece.is_empty() {
            self.piece = self.next_piece().map_err(io::Error::other)?;
        }
        let count = out.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut out[..count]);
        Ok(count)
    }
}

/// The marker to put once the object at `key` is replaced, so that the next server frees its values.
///
/// # Errors
/// The store's.
pub fn garbage_of(store: &Store, key: &[u8]) -> terrace::Result<Option<Vec<u8>>> {
    let info = store.head(key)?;
    Ok(info
        .and_then(|info| record::values(&info.attributes))
        .map(keyspace::garbage))
}

/// Deletes an object that is there, and has its values freed.
///
/// # Errors
/// The store's; [`Error::ConditionFailed`] if it is not there.
pub fn remove(store: &Store, key: &[u8], durability: Durability) -> terrace::Result<Version> {
    let mut batch = Batch::new();
    batch.delete_if(key, Condition::Present);
    if let Some(marker) = garbage_of(store, key)? {
        batch.put(marker, "");
    }
    store.write(batch, durability)
}
