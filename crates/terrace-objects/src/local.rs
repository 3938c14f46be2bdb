//! Objects for the commands and the page, in the process that has the store open: reads and changes
//! of objects with separate values.

use crate::{
    access::decide::{Claim, Permit},
    bucket::{Buckets, Versioning},
    collector::Collector,
    commit::{self, Outcome, Place, Requirement, Tag},
    crypt::{self, DataKey, Encryption},
    digest::{Algorithm, Digests},
    error::{Condition, ObjectError},
    keep::keep,
    keyspace,
    read::{self, Opened},
    record::{self, Facts},
    secrets::{Secrets, kms::Caller},
    write::{self, PIECE_BYTES, Received, Target, WHOLE_BYTES_MAX, Writing},
};
use bytes::{Buf as _, Bytes};
use std::{
    io::{self, Read},
    sync::Arc,
    time::Duration,
};
use terrace::{Attributes, Durability, Error, ObjectInfo, ReadOptions, Store, Version};

/// A reader's parameters besides the store. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// Holds the values being read.
    pub collector: Arc<Collector>,
    /// Reads of the large tier are refused while its expected wait is longer.
    pub large_wait: Option<Duration>,
    /// The master keys.
    pub secrets: Secrets,
}

impl Reading {
    /// Read options for requests that are refused rather than queued while the large tier is busy.
    pub const fn options(&self) -> ReadOptions {
        ReadOptions {
            large_wait_max: self.large_wait,
        }
    }
}

/// Whether only the server and `terrace key` may change a key.
pub fn is_system(key: &[u8]) -> bool {
    key.starts_with(keyspace::SYSTEM_PREFIX.as_bytes())
}

/// Whether the value of an object's record is not its bytes: they are in separate values, or
/// encrypted.
pub fn has_values(info: &ObjectInfo) -> bool {
    record::values(&info.attributes).is_some() || Encryption::of(&info.attributes).is_some()
}

/// The length of an object, wherever its bytes are.
pub fn length(info: &ObjectInfo) -> u64 {
    Facts::of(info).length
}

/// The bytes of an object with separate values.
pub struct Values {
    store: Store,
    wait_max: Duration,
    opened: Opened,
    piece: Bytes,
}

/// Opens an object with separate values, and holds them while it is open. `None` for any other.
/// `reading` is the server's shared state; for a store that no server has open, any will do.
///
/// # Errors
/// Errors of the store.
pub fn open(store: &Store, key: &[u8], reading: &Reading) -> terrace::Result<Option<Values>> {
    let opened = open_values(&Claim::of_operator(), store, key, reading)?;
    Ok(opened.map(|opened| Values {
        store: store.clone(),
        wait_max: reading.large_wait.unwrap_or_default(),
        opened,
        piece: Bytes::new(),
    }))
}

/// Why an object encrypted with a client's key cannot be read here.
const ONLY_FOR_CLIENTS: &str =
    "the object is encrypted with a key that only an S3 client has (SSE-C), so only S3 can read it";

/// Why an object encrypted with a restricted KMS key cannot be shown to unsigned requests.
const ONLY_FOR_SIGNERS: &str = "the object is encrypted with a key of the store that only signed requests may use (SSE-KMS), so only S3 can read it";

/// Decides what the page may show of a bucket or an import, each time by the bucket that has the
/// name then. Ask after the object was read: one put after the bucket was closed is then hidden.
#[derive(Debug)]
pub struct Shown<'b> {
    buckets: &'b Buckets,
    bucket: String,
}

impl<'b> Shown<'b> {
    /// For the bucket of `key`.
    pub fn of(buckets: &'b Buckets, key: &[u8]) -> Self {
        let name = key.split(|byte| *byte == b'/').next().unwrap_or_default();
        let bucket = std::str::from_utf8(name).unwrap_or_default().to_owned();
        Self { buckets, bucket }
    }

    fn claim(&self) -> Claim {
        Claim::of_page(self.buckets, &self.bucket)
    }

    /// Whether the page may show an object.
    pub fn has(&self, info: &ObjectInfo) -> bool {
        self.claim().on(&Facts::of(info)).is_ok()
    }

