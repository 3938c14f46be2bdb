//! Parses the fields of a form before `s3s`, and writes them again for it.
//!
//! S3 replaces `${filename}` by the file's name before it checks the policy, so that a condition
//! applies to the resulting key. The name comes after the fields, and `s3s` does not support
//! either. `s3s` gets the head of any form in one canonical form and in one piece, followed by the
//! file's bytes as they arrive: so it sees exactly what is checked here.
//!
//! Signatures are compared here, too: those of version 2 since `s3s` stops at the first difference,
//! those of version 4 since it reads the file first.

use super::{FIELD_BYTES_MAX, FIELDS_BYTES_MAX, FIELDS_MAX, FORM_BYTES_MAX, policy::IGNORED};
use crate::s3::{keyspace, signature};
use axum::body::Body;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use hmac::{Hmac, KeyInit as _, Mac as _};
use hyper::{
    HeaderMap, Uri,
    header::{self, HeaderName, HeaderValue},
};
use multer::{Constraints, Field, Multipart, SizeLimit};
use ring::hmac as mac;
use s3s::{S3Error, S3Result, s3_error};
use sha1::Sha1;

/// Fields that do not become headers.
const NO_HEADERS: [&str; 5] = ["key", "policy", "tagging", "submit", "bucket"];
/// The placeholder of the file's name.
const FILE_NAME: &str = "${filename}";

/// A form whose fields are parsed and whose file is not yet read.
pub struct Form {
    /// Names in lower case, with values.
    fields: Vec<(String, String)>,
    file: Field<'static>,
}

impl Form {
    /// Reads up to the file's first byte.
    ///
    /// # Errors
    /// `MalformedPOSTRequest`, `MaxPostPreDataLengthExceededError`, `InvalidArgument`.
    pub async fn read(headers: &HeaderMap, body: Body) -> S3Result<Self> {
        let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let boundary = multer::parse_boundary(kind.unwrap_or_default()).map_err(malformed)?;
        let limit = SizeLimit::new().whole_stream(FORM_BYTES_MAX);
        let constraints = Constraints::new().size_limit(limit);
        let mut parts = Multipart::with_constraints(body.into_data_stream(), boundary, constraints);
        let mut fields: Vec<(String, String)> = Vec::new();
        let mut bytes = 0;
        while let Some(mut part) = parts.next_field().await.map_err(malformed)? {
            let name = part.name().unwrap_or_default().to_ascii_lowercase();
            if name == "file" {
                expand(&mut fields, part.file_name().unwrap_or_default());
                fields.iter().try_for_each(refuse_unspeakable)?;
                return Ok(Self { fields, file: part });
            }
            let value = value_of(&mut part).await?;
            bytes += name.len() + value.len();
            if bytes > FIELDS_BYTES_MAX || fields.len() == FIELDS_MAX {
                return Err(too_long());
            }
            // Ambiguous names are refused.
            let is_plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"');
            if !is_plain || fields.iter().any(|(known, _)| *known == name) {
                return Err(s3_error!(
                    MalformedPOSTRequest,
                    "The form has a field without a usable name, or one twice: {name:?}"
                ));
            }
            fields.push((name, value));
        }
        Err(s3_error!(
            InvalidArgument,
            "POST requires exactly one file upload per request."
        ))
    }

    /// Its fields, and its file.
    #[cfg(feature = "fuzzing")]
    pub fn into_parts(self) -> (Vec<(String, String)>, Field<'static>) {
        (self.fields, self.file)
    }

