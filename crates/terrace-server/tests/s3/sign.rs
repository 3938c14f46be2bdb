//! A client that signs as S3's documentation says (Signature Version 4): whole bodies, signed
//! chunks, trailers.

use crate::common::{Ahead, Answer};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use std::{
    fmt::Write as _,
    io::{Read as _, Write as _},
    net::TcpStream,
    time::{SystemTime, UNIX_EPOCH},
};

/// What a client signs with, and where it sends to.
#[derive(Clone)]
pub struct Client {
    pub address: String,
    pub id: String,
    pub secret: String,
    /// Its clock.
    pub clock: Ahead,
}

/// How a body is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Its hash is in the head.
    Whole,
    /// It is not signed.
    Unsigned,
    /// In signed chunks.
    Chunks,
    /// In one signed chunk, and the last one.
    OneChunk,
    /// In signed chunks, with a signed checksum behind them.
    ChunksWithTrailer,
    /// In chunks that are not signed, with a checksum behind them.
    UnsignedWithTrailer,
}

/// A request that is ready to be sent.
pub struct Signed {
    pub head: String,
    pub body: Vec<u8>,
}

const CHUNK_BYTES: usize = 64 << 10;

fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn sha256(data: &[u8]) -> String {
    hex(Sha256::digest(data))
}

