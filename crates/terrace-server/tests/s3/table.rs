//! Every operation, by every way of access, against one table of what must happen.
//!
//! What is tried is made of the table alone: each row is asked without a key, with a key of each
//! level, with the same keys by presigned URLs and in sessions, without a key of a public bucket
//! and of a public object, by other accounts with what lists grant, and by what policies of keys,
//! buckets and sessions allow and deny. What is allowed may fail for another reason (most rows ask
//! for what is not there, so that nothing changes), but not for want of access.

use crate::{
    Service,
    access::{key, open_to_all},
    accounts::key_of,
    code,
    common::{Answer, Place},
    key_policies::key_with,
    sessions::{Session, session},
    sign::{Client, Mode, digest, post_form, raw},
};
use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
};

/// An operation, its method, its target, the callers that may do it, and its actions in policies.
///
/// Callers, as letters: a key to read (`r`), to write (`w`), to administer (`a`); anonymous ones in
/// a public bucket (`b`), or of a public object (`o`). Of another account's key, which may do
/// everything with what is its own: nothing granted (`x`); what the bucket's list grants, to read
/// (`R`), to write (`W`), to read (`A`) and to change the list (`C`); what the object's list
/// grants, to read (`1`), to read (`2`) and to change the list (`3`). `{b}` is the bucket, `{k}` an
/// object that is there, `{u}` an upload; what is copied is behind `<`. Of actions `=` is the
/// operation's name; where there is none no policy is tried.
type Row = (&'static str, &'static str, &'static str, &'static str, &'static str);

/// The method of a row that is posted as a form.
const FORM: &str = "form";

const TABLE: &[Row] = &[
    ("ListBuckets", "GET", "/", "rwax", "ListAllMyBuckets"),
    ("HeadBucket", "HEAD", "/{b}", "rwaR", "ListBucket"),
    ("CreateBucket", "PUT", "/{b}", "ax", "="),
    ("DeleteBucket", "DELETE", "/{b}", "a", "="),
    ("GetBucketLocation", "GET", "/{b}?location", "rwa", "="),
    ("GetBucketVersioning", "GET", "/{b}?versioning", "rwa", "="),
    ("PutBucketVersioning", "PUT", "/{b}?versioning", "a", "="),
    ("GetBucketPolicy", "GET", "/{b}?policy", "a", "="),
    ("PutBucketPolicy", "PUT", "/{b}?policy", "a", "="),
    ("DeleteBucketPolicy", "DELETE", "/{b}?policy", "a", "="),
    ("GetBucketPolicyStatus", "GET", "/{b}?policyStatus", "a", "="),
    ("GetBucketCors", "GET", "/{b}?cors", "a", "GetBucketCORS"),
    ("PutBucketCors", "PUT", "/{b}?cors", "a", "PutBucketCORS"),
    ("DeleteBucketCors", "DELETE", "/{b}?cors", "a", "PutBucketCORS"),
    ("GetBucketAcl", "GET", "/{b}?acl", "aA", "="),
    ("PutBucketAcl", "PUT", "/{b}?acl", "aC", "="),
    (
        "GetPublicAccessBlock",
        "GET",
        "/{b}?publicAccessBlock",
        "a",
        "GetBucketPublicAccessBlock",
    ),
    (
        "PutPublicAccessBlock",
        "PUT",
        "/{b}?publicAccessBlock",
        "a",
        "PutBucketPublicAccessBlock",
    ),
    (
        "DeletePublicAccessBlock",
        "DELETE",
        "/{b}?publicAccessBlock",
        "a",
        "PutBucketPublicAccessBlock",
    ),
    ("GetBucketOwnershipControls", "GET", "/{b}?ownershipControls", "a", "="),
    ("PutBucketOwnershipControls", "PUT", "/{b}?ownershipControls", "a", "="),
    (
        "DeleteBucketOwnershipControls",
        "DELETE",
        "/{b}?ownershipControls",
        "a",
        "PutBucketOwnershipControls",
    ),
    ("GetBucketTagging", "GET", "/{b}?tagging", "a", "="),
    ("PutBucketTagging", "PUT", "/{b}?tagging", "a", "="),
    ("DeleteBucketTagging", "DELETE", "/{b}?tagging", "a", "PutBucketTagging"),
    (
        "GetBucketLifecycleConfiguration",
        "GET",
        "/{b}?lifecycle",
        "a",
        "GetLifecycleConfiguration",
    ),
    (
        "PutBucketLifecycleConfiguration",
        "PUT",
        "/{b}?lifecycle",
        "a",
        "PutLifecycleConfiguration",
    ),
    (
        "DeleteBucketLifecycle",
        "DELETE",
        "/{b}?lifecycle",
        "a",
        "PutLifecycleConfiguration",
    ),
    ("GetBucketLogging", "GET", "/{b}?logging", "a", "="),
    ("PutBucketLogging", "PUT", "/{b}?logging", "a", "="),
    (
        "GetBucketNotificationConfiguration",
        "GET",
        "/{b}?notification",
        "a",
        "GetBucketNotification",
    ),
    (
        "PutBucketNotificationConfiguration",
        "PUT",
        "/{b}?notification",
        "a",
        "PutBucketNotification",
    ),
    ("GetBucketWebsite", "GET", "/{b}?website", "a", "="),
    ("PutBucketWebsite", "PUT", "/{b}?website", "a", "="),
    ("DeleteBucketWebsite", "DELETE", "/{b}?website", "a", "="),
    (
        "GetBucketEncryption",
        "GET",
        "/{b}?encryption",
        "a",
        "GetEncryptionConfiguration",
    ),
    (
        "PutBucketEncryption",
        "PUT",
        "/{b}?encryption",
        "a",
        "PutEncryptionConfiguration",
    ),
    (
        "DeleteBucketEncryption",
        "DELETE",
        "/{b}?encryption",
        "a",
        "PutEncryptionConfiguration",
    ),
    (
        "GetBucketAccelerateConfiguration",
        "GET",
        "/{b}?accelerate",
        "a",
        "GetAccelerateConfiguration",
    ),
    ("GetBucketRequestPayment", "GET", "/{b}?requestPayment", "a", "="),
    ("PutBucketRequestPayment", "PUT", "/{b}?requestPayment", "a", "="),
    (
        "GetBucketReplication",
        "GET",
        "/{b}?replication",
        "a",
        "GetReplicationConfiguration",
    ),
    (
        "DeleteBucketReplication",
        "DELETE",
        "/{b}?replication",
        "a",
        "PutReplicationConfiguration",
    ),
    (
        "GetObjectLockConfiguration",
        "GET",
        "/{b}?object-lock",
        "a",
        "GetBucketObjectLockConfiguration",
    ),
    (
        "PutObjectLockConfiguration",
        "PUT",
        "/{b}?object-lock",
        "a",
        "PutBucketObjectLockConfiguration",
    ),
    ("ListObjects", "GET", "/{b}", "rwaR", "ListBucket"),
    ("ListObjectsV2", "GET", "/{b}?list-type=2", "rwaR", "ListBucket"),
    (
        "ListObjectVersions",
        "GET",
        "/{b}?versions",
        "rwaR",
        "ListBucketVersions",
    ),
    (
        "ListMultipartUploads",
        "GET",
        "/{b}?uploads",
        "rwaR",
        "ListBucketMultipartUploads",
    ),
    ("DeleteObjects", "POST", "/{b}?delete", "waW", "DeleteObject"),
    ("GetObject", "GET", "/{b}/{k}", "rwabo1", "="),
    ("HeadObject", "HEAD", "/{b}/{k}", "rwabo1", "GetObject"),
    ("GetObject, part", "GET", "/{b}/{k}?partNumber=1", "rwabo1", "GetObject"),
    ("GetObject, missing", "GET", "/{b}/none", "rwaR", "ListBucket GetObject"),
    (
        "GetObject, version",
        "GET",
        "/{b}/{k}?versionId=null",
        "rwa1",
        "GetObjectVersion",
    ),
    (
        "HeadObject, version",
        "HEAD",
        "/{b}/{k}?versionId=null",
        "rwa1",
        "GetObjectVersion",
    ),
    (
        "GetObject, missing version",
        "GET",
        "/{b}/none?versionId=null",
        "rwa",
        "GetObjectVersion",
    ),
    ("GetObjectAttributes", "GET", "/{b}/{k}?attributes", "rwa", "="),
    ("GetObjectTagging", "GET", "/{b}/{k}?tagging", "rwa", "="),
    ("PutObjectTagging", "PUT", "/{b}/{k}?tagging", "wa", "="),
    ("DeleteObjectTagging", "DELETE", "/{b}/none?tagging", "wa", "="),
    ("GetObjectAcl", "GET", "/{b}/{k}?acl", "rwa2", "="),
    ("PutObjectAcl", "PUT", "/{b}/none?acl", "wa", "="),
    ("PutObjectAcl, there", "PUT", "/{b}/{k}?acl", "wa3", "PutObjectAcl"),
    ("GetObjectRetention", "GET", "/{b}/{k}?retention", "a", "="),
    ("PutObjectRetention", "PUT", "/{b}/{k}?retention", "a", "="),
    ("GetObjectLegalHold", "GET", "/{b}/{k}?legal-hold", "a", "="),
    ("PutObjectLegalHold", "PUT", "/{b}/{k}?legal-hold", "a", "="),
    ("PutObject", "PUT", "/{b}/new", "waW", "="),
    ("DeleteObject", "DELETE", "/{b}/none", "waW", "="),
    (
        "DeleteObject, version",
        "DELETE",
        "/{b}/none?versionId=null",
        "waW",
        "DeleteObjectVersion",
    ),
    (
        "CreateMultipartUpload",
        "POST",
        "/{b}/parts?uploads",
        "waW",
        "PutObject",
    ),
    (
        "UploadPart",
        "PUT",
        "/{b}/parts?partNumber=1&uploadId=0",
        "waW",
        "PutObject",
    ),
    (
        "ListParts",
        "GET",
        "/{b}/parts?uploadId=0",
        "rwa",
        "ListMultipartUploadParts",
    ),
    (
        "CompleteMultipartUpload",
        "POST",
        "/{b}/parts?uploadId=0",
        "waW",
        "PutObject",
    ),
    ("AbortMultipartUpload", "DELETE", "/{b}/parts?uploadId=0", "waW", "="),
    ("PostObject", FORM, "/{b}", "waW", "PutObject"),
    ("CopyObject", "PUT", "/{b}/copy<{b}/k", "wa", "PutObject GetObject"),
    (
        "CopyObject, open",
        "PUT",
        "/{b}/copy<open/k",
        "waW",
        "PutObject GetObject",
    ),
    ("CopyObject, version", "PUT", "/{b}/copy<open/k?versionId=null", "", ""),
    (
        "UploadPartCopy",
        "PUT",
        "/{b}/copied?partNumber=1&uploadId={u}<{b}/k",
        "wa",
        "PutObject GetObject",
    ),
    (
        "UploadPartCopy, open",
        "PUT",
        "/{b}/copied?partNumber=1&uploadId={u}<open/k",
        "waW",
        "PutObject GetObject",
    ),
    (
        "UploadPartCopy, version",
        "PUT",
        "/{b}/copied?partNumber=1&uploadId={u}<open/k?versionId=null",
        "",
        "",
    ),
];

/// How a row is asked.
enum Way<'a> {
    Anonymous(&'a str),
    Key(&'a Client),
    Presigned(&'a Client),
    Session(&'a Session),
}

impl Way<'_> {
    /// Asks for a row in a bucket, of an object, with an upload. `None` where there is no such way.
    fn ask(&self, (operation, method, target, ..): &Row, bucket: &str, key: &str, upload: &str) -> Option<Answer> {
        let target = target.replace("{b}", bucket).replace("{k}", key).replace("{u}", upload);
        if *method == FORM {
            let field = ("key", "form");
            return Some(match self {
                Self::Anonymous(address) => post_form(address, bucket, &[field]),
                Self::Key(client) => client.form(bucket, &[field], 0, 600),
                Self::Session(session) => {
                    let token = ("x-amz-security-token", session.token.as_str());
                    session.client.form(bucket, &[field, token], 0, 600)
                }
                Self::Presigned(_) => return None,
            });
        }
        let (target, source) = target.split_once('<').unwrap_or((&target, ""));
        let header = [("x-amz-copy-source", source)];
        let headers: &[_] = if source.is_empty() { &[] } else { &header };
        // Of keys that are not named nothing can be denied.
        let body: &[u8] = if *operation == "DeleteObjects" {
            b"<Delete><Object><Key>none</Key></Object></Delete>"
        } else {
            b""
        };
        Some(match self {
            Self::Anonymous(address) => without_key(address, method, target, headers, body),
            Self::Key(client) => client.send(method, target, headers, body),
            Self::Session(session) => session.send(method, target, headers, body),
            Self::Presigned(_) if !source.is_empty() => return None,
            Self::Presigned(client) => {
                without_key(&client.address, method, &client.presigned(method, target), &[], body)
            }
        })
    }
}

fn without_key(address: &str, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let lines: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .chain(digest(target, headers, body).map(|(name, value)| format!("{name}: {value}\r\n")))
        .collect();
    let request = format!(
        "{method} {target} HTTP/1.1\r\nHost: {address}\r\n{lines}Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    raw(address, &[request.as_bytes(), body].concat())
}

/// Buckets `closed` and `open`, with an object `k` each; the second is public. And an
/// upload in the first.
fn filled(place: &Place) -> (Service, String) {
    let service = Service::start(place, &[]);
    let client = &service.client;
    for bucket in ["closed", "open"] {
        client.send("PUT", &format!("/{bucket}"), &[], b"").status(200);
        client.put(&format!("/{bucket}/k"), b"v", Mode::Whole).status(200);
    }
    open_to_all(client, "open");
    let created = client.send("POST", "/closed/copied?uploads=", &[], b"").status(200);
    let upload = crate::elements(&created, "UploadId").remove(0);
    (service, upload)
}

fn judge(answer: &Answer, (operation, method, ..): &Row, is_allowed: bool, what: &str) {
    let says_denied = *method == "HEAD" || code(answer).1 == "AccessDenied";
    // Of each key that is to be deleted the answer says whether it was.
    let is_denied = says_denied && (answer.status == 403 || (answer.status == 200 && *operation == "DeleteObjects"));
    let told = || format!("{operation} {what}: {} {}", answer.status, answer.text());
    assert_ne!(is_denied, is_allowed, "{}", told());
    // Permitted requests may not fail like another refusal of the caller.
    let is_other = matches!(answer.status, 401 | 403) && !is_denied;
    assert!(!is_other && answer.status < 502, "{}", told());
}

#[test]
fn every_operation_by_every_way_of_access() {
    let place = Place::new();
    let (service, upload) = filled(&place);
    let client = &service.client;
    let anonymous = Way::Anonymous(&client.address);
    client
        .send("PUT", "/closed/p", &[("x-amz-acl", "public-read")], b"v")
        .status(200);
    let keys = ["read", "write", "admin"].map(|level| key(&place, &service, &format!("closed={level}")));
    let stranger = key(&place, &service, "open=admin");
    for row in TABLE {
        let (_, _, target, allowed, _) = row;
        let try_in = |way: &Way<'_>, bucket, key, is_allowed, what: &str| {
            if let Some(answer) = way.ask(row, bucket, key, &upload) {
                judge(&answer, row, is_allowed, what);
            }
        };
        let at_closed = |way: &Way<'_>, is_allowed, what: &str| try_in(way, "closed", "k", is_allowed, what);
        try_in(&anonymous, "open", "k", allowed.contains('b'), "in a public bucket");
        try_in(&anonymous, "closed", "p", allowed.contains('o'), "of a public object");
        at_closed(&anonymous, false, "without a key");
        at_closed(&Way::Key(&stranger), *target == "/", "with another bucket's key");
        for (key, letter) in keys.iter().zip(['r', 'w', 'a']) {
            let (is_allowed, session) = (allowed.contains(letter), session(key, None));
            at_closed(&Way::Key(key), is_allowed, &format!("with a key to {letter}"));
            at_closed(
                &Way::Session(&session),
                is_allowed,
                &format!("in a session to {letter}"),
            );
            at_closed(&Way::Presigned(key), is_allowed, &format!("presigned to {letter}"));
        }
    }
}

/// Regression: there was one account, so grants could only be public.
#[test]
fn every_operation_by_what_another_account_is_granted() {
    let place = Place::new();
    let (service, upload) = filled(&place);
    let client = &service.client;
    let (press, press_id) = key_of(&place, &service, "press", &["*=admin"]);
    let (reader, _) = key_of(&place, &service, "press", &["closed=read"]);
    let (other, _) = key_of(&place, &service, "other", &["*=admin"]);
    let grantee = format!("id=\"{press_id}\"");
    let grant = |target: &str, header: &str| {
        let headers: &[_] = if header.is_empty() {
            &[("x-amz-acl", "private")]
        } else {
            &[(header, grantee.as_str())]
        };
        client.send("PUT", target, headers, b"").status(200);
    };
    for (letter, target, header) in [
        ('x', "/closed?acl", ""),
        ('R', "/closed?acl", "x-amz-grant-read"),
        ('W', "/closed?acl", "x-amz-grant-write"),
        ('A', "/closed?acl", "x-amz-grant-read-acp"),
        ('C', "/closed?acl", "x-amz-grant-write-acp"),
        ('1', "/closed/k?acl", "x-amz-grant-read"),
        ('2', "/closed/k?acl", "x-amz-grant-read-acp"),
        ('3', "/closed/k?acl", "x-amz-grant-write-acp"),
    ] {
        grant(target, header);
        for row in TABLE {
            let (_, _, path, allowed, _) = row;
            let (needs_no_grant, is_granted) = (allowed.contains('x'), allowed.contains(letter));
            // The key's own level is a bound for what is granted to its account.
            let may_read = *path == "/" || (is_granted && allowed.contains('r'));
            for (way, is_allowed, by) in [
                (Way::Key(&press), needs_no_grant || is_granted, "its key"),
                (
                    Way::Presigned(&press),
                    needs_no_grant || is_granted,
                    "its key, presigned",
                ),
                (Way::Key(&reader), may_read, "its key to read"),
                (Way::Key(&other), needs_no_grant, "a third account's key"),
            ] {
                if let Some(answer) = way.ask(row, "closed", "k", &upload) {
                    judge(&answer, row, is_allowed, &format!("by {by}, {letter} being granted"));
                }
            }
        }
        grant(target, "");
    }
}

/// Has a key do what a policy of these statements says. What the command line asks of the server,
/// by its socket: the program takes longer to start than a row takes.
fn set_policy(place: &Place, id: &str, statements: &str) {
    let policy = format!(r#"{{"Version":"2012-10-17","Statement":[{statements}]}}"#);
    let body = serde_json::json!({ "id": id, "policy": policy }).to_string();
    let mut stream = UnixStream::connect(place.path("terrace-data/flash/control.sock")).unwrap();
    let length = body.len();
    write!(
        stream,
        "POST /keys/policy HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("{\"done\":true}\n"), "{answer}");
}

/// What a policy allows and denies could be tried of some operations only; of keys there was none.
#[test]
fn every_operation_by_policies() {
    let place = Place::new();
    let (service, upload) = filled(&place);
    let client = &service.client;
    let of_key = key_with(&place, &service, "terrace", NOTHING);
    let (press, _) = key_of(&place, &service, "press", &["*=admin"]);
    for row @ (operation, _, _, allowed, actions) in TABLE.iter().filter(|row| !row.4.is_empty()) {
        let actions = if *actions == "=" { operation } else { actions };
        let list: Vec<_> = actions.split(' ').map(|action| format!("\"s3:{action}\"")).collect();
        let list = list.join(",");
        let just = format!(r#"{{"Effect":"Allow","Action":[{list}],"Resource":"*"}}"#);
        let all_but = format!(r#"{ALL},{{"Effect":"Deny","Action":[{list}],"Resource":"*"}}"#);
        let others = format!(r#"{{"Effect":"Allow","NotAction":[{list}],"Resource":"*"}}"#);
        let try_by = |way: &Way<'_>, is_allowed, what: &str| {
            if let Some(answer) = way.ask(row, "closed", "k", &upload) {
                judge(&answer, row, is_allowed, what);
            }
        };
        for (statements, is_allowed) in [(&just, true), (&all_but, false)] {
            set_policy(&place, &of_key.id, statements);
            try_by(&Way::Key(&of_key), is_allowed, "by a key's policy");
            try_by(&Way::Presigned(&of_key), is_allowed, "by a key's policy, presigned");
            // The session of a key has what the key has.
            let session = session(&of_key, None);
            try_by(&Way::Session(&session), is_allowed, "by the policy of a session's key");
        }
        for (statement, is_allowed) in [(&just, true), (&others, false)] {
            let policy = format!(r#"{{"Version":"2012-10-17","Statement":{statement}}}"#);
            let session = session(client, Some(&policy));
            try_by(&Way::Session(&session), is_allowed, "by a session's policy");
        }
        // The bucket does not exist yet, or the row is about none.
        if allowed.contains('x') {
            continue;
        }
        for (effect, account) in [("Allow", "press"), ("Deny", "terrace")] {
            let policy = format!(
                r#"{{"Version":"2012-10-17","Statement":{{"Effect":"{effect}","Principal":{{"AWS":"{account}"}},
                    "Action":[{list}],"Resource":["arn:aws:s3:::closed","arn:aws:s3:::closed/*"]}}}}"#
            );
            client.send("PUT", "/closed?policy", &[], policy.as_bytes()).status(204);
            if effect == "Allow" {
                try_by(&Way::Key(&press), true, "by the bucket's policy");
            } else {
                // A key that may do everything in the bucket cannot be denied its policy.
                let is_theirs = operation.ends_with("BucketPolicy");
                try_by(&Way::Key(client), is_theirs, "denied by the bucket's policy");
            }
            client.send("DELETE", "/closed?policy", &[], b"").status(204);
        }
    }
}

/// A policy that allows everything.
const ALL: &str = r#"{"Effect":"Allow","Action":"*","Resource":"*"}"#;
/// One that allows nothing.
const NOTHING: &str = r#"{"Effect":"Deny","Action":"*","Resource":"*"}"#;
