//! Commits objects whose bodies have been received.

use crate::{
    collector::Collector,
    commit::{self, Done, NewObject, Outcome, Place, Requirement},
    crypt::Sealing,
    digest::Computed,
    error::{ObjectError, ObjectResult},
    keyspace,
    lifecycle::{Expiration, Subject},
    manifest,
    record::{self, Name},
    write::Received,
};
use terrace::{Attributes, Batch, Committing, Version};

/// Result of a commit.
pub struct Kept {
    /// Entity tag without quotes.
    pub etag: String,
    /// All attributes.
    pub attributes: Attributes,
    /// Time of the commit.
    pub modified_ms: u64,
    /// Its version ID, if versioning was ever enabled.
    pub version: Option<Name>,
    /// The store's version, if it was a commit of its own.
    pub commit: Option<Version>,
    /// When lifecycle rules will delete it.
    pub expiration: Option<Expiration>,
}

impl Kept {
    fn of(place: Place<'_>, computed: &Computed, attributes: Attributes, modified_ms: u64, done: Done) -> Self {
        let expiration = place.permit.bucket().expiration(Subject {
            key: place.key,
            length: computed.length,
            tagging: record::tagging(&attributes),
            written_ms: modified_ms,
        });
        Self {
            etag: computed.tag.text(),
            expiration,
            attributes,
            modified_ms,
            version: done.version,
            commit: done.commit,
        }
    }
}

/// [`keep`] without waiting, for a body in memory, if [`commit::try_change`] can. Returns the
/// result, and a future that resolves when it is durable. `None` says nothing: call [`keep`].
pub fn try_keep(
    place: Place<'_>,
    requirement: &Requirement,
    mut attributes: Attributes,
    received: &Received,
) -> Option<(Kept, Committing)> {
    let Received::Whole(value, computed) = received else {
        return None;
    };
    let modified_ms = place.store.clock().now_ms();
    record::complete(&mut attributes, computed, None, modified_ms);
    let new = NewObject {
        value: value.clone(),
        attributes,
    };
    let committing = commit::try_change(place, requirement, Some(&new))?;
    let kept = Kept::of(place, computed, new.attributes, modified_ms, Done::default());
    Some((kept, committing))
}

/// Commits a received body and its encryption as an object. Blocks.
///
/// # Errors
/// As [`commit::change`].
pub fn keep(
    collector: &Collector,
    place: Place<'_>,
    requirement: &Requirement,
    mut attributes: Attributes,
    (received, sealing): (Received, Option<Sealing>),
) -> ObjectResult<Kept> {
    let (value, computed, stored) = match received {
        Received::Whole(value, computed) => (value, computed, None),
        Received::Stored(stored) => {
            let list = manifest::encode(std::slice::from_ref(&stored.part), None);
            (
                list.into(),
                stored.computed.clone(),
                Some((stored.id, stored.unfinished)),
            )
        }
    };
    let id = stored.as_ref().map(|(id, _)| *id);
    let modified_ms = place.store.clock().now_ms();
    if let Some(settings) = place.permit.bucket().record().lock {
        settings.apply(&mut attributes, modified_ms);
    }
    record::complete(&mut attributes, &computed, id, modified_ms);
    let held = sealing.as_ref().map(Sealing::hold);
    if let Some((sealing, held)) = sealing.as_ref().zip(held.as_ref()) {
        let name = keyspace::object(&place.permit.bucket().name, place.key);
        let sealed = sealing.wrapped(held, &name)?;
        record::encrypt(&mut attributes, &sealed.encode(), computed.length);
        sealing.describe(&mut attributes);
    }
    let new = NewObject {
        value,
        attributes: attributes.clone(),
    };
    let also = |batch: &mut Batch| {
        if let Some(id) = id {
            batch.delete(keyspace::pending(id));
        }
    };
    let Outcome::Done(done) = commit::change(place, requirement, Some(&new), &also)? else {
        // A put has no conditions of its own and always writes.
        return Err(ObjectError::Impossible);
    };
    drop(held);
    if let Some((_, unfinished)) = stored {
        unfinished.finished();
    }
    if done.garbage {
        collector.wake();
    }
    Ok(Kept::of(place, &computed, attributes, modified_ms, done))
}
