//! Events of changes, stored in the same commit as the change. The caller that makes the change
//! decides which targets get them and in which format.

use crate::{bucket::Bucket, class::Class, record::Name};
use std::fmt;
use terrace::Batch;

/// To be called after the commit.
pub type Announce = Box<dyn FnOnce()>;

/// Cause of a change, which becomes part of its events. It travels with the permit.
pub trait Cause: fmt::Debug + Send + Sync {
    /// Adds events to the batch of the change.
    fn add_events(&self, batch: &mut Batch, bucket: &Bucket, happened: &Happened<'_>) -> Option<Announce>;
}

/// A change of an object.
#[derive(Debug, Clone)]
pub struct Happened<'a> {
    /// The object's key.
    pub key: &'a str,
    /// Its version, if versioning was ever enabled.
    pub version: Option<Name>,
    /// The kind of change.
    pub what: What,
}

/// Kind of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Written: length, and entity tag without quotes.
    Written(u64, String),
    /// Attributes replaced: length, entity tag and class.
    Described(u64, String, Class),
    /// Deleted permanently, or one of its versions.
    Deleted,
    /// Replaced by a delete marker.
    Marked,
}
