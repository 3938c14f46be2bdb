//! The conditions of a form's policy on its fields.
//!
//! `s3s` checks them too, but it reports a violated condition as a malformed policy, does not
//! require a condition on the bucket, without which a form would be valid for any bucket of its
//! signer, and does not support the fields `acl` and `tagging`. `s3s` still checks the syntax of
//! the policy, its signature, its time and the length of the file.
//!
//! Policies of buckets and of sessions are evaluated with a form's fields ([`Extras::said`]), as
//! they are with the headers of other requests.

use super::fields::Form;
use crate::s3::{
    crypt::request,
    ops::{lifecycle::milliseconds, tagging},
    signature::{self, is_scope},
};
use hyper::{
    HeaderMap,
    header::{HeaderName, HeaderValue},
};
use s3s::{
    S3Error, S3Result,
    dto::{ObjectCannedACL, PostObjectInput, Tagging},
    post_policy::{PostPolicy, PostPolicyCondition},
    s3_error,
    xml::{Deserialize as _, Deserializer},
};

/// Fields that need no condition, besides those that begin with [`IGNORED`].
const FREE: [&str; 6] = [
    "x-amz-signature",
    "signature",
    "awsaccesskeyid",
    "file",
    "submit",
    "policy",
];
/// Prefix of field names that are ignored.
pub const IGNORED: &str = "x-ignore-";
/// The field with the bucket, which is in the path or the host.
const BUCKET: &str = "bucket";

/// Refuses forms that lack a field, or whose fields their policy does not allow. A policy that
/// cannot be read is left to `s3s`, which checks its signature first.
///
/// # Errors
/// `InvalidArgument`, `AccessDenied`.
pub fn check(form: &Form, bucket: &str) -> S3Result {
    let needs = |names: &[&str]| match names.iter().find(|name| form.field(name).is_none()) {
        None => Ok(()),
        Some(name) => Err(s3_error!(InvalidArgument, "The form needs a field named '{name}'.")),
    };
    needs(&["key"])?;
    let is_version_4 = form.field("x-amz-signature").is_some() || form.field("x-amz-algorithm").is_some();
    if is_version_4 {
        needs(&["x-amz-signature", "x-amz-credential", "x-amz-date", "policy"])?;
        if !form.field("x-amz-credential").is_some_and(is_scope) {
            return Err(s3_error!(
                InvalidArgument,
                "The field 'x-amz-credential' is not ID/YYYYMMDD/REGION/s3/aws4_request."
            ));
        }
    } else if form.field("policy").is_some() || form.field("signature").is_some() {
        needs(&["signature", "AWSAccessKeyId", "policy"])?;
    }
    match form.field("policy").map(PostPolicy::from_base64) {
        Some(Ok(policy)) => check_conditions(&policy.conditions, form, bucket),
        _ => Ok(()),
    }
}

/// Refuses a form whose policy has ended. `s3s` compares it with the system's clock only.
///
/// # Errors
/// `AccessDenied`
pub fn refuse_ended(form: &Form, now_ms: u64) -> S3Result {
    let policy = form.field("policy").and_then(|text| PostPolicy::from_base64(text).ok());
    let end_ms = policy.and_then(|policy| milliseconds(&policy.expiration));
    if end_ms.is_some_and(|end_ms| end_ms <= now_ms) {
        return Err(signature::ended());
    }
    Ok(())
}

fn check_conditions(conditions: &[PostPolicyCondition], form: &Form, bucket: &str) -> S3Result {
    let value = |field: &str| match field {
        BUCKET => Some(bucket),
        _ => form.field(field),
    };
    for condition in conditions {
        let (holds, operator, field, wanted) = match condition {
            PostPolicyCondition::Eq { field, value: wanted } => (value(field) == Some(wanted), "eq", field, wanted),
            PostPolicyCondition::StartsWith { field, prefix } => {
                // A field that may be anything may be absent.
                let holds = starts_with(field, value(field).unwrap_or(""), prefix);
                (holds, "starts-with", field, prefix)
            }
            PostPolicyCondition::ContentLengthRange { .. } => continue,
        };
        if !holds {
            return Err(refused(&format!(
                "Policy Condition failed: [\"{operator}\", \"${field}\", \"{wanted}\"]"
            )));
        }
    }
    let is_named = |name: &str| {
        conditions.iter().any(|condition| match condition {
            PostPolicyCondition::Eq { field, .. } | PostPolicyCondition::StartsWith { field, .. } => field == name,
            PostPolicyCondition::ContentLengthRange { .. } => false,
        })
    };
    let needs_none = |name: &str| FREE.contains(&name) || name.starts_with(IGNORED);
    match [BUCKET]
        .into_iter()
        .chain(form.names())
        .find(|name| !needs_none(name) && !is_named(name))
    {
        None => Ok(()),
        Some(extra) => Err(refused(&format!("Extra input fields: {extra}"))),
    }
}