    /// The value of a field, whatever the case of its name.
    pub fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// The names of all fields.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|(name, _)| name.as_str())
    }

    /// Whether it has a signature, right or wrong.
    pub fn is_signed(&self) -> bool {
        self.field("x-amz-signature").is_some() || self.field("signature").is_some()
    }

    /// Whether it is one of version 2.
    pub fn is_version_2(&self) -> bool {
        self.is_signed() && self.field("x-amz-signature").is_none()
    }

    /// Checks a signature of version 2 in constant time. `secret` returns the secrets of access
    /// keys. Other forms, and keys that do not exist, are left to `s3s`.
    ///
    /// # Errors
    /// `SignatureDoesNotMatch`
    pub fn check_version_2(&self, secret: impl FnOnce(&str) -> Option<String>) -> S3Result {
        if self.field("x-amz-signature").is_some() {
            return Ok(());
        }
        let (Some(signature), Some(id)) = (self.field("signature"), self.field("awsaccesskeyid")) else {
            return Ok(());
        };
        let Some(secret) = secret(id) else { return Ok(()) };
        let policy = self.field("policy").unwrap_or_default();
        let is_right = Hmac::<Sha1>::new_from_slice(secret.as_bytes()).is_ok_and(|mut mac| {
            mac.update(policy.as_bytes());
            STANDARD
                .decode(signature)
                .is_ok_and(|signature| mac.verify_slice(&signature).is_ok())
        });
        if is_right { Ok(()) } else { Err(wrong_signature()) }
    }

    /// Checks a signature of version 4 before any byte of the file is read: an unsigned form gets
    /// no memory. Credential and policy are checked by `s3s`.
    ///
    /// # Errors
    /// `SignatureDoesNotMatch`; `InvalidAccessKeyId`; `AccessDenied` if there is no signature at
    /// all.
    pub fn check_version_4(&self, secret: impl FnOnce(&str) -> Option<String>) -> S3Result {
        let Some(tag) = self.field("x-amz-signature") else {
            let is_version_2 = self.field("signature").is_some();
            return if is_version_2 {
                Ok(())
            } else {
                Err(s3_error!(AccessDenied, "Access Denied"))
            };
        };
        let credential = self.field("x-amz-credential").unwrap_or_default();
        let mut scope = credential.split('/');
        let id = scope.next().unwrap_or_default();
        let secret = secret(id).ok_or_else(|| {
            s3_error!(
                InvalidAccessKeyId,
                "The AWS Access Key Id you provided does not exist in our records."
            )
        })?;
        let key = signature::key(&secret, scope);
        let policy = self.field("policy").unwrap_or_default();
        let is_right = signature::unhex(tag).is_some_and(|tag| mac::verify(&key, policy.as_bytes(), &tag).is_ok());
        if is_right { Ok(()) } else { Err(wrong_signature()) }
    }

    /// The form written again, and its type with the boundary. No client chooses the boundary, and
    /// no field and no file contains it.
    pub fn written(self) -> (HeaderValue, Body) {
        let boundary = keyspace::unique_text();
        let mut head = BytesMut::new();
        for (name, value) in self.fields.iter().filter(|(name, value)| says_something(name, value)) {
            let part = format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
            head.extend_from_slice(part.as_bytes());
        }
        let file = format!("--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"file\"\r\n");
        head.extend_from_slice(file.as_bytes());
        if let Some(kind) = self.file.content_type() {
            head.extend_from_slice(format!("Content-Type: {kind}\r\n").as_bytes());
        }
        head.extend_from_slice(b"\r\n");
        let end = Bytes::from(format!("\r\n--{boundary}--\r\n"));
        let pieces = stream::iter([Ok(head.freeze())])
            .chain(self.file)
            .chain(stream::iter([Ok(end)]));
        let kind = HeaderValue::from_str(&format!("multipart/form-data; boundary={boundary}"));
        // The boundary consists of characters that headers may have.
        let kind = kind.unwrap_or(HeaderValue::from_static("multipart/form-data"));
        (kind, Body::from_stream(pieces))
    }
}

/// Whether a field that controls the answer is valid. S3 ignores invalid ones, and `s3s` would
/// refuse them.
fn says_something(name: &str, value: &str) -> bool {
    match name {
        "success_action_status" => ["200", "201", "204"].contains(&value),
        "success_action_redirect" | "redirect" => {
            !value.is_ascii() || value.parse::<Uri>().is_ok_and(|uri| uri.scheme().is_some())
        }
        _ => true,
    }
}

/// Refuses fields that become headers of the object but cannot be sent as headers: a line break
/// would end one.
fn refuse_unspeakable((name, value): &(String, String)) -> S3Result {
    let is_header = !NO_HEADERS.contains(&name.as_str()) && !name.starts_with(IGNORED);
    let is_control = |letter: char| letter != '\t' && letter.is_ascii_control();
    let is_odd = name.starts_with("x-amz-") && HeaderName::from_bytes(name.as_bytes()).is_err();
    if is_header && (is_odd || value.contains(is_control)) {
        return Err(s3_error!(
            InvalidArgument,
            "The field {name:?} has characters that no header can carry."
        ));
    }
    Ok(())
}

