//! Computes S3's checksums of a stream, and combines those of parts.
//!
//! MD5 makes the entity tag, unless tags are random ([`Tag`]); other checksums are computed on
//! request.

mod md5;

pub use crate::{
    checksum::{Algorithm, Checksum, Kind},
    tag::Tag,
    text::hex,
};
pub use md5::LANES;

use crate::error::{Digest, ObjectError, ObjectResult};
use bytes::Bytes;
use md5::Md5;
use sha1::Digest as _;
use terrace::Attributes;

/// How the checksum of an object is combined from those of its parts, if it can be.
const fn combination(algorithm: Algorithm) -> Option<crc_fast::CrcAlgorithm> {
    match algorithm {
        Algorithm::Crc32 => Some(crc_fast::CrcAlgorithm::Crc32IsoHdlc),
        Algorithm::Crc32c => Some(crc_fast::CrcAlgorithm::Crc32Iscsi),
        Algorithm::Crc64Nvme => Some(crc_fast::CrcAlgorithm::Crc64Nvme),
        Algorithm::Sha1 | Algorithm::Sha256 => None,
    }
}

/// Name of the attribute with a checksum's kind, absent for a checksum of the bytes.
pub const KIND_ATTRIBUTE: &str = "x-amz-checksum-type";

/// The checksum attributes of an object as headers.
pub fn headers(attributes: &Attributes) -> impl Iterator<Item = (&'static str, &str)> {
    let text = |algorithm: Algorithm| Some((algorithm.header(), attributes.get_str(algorithm.header())?));
    let checksums = Algorithm::ALL.into_iter().filter_map(text);
    let kind = attributes.get_str(KIND_ATTRIBUTE).unwrap_or(Kind::FullObject.name());
    let has_some = checksums.clone().next().is_some();
    checksums.chain(has_some.then_some((KIND_ATTRIBUTE, kind)))
}

enum Hasher {
    Crc(Algorithm, crc_fast::Digest),
    Sha1(sha1::Sha1),
    Sha256(sha2::Sha256),
}

impl Hasher {
    fn new(algorithm: Algorithm) -> Self {
        match (algorithm, combination(algorithm)) {
            (_, Some(crc)) => Self::Crc(algorithm, crc_fast::Digest::new(crc)),
            (Algorithm::Sha1, None) => Self::Sha1(sha1::Sha1::new()),
            (_, None) => Self::Sha256(sha2::Sha256::new()),
        }
    }

    fn update(&mut self, data: &[u8]) {
        match self {
            Self::Crc(_, hasher) => hasher.update(data),
            Self::Sha1(hasher) => hasher.update(data),
            Self::Sha256(hasher) => hasher.update(data),
        }
    }

    fn finish(self) -> Checksum {
        let (algorithm, value) = match self {
            Self::Crc(algorithm, hasher) => (algorithm, of_number(algorithm, hasher.finalize())),
            Self::Sha1(hasher) => (Algorithm::Sha1, hasher.finalize().to_vec()),
            Self::Sha256(hasher) => (Algorithm::Sha256, hasher.finalize().to_vec()),
        };
        Checksum { algorithm, value }
    }
}

/// A CRC in S3's form: big-endian.
fn of_number(algorithm: Algorithm, number: u64) -> Vec<u8> {
    let bytes = number.to_be_bytes();
    bytes[bytes.len() - algorithm.bytes()..].to_vec()
}

/// Computes the digests of a stream.
pub struct Digests {
    /// `None` if the tag will be random.
    md5: Option<Md5>,
    hashers: Vec<Hasher>,
    length: u64,
}

/// The results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Computed {
    /// The entity tag.
    pub tag: Tag,
    /// The requested checksums, in that order.
    pub checksums: Vec<Checksum>,
    /// Length in bytes.
    pub length: u64,
}