/// Whether a field has the required prefix. Content types may be a list, each of which must
/// ("Condition matching" in S3's page on policies of forms): browsers use the last.
fn starts_with(field: &str, value: &str, prefix: &str) -> bool {
    if field == "content-type" {
        return value.split(',').all(|kind| kind.trim().starts_with(prefix));
    }
    value.starts_with(prefix)
}

fn refused(reason: &str) -> S3Error {
    s3_error!(AccessDenied, "Invalid according to Policy: {reason}")
}

/// Fields, besides those that begin with `x-amz-`, that policies of buckets may test.
const CONDITIONS: [&str; 2] = ["if-match", "if-none-match"];

/// The fields of a form that policies depend on, and those that `s3s` does not pass on.
#[derive(Debug, Clone)]
pub struct Extras {
    acl: Option<String>,
    tagging: Option<String>,
    token: Option<String>,
    said: HeaderMap,
}

impl Extras {
    /// The extras of a form.
    ///
    /// # Errors
    /// `MalformedXML`, errors of the tags, `InvalidArgument`.
    pub fn of(form: &Form) -> S3Result<Self> {
        let acl = form.field("acl").map(str::to_owned);
        let tagging = form.field("tagging").map(tags).transpose()?;
        let is_asked = |name: &str| {
            let is_metadata = name.starts_with("x-amz-meta-");
            (name.starts_with("x-amz-") && !is_metadata) || CONDITIONS.contains(&name)
        };
        let fields = form.names().filter(|name| is_asked(name));
        let fields = fields.filter_map(|name| Some((name, form.field(name)?)));
        // These take effect, regardless of the others.
        let others = [("x-amz-acl", acl.as_deref()), ("x-amz-tagging", tagging.as_deref())];
        let others = others.into_iter().filter_map(|(name, text)| Some((name, text?)));
        let mut said = HeaderMap::new();
        for (name, text) in fields.chain(others) {
            let header = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(text));
            // As a header it would be refused; policies see only ASCII.
            let (Ok(header), Ok(value), true) = (header.0, header.1, text.is_ascii()) else {
                return Err(s3_error!(
                    InvalidArgument,
                    "The field {name:?} has characters that no header can carry."
                ));
            };
            said.insert(header, value);
        }
        request::hide(&mut said);
        Ok(Self {
            token: form.field("x-amz-security-token").map(str::to_owned),
            acl,
            tagging,
            said,
        })
    }

    /// The token of the session that signed it, if it has one.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// The fields that policies may test, as the headers of other requests.
    pub const fn said(&self) -> &HeaderMap {
        &self.said
    }

    /// Adds them where the operation expects them.
    pub fn put_into(&self, input: &mut PostObjectInput) {
        if let Some(acl) = &self.acl {
            input.acl = Some(ObjectCannedACL::from(acl.clone()));
        }
        if let Some(tagging) = &self.tagging {
            input.tagging = Some(tagging.clone());
        }
    }
}

