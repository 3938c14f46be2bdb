//! The head of a request, parsed once when it arrives.
//!
//! All later code asks this: the resource, the signature, the query. No check parses path or query
//! itself, so no two checks can understand a request differently. `s3s` parses the head once more,
//! by the same rules.

use super::{
    access::Domains,
    errors,
    refuse::is_subresource,
    signature,
    version_2::{self, Version2},
};
use crate::http::{ranges::Ranges, tls::TlsVersion};
use hyper::{
    HeaderMap, Method, StatusCode, Uri, Version,
    header::{self, HeaderName, HeaderValue},
    http::{Extensions, request::Parts},
};
use s3s::{
    S3Error, S3ErrorCode, S3Result,
    dto::{Range, Timestamp, TimestampFormat},
    s3_error,
};
use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::SystemTime,
};
use terrace::Clock;
use terrace_objects::{record::METADATA_PREFIX, text::percent_decode_path};

/// Most names in a query. No operation needs a quarter of it; each costs some hundred bytes while
/// the request exists, and may be two bytes long.
const QUERY_NAMES_MAX: usize = 128;
/// Longest value of a header or in a query: longer than any with an effect, and S3's limit for all
/// headers of a request that stores something. Cookies, which are ignored, may be longer.
const VALUE_BYTES_MAX: usize = 8 << 10;
/// States that the caller pays.
const PAYER: &str = "x-amz-request-payer";
/// The media type of a form with a file.
const FORM: &str = "multipart/form-data";
/// The media type of the body of a call of STS.
const CALL: &str = "application/x-www-form-urlencoded";

/// The other end of a request's connection.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    /// Its address.
    pub address: Option<IpAddr>,
    /// The connection is encrypted.
    pub is_secure: bool,
    /// The version of TLS, if known.
    pub tls: Option<TlsVersion>,
    /// The request's number.
    pub number: u64,
    /// When it arrived, by the store's clock, in milliseconds since 1970.
    pub arrived_ms: u64,
}

impl Peer {
    /// The same as a time.
    pub fn arrived(&self) -> SystemTime {
        Clock::of_ms(self.arrived_ms)
    }
}

/// Domains below which hosts name buckets.
#[derive(Clone, Copy)]
pub struct Hosts<'a> {
    /// For S3.
    pub buckets: &'a Domains,
    /// For web sites.
    pub sites: &'a Domains,
}

/// A parsed head.
#[derive(Debug)]
pub struct Head {
    /// Where it came from.
    pub peer: Peer,
    /// Its method.
    pub method: Method,
    /// The target as received.
    pub uri: Uri,
    /// The version of HTTP.
    pub version: Version,
    /// The bucket named by its host.
    of_host: Option<String>,
    /// It is for that bucket's web site.
    pub is_site: bool,
    /// The decoded path, if it differs from the received one; empty if it is not valid.
    decoded: Option<String>,
    /// The decoded names and values of its query, in order.
    pub query: Vec<(String, String)>,
    /// Its body is a form with a file.
    pub is_form: bool,
    /// It is a call of STS.
    pub is_call: bool,
    /// Its body is XML and not a form: of a subresource, a POST, or a new bucket.
    pub is_xml: bool,
    /// Its query names a subresource.
    pub has_subresource: bool,
    /// Announced length of its body.
    pub content_length: Option<u64>,
    /// It is signed in the header.
    pub is_signed_in_header: bool,
    /// It is signed in the query.
    pub is_signed_in_query: bool,
    /// It is signed by version 2.
    pub version_2: Option<Version2>,
    /// It agrees to pay.
    pub pays: bool,
    /// The ranges, if there are several, or one that `s3s` does not read: it ends beyond 2^63.
    pub ranges: Option<Ranges>,
}