impl Digests {
    /// Computes MD5 and these.
    pub fn new(algorithms: &[Algorithm]) -> Self {
        Self {
            md5: Some(Md5::default()),
            ..Self::without_md5(algorithms)
        }
    }

    /// Computes these alone: the tag will be random.
    pub fn without_md5(algorithms: &[Algorithm]) -> Self {
        let mut different: Vec<Algorithm> = Vec::new();
        for algorithm in algorithms {
            if !different.contains(algorithm) {
                different.push(*algorithm);
            }
        }
        Self {
            md5: None,
            hashers: different.into_iter().map(Hasher::new).collect(),
            length: 0,
        }
    }

    /// Adds bytes.
    pub fn update(&mut self, data: &[u8]) {
        if let Some(md5) = &mut self.md5 {
            md5.update(data);
        }
        for hasher in &mut self.hashers {
            hasher.update(data);
        }
        self.length += data.len() as u64;
    }

    /// Adds runs of bytes to several streams. Up to [`LANES`] streams take little longer than one.
    pub fn update_side_by_side<'d>(all: impl Iterator<Item = (&'d mut Self, &'d [Bytes])>) {
        let take_in = |(digests, runs): (&'d mut Self, &'d [Bytes])| {
            for run in runs {
                digests.length += run.len() as u64;
                for hasher in &mut digests.hashers {
                    hasher.update(run);
                }
            }
            Some((digests.md5.as_mut()?, runs))
        };
        md5::update_side_by_side(all.filter_map(take_in));
    }

    /// The results.
    pub fn finish(self) -> Computed {
        Computed {
            tag: self.md5.map_or_else(Tag::random, |md5| Tag::of_md5(md5.finish())),
            checksums: self.hashers.into_iter().map(Hasher::finish).collect(),
            length: self.length,
        }
    }
}

impl Computed {
    /// The checksum of this algorithm.
    pub fn checksum(&self, algorithm: Algorithm) -> Option<&Checksum> {
        self.checksums.iter().find(|checksum| checksum.algorithm == algorithm)
    }

    /// Compares with the client's digests.
    ///
    /// # Errors
    /// `BadDigest`.
    pub fn verify(&self, md5: Option<&[u8; 16]>, declared: Option<&Checksum>) -> ObjectResult {
        if md5.is_some_and(|md5| Tag::of_md5(*md5) != self.tag) {
            return Err(ObjectError::BadDigest(Digest::Md5));
        }
        let Some(declared) = declared else { return Ok(()) };
        if self.checksum(declared.algorithm) == Some(declared) {
            return Ok(());
        }
        Err(ObjectError::BadDigest(Digest::Checksum(declared.algorithm.name())))
    }
}

/// The MD5 of bytes that are in memory.
pub fn md5(bytes: &[u8]) -> [u8; 16] {
    let mut md5 = Md5::default();
    md5.update(bytes);
    md5.finish()
}

/// The entity tag of an object of several parts, without quotes.
pub fn multipart_etag(parts: &[Tag]) -> String {
    let mut md5 = Md5::default();
    for part in parts {
        md5.update(&part.bytes);
    }
    format!("{}-{}", hex(&md5.finish()), parts.len())
}

