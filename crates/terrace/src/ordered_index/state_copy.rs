//! A second copy of the two small files that list the index's tables, and of what they say.
//!
//! `current` names a file `vN` and has its checksum; `vN` lists the tables. Without either of them
//! the index is unusable, and where the log was reclaimed their contents exist nowhere else. So
//! both are in the file `copy`, too, and with them what would be lost with a table: the mark, and
//! the keys between which each table has entries.
//!
//! The copy is written after each change of the state, and may be one behind after a crash. It
//! therefore replaces one of the two files only if the other one is valid and agrees with it: then
//! it is of the same state. So it is with the mark. The range of a table is used if the copy lists
//! the same table, by number and checksum: tables do not change.
//!
//! On failure: there is no copy, or an old one, and the index is unchanged.

use super::{OrderedIndex, errors, lost::LostRange, mark::MARK_KEY, open::CURRENT_FILE};
use crate::{
    Error, Result, Tier,
    codec::{Reader, push_sized, u64_at},
    key_hash,
};
use lsm_tree::{AbstractTree as _, SeqNo};
use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

pub(super) const FILE: &str = "copy";
/// `.tmp` files are removed by the next open.
const TEMPORARY: &str = ".tmp-copy";
const MAGIC: [u8; 4] = *b"TIXC";
/// Format u16, then two zero bytes. Format 1 had no magic, and only the number, the checksum of
/// `vN`, and `vN`.
const FORMAT_WORD: [u8; 4] = [2, 0, 0, 0];
/// What the library writes behind the checksum: its kind.
const XXH3: u8 = 0;

/// A state's number and the file that lists its tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    pub(super) number: u64,
    pub(super) listed: Vec<u8>,
}

impl State {
    /// What `current` says of it.
    pub(super) fn current(&self) -> Vec<u8> {
        let mut bytes = self.number.to_le_bytes().to_vec();
        bytes.extend_from_slice(&xxh3_128(&self.listed).to_le_bytes());
        bytes.push(XXH3);
        bytes
    }

    pub(super) fn name(&self) -> String {
        format!("v{}", self.number)
    }

    /// The present state. `None` if a file that names it is missing or damaged.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(super) fn present(dir: &Path) -> Result<Option<Self>> {
        let current = read_if_there(&dir.join(CURRENT_FILE))
            .map_err(|error| Error::io_on(Tier::Flash, format!("reading {}", dir.display()), &error))?;
        match current.map_or(Ok(None), |current| Self::named_by(dir, &current)) {
            Err(Error::Corruption { .. }) => Ok(None),
            state => state,
        }
    }

    /// The state that `current` names. `None` if the file that lists its tables is not there.
    ///
    /// # Errors
    /// `Corruption` if one of the two is damaged; errors of the file system.
    pub(super) fn named_by(dir: &Path, current: &[u8]) -> Result<Option<Self>> {
        let damaged = |file: &str| {
            Error::corruption(
                dir.join(file).display().to_string(),
                "its checksum is wrong; rebuild the index from the log",
            )
        };
        let number = u64_at(current, 0).ok_or_else(|| damaged(CURRENT_FILE))?;
        let mut state = Self {
            number,
            listed: Vec::new(),
        };
        let name = state.name();
        let listed = read_if_there(&dir.join(&name))
            .map_err(|error| Error::io_on(Tier::Flash, format!("reading {name}"), &error))?;
        let Some(listed) = listed else { return Ok(None) };
        state.listed = listed;
        let expected = state.current();
        if (current.len(), current.last()) != (expected.len(), expected.last()) {
            return Err(damaged(CURRENT_FILE));
        }
        if current != expected {
            return Err(damaged(&name));
        }
        Ok(Some(state))
    }
}

/// What a state's tables contain.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Details {
    /// The stored form of the mark; empty if there is none.
    pub(super) mark: Vec<u8>,
    /// The lost ranges, with the numbers of their items.
    pub(super) lost: Vec<(u32, LostRange)>,
    pub(super) tables: Vec<TableRange>,
}

/// The contents of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TableRange {
    pub id: u64,
    pub highest_seqno: u64,
    pub first: Vec<u8>,
    pub last: Vec<u8>,
}

/// The contents of the file `copy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateCopy {
    pub(super) state: State,
    /// `None` in a copy of a former format.
    pub(super) details: Option<Details>,
}

