//! Entity tags.
//!
//! Usually a tag is the MD5 of the bytes, as clients of S3 expect. A server may do without (`serve
//! --s3-etags random`): then it is random, and ends like the tag of an upload of one part, which
//! clients do not take for an MD5.

use crate::{keyspace, text::hex};

/// What follows the digits of a random tag.
const RANDOM_SUFFIX: &str = "-1";

/// The tag of bytes that came in one piece: of an object, or of a part of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// An MD5, or what is there instead.
    pub bytes: [u8; 16],
    /// Whether it is random.
    pub is_random: bool,
}

impl Tag {
    /// Of bytes with this MD5, or of encrypted ones with its replacement.
    pub const fn of_md5(md5: [u8; 16]) -> Self {
        Self {
            bytes: md5,
            is_random: false,
        }
    }

    /// A new one, which nothing else has.
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        keyspace::fill_random(&mut bytes);
        Self { bytes, is_random: true }
    }

    /// As clients see it, without quotes.
    pub fn text(&self) -> String {
        hex(&self.bytes) + if self.is_random { RANDOM_SUFFIX } else { "" }
    }

    /// Reads the text.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_suffix(RANDOM_SUFFIX);
        let is_random = digits.is_some();
        let digits = digits.unwrap_or(text);
        let is_hex = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(digits, 16).ok().filter(|_| is_hex)?;
        Some(Self {
            bytes: number.to_be_bytes(),
            is_random,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_tag_is_read_as_it_is_written() {
        for tag in [Tag::of_md5([0xab; 16]), Tag::random()] {
            assert_eq!(Tag::parse(&tag.text()), Some(tag));
        }
        assert_eq!(Tag::of_md5([0xab; 16]).text(), "ab".repeat(16));
        assert_ne!(Tag::random(), Tag::random());
        for wrong in [
            "",
            "-1",
            "ab",
            &"ab".repeat(17),
            &("ab".repeat(16) + "-2"),
            &"+b".repeat(16),
        ] {
            assert_eq!(Tag::parse(wrong), None, "{wrong}");
        }
    }
}