/// The checksum of an object of several parts as text, from each part's checksum and length. `None`
/// without parts, or if this algorithm has no checksum of this kind.
pub fn multipart_checksum(algorithm: Algorithm, kind: Kind, parts: &[(Checksum, u64)]) -> Option<String> {
    if kind == Kind::Composite {
        let mut hasher = Hasher::new(algorithm);
        for (checksum, _) in parts {
            hasher.update(&checksum.value);
        }
        return Some(format!("{}-{}", hasher.finish().text(), parts.len()));
    }
    let combination = combination(algorithm)?;
    let ((first, _), rest) = parts.split_first()?;
    let number = rest.iter().fold(first.number(), |whole, (checksum, length)| {
        crc_fast::checksum_combine(combination, whole, checksum.number(), *length)
    });
    let value = of_number(algorithm, number);
    Some(Checksum { algorithm, value }.text())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn digest(algorithm: Algorithm, data: &[u8]) -> Checksum {
        let mut digests = Digests::new(&[algorithm]);
        digests.update(data);
        digests.finish().checksums.remove(0)
    }

    /// Check values from the catalogue of parametrised CRC algorithms, and RFC 3174 and FIPS 180
    /// for "abc".
    #[test]
    fn known_values() {
        let hex_of = |algorithm, data: &[u8]| hex(&digest(algorithm, data).value);
        assert_eq!(hex_of(Algorithm::Crc32, b"123456789"), "cbf43926");
        assert_eq!(hex_of(Algorithm::Crc32c, b"123456789"), "e3069283");
        assert_eq!(hex_of(Algorithm::Crc64Nvme, b"123456789"), "ae8b14860a799888");
        assert_eq!(
            hex_of(Algorithm::Sha1, b"abc"),
            "a9993e364706816aba3e25717850c26c9cd0d89d"
        );
        assert!(hex_of(Algorithm::Sha256, b"abc").starts_with("ba7816bf8f01cfea"));
        let mut digests = Digests::new(&[]);
        digests.update(b"abc");
        assert_eq!(digests.finish().tag.text(), "900150983cd24fb0d6963f7d28e17f72");
    }

    #[test]
    fn parts_combine_to_the_whole() {
        let parts: [&[u8]; 4] = [b"one", b"", b"and another", b"x"];
        let whole = parts.concat();
        for algorithm in [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Crc64Nvme] {
            let digests: Vec<_> = parts
                .iter()
                .map(|part| (digest(algorithm, part), part.len() as u64))
                .collect();
            let combined = multipart_checksum(algorithm, Kind::FullObject, &digests).unwrap();
            assert_eq!(combined, digest(algorithm, &whole).text(), "{}", algorithm.name());
        }
        let parts = [
            (digest(Algorithm::Sha256, b"a"), 1),
            (digest(Algorithm::Sha256, b"b"), 1),
        ];
        let composite = multipart_checksum(Algorithm::Sha256, Kind::Composite, &parts).unwrap();
        let expected = digest(
            Algorithm::Sha256,
            &[parts[0].0.value.clone(), parts[1].0.value.clone()].concat(),
        );
        assert_eq!(composite, format!("{}-2", expected.text()));
        assert_eq!(multipart_checksum(Algorithm::Sha256, Kind::FullObject, &parts), None);
    }

    #[test]
    fn what_does_not_match_is_refused() {
        let mut digests = Digests::new(&[Algorithm::Crc32]);
        digests.update(b"data");
        let computed = digests.finish();
        let right = digest(Algorithm::Crc32, b"data");
        assert!(computed.verify(Some(&computed.tag.bytes), Some(&right)).is_ok());
        assert!(computed.verify(Some(&[0; 16]), None).is_err());
        assert!(
            computed
                .verify(None, Some(&digest(Algorithm::Crc32, b"other")))
                .is_err()
        );
        assert!(
            computed.verify(None, Some(&digest(Algorithm::Sha1, b"data"))).is_err(),
            "not computed"
        );
        assert!(Checksum::parse(Algorithm::Crc32, "AAAA").is_err());
    }

    #[test]
    fn kinds_that_s3_has() {
        assert_eq!(Algorithm::Crc32.kind(None).unwrap(), Kind::Composite);
        assert_eq!(Algorithm::Crc32.kind(Some("FULL_OBJECT")).unwrap(), Kind::FullObject);
        assert_eq!(Algorithm::Crc64Nvme.kind(None).unwrap(), Kind::FullObject);
        assert!(Algorithm::Crc64Nvme.kind(Some("COMPOSITE")).is_err());
        assert!(Algorithm::Sha1.kind(Some("FULL_OBJECT")).is_err());
        assert!(Algorithm::Sha1.kind(Some("NONE")).is_err());
    }
}
