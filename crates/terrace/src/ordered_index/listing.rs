//! The file `vN`, which lists the tables of a state: read, and written without some of them.
//!
//! The library has no interface for it. The file is an archive of sections; all but the list of
//! tables are carried over as they are. `damage_tests.rs` checks that the library reads what is
//! written here.
//!
//! The bytes are those that the library wrote: the caller has verified their checksum.
//!
//! On failure: bytes of another format give `None`.

use crate::codec::Reader;
use std::io::{Cursor, Write as _};

const TABLES: &[u8] = b"tables";
/// The library's number for XXH3-128.
const XXH3: u8 = 0;

/// A table as the file names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Listed {
    pub id: u64,
    /// XXH3-128 of its file.
    pub checksum: u128,
    /// What the library adds to the seqnos in it: zero here.
    pub global_seqno: u64,
}

/// Tables in key order.
pub(super) type Run = Vec<Listed>;

/// The contents of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listing {
    /// All sections in their order, by name; that of the tables is empty.
    sections: Vec<(Vec<u8>, Vec<u8>)>,
    /// Runs of each level, the newest first.
    pub levels: Vec<Vec<Run>>,
}

impl Listing {
    /// Reads the file.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let archive = sfa::Reader::from_reader(&mut Cursor::new(bytes)).ok()?;
        let mut sections = Vec::new();
        let mut levels = None;
        for section in archive.toc().iter() {
            let from = usize::try_from(section.pos()).ok()?;
            let length = usize::try_from(section.len()).ok()?;
            let content = bytes.get(from..from.checked_add(length)?)?;
            if section.name() == TABLES {
                levels = Some(decode_levels(content)?);
                sections.push((TABLES.to_vec(), Vec::new()));
            } else {
                sections.push((section.name().to_vec(), content.to_vec()));
            }
        }
        Some(Self {
            sections,
            levels: levels?,
        })
    }

    /// The file's bytes. `None` if a level has more runs than the format can count.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let tables = self.encode_levels()?;
        let mut archive = sfa::Writer::from_writer(Cursor::new(Vec::new()));
        for (name, content) in &self.sections {
            archive.start(name.as_slice()).ok()?;
            let content = if name == TABLES { &tables } else { content };
            archive.write_all(content).ok()?;
        }
        Some(archive.into_inner().ok()?.into_inner())
    }

    fn encode_levels(&self) -> Option<Vec<u8>> {
        let mut out = vec![u8::try_from(self.levels.len()).ok()?];
        for level in &self.levels {
            out.push(u8::try_from(level.len()).ok()?);
            for run in level {
                out.extend_from_slice(&u32::try_from(run.len()).ok()?.to_le_bytes());
                for table in run {
                    out.extend_from_slice(&table.id.to_le_bytes());
                    out.push(XXH3);
                    out.extend_from_slice(&table.checksum.to_le_bytes());
                    out.extend_from_slice(&table.global_seqno.to_le_bytes());
                }
            }
        }
        Some(out)
    }

    /// All tables, level by level.
    pub fn tables(&self) -> impl Iterator<Item = &Listed> {
        self.levels.iter().flatten().flatten()
    }
}

fn decode_levels(bytes: &[u8]) -> Option<Vec<Vec<Run>>> {
    let mut rest = Reader(bytes);
    let levels = rest.number::<1>()?;
    (0..levels).map(|_| decode_level(&mut rest)).collect()
}

fn decode_level(rest: &mut Reader<'_>) -> Option<Vec<Run>> {
    let runs = rest.number::<1>()?;
    let mut level = Vec::new();
    for _ in 0..runs {
        let tables = rest.u32()?;
        level.push((0..tables).map(|_| decode_table(rest)).collect::<Option<Run>>()?);
    }
    Some(level)
}

fn decode_table(rest: &mut Reader<'_>) -> Option<Listed> {
    let id = rest.u64()?;
    let kind = rest.number::<1>()?;
    let checksum = u128::from_le_bytes(rest.array()?);
    let global_seqno = rest.u64()?;
    (kind == u64::from(XXH3)).then_some(Listed {
        id,
        checksum,
        global_seqno,
    })
}
