//! Engines that are system libraries, behind shims in C and C++ with one table of calls
//! (`rival.h`).
//!
//! The crates with bindings build an engine of their own or have had no release for years; Debian's
//! libraries are the ones in use. Berkeley DB's header, with structures full of function pointers,
//! is unsuitable for a hand-written binding, so the interface is small: bytes are passed in, and
//! results are passed to a function that copies them.
#![allow(unsafe_code)]

use super::{KeyValue, Opening};
use crate::Outcome;
use ::terrace::Durability;
use std::{
    ffi::{CString, c_char, c_int, c_void},
    os::unix::ffi::OsStrExt,
    ptr::{self, NonNull},
};

/// Size of the buffer for an engine's error message.
const WHY_BYTES: usize = 512;

#[repr(C)]
#[derive(Clone, Copy)]
struct Bytes {
    data: *const c_void,
    length: usize,
}

impl Bytes {
    fn of(bytes: &[u8]) -> Self {
        Self {
            data: bytes.as_ptr().cast(),
            length: bytes.len(),
        }
    }

    /// # Safety
    /// `data` must point to `length` bytes, unless that is 0, which do not change while the slice
    /// is used.
    unsafe fn as_slice<'a>(self) -> &'a [u8] {
        if self.length == 0 {
            return &[];
        }
        unsafe { std::slice::from_raw_parts(self.data.cast(), self.length) }
    }
}

#[repr(C)]
struct Why {
    text: *mut c_char,
    length: usize,
}

#[repr(C)]
struct Open {
    directory: *const c_char,
    cache_bytes: u64,
    expected_objects: u64,
    expected_object_bytes: u64,
}

type Take = extern "C" fn(sink: *mut c_void, key: Bytes, value: Bytes);

/// `struct rival_calls` of rival.h.
#[repr(C)]
struct Calls {
    open: unsafe extern "C" fn(*const Open, Why) -> *mut c_void,
    put: unsafe extern "C" fn(*mut c_void, *const Bytes, *const Bytes, usize, c_int, Why) -> c_int,
    get: unsafe extern "C" fn(*mut c_void, Bytes, Take, *mut c_void, Why) -> c_int,
    remove: unsafe extern "C" fn(*mut c_void, Bytes, c_int, Why) -> c_int,
    scan: unsafe extern "C" fn(*mut c_void, Bytes, usize, Take, *mut c_void, Why) -> c_int,
    sync: unsafe extern "C" fn(*mut c_void, Why) -> c_int,
    close: unsafe extern "C" fn(*mut c_void, Why) -> c_int,
}

unsafe extern "C" {
    #[cfg(feature = "rival-leveldb")]
    static rival_leveldb: Calls;
    #[cfg(feature = "rival-berkeley-db")]
    static rival_berkeley_db: Calls;
    #[cfg(feature = "rival-faster")]
    static rival_faster: Calls;
}

/// An open database.
pub struct Foreign {
    name: &'static str,
    calls: &'static Calls,
    /// `None` after closing.
    database: Option<NonNull<c_void>>,
    settings: String,
}

// Safety: according to rival.h the calls may be made from several threads at once; close needs
// ownership of the value.
unsafe impl Send for Foreign {}
unsafe impl Sync for Foreign {}

fn sync_flag(durability: Durability) -> c_int {
    c_int::from(durability == Durability::Sync)
}

/// Copies a value into a `Vec<u8>`.
extern "C" fn take_value(sink: *mut c_void, _key: Bytes, value: Bytes) {
    // Safety: the sink is the vector that `get` passed with this function, and the value belongs to
    // the engine until this returns.
    let (sink, value) = unsafe { (&mut *sink.cast::<Vec<u8>>(), value.as_slice()) };
    sink.extend_from_slice(value);
}

type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]);

