//! Keys as text, in both directions: keys are any bytes, terminals and scripts need text.
//!
//! Printable UTF-8 is unchanged; a backslash is `\\`; every other byte is `\xNN`. What `ls` prints
//! is therefore what `get` accepts, and no key can move the cursor, colour the terminal or break a
//! line.

use crate::failure::{Failure, Outcome};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use std::{ffi::OsStr, fmt::Write as _, os::unix::ffi::OsStrExt as _};

/// The text of `key`, which [`parse`] converts back.
pub fn escape(key: &[u8]) -> String {
    let mut out = String::with_capacity(key.len());
    for chunk in key.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character == '\\' {
                out.push_str("\\\\");
            } else if is_plain(character) {
                out.push(character);
            } else {
                escape_bytes(character.encode_utf8(&mut [0; 4]).as_bytes(), &mut out);
            }
        }
        escape_bytes(chunk.invalid(), &mut out);
    }
    out
}

fn escape_bytes(bytes: &[u8], out: &mut String) {
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(out, "\\x{byte:02x}");
    }
}

/// Whether a character shows as itself: no controls, no invisible or direction-changing marks.
fn is_plain(character: char) -> bool {
    !character.is_control()
        && !matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// The key in an argument.
///
/// # Errors
/// A usage failure if an escape is not `\\` or `\xNN`.
pub fn parse(argument: &OsStr) -> Outcome<Vec<u8>> {
    let mut bytes = argument.as_bytes().iter().copied();
    let mut key = Vec::with_capacity(bytes.len());
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            key.push(byte);
            continue;
        }
        let escaped = match bytes.next() {
            Some(b'\\') => Some(b'\\'),
            Some(b'x') => hex_digit(bytes.next())
                .zip(hex_digit(bytes.next()))
                .map(|(high, low)| high << 4 | low),
            _ => None,
        };
        key.push(escaped.ok_or_else(|| {
            Failure::usage(format!(
                "key `{}`: after a backslash write xNN (two hex digits) or a second backslash",
                argument.to_string_lossy()
            ))
        })?);
    }
    Ok(key)
}

fn hex_digit(byte: Option<u8>) -> Option<u8> {
    // A hex digit is below 16.
    char::from(byte?)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
}

/// Bytes in JSON: text if they are UTF-8, otherwise `{"base64": "…"}`.
pub fn to_json(bytes: &[u8]) -> Value {
    std::str::from_utf8(bytes).map_or_else(|_| json!({ "base64": STANDARD.encode(bytes) }), Value::from)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn escapes_and_parses_back() {
        for (key, text) in [
            (&b"images/a b.jpg"[..], "images/a b.jpg"),
            ("Zürich/日本".as_bytes(), "Zürich/日本"),
            (b"a\\b", "a\\\\b"),
            (b"a\nb\x1b[31m", "a\\x0ab\\x1b[31m"),
            (b"\xff\xfea", "\\xff\\xfea"),
            (b"\xe2\x82", "\\xe2\\x82"),
            ("a\u{202e}b".as_bytes(), "a\\xe2\\x80\\xaeb"),
            (b"\0", "\\x00"),
        ] {
            assert_eq!(escape(key), text);
            assert_eq!(parse(OsStr::new(text)).unwrap(), key);
        }
    }

    #[test]
    fn every_byte_survives() {
        let key: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
        assert_eq!(parse(OsStr::new(&escape(&key))).unwrap(), key);
    }

    #[test]
    fn raw_bytes_in_an_argument_are_the_key() {
        assert_eq!(parse(OsStr::from_bytes(b"\xffa")).unwrap(), b"\xffa");
    }

    #[test]
    fn refuses_unknown_escapes() {
        for text in ["\\", "a\\n", "\\x", "\\x1", "\\xg0", "\\x+1"] {
            assert!(parse(OsStr::new(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn json_is_text_or_base64() {
        assert_eq!(to_json(b"a\"b"), json!("a\"b"));
        assert_eq!(to_json(b"\xff"), json!({ "base64": "/w==" }));
    }
}