impl StateCopy {
    /// The stored form: `magic, format u16, zero u16, XXH3-128 u128 of all else, number u64, vN,
    /// mark, count u32 of lost ranges, each as number u32 and its stored form, count u32 of tables,
    /// each as number u64, highest seqno u64, first key, last key`; bytes of any length
    /// follow their length u32.
    ///
    /// # Panics
    /// If one of them is 4 GiB or longer.
    pub fn encode(&self) -> Vec<u8> {
        let length = |count: usize| u32::try_from(count).expect("no part of an index's state has 4 GiB");
        let none = Details::default();
        let details = self.details.as_ref().unwrap_or(&none);
        let mut body = self.state.number.to_le_bytes().to_vec();
        push_sized(&mut body, &self.state.listed);
        push_sized(&mut body, &details.mark);
        body.extend_from_slice(&length(details.lost.len()).to_le_bytes());
        for (number, range) in &details.lost {
            body.extend_from_slice(&number.to_le_bytes());
            push_sized(&mut body, &range.encode());
        }
        body.extend_from_slice(&length(details.tables.len()).to_le_bytes());
        for table in &details.tables {
            body.extend_from_slice(&table.id.to_le_bytes());
            body.extend_from_slice(&table.highest_seqno.to_le_bytes());
            push_sized(&mut body, &table.first);
            push_sized(&mut body, &table.last);
        }
        let mut out = [MAGIC, FORMAT_WORD].concat();
        out.extend_from_slice(&checksum_of(&body).to_le_bytes());
        out.extend_from_slice(&body);
        out
    }

    /// Reads the stored form, or a former one. `None` if the bytes are neither.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = Reader(bytes);
        if bytes.get(..8) != Some(&[MAGIC, FORMAT_WORD].concat()) {
            let number = rest.u64()?;
            let checksum = u128::from_le_bytes(rest.array()?);
            let listed = rest.0.to_vec();
            return (checksum == xxh3_128(&listed)).then_some(Self {
                state: State { number, listed },
                details: None,
            });
        }
        rest.bytes(8)?;
        let checksum = u128::from_le_bytes(rest.array()?);
        if checksum != checksum_of(rest.0) {
            return None;
        }
        let (number, listed, mark) = (rest.u64()?, rest.sized()?.to_vec(), rest.sized()?.to_vec());
        let lost = (0..rest.u32()?)
            .map(|_| Some((rest.u32()?, LostRange::decode(rest.sized()?)?)))
            .collect::<Option<_>>()?;
        let tables = (0..rest.u32()?)
            .map(|_| {
                Some(TableRange {
                    id: rest.u64()?,
                    highest_seqno: rest.u64()?,
                    first: rest.sized()?.to_vec(),
                    last: rest.sized()?.to_vec(),
                })
            })
            .collect::<Option<_>>()?;
        rest.0.is_empty().then_some(Self {
            state: State { number, listed },
            details: Some(Details { mark, lost, tables }),
        })
    }
}

/// The checksum covers magic and format, too: otherwise a copy with a flipped bit in them could be
/// taken for one of the former format.
fn checksum_of(body: &[u8]) -> u128 {
    let mut hasher = Xxh3::new();
    for part in [&MAGIC[..], &FORMAT_WORD, body] {
        hasher.update(part);
    }
    hasher.digest128()
}

/// The copy in an index's directory, if there is one.
pub(super) fn read(dir: &Path) -> io::Result<Option<StateCopy>> {
    let bytes = read_if_there(&dir.join(FILE))?;
    Ok(bytes.and_then(|bytes| StateCopy::decode(&bytes)))
}

