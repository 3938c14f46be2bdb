//! The manifest of a backup: a readable text file.
//!
//! ```text
//! terrace backup 1
//! store 8f3a…            16 hexadecimal digits
//! commit 12345           the last commit in it
//! time 1763700000        seconds since 1970
//! file 4096 65536 9c…    bytes, length of the file, XXH3-128 of the bytes or -, origin, source or -, path
//! end 17 5e…             number of files, XXH3-128 of everything before this line
//! ```
//!
//! A file consists of its bytes, and zeros from there to its length. The origin is `copied` or
//! `linked` (hard-linked from the store at the time). The source identifies the store's file: a
//! file that is rewritten or recreated gets another source.
//!
//! On failure: bytes that are not a manifest are rejected as a whole.

use crate::{Error, Result};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Component, Path},
};
use xxhash_rust::xxh3::xxh3_128;

/// Longest manifest that is read: some ten million files.
pub(super) const MANIFEST_BYTES_MAX: u64 = 2 << 30;
const FORMAT_VERSION: u32 = 1;
const TITLE: &str = "terrace backup";

/// Origin of a file's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Written for a backup.
    Copied,
    /// A second name of the store's own file.
    Linked,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BackupFile {
    /// Bytes that count.
    pub bytes: u64,
    /// Length of the file; zeros behind the bytes.
    pub length: u64,
    /// XXH3-128 of the bytes; none if they have not been read.
    pub checksum: Option<u128>,
    /// Origin of the bytes.
    pub origin: Origin,
    /// Identity of the store's file, if it can be distinguished from all others.
    pub source: Option<String>,
}

/// Contents of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BackupManifest {
    /// Identity of the store.
    pub store_id: u64,
    /// The last commit in it.
    pub seq: u64,
    /// Seconds since 1970.
    pub time_s: u64,
    /// Files by path, relative to the backup's directory.
    pub files: BTreeMap<String, BackupFile>,
}

impl BackupManifest {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.bytes).sum()
    }

    /// The manifest's text.
    pub fn encode(&self) -> String {
        let mut text = format!(
            "{TITLE} {FORMAT_VERSION}\nstore {:016x}\ncommit {}\ntime {}\n",
            self.store_id, self.seq, self.time_s
        );
        for (path, file) in &self.files {
            let checksum = file.checksum.map_or("-".to_owned(), |sum| format!("{sum:032x}"));
            let origin = match file.origin {
                Origin::Copied => "copied",
                Origin::Linked => "linked",
            };
            let source = file.source.as_deref().unwrap_or("-");
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(
                text,
                "file {} {} {checksum} {origin} {source} {path}",
                file.bytes, file.length
            );
        }
        text.push_str(&end_line(text.as_bytes(), self.files.len()));
        text
    }

    /// Reads a manifest. `place` is named in errors.
    ///
    /// # Errors
    /// [`Error::Corruption`], or [`Error::NotAStore`] for a later format.
    pub fn decode(bytes: &[u8], place: &Path) -> Result<Self> {
        let damaged = |reason: &str| Error::corruption(place.display().to_string(), reason);
        let text = std::str::from_utf8(bytes).map_err(|_| damaged("it is no text"))?;
        let first = text.lines().next().unwrap_or_default();
        match first
            .strip_prefix(TITLE)
            .and_then(|rest| rest.trim().parse::<u32>().ok())
        {
            Some(FORMAT_VERSION) => {}
            Some(version) if version > FORMAT_VERSION => {
                return Err(Error::NotAStore {
                    path: place.to_owned(),
                    reason: format!(
                        "the backup has format {version} and this program reads up to {FORMAT_VERSION}; use the program that wrote it or a newer one"
                    ),
                });
            }
            _ => return Err(damaged("it is no manifest of a backup")),
        }
        Self::parse(text).ok_or_else(|| damaged("the backup's manifest is damaged; use another backup"))
    }

    fn parse(text: &str) -> Option<Self> {
        let body = text.strip_suffix('\n')?;
        let (body, end) = body.rsplit_once('\n')?;
        let (count, checksum) = end.strip_prefix("end ")?.split_once(' ')?;
        let covered = text.get(..=body.len())?;
        if u128::from_str_radix(checksum, 16).ok()? != xxh3_128(covered.as_bytes()) {
            return None;
        }
        // Not `lines`, which takes a carriage return at the end of a name for a part of the end.
        let mut lines = body.split('\n').skip(1);
        let mut field = |name: &str| Some(lines.next()?.strip_prefix(name)?.strip_prefix(' ')?.to_owned());
        let mut manifest = Self {
            store_id: u64::from_str_radix(&field("store")?, 16).ok()?,
            seq: field("commit")?.parse().ok()?,
            time_s: field("time")?.parse().ok()?,
            files: BTreeMap::new(),
        };
        for line in lines {
            let (path, file) = parse_file(line.strip_prefix("file ")?)?;
            manifest.files.insert(path, file);
        }
        (manifest.files.len() == count.parse::<usize>().ok()?).then_some(manifest)
    }
}