/// Passes a pair to a visitor.
extern "C" fn take_pair(sink: *mut c_void, key: Bytes, value: Bytes) {
    // Safety: the sink is the visitor that `scan` passed with this function, and key and value
    // belong to the engine until this returns.
    let (visit, key, value) = unsafe { (&mut *sink.cast::<Visit<'_>>(), key.as_slice(), value.as_slice()) };
    visit(key, value);
}

impl Foreign {
    /// LevelDB: values inline, no compression, Bloom filter, a memtable of an eighth of the RAM.
    #[cfg(feature = "rival-leveldb")]
    pub fn leveldb(opening: &Opening) -> Outcome<Self> {
        let settings = format!(
            "Debian's libleveldb; no compression, Bloom filter of 10 bits, {} MiB for block cache and memtables, the rest its defaults",
            opening.cache_bytes >> 20
        );
        // Safety: the table is a constant of the linked shim.
        Self::open("LevelDB", unsafe { &rival_leveldb }, opening, settings)
    }

    /// Berkeley DB: a hash table in the concurrent data store.
    #[cfg(feature = "rival-berkeley-db")]
    pub fn berkeley_db(opening: &Opening) -> Outcome<Self> {
        let settings = format!(
            "Debian's libdb 5.3; hash, concurrent data store (no log), pages of 4 KiB, cache {} MiB, fill factor and size of the table \
             set for {} objects of {} B",
            opening.cache_bytes >> 20,
            opening.expected_objects,
            opening.expected_object_bytes,
        );
        // Safety: as above.
        Self::open("Berkeley DB", unsafe { &rival_berkeley_db }, opening, settings)
    }

    /// FASTER: its log, of which the newest part is mutable, and a hash table for the objects.
    #[cfg(feature = "rival-faster")]
    pub fn faster(opening: &Opening) -> Outcome<Self> {
        let settings = format!(
            "C++, libaio; {} MiB for log and hash table, at least 192 MiB of log, all but 128 MiB of it mutable, a bucket for \
             4 of {} objects; no checkpoints",
            opening.cache_bytes >> 20,
            opening.expected_objects,
        );
        // Safety: as above.
        Self::open("FASTER", unsafe { &rival_faster }, opening, settings)
    }

    fn open(name: &'static str, calls: &'static Calls, opening: &Opening, settings: String) -> Outcome<Self> {
        let directory = CString::new(opening.directory.as_os_str().as_bytes())?;
        let open = Open {
            directory: directory.as_ptr(),
            cache_bytes: opening.cache_bytes,
            expected_objects: opening.expected_objects,
            expected_object_bytes: opening.expected_object_bytes,
        };
        let mut opened = ptr::null_mut();
        complaining(name, |why| {
            // Safety: the directory's text lives until after the call.
            opened = unsafe { (calls.open)(&raw const open, why) };
            if opened.is_null() { -1 } else { 0 }
        })?;
        Ok(Self {
            name,
            calls,
            database: NonNull::new(opened),
            settings,
        })
    }

    fn call(&self, call: impl FnOnce(*mut c_void, Why) -> c_int) -> Outcome<c_int> {
        let database = self.database.ok_or("the database is closed")?;
        complaining(self.name, |why| call(database.as_ptr(), why))
    }
}

/// Makes a call that returns a negative number and a message on failure.
fn complaining(name: &str, call: impl FnOnce(Why) -> c_int) -> Outcome<c_int> {
    let mut text = [0_u8; WHY_BYTES];
    let code = call(Why {
        text: text.as_mut_ptr().cast(),
        length: text.len(),
    });
    if code < 0 {
        let length = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
        return Err(format!("{name}: {}", String::from_utf8_lossy(&text[..length])).into());
    }
    Ok(code)
}

impl KeyValue for Foreign {
    fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Outcome {
        self.put_all(&[(key, value)], durability)
    }

    fn put_all(&self, pairs: &[(&[u8], &[u8])], durability: Durability) -> Outcome {
        let keys: Vec<Bytes> = pairs.iter().map(|pair| Bytes::of(pair.0)).collect();
        let values: Vec<Bytes> = pairs.iter().map(|pair| Bytes::of(pair.1)).collect();
        // Safety: both arrays have the given number of entries, and what they point to outlives the
        // call.
        self.call(|database, why| unsafe {
            (self.calls.put)(
                database,
                keys.as_ptr(),
                values.as_ptr(),
                pairs.len(),
                sync_flag(durability),
                why,
            )
        })
        .map(drop)
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Outcome<bool> {
        value.clear();
        let sink: *mut Vec<u8> = value;
        // Safety: the sink is what `take_value` expects, and no other code uses it meanwhile.
        let found = self.call(|database, why| unsafe {
            (self.calls.get)(database, Bytes::of(key), take_value, sink.cast(), why)
        })?;
        Ok(found == 1)
    }

    fn delete(&self, key: &[u8], durability: Durability) -> Outcome {
        // Safety: the key outlives the call.
        self.call(|database, why| unsafe { (self.calls.remove)(database, Bytes::of(key), sync_flag(durability), why) })
            .map(drop)
    }

    fn scan(&self, from: &[u8], count: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Outcome {
        let mut visit: Visit<'_> = visit;
        let sink: *mut Visit<'_> = &raw mut visit;
        // Safety: the sink is what `take_pair` expects and outlives the call.
        self.call(|database, why| unsafe {
            (self.calls.scan)(database, Bytes::of(from), count, take_pair, sink.cast(), why)
        })
        .map(drop)
    }

    fn sync(&self) -> Outcome {
        // Safety: the database is open.
        self.call(|database, why| unsafe { (self.calls.sync)(database, why) })
            .map(drop)
    }

    fn settings(&self) -> String {
        self.settings.clone()
    }

    fn close(mut self: Box<Self>) -> Outcome {
        let database = self.database.take().ok_or("the database is closed")?;
        // Safety: the pointer was taken out, so this is the last call.
        complaining(self.name, |why| unsafe { (self.calls.close)(database.as_ptr(), why) }).map(drop)
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(database) = self.database.take() {
            // Safety: as in `close`. An error cannot be reported.
            let _ = complaining(self.name, |why| unsafe { (self.calls.close)(database.as_ptr(), why) });
        }
    }
}