/// Tags are XML here, and a query in headers.
fn tags(xml: &str) -> S3Result<String> {
    crate::s3::xml::check(xml.as_bytes())?;
    let mut reader = Deserializer::new(xml.as_bytes());
    let read = Tagging::deserialize(&mut reader).and_then(|tagging| reader.expect_eof().map(|()| tagging));
    let tagging =
        read.map_err(|error| s3_error!(error, MalformedXML, "The field 'tagging' is not a Tagging in XML."))?;
    tagging::of_set(tagging.tag_set)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn eq(field: &str, value: &str) -> PostPolicyCondition {
        PostPolicyCondition::Eq {
            field: field.to_owned(),
            value: value.to_owned(),
        }
    }

    fn starts(field: &str, prefix: &str) -> PostPolicyCondition {
        PostPolicyCondition::StartsWith {
            field: field.to_owned(),
            prefix: prefix.to_owned(),
        }
    }

    fn message(conditions: &[PostPolicyCondition], fields: &[(&str, &str)]) -> String {
        let form = Form::with_fields(fields);
        let error = check_conditions(conditions, &form, "photos").err();
        error.map_or_else(String::new, |error| {
            assert_eq!(error.code().as_str(), "AccessDenied");
            error.message().unwrap().to_owned()
        })
    }

    #[test]
    fn fields_are_what_the_policy_allows() {
        let allowed = [eq("bucket", "photos"), starts("key", "up/"), starts("x-amz-meta-a", "")];
        let free = [
            ("key", "up/k"),
            ("x-ignore-me", "1"),
            ("policy", "p"),
            ("signature", "s"),
        ];
        assert_eq!(message(&allowed, &free), "");
        assert_eq!(
            message(&allowed, &[("key", "k")]),
            "Invalid according to Policy: Policy Condition failed: [\"starts-with\", \"$key\", \"up/\"]"
        );
        let extra = message(&allowed, &[("key", "up/k"), ("acl", "public-read")]);
        assert_eq!(extra, "Invalid according to Policy: Extra input fields: acl");
        let token = message(&allowed, &[("key", "up/k"), ("x-amz-security-token", "t")]);
        assert_eq!(
            token,
            "Invalid according to Policy: Extra input fields: x-amz-security-token"
        );
        let other = message(&[eq("bucket", "others"), starts("key", "")], &[("key", "k")]);
        assert_eq!(
            other,
            "Invalid according to Policy: Policy Condition failed: [\"eq\", \"$bucket\", \"others\"]"
        );
        let any = message(&[starts("key", "")], &[("key", "k")]);
        assert_eq!(any, "Invalid according to Policy: Extra input fields: bucket");
    }

    /// A form that could upload images uploaded a page: browsers take `image/png,text/html` for
    /// `text/html`.
    #[test]
    fn each_type_of_a_list_is_what_the_policy_allows() {
        let allowed = [
            eq("bucket", "photos"),
            starts("key", ""),
            starts("content-type", "image/"),
        ];
        let refused = |kind: &str| !message(&allowed, &[("key", "k"), ("Content-Type", kind)]).is_empty();
        assert!(!refused("image/png") && !refused("image/png,image/gif, image/jpeg"));
        for kind in ["image/png,text/html", "image/png, text/html", "image/png,", "text/html"] {
            assert!(refused(kind), "{kind}");
        }
        let any = [allowed[0].clone(), starts("key", "a,"), starts("content-type", "")];
        assert_eq!(message(&any, &[("key", "a,b"), ("Content-Type", "a/b,text/html")]), "");
    }

    #[test]
    fn fields_that_a_form_needs() {
        let code = |fields: &[(&str, &str)]| {
            let error = check(&Form::with_fields(fields), "photos").err();
            error.map_or_else(String::new, |error| error.code().as_str().to_owned())
        };
        assert_eq!(code(&[("key", "k")]), "", "anonymous; permission is decided elsewhere");
        for fields in [
            vec![("policy", "p")],
            vec![("key", "k"), ("policy", "p")],
            vec![("key", "k"), ("policy", "p"), ("signature", "s")],
            vec![("key", "k"), ("signature", "s"), ("awsaccesskeyid", "a")],
            vec![
                ("key", "k"),
                ("policy", "p"),
                ("x-amz-signature", "s"),
                ("x-amz-date", "d"),
            ],
        ] {
            assert_eq!(code(&fields), "InvalidArgument", "{fields:?}");
        }
    }

    /// Regression: policies did not see values that no header can have, though these were stored:
    /// tags among them.
    #[test]
    fn what_policies_are_asked_about() {
        let of = |fields: &[(&str, &str)]| Extras::of(&Form::with_fields(fields));
        let said = of(&[
            ("key", "k"),
            ("x-amz-acl", "private"),
            ("acl", "public-read"),
            ("x-amz-meta-a", "é"),
            ("If-Match", "*"),
            ("x-amz-tagging", "a=%C3%A9"),
        ]);
        let said = said.unwrap().said().clone();
        let shown: Vec<_> = ["x-amz-acl", "if-match", "x-amz-tagging"]
            .iter()
            .map(|name| said[*name].to_str().unwrap())
            .collect();
        assert_eq!(shown, ["public-read", "*", "a=%C3%A9"]);
        assert_eq!(said.len(), 3);
        for wrong in ["x-amz-tagging", "acl"] {
            let error = of(&[("key", "k"), (wrong, "a=é")]).unwrap_err();
            assert_eq!(error.code().as_str(), "InvalidArgument", "{wrong}");
        }
    }

    #[test]
    fn tags_in_xml() {
        let xml = "<Tagging><TagSet><Tag><Key>a b</Key><Value>1</Value></Tag><Tag><Key>c</Key><Value/></Tag></TagSet></Tagging>";
        assert_eq!(tags(xml).unwrap(), "a%20b=1&c=");
        for wrong in ["", "<Tagging>", "a=b", "<Tags/>"] {
            assert!(tags(wrong).is_err(), "{wrong}");
        }
    }
}
