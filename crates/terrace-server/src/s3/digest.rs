//! Checksums in requests and answers. MD5 is computed for the entity tag, unless tags are random;
//! in addition the checksum that the client declares, or, as in S3, CRC-64/NVME.

pub use terrace_objects::digest::*;

use super::errors;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use s3s::{S3Result, dto, s3_error};
use terrace::Attributes;

/// The five optional checksum fields of inputs.
pub type Declared = [Option<String>; 5];

/// The checksum that a request declares in its headers.
///
/// # Errors
/// `InvalidRequest` for more than one, or a malformed one.
pub fn declared(fields: Declared) -> S3Result<Option<Checksum>> {
    let mut found = None;
    for (algorithm, text) in Algorithm::ALL.into_iter().zip(fields) {
        let Some(text) = text else { continue };
        if found.is_some() {
            return Err(s3_error!(
                InvalidRequest,
                "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed."
            ));
        }
        found = Some(Checksum::parse(algorithm, &text).map_err(errors::of_wrong)?);
    }
    Ok(found)
}

/// The five fields of an input, in the order of [`Algorithm::ALL`].
#[macro_export]
macro_rules! declared_fields {
    ($input:expr) => {
        [
            $input.checksum_crc32.take(),
            $input.checksum_crc32c.take(),
            $input.checksum_crc64nvme.take(),
            $input.checksum_sha1.take(),
            $input.checksum_sha256.take(),
        ]
    };
}

/// Sets the five fields of an output.
#[macro_export]
macro_rules! set_checksums {
    ($output:expr, $checksums:expr) => {{
        let checksums: s3s::dto::Checksum = $checksums;
        $output.checksum_crc32 = checksums.checksum_crc32;
        $output.checksum_crc32c = checksums.checksum_crc32c;
        $output.checksum_crc64nvme = checksums.checksum_crc64nvme;
        $output.checksum_sha1 = checksums.checksum_sha1;
        $output.checksum_sha256 = checksums.checksum_sha256;
    }};
}

/// The checksums among an object's attributes, for an answer.
pub fn stored(attributes: &Attributes) -> dto::Checksum {
    let text = |algorithm: Algorithm| attributes.get_str(algorithm.header()).map(str::to_owned);
    let mut checksums = dto::Checksum {
        checksum_crc32: text(Algorithm::Crc32),
        checksum_crc32c: text(Algorithm::Crc32c),
        checksum_crc64nvme: text(Algorithm::Crc64Nvme),
        checksum_sha1: text(Algorithm::Sha1),
        checksum_sha256: text(Algorithm::Sha256),
        checksum_type: None,
    };
    if Algorithm::ALL
        .into_iter()
        .any(|algorithm| attributes.get(algorithm.header()).is_some())
    {
        let kind = attributes.get_str(KIND_ATTRIBUTE).unwrap_or(Kind::FullObject.name());
        checksums.checksum_type = Some(dto::ChecksumType::from(kind.to_owned()));
    }
    checksums
}

/// The checksum of a part, as attributes.
pub fn of_part(checksum: &Checksum, whole: &Attributes) -> Attributes {
    let attributes = Attributes::new().with(checksum.algorithm.header(), checksum.text());
    match whole.get_str(KIND_ATTRIBUTE) {
        Some(kind) => attributes.with(KIND_ATTRIBUTE, kind),
        None => attributes,
    }
}

/// Reads `Content-MD5`.
///
/// # Errors
/// `InvalidDigest`.
pub fn content_md5(text: Option<&str>) -> S3Result<Option<[u8; 16]>> {
    let Some(text) = text else { return Ok(None) };
    let bytes = STANDARD
        .decode(text)
        .ok()
        .and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
    let bytes = bytes.ok_or_else(|| s3_error!(InvalidDigest, "The Content-MD5 you specified is not valid."))?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_none_or_there_twice_is_refused() {
        assert!(content_md5(Some("x")).is_err());
        let text = || Some("AAAAAA==".to_owned());
        assert!(declared([text(), None, None, None, None]).is_ok());
        assert!(declared([text(), text(), None, None, None]).is_err());
    }
}