async fn value_of(part: &mut Field<'static>) -> S3Result<String> {
    let mut value = Vec::new();
    while let Some(piece) = part.chunk().await.map_err(malformed)? {
        if value.len() + piece.len() > FIELD_BYTES_MAX {
            return Err(too_long());
        }
        value.extend_from_slice(&piece);
    }
    String::from_utf8(value).map_err(|_| s3_error!(MalformedPOSTRequest, "A field of the form is not UTF-8."))
}

fn wrong_signature() -> S3Error {
    s3_error!(
        SignatureDoesNotMatch,
        "The request signature we calculated does not match the signature you provided. Check your key and signing method."
    )
}

/// Replaces the placeholder by the file's name: of a path, which browsers may send, only the last
/// part.
fn expand(fields: &mut [(String, String)], path: &str) {
    let name = path.rsplit(['/', '\\']).next().unwrap_or_default();
    for (_, value) in fields {
        if value.contains(FILE_NAME) {
            *value = value.replace(FILE_NAME, name);
        }
    }
}

fn malformed(error: multer::Error) -> S3Error {
    s3_error!(
        error,
        MalformedPOSTRequest,
        "The body of your POST request is not well-formed multipart/form-data."
    )
}

fn too_long() -> S3Error {
    s3_error!(
        MaxPostPreDataLengthExceededError,
        "Your POST request fields preceding the upload file were too large."
    )
}

