//! The properties each decoder must keep, whatever the bytes. Each function is listed in [`crate::TARGETS`].

use terrace::{ATTRIBUTES_BYTES_MAX, Attributes};

/// [`Attributes::decode`] never panics. What it reads and [`Attributes::encode`] writes reads back the same, in one
/// canonical form that is never longer than what was read.
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