    /// Opens an object; `None` also if the page may not show it.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn open(&self, store: &Store, key: &[u8], reading: &Reading) -> terrace::Result<Option<Opened>> {
        let opened = open_unlocked(&self.claim(), store, key, reading)?;
        Ok(opened.filter(|opened| self.has(&opened.info)))
    }

    /// The same if all of the object is in RAM, without waiting. `None` means nothing.
    pub fn open_in_ram(&self, store: &Store, key: &[u8]) -> Option<Opened> {
        read::open_in_ram(store, key, |facts| self.claim().on(facts).ok())
    }
}

fn open_values(claim: &Claim, store: &Store, key: &[u8], reading: &Reading) -> terrace::Result<Option<Opened>> {
    if !store.head(key)?.is_some_and(|info| has_values(&info)) {
        return Ok(None);
    }
    open_unlocked(claim, store, key, reading)
}

/// Opens an object and unlocks it without a client's key; `None` also if the claim is denied.
fn open_unlocked(claim: &Claim, store: &Store, key: &[u8], reading: &Reading) -> terrace::Result<Option<Opened>> {
    let wait_max = reading.large_wait.unwrap_or_default();
    let opened = match read::open(store, &reading.options(), &reading.collector, key, claim) {
        Err(ObjectError::Denied) => None,
        opened => opened.map_err(|error| failed(error, wait_max))?,
    };
    let unlocked = opened.map(|mut opened| {
        opened.unlock(&reading.secrets, None).map_err(|error| match error {
            ObjectError::KeyNeeded => Error::invalid(ONLY_FOR_CLIENTS),
            ObjectError::KmsNeedsVersion4 => Error::invalid(ONLY_FOR_SIGNERS),
            ObjectError::KmsDisabled(key) => Error::invalid(format!("{key} is disabled")),
            error => failed(error, wait_max),
        })?;
        Ok(opened)
    });
    unlocked.transpose()
}

/// Converts a failed read to an error of the store. `wait_max` is the longest wait that was
/// allowed.
pub fn failed(error: ObjectError, wait_max: Duration) -> Error {
    match error {
        ObjectError::Engine(error, _) => error,
        ObjectError::AlwaysReplaced => Error::Busy { wait_max },
        error => Error::corruption("an object of several values", error.to_string()),
    }
}

impl Read for Values {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.piece.is_empty() {
            let piece = self.opened.next_piece(&self.store);
            self.piece = piece.map_err(|error| io::Error::other(failed(error, self.wait_max)))?;
        }
        let count = out.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut out[..count]);
        Ok(count)
    }
}

/// Whether only the server may set this attribute: it locates an object's bytes or its version.
pub fn is_own_attribute(name: &str) -> bool {
    name == "etag" || name.starts_with("s3-")
}

/// Objects of buckets in a store that no server has open. They are changed by the same commits as
/// requests make, so values and versions stay consistent.
pub struct Objects<'s> {
    store: &'s Store,
    durability: Durability,
    buckets: Buckets,
    collector: Arc<Collector>,
    secrets: Secrets,
}

/// The key of an object in its bucket; the object may not exist.
pub struct Object<'s> {
    objects: &'s Objects<'s>,
    permit: Permit,
    key: String,
}

/// Why an object could not be changed.
#[derive(Debug)]
pub enum Failed {
    /// The store failed.
    Store(Error),
    /// Reading the input failed.
    Input(io::Error),
    /// The change is not allowed.
    Refused(ObjectError),
}

impl From<ObjectError> for Failed {
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::Engine(error, _) => Self::Store(error),
            error => Self::Refused(error),
        }
    }
}

impl<'s> Objects<'s> {
    /// Reads the buckets. Objects are encrypted if a bucket requires it and there is a master key.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn of(store: &'s Store, durability: Durability, secrets: Secrets) -> terrace::Result<Self> {
        Ok(Self {
            store,
            durability,
            buckets: Buckets::load(store)?,
            collector: Arc::default(),
            secrets,
        })
    }

    /// Finds the bucket of a key of the store. `None` if it is in no bucket, or S3 cannot name it.
    pub fn find(&'s self, key: &[u8]) -> Option<Object<'s>> {
        let (bucket, key) = std::str::from_utf8(key).ok()?.split_once('/')?;
        if key.is_empty() || key.len() > keyspace::KEY_BYTES_MAX || key.contains('\0') {
            return None;
        }
        Some(Object {
            objects: self,
            permit: Claim::of_system(&self.buckets.get(bucket).ok()?).on_bucket().ok()?,
            key: key.to_owned(),
        })
    }
}