#[cfg(test)]
impl Form {
    /// A form with these fields and an empty file.
    pub fn with_fields(fields: &[(&str, &str)]) -> Self {
        let parts: Vec<_> = fields
            .iter()
            .map(|(name, value)| format!("{}\"{name}\"\r\n\r\n{value}\r\n", tests::START))
            .collect();
        let text = format!("{}{}\"file\"\r\n\r\n\r\n--x--\r\n", parts.concat(), tests::START);
        tests::read(&text, 1 << 20).unwrap_or_else(|error| panic!("{error:?}"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::convert::Infallible;

    pub const START: &str = "--x\r\nContent-Disposition: form-data; name=";

    const RIGHT_VERSION_4: &str = "7787efea4dadbef0c9f1a808dd9c9a6bce89de99fda6ce7bf24435c9a449440a";

    /// Reads a form that arrives in pieces of this length.
    pub fn read(form: &str, piece_bytes: usize) -> S3Result<Form> {
        let pieces: Vec<_> = form
            .as_bytes()
            .chunks(piece_bytes)
            .map(Bytes::copy_from_slice)
            .collect();
        let body = Body::from_stream(stream::iter(pieces.into_iter().map(Ok::<_, Infallible>)));
        let kind = HeaderValue::from_static("multipart/form-data; boundary=\"x\"");
        let headers = [(header::CONTENT_TYPE, kind)].into_iter().collect();
        block_on(Form::read(&headers, body))
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(future)
    }

    fn code(form: &str) -> String {
        read(form, 1 << 20)
            .err()
            .map_or_else(String::new, |error| error.code().as_str().to_owned())
    }

    #[test]
    fn the_file_has_its_name_in_every_field() {
        for (path, key) in [
            ("a.txt", "up/a.txt!a.txt"),
            ("C:\\files\\a.txt", "up/a.txt!a.txt"),
            ("/home/a b+ü.txt", "up/a b+ü.txt!a b+ü.txt"),
            ("", "up/!"),
        ] {
            let form = format!(
                "{START}\"Key\"\r\n\r\nup/${{filename}}!${{filename}}\r\n{START}\"other\"; filename=\"o\"\r\n\r\n$filename\r\n\
                 {START}\"file\"; filename=\"{path}\"\r\nContent-Type: text/plain\r\n\r\n\r\n--y${{filename}}\r\n--x--\r\n"
            );
            for piece_bytes in [1, 7, 4096] {
                let form = read(&form, piece_bytes).unwrap_or_else(|error| panic!("{error:?}"));
                assert_eq!(form.field("key"), Some(key));
                assert_eq!(form.field("other"), Some("$filename"));
                let (kind, body) = form.written();
                let boundary = multer::parse_boundary(kind.to_str().unwrap()).unwrap();
                let written = block_on(axum::body::to_bytes(body, 1 << 20)).unwrap();
                let text = String::from_utf8(written.to_vec()).unwrap();
                let expected = format!(
                    "--{boundary}\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\n{key}\r\n\
                     --{boundary}\r\nContent-Disposition: form-data; name=\"other\"\r\n\r\n$filename\r\n\
                     --{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"file\"\r\n\
                     Content-Type: text/plain\r\n\r\n\r\n--y${{filename}}\r\n--{boundary}--\r\n"
                );
                assert_eq!(text, expected);
            }
        }
    }

    #[test]
    fn forms_that_are_refused() {
        let file = format!("{START}\"file\"\r\n\r\nf\r\n--x--\r\n");
        let field = |name: &str, value: &str| format!("{START}\"{name}\"\r\n\r\n{value}\r\n");
        assert_eq!(code(&format!("{}{file}", field("key", "k"))), "");
        assert_eq!(code(&format!("{}--x--\r\n", field("key", "k"))), "InvalidArgument");
        for wrong in [
            "no form".to_owned(),
            field("key", "k"),
            format!("{}{}{file}", field("policy", "a"), field("Policy", "b")),
            format!("{}{file}", field("", "k")),
            format!("{}{file}", field("k e y", "k")),
        ] {
            assert_eq!(code(&wrong), "MalformedPOSTRequest", "{wrong}");
        }
        let long = "v".repeat(FIELD_BYTES_MAX + 1);
        assert_eq!(
            code(&format!("{}{file}", field("key", &long))),
            "MaxPostPreDataLengthExceededError"
        );
        let many: String = (0..=FIELDS_MAX).map(|number| field(&number.to_string(), "v")).collect();
        assert_eq!(code(&format!("{many}{file}")), "MaxPostPreDataLengthExceededError");
    }

    /// The signature was computed with `openssl dgst -sha1 -hmac secret -binary | base64` of
    /// "cG9saWN5".
    #[test]
    fn signatures_of_version_2() {
        let form = |signature: &str| {
            let fields: String = [
                ("AWSAccessKeyId", "id"),
                ("policy", "cG9saWN5"),
                ("signature", signature),
            ]
            .iter()
            .map(|(name, value)| format!("{START}\"{name}\"\r\n\r\n{value}\r\n"))
            .collect();
            read(&format!("{fields}{START}\"file\"\r\n\r\nf\r\n--x--\r\n"), 100)
                .unwrap_or_else(|error| panic!("{error:?}"))
        };
        let secret = |id: &str| (id == "id").then(|| "secret".to_owned());
        let right = "xjcOd3+I0tu58AF8jUmwdfvwgBU=";
        assert!(form(right).check_version_2(secret).is_ok());
        for wrong in ["", "AAAA", "not base64", &format!("A{}", &right[1..]), &right[..24]] {
            assert!(form(wrong).check_version_2(secret).is_err(), "{wrong}");
        }
        assert!(form(right).check_version_2(|_| Some("other".to_owned())).is_err());
        assert!(form("").check_version_2(|_| None).is_ok(), "a key that does not exist");
    }

    /// The signature was computed with Python's `hmac`, key by key, for the secret "secret" and the
    /// policy "cG9saWN5".
    #[test]
    fn signatures_of_version_4() {
        let code = |id: &str, signature: &str| {
            let credential = format!("{id}/20260101/us-east-1/s3/aws4_request");
            let form = Form::with_fields(&[
                ("x-amz-credential", &credential),
                ("policy", "cG9saWN5"),
                ("x-amz-signature", signature),
            ]);
            let secret = |id: &str| (id == "id").then(|| "secret".to_owned());
            let refused = form.check_version_4(secret).err();
            refused.map_or_else(String::new, |error| error.code().as_str().to_owned())
        };
        assert_eq!(code("id", RIGHT_VERSION_4), "");
        for wrong in ["", "00", "zz", &RIGHT_VERSION_4[1..], &format!("{RIGHT_VERSION_4}00")] {
            assert_eq!(code("id", wrong), "SignatureDoesNotMatch", "{wrong}");
        }
        assert_eq!(code("other", RIGHT_VERSION_4), "InvalidAccessKeyId");
        let unsigned = Form::with_fields(&[("key", "k")]).check_version_4(|_| None);
        assert_eq!(unsigned.unwrap_err().code().as_str(), "AccessDenied");
    }
}
