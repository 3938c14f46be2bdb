//! Secrets of access keys as the store keeps them: encrypted, where the server is given a key for
//! that.
//!
//! AES-256-GCM by `ring`, a nonce drawn for each, and the access key's ID as additional data, so
//! that no secret can be moved to another ID. What is stored is base64 of nonce, ciphertext and tag
//! (docs/s3.md). 2^32 secrets may be drawn nonces for; nobody has so many.

use super::keyspace;
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use std::fmt;
use terrace::Error;

/// Bytes of a key.
const KEY_BYTES: usize = 32;
/// What the additional data begins with.
const CONTEXT: &str = "terrace access key ";

/// What secrets are encrypted with, if anything.
#[derive(Default)]
pub struct Secrets(Option<LessSafeKey>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the key: this ends in logs.
        f.debug_struct("Secrets").field("has_key", &self.0.is_some()).finish()
    }
}

impl Secrets {
    /// Encrypts with this key: 64 hex digits.
    ///
    /// # Errors
    /// Saying what a key looks like.
    pub fn with_key(text: &str) -> Result<Self, String> {
        let digits = text.trim().as_bytes();
        let pairs = digits.chunks(2).map(|pair| {
            let is_hex = pair.len() == 2 && pair.iter().all(u8::is_ascii_hexdigit);
            let pair = std::str::from_utf8(pair).ok().filter(|_| is_hex)?;
            u8::from_str_radix(pair, 16).ok()
        });
        let bytes: Option<Vec<u8>> = pairs.collect();
        let key = bytes.filter(|bytes| bytes.len() == KEY_BYTES);
        let key = key.and_then(|bytes| UnboundKey::new(&AES_256_GCM, &bytes).ok());
        key.map(|key| Self(Some(LessSafeKey::new(key)))).ok_or_else(|| {
            "the key for secrets must be 64 hex digits, like `openssl rand -hex 32` prints them".to_owned()
        })
    }

    /// Whether there is a key.
    pub const fn has_key(&self) -> bool {
        self.0.is_some()
    }

    /// The secret of the access key `id`, encrypted. `None` without a key.
    ///
    /// # Errors
    /// The library's, which says nothing.
    pub fn seal(&self, id: &str, secret: &str) -> terrace::Result<Option<String>> {
        let mut nonce = [0; NONCE_LEN];
        keyspace::fill_random(&mut nonce);
        self.seal_with(nonce, id, secret)
    }

    fn seal_with(&self, nonce: [u8; NONCE_LEN], id: &str, secret: &str) -> terrace::Result<Option<String>> {
        let Some(key) = &self.0 else { return Ok(None) };
        let mut text = secret.as_bytes().to_vec();
        let sealed = key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad(id), &mut text);
        sealed.map_err(|_| Error::invalid(format!("the secret of access key {id} cannot be encrypted")))?;
        Ok(Some(STANDARD_NO_PAD.encode([&nonce[..], &text].concat())))
    }

    /// The secret that was encrypted.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no key, or another one, or what is stored is damaged.
    pub fn open(&self, id: &str, sealed: &str) -> terrace::Result<String> {
        let Some(key) = &self.0 else {
            return Err(Error::invalid(format!(
                "the secret of access key {id} is encrypted; give the key it was encrypted with in a file by \
                 `--secrets-key-file`, or in TERRACE_SECRETS_KEY"
            )));
        };
        let wrong = || {
            Error::invalid(format!(
                "the secret of access key {id} was encrypted with another key than the one of `--secrets-key-file` or \
                 TERRACE_SECRETS_KEY; give that one"
            ))
        };
        let bytes = STANDARD_NO_PAD.decode(sealed).map_err(|_| wrong())?;
        let (nonce, text) = bytes.split_first_chunk::<NONCE_LEN>().ok_or_else(wrong)?;
        let mut text = text.to_vec();
        let opened = key.open_in_place(Nonce::assume_unique_for_key(*nonce), aad(id), &mut text);
        let opened = opened.map_err(|_| wrong())?;
        String::from_utf8(opened.to_vec()).map_err(|_| wrong())
    }
}

fn aad(id: &str) -> Aad<Vec<u8>> {
    Aad::from(format!("{CONTEXT}{id}").into_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn keys_are_hex() {
        assert!(Secrets::with_key(&"0f".repeat(32)).is_ok());
        assert!(Secrets::with_key(&format!("{}\n", "0F".repeat(32))).is_ok());
        for text in ["", "password", &"0f".repeat(31), &"0g".repeat(32), &"+1".repeat(32)] {
            assert!(Secrets::with_key(text).is_err(), "{text}");
        }
    }

    /// What is stored, byte for byte: a server of tomorrow must open it.
    #[test]
    fn golden() {
        let secrets = Secrets::with_key(&"0f".repeat(32)).unwrap();
        let sealed = secrets.seal_with([7; NONCE_LEN], "TRCEA", "secret").unwrap().unwrap();
        assert_eq!(sealed, "BwcHBwcHBwcHBwcH8i3TODFHPIdu1UP0jU3V3mbMxc7hdw");
        assert_eq!(secrets.open("TRCEA", &sealed).unwrap(), "secret");
        let refused = |secrets: &Secrets, id: &str, sealed: &str| secrets.open(id, sealed).unwrap_err().to_string();
        assert!(refused(&secrets, "TRCEB", &sealed).contains("another key"));
        let other = Secrets::with_key(&"0e".repeat(32)).unwrap();
        assert!(refused(&other, "TRCEA", &sealed).contains("another key"));
        assert!(refused(&secrets, "TRCEA", "AAAA").contains("another key"));
        assert!(refused(&Secrets::default(), "TRCEA", &sealed).contains("--secrets-key-file"));
        assert!(Secrets::default().seal("TRCEA", "secret").unwrap().is_none());
        assert_ne!(
            secrets.seal("TRCEA", "secret").unwrap(),
            secrets.seal("TRCEA", "secret").unwrap()
        );
    }
}