impl Head {
    /// Parses a head, joins lines of metadata, and removes headers that only this code reads. The
    /// second result is an error for repeated or too long values.
    pub fn read(parts: &mut Parts, peer: Peer, hosts: Hosts<'_>) -> (Arc<Self>, S3Result) {
        join_metadata(&mut parts.headers);
        let (path, query) = (parts.uri.path(), parts.uri.query());
        let pairs = form_urlencoded::parse(query.unwrap_or("").as_bytes()).into_owned();
        let mut pairs: Vec<_> = pairs.take(QUERY_NAMES_MAX + 1).collect();
        let mut clear = signature::refuse_repeated(&parts.headers, &pairs)
            .and_then(|()| refuse_many(&pairs))
            .and_then(|()| refuse_long(&parts.headers, &pairs));
        pairs.truncate(QUERY_NAMES_MAX);
        let version_2 = Version2::of(&parts.headers, &pairs);
        let has = |name: &str| pairs.iter().any(|(known, _)| known == name);
        let is_presigned = has("X-Amz-Signature") || has("X-Amz-Algorithm") || version_2::is_in_query(&pairs);
        let is_post = parts.method == Method::POST;
        let kind = text(&parts.headers, header::CONTENT_TYPE);
        let is_form = is_post && kind.is_some_and(|kind| begins(kind.trim_start(), FORM));
        // A form's signature is in its fields.
        if is_presigned && !is_form {
            clear = clear.and_then(|()| signature::take_out(&pairs, &mut parts.headers));
        }
        let text = |name| text(&parts.headers, name);
        let host = text(header::HOST);
        let site = host.and_then(|host| hosts.sites.bucket(host));
        let of_host = site.or_else(|| hosts.buckets.bucket(host?)).map(str::to_owned);
        let kind = text(header::CONTENT_TYPE).unwrap_or("").trim_start();
        let is_root = path == "/" && query.is_none() && of_host.is_none();
        let has_subresource = pairs.iter().any(|(name, _)| is_subresource(name));
        let authorization = parts.headers.get(header::AUTHORIZATION);
        let mut head = Self {
            peer,
            method: parts.method.clone(),
            uri: parts.uri.clone(),
            version: parts.version,
            is_site: site.is_some(),
            decoded: path
                .contains('%')
                .then(|| percent_decode_path(path).unwrap_or_default()),
            is_form,
            is_call: is_post && is_root && kind.split(';').next().is_some_and(|kind| is(kind, CALL)),
            is_xml: is_post || has_subresource,
            has_subresource,
            content_length: text(header::CONTENT_LENGTH).and_then(|length| length.parse().ok()),
            // A value that is not text is refused later as a malformed signature. An empty one is
            // ignored.
            is_signed_in_header: authorization.is_some_and(|value| !value.as_bytes().trim_ascii().is_empty()),
            is_signed_in_query: is_presigned,
            version_2,
            pays: pays(&parts.headers, &pairs),
            ranges: None,
            query: pairs,
            of_host,
        };
        head.is_xml |= head.method == Method::PUT && !head.is_of_object();
        head.take_out(&mut parts.headers);
        (Arc::new(head), clear)
    }

    /// The sender to which its memory and connections count.
    pub fn sender(&self) -> IpAddr {
        self.peer.address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    }

    /// The head of a request with these extensions.
    ///
    /// # Errors
    /// `InternalError` if there is none, which cannot happen.
    pub fn of(extensions: &Extensions) -> S3Result<&Arc<Self>> {
        extensions.get().ok_or_else(|| S3ErrorCode::InternalError.into())
    }

    /// Removes headers without an effect, since `s3s` would refuse them: [`idle`] ones, and an
    /// empty `Authorization`. Several ranges are removed too, since S3 never sends several; a
    /// browser or a player, which does not sign, gets them. One that `s3s` does not read is kept
    /// for any request. Headers covered by a signature stay until it has been verified
    /// ([`super::verified::take_out_idle`]).
    fn take_out(&mut self, headers: &mut HeaderMap) {
        let idle: Vec<_> = idle(headers).collect();
        if idle.contains(&header::RANGE) {
            let may_be_many = self.method == Method::GET && !self.is_signed();
            let ranges = text(headers, header::RANGE).and_then(Ranges::parse);
            self.ranges = ranges.filter(|ranges| may_be_many || !ranges.are_many());
        }
        let is_covered = self.is_signed_in_header && self.version_2.is_none();
        for name in idle.into_iter().filter(|_| !is_covered) {
            headers.remove(name);
        }
        if !self.is_signed_in_header {
            headers.remove(header::AUTHORIZATION);
        }
    }

    /// Whether it has a signature.
    pub const fn is_signed(&self) -> bool {
        self.is_signed_in_header || self.is_signed_in_query
    }

    /// Whether it is signed by version 4.
    pub const fn is_of_version_4(&self) -> bool {
        self.is_signed() && self.version_2.is_none()
    }

    /// Its decoded path. `None` if it is not valid.
    pub fn path(&self) -> Option<&str> {
        let path = self.decoded.as_deref().unwrap_or_else(|| self.uri.path());
        Some(path).filter(|path| !path.is_empty())
    }

    /// Whether its path is in canonical form.
    pub const fn is_path_plain(&self) -> bool {
        self.decoded.is_none()
    }