/// The last line behind everything before it.
pub(crate) fn end_line(before: &[u8], files: usize) -> String {
    format!("end {files} {:032x}\n", xxh3_128(before))
}

fn parse_file(line: &str) -> Option<(String, BackupFile)> {
    let mut words = line.splitn(6, ' ');
    let mut word = || words.next();
    let (bytes, length) = (word()?.parse().ok()?, word()?.parse().ok()?);
    let checksum = match word()? {
        "-" => None,
        digits => Some(u128::from_str_radix(digits, 16).ok()?),
    };
    let origin = match word()? {
        "copied" => Origin::Copied,
        "linked" => Origin::Linked,
        _ => return None,
    };
    let source = Some(word()?.to_owned()).filter(|source| source != "-");
    let path = word()?.to_owned();
    // A path must not lead out of the backup's directory.
    let is_plain = Path::new(&path)
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    let is_ours = path.starts_with("flash/") || path.starts_with("large/");
    (is_plain && is_ours && bytes <= length).then_some((
        path,
        BackupFile {
            bytes,
            length,
            checksum,
            origin,
            source,
        },
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn sample() -> BackupManifest {
        let copied = BackupFile {
            bytes: 4096,
            length: 65536,
            checksum: Some(0x1234),
            origin: Origin::Copied,
            source: Some("7-42-1763700000.000000001".to_owned()),
        };
        let linked = BackupFile {
            bytes: 9,
            length: 9,
            checksum: None,
            origin: Origin::Linked,
            source: None,
        };
        BackupManifest {
            store_id: 0xabcd,
            seq: 77,
            time_s: 1_763_700_000,
            files: [
                ("flash/segments/00000001.seg".to_owned(), copied),
                ("large/blocks/0000000000000001.blk".to_owned(), linked),
            ]
            .into(),
        }
    }

    fn decode(text: &str) -> Result<BackupManifest> {
        BackupManifest::decode(text.as_bytes(), Path::new("BACKUP"))
    }

    #[test]
    fn golden_text() {
        let text = sample().encode();
        assert_eq!(
            text,
            "terrace backup 1\n\
             store 000000000000abcd\n\
             commit 77\n\
             time 1763700000\n\
             file 4096 65536 00000000000000000000000000001234 copied 7-42-1763700000.000000001 flash/segments/00000001.seg\n\
             file 9 9 - linked - large/blocks/0000000000000001.blk\n\
             end 2 6da2129cc477568760afb43965e4815f\n"
        );
        assert_eq!(decode(&text).unwrap(), sample());
    }

    /// Found by fuzzing: a carriage return at the end of a name was lost when it was read.
    #[test]
    fn names_are_read_as_they_were_written() {
        let mut manifest = sample();
        let file = manifest.files["flash/segments/00000001.seg"].clone();
        manifest.files.insert("large/blocks/1.blk\r".to_owned(), file);
        assert_eq!(decode(&manifest.encode()).unwrap(), manifest);
    }

    #[test]
    fn any_other_byte_or_length_is_refused() {
        let text = sample().encode();
        for at in 0..text.len() {
            assert!(decode(&text[..at]).is_err(), "cut at {at}");
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let found = BackupManifest::decode(&bytes, Path::new("BACKUP"));
            assert!(found.is_err(), "byte {at}: {found:?}");
        }
    }

    #[test]
    fn a_path_never_leads_out_of_the_backup() {
        for path in [
            "flash/../../etc/passwd",
            "/etc/passwd",
            "flash//../x",
            "other/file",
            "large/./x",
        ] {
            let mut manifest = sample();
            let file = manifest.files.pop_first().unwrap().1;
            manifest.files.insert(path.to_owned(), file);
            let text = manifest.encode();
            assert!(path == "large/./x" || decode(&text).is_err(), "{path}");
        }
    }

    #[test]
    fn a_later_format_is_told_from_damage() {
        let text = sample().encode().replace("terrace backup 1", "terrace backup 2");
        assert!(matches!(decode(&text), Err(Error::NotAStore { .. })));
        assert!(matches!(decode("terrace"), Err(Error::Corruption { .. })));
    }
}
