//! What changes of objects tell, in the commit that they are made in. The caller that asked for the
//! change knows which targets they tell, and in which words.

use crate::{bucket::Bucket, class::Class, record::Name};
use std::fmt;
use terrace::Batch;

/// To be called once the commit is in the store.
pub type Announce = Box<dyn FnOnce()>;

/// Why something is changed. It goes with the permit to change it.
pub trait Cause: fmt::Debug + Send + Sync {
    /// Adds what is to be told of something to the batch that it happens in.
    fn add_events(&self, batch: &mut Batch, bucket: &Bucket, happened: &Happened<'_>) -> Option<Announce>;
}

/// Something that happened to an object.
#[derive(Debug, Clone)]
pub struct Happened<'a> {
    /// The object's key.
    pub key: &'a str,
    /// The version it happened to, where there are or were versions.
    pub version: Option<Name>,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// It was written: its length and its entity tag, without quotes.
    Written(u64, String),
    /// It got another description: the same, and its class.
    Described(u64, String, Class),
    /// It, or a version of it, was deleted for good.
    Deleted,
    /// A delete marker took its place.
    Marked,
}