    /// Its bucket and key; the key is empty if it concerns the bucket.
    pub fn place(&self) -> Option<(&str, &str)> {
        place(self.of_host.as_deref(), self.path()?)
    }

    /// Its bucket.
    pub fn bucket(&self) -> Option<&str> {
        self.place().map(|(bucket, _)| bucket)
    }

    /// Its host names the bucket.
    pub const fn is_of_host(&self) -> bool {
        self.of_host.is_some()
    }

    /// Whether it concerns an object.
    pub fn is_of_object(&self) -> bool {
        self.place().is_some_and(|(_, key)| !key.is_empty())
    }

    /// The key as received.
    pub fn raw_key(&self) -> &str {
        let raw = place(self.of_host.as_deref(), self.uri.path());
        // The slash before it may be encoded too.
        let raw = raw.filter(|(_, key)| !key.is_empty()).or_else(|| self.place());
        raw.map_or("", |(_, key)| key)
    }

    /// The first value of this name in its query.
    pub fn value(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Whether its query has a name.
    pub fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// Its query as received, without signature parameters.
    pub fn shown_query(&self) -> String {
        let came = self
            .uri
            .query()
            .unwrap_or("")
            .split('&')
            .filter(|pair| !pair.is_empty());
        // By the decoded names: `X%2DAmz-Signature` is one too.
        let shown = came
            .zip(&self.query)
            .filter(|(_, (name, _))| !signature::is_of_signature(name))
            .map(|(pair, _)| pair);
        shown.collect::<Vec<_>>().join("&")
    }
}

/// Joins lines of metadata with the same name: their values with commas, in order, as S3 stores
/// them, and as both versions of signatures cover them. `s3s` refuses such lines.
fn join_metadata(headers: &mut HeaderMap) {
    if headers.len() == headers.keys_len() {
        return;
    }
    let is_metadata = |name: &&HeaderName| name.as_str().starts_with(METADATA_PREFIX);
    let is_repeated = |name: &&HeaderName| headers.get_all(*name).iter().count() > 1;
    let names = headers.keys().filter(is_metadata).filter(is_repeated);
    for name in names.cloned().collect::<Vec<_>>() {
        let values = headers.get_all(&name).iter();
        let values: Vec<_> = values.map(|value| value.as_bytes().trim_ascii()).collect();
        // What is valid in parts is valid joined.
        if let Ok(joined) = HeaderValue::from_bytes(&values.join(&b","[..])) {
            headers.insert(name, joined);
        }
    }
}

fn place<'a>(of_host: Option<&'a str>, path: &'a str) -> Option<(&'a str, &'a str)> {
    let path = path.strip_prefix('/')?;
    match of_host {
        Some(bucket) => Some((bucket, path)),
        None if path.is_empty() => None,
        None => Some(path.split_once('/').unwrap_or((path, ""))),
    }
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok())
}

fn is(kind: &str, name: &str) -> bool {
    kind.trim().eq_ignore_ascii_case(name)
}

/// Whether a text has a prefix, ignoring case.
pub fn begins(text: &str, with: &str) -> bool {
    text.get(..with.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(with))
}

/// Whether a request agrees to pay, in its headers or in a presigned URL.
fn pays(headers: &HeaderMap, query: &[(String, String)]) -> bool {
    let in_query = query.iter().find(|(name, _)| name == PAYER);
    let said = headers.get(PAYER).map(HeaderValue::as_bytes);
    said.or_else(|| in_query.map(|(_, value)| value.as_bytes())) == Some(&b"requester"[..])
}

fn refuse_many(query: &[(String, String)]) -> S3Result {
    if query.len() > QUERY_NAMES_MAX {
        return Err(s3_error!(
            InvalidArgument,
            "The query has more than {QUERY_NAMES_MAX} names."
        ));
    }
    Ok(())
}

/// Refuses values longer than any with an effect, since policies compare them.
fn refuse_long(headers: &HeaderMap, query: &[(String, String)]) -> S3Result {
    let is_long =
        |(name, value): (&header::HeaderName, &HeaderValue)| value.len() > VALUE_BYTES_MAX && name != header::COOKIE;
    if headers.iter().any(is_long) || query.iter().any(|(_, value)| value.len() > VALUE_BYTES_MAX) {
        return Err(long_head());
    }
    Ok(())
}

/// A head is longer than it may be.
pub fn long_head() -> S3Error {
    errors::custom(
        "RequestHeaderSectionTooLarge",
        StatusCode::BAD_REQUEST,
        "Your request header section exceeds the maximum allowed size.",
    )
}

