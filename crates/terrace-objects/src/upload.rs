//! The record of an incomplete upload: attributes of the future object and of the upload, no value.

use crate::checksum::{Algorithm, Kind};
use terrace::Attributes;

/// Checksum algorithm of its parts.
const ALGORITHM: &str = "s3-algorithm";
/// Present if the client chose the algorithm.
const CHOSEN: &str = "s3-algorithm-chosen";
/// Kind of the object's checksum.
const KIND: &str = "s3-checksum-kind";

/// Attributes of the upload itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UploadRecord {
    /// Checksum algorithm of its parts.
    pub algorithm: Algorithm,
    /// Kind of the object's checksum.
    pub kind: Kind,
    /// Whether the client chose the algorithm.
    pub is_chosen: bool,
}

impl UploadRecord {
    /// The attributes to store: these and those of the object.
    pub fn to_attributes(self, description: Attributes) -> Attributes {
        let attributes = description
            .with(ALGORITHM, self.algorithm.name())
            .with(KIND, self.kind.name());
        if self.is_chosen {
            attributes.with(CHOSEN, "")
        } else {
            attributes
        }
    }

    /// Reads a record. One without a known algorithm has the default of clients that choose none.
    pub fn read(attributes: &Attributes) -> Self {
        let text = |name| attributes.get_str(name);
        Self {
            algorithm: text(ALGORITHM)
                .and_then(Algorithm::parse)
                .unwrap_or(Algorithm::Crc64Nvme),
            kind: if text(KIND) == Some(Kind::Composite.name()) {
                Kind::Composite
            } else {
                Kind::FullObject
            },
            is_chosen: text(CHOSEN).is_some(),
        }
    }

    /// The attributes of the future object.
    pub fn description(attributes: &Attributes) -> Attributes {
        let kept = attributes
            .iter()
            .filter(|(name, _)| ![ALGORITHM, CHOSEN, KIND].contains(name));
        kept.fold(Attributes::new(), |all, (name, value)| all.with(name, value))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn stored(attributes: &Attributes) -> Vec<(String, Vec<u8>)> {
        let pairs = attributes.iter();
        pairs.map(|(name, value)| (name.to_owned(), value.to_vec())).collect()
    }

    /// The stored attributes, byte for byte, with and without a chosen checksum.
    #[test]
    fn golden() {
        let description = Attributes::new()
            .with("content-type", "video/mp4")
            .with("x-amz-meta-a", "b");
        let chosen = UploadRecord {
            algorithm: Algorithm::Sha256,
            kind: Kind::Composite,
            is_chosen: true,
        };
        let plain = UploadRecord {
            algorithm: Algorithm::Crc64Nvme,
            kind: Kind::FullObject,
            is_chosen: false,
        };
        let of_chosen: &[(&str, &[u8])] = &[
            ("content-type", b"video/mp4"),
            ("s3-algorithm", b"SHA256"),
            ("s3-algorithm-chosen", b""),
            ("s3-checksum-kind", b"COMPOSITE"),
            ("x-amz-meta-a", b"b"),
        ];
        let of_plain: &[(&str, &[u8])] = &[
            ("content-type", b"video/mp4"),
            ("s3-algorithm", b"CRC64NVME"),
            ("s3-checksum-kind", b"FULL_OBJECT"),
            ("x-amz-meta-a", b"b"),
        ];
        for (record, expected) in [(chosen, of_chosen), (plain, of_plain)] {
            let attributes = record.to_attributes(description.clone());
            let expected: Vec<_> = expected
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.to_vec()))
                .collect();
            assert_eq!(stored(&attributes), expected);
            assert_eq!(UploadRecord::read(&attributes), record);
            assert_eq!(
                stored(&UploadRecord::description(&attributes)),
                stored(&description),
                "an object has nothing of its upload"
            );
        }
        // Reading attributes from any source.
        let by_hand = of_chosen
            .iter()
            .fold(Attributes::new(), |all, (name, value)| all.with(*name, *value));
        assert_eq!(UploadRecord::read(&by_hand), chosen);
    }

    #[test]
    fn a_record_that_says_nothing_is_one_of_a_client_that_chose_nothing() {
        let odd = Attributes::new().with(ALGORITHM, "MD4").with(KIND, "HALF_OBJECT");
        for attributes in [Attributes::new(), odd] {
            let read = UploadRecord::read(&attributes);
            assert_eq!((read.algorithm, read.kind), (Algorithm::Crc64Nvme, Kind::FullObject));
            assert!(!read.is_chosen);
        }
    }
}
