//! Lines of logs, as S3 writes them ("Amazon S3 server access log format" in its guide).

use crate::{
    http::tls::TlsVersion,
    s3::{access_log, account::canonical_id, bucket::Bucket, front::number_text, ops::listings::Encoding},
};
use hyper::{HeaderMap, Response, StatusCode, Version, header};
use parking_lot::Mutex;
use s3s::{Body, S3Error};
use std::{sync::Arc, time::SystemTime};
use terrace::Clock;

/// Longest field of free length: address, user agent, referrer.
const FIELD_BYTES_MAX: usize = 2 << 10;

/// Data of a request for a log, in addition to the fields of the access log.
#[derive(Debug)]
pub struct Logged {
    /// The bucket of the request.
    pub bucket: Arc<Bucket>,
    host: String,
    referer: String,
    error: Option<String>,
    version_id: Option<String>,
    size: Option<u64>,
    each: Each,
}

/// The result for each key of a DeleteObjects, for lines of their own. It is passed to the
/// operation with a request whose bucket has a log.
#[derive(Debug, Clone, Default)]
pub struct Each(Arc<Mutex<Vec<Deleted>>>);

/// A key of a DeleteObjects.
#[derive(Debug)]
struct Deleted {
    key: String,
    status: u16,
    error: Option<String>,
    version_id: Option<String>,
}

impl Each {
    /// Adds a deleted key, and the version that was deleted or that is its delete marker.
    pub fn done(&self, key: &str, version_id: Option<String>) {
        self.add(key, StatusCode::NO_CONTENT, None, version_id);
    }

    /// Adds a key that was not deleted.
    pub fn failed(&self, key: &str, error: &S3Error) {
        let status = error.status_code().unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        self.add(key, status, Some(error.code().as_str().to_owned()), None);
    }

    fn add(&self, key: &str, status: StatusCode, error: Option<String>, version_id: Option<String>) {
        self.0.lock().push(Deleted {
            // Encoded as in paths.
            key: Encoding::URL.apply(key),
            status: status.as_u16(),
            error,
            version_id,
        });
    }
}

impl Logged {
    /// The line of a request with these headers to a bucket.
    pub fn of(headers: &HeaderMap, bucket: Arc<Bucket>) -> Self {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        Self {
            bucket,
            host: text(header::HOST).unwrap_or("").to_owned(),
            referer: text(header::REFERER).unwrap_or("").to_owned(),
            error: None,
            version_id: None,
            size: None,
            each: Each::default(),
        }
    }

    /// Receives the result for each key.
    pub fn each(&self) -> Each {
        self.each.clone()
    }

    /// Takes fields from the answer.
    pub fn answered(&mut self, response: &Response<Body>) {
        let text = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        self.version_id = text("x-amz-version-id").map(str::to_owned);
        let of_range = || text("content-range")?.rsplit_once('/')?.1.parse().ok();
        let of_all = || text("content-length")?.parse().ok();
        let status = response.status();
        if status.is_success() {
            self.size = of_range().or_else(of_all);
        } else if status.is_client_error() || status.is_server_error() {
            let in_head = text("x-amz-error-code").map(str::to_owned);
            self.error = in_head.or_else(|| code(&response.body().bytes()?));
        }
    }
}

/// The code in the XML of an error.
fn code(xml: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(xml).ok()?;
    let (_, rest) = text.split_once("<Code>")?;
    Some(rest.split_once("</Code>")?.0.to_owned())
}

/// A finished request.
pub struct Entry<'a> {
    /// The fields of the access log.
    pub of_all: access_log::Entry<'a>,
    /// The additional fields.
    pub logged: &'a Logged,
    /// The account of the key it was signed with.
    pub account: Option<&'a str>,
}

