//! Batches: several objects committed atomically.

use crate::{Attributes, Condition, Expiry};
use bytes::Bytes;

/// A batch that deletes something may put up to this many bytes, keys included, and still counts as
/// one that frees space: for marks of the deleted objects.
const FREEING_PUT_BYTES_MAX: usize = 4 << 10;

/// Objects to commit as one group. A later operation replaces an earlier one on the same key.
///
/// Values from the size threshold on may be of any number and length. Everything else of a batch,
/// with keys and attributes, is one frame, and must fit into one segment of the log; a longer batch
/// is refused.
///
/// A batch that deletes something and puts no more than 4 KiB is accepted on a full device, like a
/// delete. One that frees at least twice the bytes that it puts is accepted there within bounds;
/// see [`Batch::frees`].
#[derive(Debug, Clone, Default)]
pub struct Batch {
    pub(crate) operations: Vec<Operation>,
    /// Bytes that its caller has declared to free elsewhere.
    pub(crate) freed_bytes: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Operation {
    pub key: Bytes,
    pub condition: Condition,
    pub change: Change,
}

#[derive(Debug, Clone)]
pub(crate) enum Change {
    Put {
        value: Bytes,
        attributes: Attributes,
        expiry: Expiry,
    },
    Delete,
}

impl Change {
    /// Length of the value it puts.
    pub fn value_bytes(&self) -> u64 {
        match self {
            Self::Put { value, .. } => value.len() as u64,
            Self::Delete => 0,
        }
    }
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            operations: Vec::new(),
            freed_bytes: 0,
        }
    }

    /// Adds a put.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl Into<Bytes>) -> &mut Self {
        self.put_with(key, value, Attributes::new(), Condition::None)
    }

    /// Adds a put with attributes, under a condition on what the store held before the batch.
    pub fn put_with(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
        attributes: Attributes,
        condition: Condition,
    ) -> &mut Self {
        self.put_expiring(key, value, attributes, condition, Expiry::Never)
    }

    /// Adds a put with attributes and an expiry, under a condition on what the store held before
    /// the batch. A time to live begins with the call that commits.
    pub fn put_expiring(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
        attributes: Attributes,
        condition: Condition,
        expiry: Expiry,
    ) -> &mut Self {
        self.operations.push(Operation {
            key: Bytes::copy_from_slice(key.as_ref()),
            condition,
            change: Change::Put {
                value: value.into(),
                attributes,
                expiry,
            },
        });
        self
    }

    /// Adds a delete.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) -> &mut Self {
        self.delete_if(key, Condition::None)
    }

    /// Adds a delete under a condition on what the store held before the batch.
    pub fn delete_if(&mut self, key: impl AsRef<[u8]>, condition: Condition) -> &mut Self {
        self.operations.push(Operation {
            key: Bytes::copy_from_slice(key.as_ref()),
            condition,
            change: Change::Delete,
        });
        self
    }

    /// Declares that after this batch so many bytes of other values, in addition to those of keys
    /// in the batch, are no longer needed and will be deleted. A full device refuses new data; a
    /// batch that frees twice what it puts may use a bounded part of the reserve for deletes.
    pub fn frees(&mut self, bytes: u64) -> &mut Self {
        self.freed_bytes = self.freed_bytes.saturating_add(bytes);
        self
    }

    /// The operations in order: the key, and the value and attributes of a put, or `None` for a
    /// delete.
    pub fn changes(&self) -> impl Iterator<Item = (&[u8], Option<(&Bytes, &Attributes)>)> {
        self.operations.iter().map(|operation| {
            let put = match &operation.change {
                Change::Put { value, attributes, .. } => Some((value, attributes)),
                Change::Delete => None,
            };
            (operation.key.as_ref(), put)
        })
    }

    /// Whether it may use the reserve for deletes.
    pub(crate) fn frees_space(&self) -> bool {
        let deletes = |operation: &Operation| matches!(operation.change, Change::Delete);
        self.operations.iter().any(deletes) && self.put_bytes() <= FREEING_PUT_BYTES_MAX
    }

    /// Bytes of keys, values and attributes that it puts.
    pub(crate) fn put_bytes(&self) -> usize {
        let bytes = |operation: &Operation| match &operation.change {
            Change::Put { value, attributes, .. } => {
                let attributes: usize = attributes.iter().map(|(name, value)| name.len() + value.len()).sum();
                operation.key.len() + value.len() + attributes
            }
            Change::Delete => 0,
        };
        self.operations.iter().map(bytes).sum()
    }

    /// Number of operations added.
    #[must_use]
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deletes_with_little_beside_free_space() {
        assert!(!Batch::new().frees_space());
        let mut batch = Batch::new();
        batch.delete("a");
        assert!(batch.frees_space());
        batch.put("mark", "");
        assert!(batch.frees_space());
        batch.put("long", vec![0; FREEING_PUT_BYTES_MAX]);
        assert!(!batch.frees_space());
        assert!(!Batch::new().put("mark", "").frees_space());
    }
}