fn hmac(key: &[u8], data: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(data.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

/// `YYYYMMDDTHHMMSSZ` so many seconds from now.
pub fn time(from_now: i64) -> String {
    time_of(SystemTime::now(), from_now)
}

/// The same from another time, by the civil-from-days method of Howard Hinnant's
/// "chrono-compatible date algorithms".
fn time_of(now: SystemTime, from_now: i64) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).unwrap().as_secs();
    let seconds = seconds.checked_add_signed(from_now).unwrap();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

/// Lines of one name as the signature covers them.
fn joined(lines: &[(String, String)]) -> (String, String) {
    let values: Vec<_> = lines.iter().map(|(_, value)| value.as_str()).collect();
    (lines[0].0.clone(), values.join(","))
}

struct Scope {
    time: String,
    service: &'static str,
    key: Vec<u8>,
}

impl Scope {
    fn new(secret: &str, time: String, service: &'static str) -> Self {
        let mut key = hmac(format!("AWS4{secret}").as_bytes(), &time[..8]);
        for part in ["us-east-1", service, "aws4_request"] {
            key = hmac(&key, part);
        }
        Self { time, service, key }
    }

    fn text(&self) -> String {
        format!("{}/us-east-1/{}/aws4_request", &self.time[..8], self.service)
    }

    fn sign(&self, algorithm: &str, rest: &str) -> String {
        hex(hmac(
            &self.key,
            &format!("{algorithm}\n{}\n{}\n{rest}", self.time, self.text()),
        ))
    }
}

impl Client {
    /// One that signs with the key that `key create --json` told of.
    pub fn with_key(&self, made: &serde_json::Value) -> Self {
        let text = |name: &str| made[name].as_str().unwrap().to_owned();
        Self {
            address: self.address.clone(),
            id: text("access_key_id"),
            secret: text("secret_access_key"),
            clock: self.clock.clone(),
        }
    }

    /// `YYYYMMDDTHHMMSSZ` so many seconds from now, by its clock.
    pub fn time(&self, from_now: i64) -> String {
        time_of(self.clock.now(), from_now)
    }

    /// Sends a request with its body in the head's hash, and reads the answer.
    pub fn send(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.exchange(&self.sign(method, target, headers, body, Mode::Whole))
    }

    pub fn put(&self, target: &str, body: &[u8], mode: Mode) -> Answer {
        self.exchange(&self.sign("PUT", target, &[], body, mode))
    }

    pub fn get(&self, target: &str) -> Answer {
        self.send("GET", target, &[], b"")
    }

    /// Signs a request. The target's query must be in order already.
    pub fn sign(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8], mode: Mode) -> Signed {
        self.sign_for("s3", method, target, headers, body, mode)
    }

    /// Signs a request for a service.
    pub fn sign_for(
        &self,
        service: &'static str,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        mode: Mode,
    ) -> Signed {
        let scope = Scope::new(&self.secret, self.time(0), service);
        let payload = match mode {
            Mode::Whole => sha256(body),
            Mode::Unsigned => "UNSIGNED-PAYLOAD".to_owned(),
            Mode::Chunks | Mode::OneChunk => "STREAMING-AWS4-HMAC-SHA256-PAYLOAD".to_owned(),
            Mode::ChunksWithTrailer => "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER".to_owned(),
            Mode::UnsignedWithTrailer => "STREAMING-UNSIGNED-PAYLOAD-TRAILER".to_owned(),
        };
        let mut all: Vec<(String, String)> = headers
            .iter()
            .map(|(name, value)| (name.to_lowercase(), (*value).to_owned()))
            .collect();
        if !matches!(mode, Mode::ChunksWithTrailer | Mode::UnsignedWithTrailer) {
            all.extend(digest(target, headers, body));
        }
        all.push(("host".to_owned(), self.address.clone()));
        all.push(("x-amz-date".to_owned(), scope.time.clone()));
        all.push(("x-amz-content-sha256".to_owned(), payload.clone()));
        if !matches!(mode, Mode::Whole | Mode::Unsigned) {
            all.push(("content-encoding".to_owned(), "aws-chunked".to_owned()));
            let name = "x-amz-decoded-content-length";
            if !headers.iter().any(|(given, _)| *given == name) {
                all.push((name.to_owned(), body.len().to_string()));
            }
        }
        if matches!(mode, Mode::ChunksWithTrailer | Mode::UnsignedWithTrailer) {
            all.push(("x-amz-trailer".to_owned(), "x-amz-checksum-crc32c".to_owned()));
        }
        // Lines of one name stay in order, and are signed as one.
        all.sort_by(|one, other| one.0.cmp(&other.0));
        let signed: Vec<_> = all.chunk_by(|one, other| one.0 == other.0).map(joined).collect();
        let names: Vec<_> = signed.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(";");
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query: Vec<_> = query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                if pair.contains('=') {
                    pair.to_owned()
                } else {
                    format!("{pair}=")
                }
            })
            .collect();
        let lines: String = signed.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let canonical = format!("{method}\n{path}\n{}\n{lines}\n{names}\n{payload}", query.join("&"));
        let signature = scope.sign("AWS4-HMAC-SHA256", &sha256(canonical.as_bytes()));
        let body = match mode {
            Mode::Whole | Mode::Unsigned => body.to_vec(),
            mode => chunked(&scope, body, &signature, mode),
        };
        let lines: String = all.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let credential = format!("{}/{}", self.id, scope.text());
        let head = format!(
            "{method} {target} HTTP/1.1\r\n{lines}authorization: AWS4-HMAC-SHA256 Credential={credential}, \
             SignedHeaders={names}, Signature={signature}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        Signed { head, body }
    }

    /// A target with a signature in its query, of which the host is all that is signed besides.
    pub fn presigned(&self, method: &str, target: &str) -> String {
        self.presigned_at(method, target, 0)
    }

    /// The same, signed so many seconds from now.
    pub fn presigned_at(&self, method: &str, target: &str, from_now: i64) -> String {
        let scope = Scope::new(&self.secret, self.time(from_now), "s3");
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let credential = format!("{}/{}", self.id, scope.text()).replace('/', "%2F");
        let mut pairs = vec![
            "X-Amz-Algorithm=AWS4-HMAC-SHA256".to_owned(),
            format!("X-Amz-Credential={credential}"),
            format!("X-Amz-Date={}", scope.time),
            "X-Amz-Expires=600".to_owned(),
            "X-Amz-SignedHeaders=host".to_owned(),
        ];
        let given = query.split('&').filter(|pair| !pair.is_empty());
        pairs.extend(given.map(|pair| {
            if pair.contains('=') {
                pair.to_owned()
            } else {
                format!("{pair}=")
            }
        }));
        pairs.sort();
        let query = pairs.join("&");
        let canonical = format!(
            "{method}\n{path}\n{query}\nhost:{}\n\nhost\nUNSIGNED-PAYLOAD",
            self.address
        );
        let signature = scope.sign("AWS4-HMAC-SHA256", &sha256(canonical.as_bytes()));
        format!("{path}?{query}&X-Amz-Signature={signature}")
    }

    /// Uploads by a form that was signed `age` seconds ago and whose policy expires in `life`
    /// seconds. Of the fields each may be anything.
    pub fn form(&self, bucket: &str, fields: &[(&str, &str)], age: i64, life: i64) -> Answer {
        self.form_with_head("", bucket, fields, age, life)
    }

    /// The same with these lines in its head, too.
    pub fn form_with_head(&self, head: &str, bucket: &str, fields: &[(&str, &str)], age: i64, life: i64) -> Answer {
        let scope = Scope::new(&self.secret, self.time(-age), "s3");
        let end = self.time(life);
        let end = format!(
            "{}-{}-{}T{}:{}:{}.000Z",
            &end[..4],
            &end[4..6],
            &end[6..8],
            &end[9..11],
            &end[11..13],
            &end[13..15]
        );
        let credential = format!("{}/{}", self.id, scope.text());
        let mut all = vec![
            ("x-amz-algorithm", "AWS4-HMAC-SHA256"),
            ("x-amz-credential", credential.as_str()),
            ("x-amz-date", scope.time.as_str()),
        ];
        let conditions: String = fields
            .iter()
            .map(|(name, _)| format!(r#",["starts-with","${name}",""]"#))
            .collect();
        let signed: String = all
            .iter()
            .map(|(name, value)| format!(r#",{{"{name}":"{value}"}}"#))
            .collect();
        let policy = format!(r#"{{"expiration":"{end}","conditions":[{{"bucket":"{bucket}"}}{signed}{conditions}]}}"#);
        let policy = base64(policy.as_bytes());
        let signature = hex(hmac(&scope.key, &policy));
        all.extend([("policy", policy.as_str()), ("x-amz-signature", signature.as_str())]);
        all.extend(fields);
        post_form_with_head(&self.address, head, bucket, &all)
    }

    /// Sends a signed request, and reads the answer.
    pub fn exchange(&self, request: &Signed) -> Answer {
        raw(&self.address, &[request.head.as_bytes(), &request.body].concat())
    }
}

/// What S3 takes only with a digest of its body.
const WITH_DIGEST: [&str; 5] = ["delete", "lifecycle", "legal-hold", "object-lock", "retention"];

/// The digest of a body that needs one, as clients send it, if nothing else is given.
pub fn digest(target: &str, headers: &[(&str, &str)], body: &[u8]) -> Option<(String, String)> {
    let (_, query) = target.split_once('?')?;
    let mut names = query.split('&').map(|pair| pair.split('=').next().unwrap());
    let is_given = |(name, _): &(&str, &str)| *name == "content-md5" || name.starts_with("x-amz-checksum-");
    let is_needed = !body.is_empty() && names.any(|name| WITH_DIGEST.contains(&name));
    (is_needed && !headers.iter().any(is_given)).then(|| {
        let md5 = STANDARD.encode(terrace_objects::digest::md5(body));
        ("content-md5".to_owned(), md5)
    })
}

/// Posts a form with these fields and a file.
pub fn post_form(address: &str, bucket: &str, fields: &[(&str, &str)]) -> Answer {
    post_form_with_head(address, "", bucket, fields)
}

fn post_form_with_head(address: &str, more: &str, bucket: &str, fields: &[(&str, &str)]) -> Answer {
    let start = "--x\r\nContent-Disposition: form-data; name=";
    let fields: String = fields
        .iter()
        .map(|(name, value)| format!("{start}\"{name}\"\r\n\r\n{value}\r\n"))
        .collect();
    let body = format!("{fields}{start}\"file\"; filename=\"f\"\r\n\r\nfile\r\n--x--\r\n");
    let head = format!(
        "POST /{bucket} HTTP/1.1\r\nHost: {address}\r\n{more}Content-Type: multipart/form-data; boundary=x\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    raw(address, format!("{head}{body}").as_bytes())
}

/// Sends bytes as they are, and reads the answer.
pub fn raw(address: &str, request: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
    // A server that refuses closes before it has read everything.
    let _ = stream.write_all(request);
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    Answer::parse(&bytes)
}

fn chunked(scope: &Scope, body: &[u8], seed: &str, mode: Mode) -> Vec<u8> {
    let mut out = Vec::new();
    let mut last = seed.to_owned();
    let is_signed = mode != Mode::UnsignedWithTrailer;
    let is_plain = matches!(mode, Mode::Chunks | Mode::OneChunk);
    let chunk_bytes = if mode == Mode::OneChunk {
        body.len()
    } else {
        CHUNK_BYTES
    };
    for chunk in body.chunks(chunk_bytes).chain([&b""[..]]) {
        let _ = write!(out, "{:x}", chunk.len());
        if is_signed {
            let rest = format!("{last}\n{}\n{}", sha256(b""), sha256(chunk));
            last = scope.sign("AWS4-HMAC-SHA256-PAYLOAD", &rest);
            let _ = write!(out, ";chunk-signature={last}");
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(chunk);
        if !chunk.is_empty() || is_plain {
            out.extend_from_slice(b"\r\n");
        }
    }
    if !is_plain {
        let checksum = base64(&crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, body).to_be_bytes()[4..]);
        let line = format!("x-amz-checksum-crc32c:{checksum}");
        let _ = write!(out, "{line}\r\n");
        if is_signed {
            let signature = scope.sign(
                "AWS4-HMAC-SHA256-TRAILER",
                &format!("{last}\n{}", sha256(format!("{line}\n").as_bytes())),
            );
            let _ = write!(out, "x-amz-trailer-signature:{signature}\r\n");
        }
        out.extend_from_slice(b"\r\n");
    }
    out
}

fn base64(bytes: &[u8]) -> String {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    STANDARD.encode(bytes)
}