impl Entry<'_> {
    /// Its line, and those of its deleted keys.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let each = std::mem::take(&mut *self.logged.each.0.lock());
        let of_keys = each.into_iter().map(|deleted| self.line_of(&deleted));
        std::iter::once(self.line()).chain(of_keys)
    }

    /// The first fields of a request's lines: up to its number.
    fn beginning(&self) -> [String; 6] {
        let requester = self.of_all.key.zip(self.account).map_or_else(
            || "-".to_owned(),
            |(key, account)| format!("arn:aws:iam::{account}:user/{key}"),
        );
        [
            canonical_id(self.logged.bucket.record().owner()),
            bare(&self.logged.bucket.name),
            format!("[{}]", clf_time(self.of_all.time)),
            bare(&self.of_all.peer()),
            requester,
            number_text(self.of_all.head.peer.number),
        ]
    }

    /// The last fields: from the host ID on.
    fn end(&self) -> [String; 8] {
        let head = self.of_all.head;
        let version = if head.version_2.is_some() { "SigV2" } else { "SigV4" };
        let (signature, authentication) = match (self.of_all.key, head.is_signed_in_query) {
            (None, _) => ("-", "-"),
            (Some(_), true) => (version, "QueryString"),
            (Some(_), false) => (version, "AuthHeader"),
        };
        let tls = head.peer.tls;
        [
            // There are no host IDs; the version of signatures is followed by the cipher of the
            // connection.
            "-".to_owned(),
            signature.to_owned(),
            "-".to_owned(),
            authentication.to_owned(),
            bare(&self.logged.host),
            tls.map_or_else(|| "-".to_owned(), |TlsVersion(version)| format!("TLSv{version}")),
            // Access point; whether an access control list was needed.
            "-".to_owned(),
            "-".to_owned(),
        ]
    }

    /// The line of a key that was or was not deleted, without the fields of the whole request.
    fn line_of(&self, deleted: &Deleted) -> String {
        let none = || "-".to_owned();
        let fields = [
            "BATCH.DELETE.OBJECT".to_owned(),
            bare(&deleted.key),
            none(),
            deleted.status.to_string(),
            bare(deleted.error.as_deref().unwrap_or("")),
            // Bytes, size, both times, referrer, user agent.
            none(),
            none(),
            none(),
            none(),
            none(),
            none(),
            bare(deleted.version_id.as_deref().unwrap_or("")),
        ];
        self.joined(fields)
    }

    fn joined(&self, own: [String; 12]) -> String {
        let all: Vec<_> = self.beginning().into_iter().chain(own).chain(self.end()).collect();
        format!("{}\n", all.join(" "))
    }

    /// The request's own line.
    fn line(&self) -> String {
        let Self { of_all, logged, .. } = self;
        let head = of_all.head;
        let (method, key, has_key) = (head.method.as_str(), head.raw_key(), head.is_of_object());
        let size = match method {
            "PUT" | "POST" if has_key => Some(of_all.received),
            "GET" | "HEAD" if has_key => logged.size,
            _ => None,
        };
        let query = head.shown_query();
        let mark = if query.is_empty() { "" } else { "?" };
        let uri = format!("{}{mark}{query}", head.uri.path());
        let version = if head.version == Version::HTTP_10 {
            "HTTP/1.0"
        } else {
            "HTTP/1.1"
        };
        let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let fields = [
            operation(of_all.operation, method, has_key),
            bare(key),
            format!("\"{method} {} {version}\"", safe(&uri)),
            number(Some(u64::from(of_all.status)).filter(|status| *status > 0)),
            bare(logged.error.as_deref().unwrap_or("")),
            number(Some(of_all.sent).filter(|bytes| *bytes > 0)),
            number(size),
            number(u64::try_from(of_all.until_end.as_millis()).ok()),
            number(u64::try_from(of_all.until_head.as_millis()).ok()),
            quoted(&logged.referer),
            quoted(of_all.agent.unwrap_or("")),
            bare(logged.version_id.as_deref().unwrap_or("")),
        ];
        self.joined(fields)
    }
}

/// Printable ASCII without quotes and of bounded length, so that a client cannot begin another
/// field or line.
fn safe(text: &str) -> String {
    let end = text.floor_char_boundary(FIELD_BYTES_MAX);
    let mut out = String::with_capacity(end);
    for byte in text[..end].bytes() {
        match byte {
            b'"' | 0..b' ' | 0x7f.. => out.push_str(&format!("%{byte:02X}")),
            byte => out.push(char::from(byte)),
        }
    }
    out
}

/// The same in quotes.
fn quoted(text: &str) -> String {
    format!("\"{}\"", or_dash(safe(text)))
}

