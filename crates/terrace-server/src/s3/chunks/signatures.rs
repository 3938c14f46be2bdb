//! The signatures of a body in chunks: each covers its chunk and the signature before it, the first
//! of them is that of the request's head ("Signature calculations for the Authorization header:
//! transferring payload in multiple chunks" in S3's API reference, with and without a trailer).
//!
//! `s3s` compares them byte for byte and stops at the first difference, so the time reveals how
//! much of a guess is right. Wrong ones are therefore rejected here, by a comparison in constant
//! time, and do not reach `s3s`.

use super::{fields_of, malformed};
use crate::s3::{digest::hex, signature};
use hyper::{HeaderMap, header};
use ring::{digest as sha, hmac};
use s3s::{S3Result, s3_error};
use std::mem;

/// The field of the trailer's signature.
const OF_TRAILER: &str = "x-amz-trailer-signature";
/// The hash of the empty string, which each chunk signs as well.
const OF_NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// The state of the signatures of a body.
pub struct Signatures {
    key: hmac::Key,
    /// Time and scope, each with the end of its line.
    signed_in: String,
    /// The previous signature.
    last: String,
    /// Hash of the current chunk.
    hash: sha::Context,
    /// The signature that the current chunk's line has.
    claimed: String,
}

impl Signatures {
    /// Signatures that follow a request's signature, made with `key` at a time and in a scope.
    pub fn new(key: hmac::Key, time: &str, scope: &str, signature: &str) -> Self {
        Self {
            key,
            signed_in: format!("{time}\n{scope}\n"),
            last: signature.to_owned(),
            hash: sha::Context::new(&sha::SHA256),
            claimed: String::new(),
        }
    }

    /// The signatures of a request with these headers, whose own signature may be wrong. `None` if
    /// the key does not exist; then `s3s` does not read the body.
    pub fn of(headers: &HeaderMap, secret: impl FnOnce(&str) -> Option<String>) -> Option<Self> {
        let said = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let said = said.strip_prefix(signature::ALGORITHM)?;
        let time = headers.get("x-amz-date")?.to_str().ok()?;
        let (id, scope) = signature::scope(signature::field(said, "Credential")?, "s3")?;
        let key = signature::key(&secret(id)?, scope.split('/'));
        Some(Self::new(key, time, scope, signature::field(said, "Signature")?))
    }

    /// Begins a chunk with this signature.
    pub fn begin(&mut self, claimed: &str) {
        claimed.clone_into(&mut self.claimed);
    }

    /// Adds bytes of the chunk.
    pub fn update(&mut self, data: &[u8]) {
        self.hash.update(data);
    }

    /// Ends the chunk.
    ///
    /// # Errors
    /// `SignatureDoesNotMatch`
    pub fn end(&mut self) -> S3Result {
        let hash = mem::replace(&mut self.hash, sha::Context::new(&sha::SHA256)).finish();
        let claimed = mem::take(&mut self.claimed);
        self.check("PAYLOAD", &format!("{OF_NOTHING}\n{}", hex(hash.as_ref())), &claimed)?;
        self.last = claimed;
        Ok(())
    }

    /// Ends the body with a trailer, if there is one. Returns it without its signature.
    ///
    /// # Errors
    /// `InvalidRequest`, `SignatureDoesNotMatch`.
    pub fn check_trailer(&self, trailer: &[u8]) -> S3Result<String> {
        let (mut claimed, mut fields): (Vec<_>, Vec<_>) = fields_of(trailer)?
            .into_iter()
            .partition(|(name, _)| name == OF_TRAILER);
        let Some((_, claimed)) = claimed.pop() else {
            return fields.is_empty().then(String::new).ok_or_else(malformed);
        };
        fields.sort_by(|(one, _), (other, _)| one.cmp(other));
        let text: String = fields.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let hash = sha::digest(&sha::SHA256, text.as_bytes());
        self.check("TRAILER", &hex(hash.as_ref()), &claimed)?;
        Ok(text)
    }

    /// The string to sign.
    fn text(&self, kind: &str, hashes: &str) -> String {
        let (algorithm, signed_in, last) = (signature::ALGORITHM, &self.signed_in, &self.last);
        format!("{algorithm}-{kind}\n{signed_in}{last}\n{hashes}")
    }

