//! The properties each decoder must keep, whatever the bytes. Each function is listed in
//! [`crate::TARGETS`].

mod flash;
mod index;
mod large;
mod objects;
mod wire;

pub use flash::*;
pub use index::*;
pub use large::*;
pub use objects::*;
pub use wire::*;

use terrace::{ATTRIBUTES_BYTES_MAX, Attributes};

/// Runs a target's check on the bytes as they are, and on a copy in which `sign` put the checksums
/// right.
fn as_is_and_signed(data: &[u8], check: impl Fn(&[u8]) -> bool, sign: impl FnOnce(&mut Vec<u8>)) -> bool {
    let as_is = check(data);
    let mut signed = data.to_vec();
    sign(&mut signed);
    check(&signed) || as_is
}

/// Puts the CRC-32C of `bytes[covered]` at `at`, if the bytes are there.
fn sign_at(bytes: &mut [u8], at: usize, covered: std::ops::Range<usize>) {
    let Some(checksum) = bytes.get(covered).map(crc32c::crc32c) else {
        return;
    };
    if let Some(field) = bytes.get_mut(at..at + 4) {
        field.copy_from_slice(&checksum.to_le_bytes());
    }
}

/// [`Attributes::decode`] never panics. What it reads and [`Attributes::encode`] writes reads back
/// the same, in one canonical form that is never longer than what was read.
///
/// # Panics
/// If a property is broken.
pub fn attributes_decode(data: &[u8]) -> bool {
    let Some(attributes) = Attributes::decode(data) else {
        return false;
    };
    assert_eq!(
        attributes.is_empty(),
        data.is_empty(),
        "nothing and only nothing decodes to no attributes"
    );
    match attributes.encode() {
        Ok(encoded) => {
            assert!(
                encoded.len() <= data.len(),
                "the canonical form is longer than what was read"
            );
            let again = Attributes::decode(&encoded).expect("what encode writes, decode reads");
            assert_eq!(again, attributes, "encoding and decoding changed the attributes");
            assert_eq!(
                again.encode().as_ref(),
                Ok(&encoded),
                "the canonical form is not stable"
            );
        }
        Err(error) => {
            assert!(
                data.len() > ATTRIBUTES_BYTES_MAX,
                "attributes that fit do not encode: {error}"
            );
        }
    }
    true
}
