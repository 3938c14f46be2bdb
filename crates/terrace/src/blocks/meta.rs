//! LargeMeta (MRIS section 3): the list of blocks, as immutable numbered files.
//!
//! Invariants:
//! - Each change writes the next number, syncs the file and then its directory; nothing is changed
//!   in place.
//! - The newest [`KEPT`] files are kept, fewer on a full device. The blocks alone suffice to
//!   rebuild it.
//!
//! On failure: a file that could not be written is removed, the table in RAM is unchanged, and the
//! caller gets the error. After a failed sync it is unknown whether the version counts, and the
//! space stops writing. A damaged file is skipped in favour of the previous one.

use crate::{
    Error, Result, Tier,
    codec::{u32_at, u64_at},
    io::{Disk, OpenMode},
    mutation::{Mutation, active, unless},
};
use crc32c::crc32c;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Directory of the LargeMeta files.
pub(super) const META_DIR: &str = "meta";
/// How many versions are kept.
pub const KEPT: usize = 4;

const MAGIC: [u8; 8] = *b"TRCLMETA";
const FORMAT_VERSION: u32 = 1;
const HEAD_BYTES: usize = 48;
const ENTRY_BYTES: usize = 32;

/// Where a block is in its life: open → sealed → draining → drained → deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockState {
    /// Written by the process that made it.
    Open,
    /// Never written again.
    Sealed,
    /// Its live values are being moved.
    Draining,
    /// It has no live bytes since this seq; its file is deleted next.
    Drained(u64),
}

/// The entry of a block in LargeMeta.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaBlock {
    /// Its state.
    pub state: BlockState,
    /// Bytes of its file; 0 while open.
    pub bytes: u64,
}

/// One version of LargeMeta.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Its number.
    pub number: u64,
    /// The store it belongs to.
    pub store_id: u64,
    /// Block numbers below this one were given out.
    pub next_block: u64,
    /// The blocks.
    pub blocks: BTreeMap<u64, MetaBlock>,
}

impl Meta {
    /// The first version: no blocks.
    pub const fn empty(store_id: u64) -> Self {
        Self {
            number: 0,
            store_id,
            next_block: 1,
            blocks: BTreeMap::new(),
        }
    }
}

/// The length of a LargeMeta file.
pub(super) fn meta_bytes(meta: &Meta) -> u64 {
    (HEAD_BYTES + meta.blocks.len() * ENTRY_BYTES + 4) as u64
}

