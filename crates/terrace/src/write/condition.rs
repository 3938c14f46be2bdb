//! Conditional writes: decided inside the commit, never before.
//!
//! What the ordered index says may take a device read, which must not happen while everybody waits. So the index is
//! asked before the commit, together with how far the overlay had been released by then. Inside the commit the overlay is
//! asked first; if it does not know the key and has released nothing since, the index's answer still stands.

use crate::{Condition, Error, Result, Version, engine::Engine, flash::format::Body};

/// What the index said of a key before the commit.
#[derive(Debug, Clone, Copy)]
pub struct Precheck {
    condition: Condition,
    released_seq: u64,
    indexed: Option<Version>,
}

impl Precheck {
    /// Asks the index. Free if there is no condition.
    ///
    /// # Errors
    /// The index's.
    pub fn new(engine: &Engine, key: &[u8], condition: Condition) -> Result<Self> {
        let released_seq = engine.log.overlay.released_seq();
        let indexed = if condition == Condition::None {
            None
        } else {
            indexed_version(engine, key)?
        };
        Ok(Self {
            condition,
            released_seq,
            indexed,
        })
    }

    /// Decides; to be called inside the commit.
    ///
    /// # Errors
    /// [`Error::ConditionFailed`], or the index's.
    pub fn decide(&self, engine: &Engine, key: &[u8], hash: u64) -> Result<()> {
        if self.condition == Condition::None {
            return Ok(());
        }
        let in_overlay = engine.log.overlay.find(hash, key, |record| match record.body {
            Body::Delete => None,
            _ => Some(Version(record.version())),
        });
        let current = match in_overlay {
            Some(version) => version,
            None if engine.log.overlay.released_seq() == self.released_seq => self.indexed,
            None => indexed_version(engine, key)?,
        };
        let reason = match (self.condition, current) {
            (Condition::None, _) | (Condition::Absent, None) | (Condition::Present, Some(_)) => return Ok(()),
            (Condition::VersionIs(wanted), Some(version)) if version == wanted => return Ok(()),
            (Condition::Absent, Some(version)) => format!("it exists with version {version}"),
            (Condition::Present, None) => "it does not exist".to_owned(),
            (Condition::VersionIs(wanted), Some(version)) => format!("its version is {version}, not {wanted}"),
            (Condition::VersionIs(wanted), None) => format!("it does not exist; version {wanted} was asked for"),
        };
        Err(Error::ConditionFailed {
            key: String::from_utf8_lossy(key).into_owned(),
            reason,
        })
    }
}

fn indexed_version(engine: &Engine, key: &[u8]) -> Result<Option<Version>> {
    Ok(engine.index.get(key)?.map(|entry| entry.version))
}