/// The same without spaces.
fn bare(text: &str) -> String {
    or_dash(safe(text).replace(' ', "%20"))
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

/// `06/Feb/2019:00:00:38 +0000`
fn clf_time(time: SystemTime) -> String {
    // `Wed, 06 Feb 2019 00:00:38 GMT`
    let text = httpdate::fmt_http_date(Clock::dated(time));
    let parts: Vec<_> = text.split(' ').collect();
    match parts.as_slice() {
        [_, day, month, year, time, _] => format!("{day}/{month}/{year}:{time} +0000"),
        _ => text,
    }
}

/// The name of an operation in logs.
fn operation(name: &str, method: &str, has_key: bool) -> String {
    if let Some(rest) = name.strip_prefix("Website") {
        return format!("WEBSITE.{method}.{}", or_dash(rest.to_ascii_uppercase()));
    }
    let (method, resource) = match name {
        "CopyObject" => ("COPY", "OBJECT"),
        "UploadPartCopy" => ("COPY", "PART"),
        "UploadPart" => (method, "PART"),
        "CreateMultipartUpload" | "ListMultipartUploads" => (method, "UPLOADS"),
        "CompleteMultipartUpload" | "AbortMultipartUpload" | "ListParts" => (method, "UPLOAD"),
        "DeleteObjects" => (method, "MULTI_OBJECT_DELETE"),
        "ListObjectVersions" => (method, "BUCKETVERSIONS"),
        "GetObjectAttributes" => (method, "OBJECT_ATTRIBUTES"),
        "GetBucketAcl" | "PutBucketAcl" | "GetObjectAcl" | "PutObjectAcl" => (method, "ACL"),
        "GetObjectTagging" | "PutObjectTagging" | "DeleteObjectTagging" => (method, "OBJECT_TAGGING"),
        "GetObjectRetention" | "PutObjectRetention" => (method, "OBJECT_LOCK_RETENTION"),
        "GetObjectLegalHold" | "PutObjectLegalHold" => (method, "OBJECT_LOCK_LEGALHOLD"),
        "GetObjectLockConfiguration" | "PutObjectLockConfiguration" => (method, "OBJECT_LOCK_CONFIGURATION"),
        "GetBucketLocation" => (method, "LOCATION"),
        "GetBucketPolicyStatus" => (method, "POLICY_STATUS"),
        "GetBucketPolicy" | "PutBucketPolicy" | "DeleteBucketPolicy" => (method, "BUCKETPOLICY"),
        "GetPublicAccessBlock" | "PutPublicAccessBlock" | "DeletePublicAccessBlock" => (method, "PUBLIC_ACCESS_BLOCK"),
        "GetBucketOwnershipControls" | "PutBucketOwnershipControls" | "DeleteBucketOwnershipControls" => {
            (method, "OWNERSHIP_CONTROLS")
        }
        "GetBucketLogging" | "PutBucketLogging" => (method, "LOGGING_STATUS"),
        "GetBucketNotificationConfiguration" | "PutBucketNotificationConfiguration" => (method, "NOTIFICATION"),
        "GetBucketLifecycleConfiguration" | "PutBucketLifecycleConfiguration" | "DeleteBucketLifecycle" => {
            (method, "LIFECYCLE")
        }
        "none" if method == "OPTIONS" => (method, "PREFLIGHT"),
        other => {
            let bare = ["GetBucket", "PutBucket", "DeleteBucket"]
                .iter()
                .find_map(|start| other.strip_prefix(start));
            match bare {
                Some(rest) if !rest.is_empty() => return format!("REST.{method}.{}", rest.to_ascii_uppercase()),
                _ => (method, if has_key { "OBJECT" } else { "BUCKET" }),
            }
        }
    };
    format!("REST.{method}.{resource}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::s3::{bucket::Record, head::tests::head};
    use std::time::Duration;

    fn of_all(head: &crate::s3::head::Head) -> access_log::Entry<'_> {
        access_log::Entry {
            head,
            time: SystemTime::UNIX_EPOCH + Duration::from_secs(1_549_411_238),
            key: Some("TRCE1"),
            operation: "GetObject",
            agent: Some("curl/8\n"),
            status: 206,
            received: 0,
            sent: 2,
            is_complete: true,
            until_head: Duration::from_millis(3),
            until_end: Duration::from_millis(7),
        }
    }

    #[test]
    fn a_line_has_all_fields_and_clients_cannot_add_one() {
        let bucket = Arc::new(Bucket::apart("photos".to_owned(), Record::default()));
        let uri = "/photos/a%20b?versionId=null&X-Amz-Signature=secret&X%2DAmz-Credential=x";
        let said = [("host", "localhost:7071"), ("referer", "http://x/\" \"-")];
        let (of_object, headers, _) = head("GET", uri, &said);
        let mut logged = Logged::of(&headers, Arc::clone(&bucket));
        let answer = Response::builder()
            .header("content-range", "bytes 0-1/70")
            .header("x-amz-version-id", "null");
        logged.answered(&answer.status(206).body(Body::empty()).unwrap());
        let of_all = of_all(&of_object);
        let entry = Entry {
            of_all: of_all.clone(),
            logged: &logged,
            account: Some("terrace"),
        };
        let expected = "terrace photos [06/Feb/2019:00:00:38 +0000] 192.0.2.3 arn:aws:iam::terrace:user/TRCE1 \
            000000000000001F REST.GET.OBJECT a%20b \"GET /photos/a%20b?versionId=null HTTP/1.1\" 206 - 2 70 7 3 \
            \"http://x/%22 %22-\" \"curl/8%0A\" null - SigV4 - QueryString localhost:7071 - - -\n";
        assert_eq!(entry.line(), expected);
        // Names cannot add a field either, and keys are encoded once.
        let each = logged.each();
        each.done("a b\"\nc/é", None);
        each.failed("k", &s3s::s3_error!(AccessDenied, "Access Denied"));
        let lines: Vec<_> = entry.lines().skip(1).collect();
        let begins = "terrace photos [06/Feb/2019:00:00:38 +0000] 192.0.2.3 arn:aws:iam::terrace:user/TRCE1 \
            000000000000001F BATCH.DELETE.OBJECT ";
        let ends = " - SigV4 - QueryString localhost:7071 - - -\n";
        assert_eq!(
            lines,
            [
                format!("{begins}a%20b%22%0Ac/%C3%A9 - 204 - - - - - - - -{ends}"),
                format!("{begins}k - 403 AccessDenied - - - - - - -{ends}"),
            ]
        );
        assert_eq!(entry.lines().count(), 1);
        let (of_bucket, headers, _) = head("GET", "/photos", &[]);
        let mut failed = Logged::of(&headers, bucket);
        let xml = Body::from("<Error><Code>NoSuchKey</Code></Error>".to_owned());
        failed.answered(&Response::builder().status(404).body(xml).unwrap());
        let of_all = access_log::Entry {
            head: &of_bucket,
            key: None,
            agent: None,
            status: 404,
            ..of_all
        };
        let anonymous = Entry {
            of_all,
            logged: &failed,
            account: None,
        };
        assert!(
            anonymous.line().contains(" - 000000000000001F REST.GET.BUCKET - "),
            "{}",
            anonymous.line()
        );
        assert!(anonymous.line().contains(" 404 NoSuchKey "), "{}", anonymous.line());
    }

    #[test]
    fn operations_have_names() {
        for (name, method, has_key, expected) in [
            ("ListObjectsV2", "GET", false, "REST.GET.BUCKET"),
            ("PutObject", "PUT", true, "REST.PUT.OBJECT"),
            ("CopyObject", "PUT", true, "REST.COPY.OBJECT"),
            ("DeleteBucketPolicy", "DELETE", false, "REST.DELETE.BUCKETPOLICY"),
            ("GetBucketVersioning", "GET", false, "REST.GET.VERSIONING"),
            ("DeleteBucket", "DELETE", false, "REST.DELETE.BUCKET"),
            ("none", "OPTIONS", true, "REST.OPTIONS.PREFLIGHT"),
            ("none", "GET", true, "REST.GET.OBJECT"),
            ("WebsiteObject", "GET", true, "WEBSITE.GET.OBJECT"),
        ] {
            assert_eq!(operation(name, method, has_key), expected, "{name}");
        }
    }
}
