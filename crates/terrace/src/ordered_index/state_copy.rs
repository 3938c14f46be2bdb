//! A second copy of the two small files that list the index's tables.
//!
//! `current` names a file `vN` and has its checksum; `vN` lists the tables. Without either of them
//! the index is unusable, and where the log was reclaimed their contents exist nowhere else. So
//! both are in the file `copy`, too: `N u64, XXH3-128 of vN u128, vN`, numbers little-endian.
//!
//! The copy is written after each change of the state, and may be one behind after a crash. It is
//! therefore used only to replace one of the two if the other one is valid and agrees with it: then
//! it is of the same state.
//!
//! On failure: there is no copy, or an old one, and the index is unchanged.

use super::open::CURRENT_FILE;
use crate::{Error, Result, Tier, codec::u64_at};
use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
};
use xxhash_rust::xxh3::xxh3_128;

const FILE: &str = "copy";
/// `.tmp` files are removed by the next open.
const TEMPORARY: &str = ".tmp-copy";
const NUMBER_BYTES: usize = 8;
const CHECKSUM_BYTES: usize = 16;
/// What the library writes behind the checksum: its kind.
const XXH3: u8 = 0;

/// A state's number and the file that lists its tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    pub(super) number: u64,
    pub(super) listed: Vec<u8>,
}

impl State {
    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.number.to_le_bytes().to_vec();
        bytes.extend_from_slice(&xxh3_128(&self.listed).to_le_bytes());
        bytes.extend_from_slice(&self.listed);
        bytes
    }

    /// Reads the stored form. `None` if the bytes are not one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (number, rest) = bytes.split_first_chunk::<NUMBER_BYTES>()?;
        let (checksum, listed) = rest.split_first_chunk::<CHECKSUM_BYTES>()?;
        (u128::from_le_bytes(*checksum) == xxh3_128(listed)).then(|| Self {
            number: u64::from_le_bytes(*number),
            listed: listed.to_vec(),
        })
    }

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
        state.listed = match fs::read(dir.join(&name)) {
            Ok(listed) => listed,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io_on(Tier::Flash, format!("reading {name}"), &error)),
        };
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

/// Writes the copy anew if the state has changed. One caller at a time.
pub(super) fn update(dir: &Path) {
    // A state that is replaced meanwhile has its copy written by the thread that replaced it.
    let state = fs::read(dir.join(CURRENT_FILE)).map(|current| State::named_by(dir, &current));
    let Ok(Ok(Some(state))) = state else { return };
    let bytes = state.encode();
    let path = dir.join(FILE);
    if fs::read(&path).is_ok_and(|copy| copy == bytes) {
        return;
    }
    let temporary = dir.join(TEMPORARY);
    let written = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, &path));
    if let Err(error) = written {
        tracing::debug!(%error, "the copy of the index's state was not written");
    }
}

/// Replaces the damaged or missing one of the two files, if the other one and the copy agree.
/// Returns its name.
///
/// # Errors
/// Errors of the file system.
pub fn mend(dir: &Path) -> io::Result<Option<String>> {
    let read = |name: &str| match fs::read(dir.join(name)) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    let Some(copy) = read(FILE)?.and_then(|bytes| State::decode(&bytes)) else {
        return Ok(None);
    };
    let has_current = read(CURRENT_FILE)?.is_some_and(|current| current == copy.current());
    let has_list = read(&copy.name())?.is_some_and(|listed| listed == copy.listed);
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

    #[test]
    fn golden_bytes() {
        let empty = State {
            number: 0x0102,
            listed: Vec::new(),
        };
        let hex: String = empty.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, ["0201000000000000", "7f498d4624c30160d8984701d306aa99"].concat());
        let bytes = state(0x0102).encode();
        assert_eq!(State::decode(&bytes), Some(state(0x0102)));
        for at in 8..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(State::decode(&damaged), None, "byte {at}");
            assert_eq!(State::decode(&bytes[..at]), None, "{at} bytes");
        }
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
        update(dir.path());
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