    /// Compares a signature with the right one.
    fn check(&self, kind: &str, hashes: &str, claimed: &str) -> S3Result {
        let signed = self.text(kind, hashes);
        let tag = signature::unhex(claimed);
        let is_right = tag.is_some_and(|tag| hmac::verify(&self.key, signed.as_bytes(), &tag).is_ok());
        is_right
            .then_some(())
            .ok_or_else(|| s3_error!(SignatureDoesNotMatch, "The signature of a chunk does not match."))
    }
}

#[cfg(test)]
pub mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The head of the example in S3's API reference for bodies in chunks.
    pub fn headers(form: &str) -> HeaderMap {
        let signature = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9";
        let said = format!(
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,SignedHeaders=\
             content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;\
             x-amz-storage-class,Signature={signature}"
        );
        let mut headers = HeaderMap::new();
        headers.insert("x-amz-date", "20130524T000000Z".parse().unwrap());
        headers.insert(header::AUTHORIZATION, said.parse().unwrap());
        headers.insert("x-amz-content-sha256", form.parse().unwrap());
        for (name, value) in [
            ("host", "s3.amazonaws.com"),
            ("content-encoding", "aws-chunked"),
            ("content-length", "66824"),
            ("x-amz-decoded-content-length", "66560"),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        headers
    }

    pub fn secret(id: &str) -> Option<String> {
        (id == "AKIAIOSFODNN7EXAMPLE").then(|| "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned())
    }

    /// The chunks of that example: numbers of letters `a`, and their signatures.
    pub const EXAMPLE: [(usize, &str); 3] = [
        (
            65_536,
            "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
        ),
        (
            1_024,
            "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
        ),
        (0, "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
    ];

    impl Signatures {
        /// The signature of the next chunk, if it has these bytes.
        pub fn sign(&self, data: &[u8]) -> String {
            let hash = hex(sha::digest(&sha::SHA256, data).as_ref());
            let signed = self.text("PAYLOAD", &format!("{OF_NOTHING}\n{hash}"));
            hex(hmac::sign(&self.key, signed.as_bytes()).as_ref())
        }
    }

    #[test]
    fn the_example_of_the_documentation() {
        for wrong in [None, Some(0), Some(1), Some(2)] {
            let mut signatures = Signatures::of(&headers(""), secret).unwrap();
            for (at, (bytes, claimed)) in EXAMPLE.into_iter().enumerate() {
                signatures.begin(claimed);
                signatures.update(&vec![b'a'; bytes]);
                if wrong == Some(at) {
                    signatures.update(b"a");
                    assert!(signatures.end().is_err());
                    break;
                }
                signatures.end().unwrap();
            }
        }
        for claimed in ["", "0", "AD80", &EXAMPLE[0].1.to_uppercase()] {
            let mut signatures = Signatures::of(&headers(""), secret).unwrap();
            signatures.begin(claimed);
            signatures.update(&[b'a'; 65_536]);
            assert!(signatures.end().is_err(), "{claimed}");
        }
        assert!(Signatures::of(&headers(""), |_| None).is_none());
    }

    /// The example with a trailer ("… in multiple chunks, including trailing headers").
    #[test]
    fn a_trailer_is_signed() {
        let mut signatures = Signatures::of(&headers(""), secret).unwrap();
        "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992".clone_into(&mut signatures.last);
        let signed = "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435";
        let trailer = |value: &str, signed: &str| {
            let trailer = format!("X-Amz-Checksum-Crc32c: {value}\r\n{OF_TRAILER}:{signed}\r\n\r\n");
            signatures.check_trailer(trailer.as_bytes())
        };
        assert_eq!(trailer("sOO8/Q==", signed).unwrap(), "x-amz-checksum-crc32c:sOO8/Q==\n");
        assert!(trailer("sOO8/R==", signed).is_err());
        assert!(trailer("sOO8/Q==", &signed.replace('d', "e")).is_err());
        assert!(signatures.check_trailer(b"x-amz-checksum-crc32c:sOO8/Q==\r\n").is_err());
        assert_eq!(signatures.check_trailer(b"\r\n").unwrap(), "");
    }
}