/// Names of headers that `s3s` must not see. They are ignored because they are malformed: ranges,
/// and dates in conditions (RFC 9110, sections 14.2, 13.1.3 and 13.1.4), as in S3; but for ranges
/// that only `s3s` does not read.
pub fn idle(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> {
    let is_date = |text: &str| Timestamp::parse(TimestampFormat::HttpDate, text).is_ok();
    // `s3s` reads a missing number as 0.
    let is_range = |text: &str| text != "bytes=-" && Range::parse(text).is_ok();
    let is_idle = move |name: &HeaderName| {
        let is_plain = |text: &str| {
            if name == header::RANGE {
                is_range(text)
            } else {
                is_date(text)
            }
        };
        text(headers, name.clone()).is_some_and(|text| !is_plain(text))
    };
    [header::RANGE, header::IF_MODIFIED_SINCE, header::IF_UNMODIFIED_SINCE]
        .into_iter()
        .filter(is_idle)
}

/// Parses a head as of a server at `s3.example.net`, with web sites below `example.org`: for tests
/// and fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub fn read_at_example(parts: &mut Parts) -> (Arc<Head>, S3Result) {
    let domains = |name: &str| Domains(vec![name.to_owned()]);
    let hosts = Hosts {
        buckets: &domains("s3.example.net"),
        sites: &domains("example.org"),
    };
    let peer = Peer {
        address: Some([192, 0, 2, 3].into()),
        is_secure: false,
        tls: None,
        number: 0x1F,
        arrived_ms: terrace::Clock::default().now_ms(),
    };
    Head::read(parts, peer, hosts)
}