/// The bytes of a LargeMeta file.
pub fn encode_meta(meta: &Meta) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD_BYTES + meta.blocks.len() * ENTRY_BYTES + 4);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&meta.store_id.to_le_bytes());
    out.extend_from_slice(&meta.number.to_le_bytes());
    out.extend_from_slice(&meta.next_block.to_le_bytes());
    out.extend_from_slice(&(meta.blocks.len() as u64).to_le_bytes());
    for (&number, block) in &meta.blocks {
        let (state, drained_seq) = match block.state {
            BlockState::Open => (1, 0),
            BlockState::Sealed => (2, 0),
            BlockState::Draining => (3, 0),
            BlockState::Drained(seq) => (4_u64, seq),
        };
        for field in [number, state, block.bytes, drained_seq] {
            out.extend_from_slice(&field.to_le_bytes());
        }
    }
    let checksum = crc32c(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

/// Reads the bytes of a LargeMeta file.
pub fn decode_meta(bytes: &[u8]) -> Option<Meta> {
    let (body, checksum) = bytes.split_last_chunk::<4>()?;
    if body.len() < HEAD_BYTES || crc32c(body) != u32::from_le_bytes(*checksum) {
        return None;
    }
    let entries = &body[HEAD_BYTES..];
    let valid = body[..8] == MAGIC
        && u32_at(body, 8)? == FORMAT_VERSION
        && u32_at(body, 12)? == 0
        && u64_at(body, 40)?.checked_mul(ENTRY_BYTES as u64)? == entries.len() as u64;
    if !valid {
        return None;
    }
    let mut meta = Meta {
        store_id: u64_at(body, 16)?,
        number: u64_at(body, 24)?,
        next_block: u64_at(body, 32)?,
        blocks: BTreeMap::new(),
    };
    for entry in entries.chunks_exact(ENTRY_BYTES) {
        let number = u64_at(entry, 0)?;
        let drained_seq = u64_at(entry, 24)?;
        let state = match u64_at(entry, 8)? {
            1 => BlockState::Open,
            2 => BlockState::Sealed,
            3 => BlockState::Draining,
            4 => BlockState::Drained(drained_seq),
            _ => return None,
        };
        let ascending = meta.blocks.last_key_value().is_none_or(|(&last, _)| last < number);
        if !ascending || number >= meta.next_block || (drained_seq != 0 && !matches!(state, BlockState::Drained(_))) {
            return None;
        }
        let bytes = u64_at(entry, 16)?;
        meta.blocks.insert(number, MetaBlock { state, bytes });
    }
    Some(meta)
}

/// The path of version `number`.
pub fn meta_path(number: u64) -> PathBuf {
    Path::new(META_DIR).join(format!("{number:016x}.meta"))
}

/// The number in a file's name, if the name is `<16 hex digits>.<extension>`.
pub(super) fn numbered(name: &str, extension: &str) -> Option<u64> {
    let digits = name.strip_suffix(extension)?.strip_suffix('.')?;
    let plain = digits.len() == 16 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// Result of [`load`].
pub(super) struct Loaded {
    /// The newest valid version of this store.
    pub meta: Option<Meta>,
    /// Numbers of all files, ascending, valid or not.
    pub files: Vec<u64>,
    /// Numbers of files newer than the one taken (or all) that are damaged.
    pub damaged: Vec<u64>,
}

/// Finds the newest valid version.
pub(super) fn load(disk: &dyn Disk, store_id: u64) -> Result<Loaded> {
    let names = disk
        .list(Path::new(META_DIR))
        .map_err(|error| Error::io("listing LargeMeta versions", &error))?;
    let mut files: Vec<u64> = names.iter().filter_map(|name| numbered(name, "meta")).collect();
    files.sort_unstable();
    let mut damaged = Vec::new();
    for &number in files.iter().rev() {
        // A file that cannot be read is as good as damaged: the one before it, or the blocks, will
        // do.
        let bytes = read(disk, number).unwrap_or_default();
        let valid = decode_meta(&bytes).filter(|meta| meta.number == number && meta.store_id == store_id);
        if let Some(meta) = valid {
            return Ok(Loaded {
                meta: Some(meta),
                files,
                damaged,
            });
        }
        damaged.push(number);
    }
    Ok(Loaded {
        meta: None,
        files,
        damaged,
    })
}

fn read(disk: &dyn Disk, number: u64) -> Result<Vec<u8>> {
    let path = meta_path(number);
    let fail = |error: std::io::Error| Error::io(format!("reading {}", path.display()), &error);
    let file = disk.open(&path, OpenMode::READ).map_err(fail)?;
    let length = file.len().map_err(fail)?;
    let mut bytes = vec![0; usize::try_from(length).map_err(|_| Error::corruption("LargeMeta", "impossibly long"))?];
    file.read_exact_at(&mut bytes, 0).map_err(fail)?;
    Ok(bytes)
}

/// Writes `meta` as a new file, durable when this returns, and removes all but the last few of
/// `files`.
pub(super) fn store(disk: &dyn Disk, meta: &Meta, files: &mut Vec<u64>) -> Result<u64> {
    if active(Mutation::LargeMetaInPlace)
        && let Some(&number) = files.last()
    {
        return overwrite(disk, &Meta { number, ..meta.clone() });
    }
    let path = meta_path(meta.number);
    let bytes = encode_meta(meta);
    let context = || format!("writing {}", path.display());
    let file = loop {
        let written = disk
            .open(&path, OpenMode::CREATE)
            .and_then(|file| file.write_all_at(&bytes, 0).map(|()| file));
        let error = match written {
            Ok(file) => break file,
            Err(error) => Error::io_on(Tier::Large, context(), &error),
        };
        // If it cannot be removed either, it is passed over: the next change takes a higher number.
        let removed = disk.remove(&path).is_ok();
        // A full device must not keep blocks from being deleted: the oldest versions make room.
        if !matches!(error, Error::OutOfSpace { .. }) || !removed || files.len() < 2 {
            return Err(error);
        }
        let _ = disk.remove(&meta_path(files.remove(0)));
    };
    // From here on the file may come to be the newest version or not; even "no space" is a failed
    // sync.
    let synced = unless(Mutation::LargeMetaSync, || file.sync_data())
        .and_then(|()| unless(Mutation::LargeMetaDirectory, || disk.sync_dir(Path::new(META_DIR))));
    synced.map_err(|error| Error::io(context(), &error))?;
    files.push(meta.number);
    while files.len() > KEPT {
        let old = files.remove(0);
        // An old version too many does no harm: the next open lists it again.
        let _ = disk.remove(&meta_path(old));
    }
    Ok(bytes.len() as u64)
}

/// Replacement of [`store`] in a mutation: overwrites the newest file.
fn overwrite(disk: &dyn Disk, meta: &Meta) -> Result<u64> {
    let path = meta_path(meta.number);
    let bytes = encode_meta(meta);
    let written = disk.open(&path, OpenMode::WRITE).and_then(|file| {
        file.write_all_at(&bytes, 0)?;
        file.set_len(bytes.len() as u64)?;
        file.sync_data()
    });
    written.map_err(|error| Error::io(format!("writing {}", path.display()), &error))?;
    Ok(bytes.len() as u64)
}
