//! Signs requests as an S3 client: Signature Version 4 in the head, without a hash of the body.

use crate::{
    s3::{digest::hex, signature, verified::encoded},
    time_span::Moment,
};
use ring::{digest, hmac};
use std::time::SystemTime;

/// Replaces the hash of the body.
const NO_HASH: &str = "UNSIGNED-PAYLOAD";
const SIGNED_HEADERS: &str = "host;x-amz-content-sha256;x-amz-date";

/// Signs for one connection.
pub struct Signer {
    id: String,
    secret: String,
    region: String,
    authority: String,
    /// The day, and its signing key.
    key: Option<(String, hmac::Key)>,
}

/// The signed headers of a request besides its host.
pub struct Signed {
    /// `x-amz-date`
    pub time: String,
    /// `authorization`
    pub authorization: String,
}

impl Signed {
    /// `x-amz-content-sha256`
    pub const PAYLOAD: &'static str = NO_HASH;
}

impl Signer {
    /// Signs with this key, for a server with this authority.
    pub fn new(id: &str, secret: &str, region: &str, authority: &str) -> Self {
        Self {
            id: id.to_owned(),
            secret: secret.to_owned(),
            region: region.to_owned(),
            authority: authority.to_owned(),
            key: None,
        }
    }

    /// Signs a request for a path without percent signs and a query that [`query`] has made.
    pub fn sign(&mut self, method: &str, path: &str, query: &str, now: SystemTime) -> Signed {
        let time = Moment(now).of_signature();
        let (day, region) = (&time[..8], self.region.as_str());
        let key = match self.key.take() {
            Some((of, key)) if of == day => key,
            _ => signature::key(&self.secret, [day, region, "s3", "aws4_request"].into_iter()),
        };
        let authority = &self.authority;
        let canonical = format!(
            "{method}\n{path}\n{query}\nhost:{authority}\nx-amz-content-sha256:{NO_HASH}\nx-amz-date:{time}\n\n{SIGNED_HEADERS}\n{NO_HASH}"
        );
        let hash = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
        let scope = format!("{day}/{region}/s3/aws4_request");
        let algorithm = signature::ALGORITHM;
        let tag = hmac::sign(&key, format!("{algorithm}\n{time}\n{scope}\n{hash}").as_bytes());
        let authorization = format!(
            "{algorithm} Credential={}/{scope}, SignedHeaders={SIGNED_HEADERS}, Signature={}",
            self.id,
            hex(tag.as_ref())
        );
        self.key = Some((day.to_owned(), key));
        Signed { time, authorization }
    }
}

/// A query in canonical order and encoding.
pub fn query(pairs: &[(&str, &str)]) -> String {
    let mut pairs: Vec<_> = pairs
        .iter()
        .map(|(name, value)| format!("{}={}", encoded(name), encoded(value)))
        .collect();
    pairs.sort();
    pairs.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    /// Compared with a signature by botocore 1.44 of the same request.
    #[test]
    fn signs_as_botocore_does() {
        let now = UNIX_EPOCH + Duration::from_secs(1_369_353_600);
        let mut signer = Signer::new(
            "AKIAIOSFODNN7EXAMPLE",
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "us-east-1",
            "localhost:9000",
        );
        let query = query(&[("prefix", "a b/c"), ("list-type", "2"), ("uploads", "")]);
        assert_eq!(query, "list-type=2&prefix=a%20b%2Fc&uploads=");
        for _ in 0..2 {
            let signed = signer.sign("GET", "/bucket/bench/x-1", &query, now);
            assert_eq!(signed.time, "20130524T000000Z");
            assert!(
                signed.authorization.starts_with(
                    "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
                     SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature="
                ),
                "{}",
                signed.authorization
            );
            assert!(signed.authorization.ends_with(SIGNATURE), "{}", signed.authorization);
        }
    }

    const SIGNATURE: &str = "f64a9fdd96b62769d0c28f69522f7f5779b9c3dbe2fb93038f76feb9a669379c";
}