/// A file, if it is there.
pub(super) fn read_if_there(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl OrderedIndex {
    /// What the tables of the state with this number contain, if it is the present one and its mark
    /// can be read.
    pub(super) fn details(&self, number: u64) -> Option<Details> {
        let state = self.tree.current_version();
        if state.id() != number {
            return None;
        }
        let mark = errors::guarded_read("reading the mark", || {
            let hash = key_hash(&MARK_KEY);
            for run in state.iter_levels().flat_map(|level| level.iter()) {
                let table = run.get_for_key(&MARK_KEY);
                if let Some(item) = table
                    .map(|table| table.get(&MARK_KEY, SeqNo::MAX, hash))
                    .transpose()?
                    .flatten()
                {
                    return Ok(item.value.to_vec());
                }
            }
            Ok(Vec::new())
        });
        let tables = state.iter_tables().map(|table| TableRange {
            id: table.id(),
            highest_seqno: table.get_highest_seqno(),
            first: table.metadata.key_range.min().to_vec(),
            last: table.metadata.key_range.max().to_vec(),
        });
        Some(Details {
            mark: mark.ok()?,
            lost: self.lost.clone(),
            tables: tables.collect(),
        })
    }
}

/// Writes the copy anew if the state has changed, and returns its length. One caller at a time.
pub(super) fn update(dir: &Path, details: impl FnOnce(u64) -> Option<Details>) -> usize {
    // A state that is replaced meanwhile has its copy written by the thread that replaced it.
    let state = fs::read(dir.join(CURRENT_FILE)).map(|current| State::named_by(dir, &current));
    let Ok(Ok(Some(state))) = state else { return 0 };
    let Some(details) = details(state.number) else { return 0 };
    let copy = StateCopy {
        state,
        details: Some(details),
    };
    let bytes = copy.encode();
    let path = dir.join(FILE);
    if fs::read(&path).is_ok_and(|copy| copy == bytes) {
        return 0;
    }
    let temporary = dir.join(TEMPORARY);
    let written = fs::write(&temporary, &bytes).and_then(|()| fs::rename(&temporary, &path));
    if let Err(error) = written {
        tracing::debug!(%error, "the copy of the index's state was not written");
    }
    bytes.len()
}

/// Replaces the damaged or missing one of the two files, if the other one and the copy agree. One
/// that cannot be read is damaged. Returns its name.
///
/// # Errors
/// Errors of the file system.
pub(super) fn mend(dir: &Path) -> io::Result<Option<String>> {
    let Ok(Some(copy)) = read(dir) else { return Ok(None) };
    let copy = copy.state;
    let has = |name: &str, bytes: &[u8]| fs::read(dir.join(name)).is_ok_and(|read| read == bytes);
    let has_current = has(CURRENT_FILE, &copy.current());
    let has_list = has(&copy.name(), &copy.listed);
    let (name, bytes) = match (has_current, has_list) {
        (true, false) => (copy.name(), copy.listed),
        (false, true) => (CURRENT_FILE.to_owned(), copy.current()),
        _ => return Ok(None),
    };
    let temporary = dir.join(TEMPORARY);
    let mut file = File::create(&temporary)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, dir.join(&name))?;
    File::open(dir)?.sync_all()?;
    Ok(Some(name))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn state(number: u64) -> State {
        State {
            number,
            listed: b"tables".to_vec(),
        }
    }

    fn copy(number: u64) -> StateCopy {
        StateCopy {
            state: state(number),
            details: Some(Details {
                mark: b"mark".to_vec(),
                lost: vec![(
                    7,
                    LostRange {
                        seq: 9,
                        first: b"a".to_vec(),
                        end: b"b".to_vec(),
                    },
                )],
                tables: vec![TableRange {
                    id: 3,
                    highest_seqno: 0x0506,
                    first: b"f".to_vec(),
                    last: b"l".to_vec(),
                }],
            }),
        }
    }

    #[test]
    fn golden_bytes() {
        let bytes = copy(0x0102).encode();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let parts = [
            "5449584302000000",
            "04e759b8285c55ec0fb6c92792695e08",
            "0201000000000000",
            "06000000",
            "7461626c6573",
            "04000000",
            "6d61726b",
            "01000000",
            "07000000",
            "1e000000",
            "5449584c01000000",
            "0900000000000000",
            "01000000",
            "61",
            "01000000",
            "62",
            "c7db4e09",
            "01000000",
            "0300000000000000",
            "0605000000000000",
            "01000000",
            "66",
            "01000000",
            "6c",
        ];
        assert_eq!(hex, parts.concat());
        assert_eq!(StateCopy::decode(&bytes), Some(copy(0x0102)));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(StateCopy::decode(&damaged), None, "byte {at}");
            assert_eq!(StateCopy::decode(&bytes[..at]), None, "{at} bytes");
        }
    }

    /// Stores of before have copies of the two files alone.
    #[test]
    fn golden_bytes_of_the_former_format() {
        let bytes = [
            &[2, 1, 0, 0, 0, 0, 0, 0][..],
            &[
                0x7f, 0x49, 0x8d, 0x46, 0x24, 0xc3, 0x01, 0x60, 0xd8, 0x98, 0x47, 0x01, 0xd3, 0x06, 0xaa, 0x99,
            ],
        ];
        let copy = StateCopy::decode(&bytes.concat()).unwrap();
        assert_eq!(
            (copy.state.number, copy.state.listed, copy.details),
            (0x0102, Vec::new(), None)
        );
    }

    /// A copy left by a crash names tables that may be deleted, and commits whose log may have been
    /// reclaimed.
    #[test]
    fn a_copy_of_another_state_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| dir.path().join(name);
        let put = |state: &State| {
            fs::write(place("current"), state.current()).unwrap();
            fs::write(place(&state.name()), &state.listed).unwrap();
        };
        put(&state(7));
        update(dir.path(), |_| Some(Details::default()));
        assert_eq!(mend(dir.path()).unwrap(), None);
        for name in ["current", "v7"] {
            let whole = fs::read(place(name)).unwrap();
            for damaged in [None, Some(&whole[..3]), Some(&b"other bytes"[..])] {
                fs::remove_file(place(name)).unwrap();
                if let Some(bytes) = damaged {
                    fs::write(place(name), bytes).unwrap();
                }
                assert_eq!(mend(dir.path()).unwrap().as_deref(), Some(name));
                assert_eq!(fs::read(place(name)).unwrap(), whole);
            }
        }
        fs::remove_file(place("v7")).unwrap();
        put(&state(8));
        fs::remove_file(place("current")).unwrap();
        assert_eq!(mend(dir.path()).unwrap(), None);
        put(&state(8));
        fs::write(place("v8"), "other").unwrap();
        assert_eq!(mend(dir.path()).unwrap(), None);
    }
}