#[cfg(test)]
pub mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use hyper::Request;

    /// A head parsed at `s3.example.net`, the remaining headers, and the error.
    pub fn head(method: &str, uri: &str, headers: &[(&str, &str)]) -> (Arc<Head>, HeaderMap, S3Result) {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        let (head, clear) = read_at_example(&mut parts);
        (head, parts.headers, clear)
    }

    /// Regression: the resource of a request was parsed in five ways, from the raw path, with and
    /// without the host. A bucket written with a percent sign was not logged, and a part without
    /// its upload was put as an object if the host named the bucket.
    #[test]
    fn what_it_is_about_is_what_s3s_takes_it_for() {
        for (host, path, raw_key) in [
            ("localhost", "/", ""),
            ("localhost", "/bucket", ""),
            ("localhost", "/bucket/", ""),
            ("localhost", "/bucket/a/b", "a/b"),
            ("localhost", "/bucket//b", "/b"),
            ("localhost", "/b%75cket/a%20b+c", "a%20b+c"),
            ("localhost", "/bucket%2Fkey", "key"),
            ("bucket.s3.example.net", "/", ""),
            ("bucket.s3.example.net:80", "/key", "key"),
            ("bucket.S3.example.net", "//key", "/key"),
            ("127.0.0.1:80", "/bucket/key", "key"),
        ] {
            let (head, _, clear) = head("GET", path, &[("host", host)]);
            clear.unwrap();
            let domains = Domains(vec!["s3.example.net".to_owned()]);
            let decoded = path.replace("%75", "u").replace("%20", " ").replace("%2F", "/");
            let expected = s3s::path::parse_virtual_hosted_style(domains.bucket(host), &decoded).unwrap();
            assert_eq!(head.bucket(), expected.get_bucket_name(), "{host} {path}");
            assert_eq!(head.is_of_object(), expected.as_object().is_some(), "{host} {path}");
            let key = head.place().map_or("", |(_, key)| key);
            assert_eq!(key, expected.get_object_key().unwrap_or(""), "{host} {path}");
            assert_eq!(head.raw_key(), raw_key, "{host} {path}");
        }
        for path in ["/bucket/%zz", "/bucket/a%2", "/bucket/%ff"] {
            let (head, ..) = head("GET", path, &[]);
            assert_eq!((head.path(), head.place()), (None, None), "{path}");
        }
        let (head, ..) = head("GET", "/a", &[("host", "b.example.org")]);
        assert_eq!((head.is_site, head.place()), (true, Some(("b", "a"))));
    }

    /// The body of a new bucket is XML, however long; that of an object is not.
    #[test]
    fn what_is_xml() {
        for (method, path, is_xml) in [
            ("PUT", "/bucket", true),
            ("PUT", "/bucket/", true),
            ("PUT", "/bucket%2Fkey", false),
            ("PUT", "/bucket/key", false),
            ("PUT", "/bucket/key?tagging", true),
            ("GET", "/bucket", false),
        ] {
            assert_eq!(head(method, path, &[]).0.is_xml, is_xml, "{method} {path}");
        }
    }

    #[test]
    fn queries_are_decoded_once() {
        let query = "/b/k?versionId=a%2Bb+c&&X%2DAmz-Signature=s&x&%58-Amz-Date=1&Signatur%65=t&y=%zz";
        let (head, ..) = head("GET", query, &[]);
        assert_eq!(head.value("versionId"), Some("a+b c"));
        assert_eq!((head.value("x"), head.value("y")), (Some(""), Some("%zz")));
        assert!(head.is_signed_in_query && !head.is_signed_in_header && head.is_signed());
        assert_eq!(head.shown_query(), "versionId=a%2Bb+c&x&y=%zz");
    }

    /// Regression: two bytes make a pair that takes some hundred, so 64 KiB of them took megabytes
    /// while a client delayed its answer.
    #[test]
    fn queries_have_a_bound() {
        let read = |names: usize| head("GET", &format!("/b/k?{}", "a&".repeat(names)), &[]);
        assert!(read(QUERY_NAMES_MAX).2.is_ok());
        let (head, _, clear) = read(30_000);
        assert_eq!(clear.unwrap_err().code().as_str(), "InvalidArgument");
        assert_eq!(head.query.len(), QUERY_NAMES_MAX);
    }

    /// Regression: a policy compared a header of 390,000 bytes with a text of 18,000 in 35 seconds.
    #[test]
    fn values_have_a_bound() {
        let refused = |target: &str, name: &str, bytes: usize| {
            let value = "a".repeat(bytes);
            let outcome = head("GET", target, &[(name, &value)]).2;
            outcome.err().map(|error| error.code().as_str().to_owned())
        };
        assert_eq!(refused("/b/k", "user-agent", VALUE_BYTES_MAX), None);
        let long = Some("RequestHeaderSectionTooLarge".to_owned());
        assert_eq!(refused("/b/k", "user-agent", VALUE_BYTES_MAX + 1), long);
        assert_eq!(refused("/b/k", "x-amz-meta-a", VALUE_BYTES_MAX + 1), long);
        assert_eq!(refused("/b/k", "cookie", 60_000), None);
        let query = |bytes: usize| format!("/b?prefix={}", "a".repeat(bytes));
        assert_eq!(refused(&query(VALUE_BYTES_MAX), "host", 3), None);
        assert_eq!(refused(&query(VALUE_BYTES_MAX + 1), "host", 3), long);
    }

    #[test]
    fn forms_and_calls() {
        let is_form = |method, kind| head(method, "/b", &[("content-type", kind)]).0.is_form;
        assert!(is_form("POST", " Multipart/Form-Data; boundary=x"));
        assert!(!is_form("PUT", "multipart/form-data; boundary=x") && !is_form("POST", "application/xml"));
        let kind = ("content-type", "Application/x-www-form-urlencoded ; charset=utf-8");
        let is_call = |method, uri, host| head(method, uri, &[kind, ("host", host)]).0.is_call;
        assert!(is_call("POST", "/", "localhost"));
        assert!(!is_call("GET", "/", "localhost") && !is_call("POST", "/b", "localhost"));
        assert!(!is_call("POST", "/?x", "localhost") && !is_call("POST", "/", "b.s3.example.net"));
    }

    #[test]
    fn odd_ranges_of_players_are_no_ranges() {
        let left = |method: &str, uri: &str, range: &str| {
            let (head, headers, _) = head(method, uri, &[("range", range)]);
            (headers.contains_key("range"), head.ranges.is_some())
        };
        for kept in ["bytes=0-1", "bytes=5-", "bytes=-5"] {
            assert_eq!(left("GET", "/b/k", kept), (true, false), "{kept}");
        }
        for dropped in ["bytes=x", "lines=1-2", "bytes=3-2"] {
            assert_eq!(left("GET", "/b/k", dropped), (false, false), "{dropped}");
        }
        assert_eq!(left("GET", "/b/k", "bytes=0-1,4-5"), (false, true));
        assert_eq!(left("HEAD", "/b/k", "bytes=0-1,4-5"), (false, false));
        assert_eq!(left("GET", "/b/k?X-Amz-Signature=0", "bytes=0-1,4-5"), (false, false));
        let (head, headers, _) = head("GET", "/b/k", &[("authorization", " ")]);
        assert!(!head.is_signed() && !headers.contains_key("authorization"));
        let signed = [("authorization", "AWS4-HMAC-SHA256"), ("range", "bytes=x")];
        let (head, headers, _) = self::head("GET", "/b/k", &signed);
        assert!(head.is_signed() && headers.contains_key("range"));
    }
}