impl Object<'_> {
    fn place(&self) -> Place<'_> {
        Place {
            store: self.objects.store,
            durability: self.objects.durability,
            permit: &self.permit,
            key: &self.key,
        }
    }

    /// Whether deleting or replacing it concerns more than its record.
    pub fn is_more_than(&self, info: &ObjectInfo) -> bool {
        record::values(&info.attributes).is_some() || self.permit.bucket().versioning() != Versioning::Never
    }

    /// Puts what `input` returns, `length` bytes if that is known. `None` if `if_absent` and an
    /// object exists.
    ///
    /// # Errors
    /// [`Failed`]
    pub fn put(
        &self,
        input: &mut dyn Read,
        length: Option<u64>,
        attributes: Attributes,
        if_absent: bool,
    ) -> Result<Option<Version>, Failed> {
        let requirement = Requirement {
            if_none_match: if_absent.then_some(Tag::Any),
            ..Requirement::default()
        };
        let sealing = crypt::by_default(
            &self.objects.secrets,
            self.permit
                .bucket()
                .record()
                .encryption
                .as_ref()
                .map(|wanted| wanted.wanted()),
            &Caller::Server,
        )?;
        if sealing.is_some() {
            self.objects
                .secrets
                .register(self.objects.store)
                .map_err(Failed::Store)?;
        }
        let received = self.receive(input, length, sealing.as_ref().map(|sealing| &sealing.data_key))?;
        match keep(
            &self.objects.collector,
            self.place(),
            &requirement,
            attributes,
            (received, sealing),
        ) {
            Ok(kept) => Ok(kept.commit),
            Err(ObjectError::Condition(Condition::NoneMatch)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn receive(
        &self,
        input: &mut dyn Read,
        length: Option<u64>,
        data_key: Option<&DataKey>,
    ) -> Result<Received, Failed> {
        let mut next = |bytes: usize| {
            let mut piece = Vec::new();
            let read = Read::take(&mut *input, bytes as u64).read_to_end(&mut piece);
            read.map(|_| Bytes::from(piece)).map_err(Failed::Input)
        };
        let mut digests = Digests::new(&[Algorithm::Crc64Nvme]);
        let mut piece = next(WHOLE_BYTES_MAX + 1)?;
        if piece.len() <= WHOLE_BYTES_MAX {
            digests.update(&piece);
            return Ok(write::whole(piece, digests.finish(), data_key)?);
        }
        let (collector, store) = (&self.objects.collector, self.objects.store);
        let begin = || Writing::begin(collector, store, Target::Object, length, data_key);
        let mut writing = begin().or_else(|error| {
            let seen = collector.collected_so_far();
            // Collecting values deleted before may free space.
            let has_room = error.is_full() && collector.collect(store).is_ok() && collector.collected_so_far() != seen;
            if has_room { begin() } else { Err(error) }
        })?;
        while !piece.is_empty() {
            digests.update(&piece);
            writing = writing.take(&[piece])?;
            piece = next(PIECE_BYTES)?;
        }
        Ok(Received::Stored(writing.finish(digests.finish())?))
    }

    /// Deletes the current object. `None` if there is none.
    ///
    /// # Errors
    /// [`Failed`]
    pub fn remove(&self) -> Result<Option<Version>, Failed> {
        let found = self
            .objects
            .store
            .head(keyspace::object(&self.permit.bucket().name, &self.key));
        let Some(info) = found.map_err(Failed::Store)? else {
            return Ok(None);
        };
        let judged = Requirement {
            version: Some(info.version),
            ..Requirement::default()
        };
        match commit::change(self.place(), &judged, None, &|_| {})? {
            Outcome::Done(done) => Ok(done.commit),
            Outcome::Nothing | Outcome::OtherCondition => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use terrace::{Options, ScanRange};

    /// Regression: the page read the bucket's record before it opened the object, so it showed an
    /// object put after the bucket was closed.
    #[test]
    fn what_the_page_shows_is_judged_when_it_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        let buckets = Buckets::load(&store).unwrap();
        buckets.create(&store, "abc", Default::default()).unwrap();
        let set_open = |is_open: bool| {
            let change = |record: &mut crate::bucket::Record| {
                record.public_read = is_open;
                Ok::<_, ObjectError>(())
            };
            buckets.change(&store, "abc", change).unwrap();
        };
        set_open(true);
        let put = |key: &str, bytes: usize| {
            let objects = Objects::of(&store, Durability::Buffered, Secrets::default()).unwrap();
            let object = objects.find(key.as_bytes()).unwrap();
            let put = object.put(&mut &vec![7; bytes][..], None, Attributes::new(), false);
            put.unwrap().unwrap();
            store.head(key).unwrap().unwrap()
        };
        let (short, _) = (put("abc/short", 10), put("abc/long", WHOLE_BYTES_MAX + 1));
        // Made before: what it decides is as of the decision.
        let shown = Shown::of(&buckets, b"abc/short");
        let sees = || {
            let open = |key: &[u8]| shown.open(&store, key, &Reading::default()).unwrap().is_some();
            assert_eq!(shown.open_in_ram(&store, b"abc/short").is_some(), shown.has(&short));
            assert!(
                shown.open_in_ram(&store, b"abc/long").is_none(),
                "its bytes are separate"
            );
            (shown.has(&short), open(b"abc/short"), open(b"abc/long"))
        };
        assert_eq!(sees(), (true, true, true));
        set_open(false);
        assert_eq!(sees(), (false, false, false));
        set_open(true);
        assert_eq!(sees(), (true, true, true));
        // Another bucket of this name is not the one that was open.
        for key in ["abc/short", "abc/long"] {
            let objects = Objects::of(&store, Durability::Buffered, Secrets::default()).unwrap();
            objects.find(key.as_bytes()).unwrap().remove().unwrap();
        }
        buckets.delete(&store, "abc").unwrap();
        assert!(!shown.has(&short), "put through S3, and there is no bucket");
        buckets.create(&store, "abc", Default::default()).unwrap();
        let again = put("abc/short", 10);
        assert!(!shown.has(&again));
        assert!(shown.open(&store, b"abc/short", &Reading::default()).unwrap().is_none());
    }

    /// Regression: a command put the object and the garbage marker of the replaced values in two
    /// commits; a crash between them left the values forever.
    #[test]
    fn what_is_replaced_is_garbage_in_the_same_commit() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        Buckets::load(&store)
            .unwrap()
            .create(&store, "abc", Default::default())
            .unwrap();
        let objects = Objects::of(&store, Durability::Buffered, Secrets::default()).unwrap();
        let object = objects.find(b"abc/k").unwrap();
        let long = vec![7; WHOLE_BYTES_MAX + 1];
        for (at, body) in [&long[..], b"short", &long].into_iter().enumerate() {
            let put = object.put(&mut &body[..], None, Attributes::new(), false);
            let version = put.unwrap().unwrap();
            let garbage = || store.scan(ScanRange::prefix(keyspace::GARBAGE)).unwrap();
            assert_eq!(garbage().count(), at.min(1));
            let marker = garbage().next().map(|item| item.unwrap().info.version);
            assert!(at != 1 || marker == Some(version));
        }
        assert!(
            object
                .put(&mut &b"x"[..], None, Attributes::new(), true)
                .unwrap()
                .is_none()
        );
        let removed = object.remove().unwrap().unwrap();
        let mut garbage = store.scan(ScanRange::prefix(keyspace::GARBAGE)).unwrap();
        assert!(garbage.any(|item| item.unwrap().info.version == removed));
        assert!(object.remove().unwrap().is_none());
        for elsewhere in [&b"other/k"[..], b"abc", b"abc/", b"abc/\xff"] {
            assert!(objects.find(elsewhere).is_none());
        }
    }
}
