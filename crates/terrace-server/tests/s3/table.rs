//! Every operation, by every way of access, against one table of what must happen.
//!
//! What is tried is made of the table alone: each row is asked without a key, with a key of each
//! level, with the same keys by presigned URLs, and without a key of a public bucket and of a
//! public object. What is allowed may fail for another reason (most rows ask for what is not there,
//! so that nothing changes), but not for want of access.

use crate::{
    Service,
    access::{key, open_to_all},
    accounts::key_of,
    code,
    common::{Answer, Place},
    sessions::session,
    sign::{Client, Mode, post_form, raw},
};

/// Who may, as letters: a key to read (`r`), to write (`w`), to administer (`a`); everybody in a
/// public bucket (`b`), or of a public object (`o`). Of another account's key, which may do
/// everything with what is its own: nothing granted (`x`); what the bucket's list grants, to
/// read (`R`), to write (`W`), to read (`A`) and to change the list (`C`); what the object's list
/// grants, to read (`1`), to read (`2`) and to change the list (`3`). `{b}` is the bucket, `{k}` an
/// object that is there.
const TABLE: &[(&str, &str, &str, &str)] = &[
    ("ListBuckets", "GET", "/", "rwax"),
    ("HeadBucket", "HEAD", "/{b}", "rwaR"),
    ("CreateBucket", "PUT", "/{b}", "ax"),
    ("DeleteBucket", "DELETE", "/{b}", "a"),
    ("GetBucketLocation", "GET", "/{b}?location", "rwa"),
    ("GetBucketVersioning", "GET", "/{b}?versioning", "rwa"),
    ("PutBucketVersioning", "PUT", "/{b}?versioning", "a"),
    ("GetBucketPolicy", "GET", "/{b}?policy", "a"),
    ("PutBucketPolicy", "PUT", "/{b}?policy", "a"),
    ("DeleteBucketPolicy", "DELETE", "/{b}?policy", "a"),
    ("GetBucketPolicyStatus", "GET", "/{b}?policyStatus", "a"),
    ("GetBucketCors", "GET", "/{b}?cors", "a"),
    ("PutBucketCors", "PUT", "/{b}?cors", "a"),
    ("DeleteBucketCors", "DELETE", "/{b}?cors", "a"),
    ("GetBucketAcl", "GET", "/{b}?acl", "aA"),
    ("PutBucketAcl", "PUT", "/{b}?acl", "aC"),
    ("GetPublicAccessBlock", "GET", "/{b}?publicAccessBlock", "a"),
    ("PutPublicAccessBlock", "PUT", "/{b}?publicAccessBlock", "a"),
    ("DeletePublicAccessBlock", "DELETE", "/{b}?publicAccessBlock", "a"),
    ("GetBucketOwnershipControls", "GET", "/{b}?ownershipControls", "a"),
    ("PutBucketOwnershipControls", "PUT", "/{b}?ownershipControls", "a"),
    ("DeleteBucketOwnershipControls", "DELETE", "/{b}?ownershipControls", "a"),
    ("GetBucketTagging", "GET", "/{b}?tagging", "a"),
    ("PutBucketTagging", "PUT", "/{b}?tagging", "a"),
    ("DeleteBucketTagging", "DELETE", "/{b}?tagging", "a"),
    ("GetBucketLifecycleConfiguration", "GET", "/{b}?lifecycle", "a"),
    ("PutBucketLifecycleConfiguration", "PUT", "/{b}?lifecycle", "a"),
    ("DeleteBucketLifecycle", "DELETE", "/{b}?lifecycle", "a"),
    ("GetBucketLogging", "GET", "/{b}?logging", "a"),
    ("PutBucketLogging", "PUT", "/{b}?logging", "a"),
    ("GetBucketNotificationConfiguration", "GET", "/{b}?notification", "a"),
    ("PutBucketNotificationConfiguration", "PUT", "/{b}?notification", "a"),
    ("GetBucketWebsite", "GET", "/{b}?website", "a"),
    ("PutBucketWebsite", "PUT", "/{b}?website", "a"),
    ("DeleteBucketWebsite", "DELETE", "/{b}?website", "a"),
    ("GetBucketEncryption", "GET", "/{b}?encryption", "a"),
    ("PutBucketEncryption", "PUT", "/{b}?encryption", "a"),
    ("DeleteBucketEncryption", "DELETE", "/{b}?encryption", "a"),
    ("GetBucketAccelerateConfiguration", "GET", "/{b}?accelerate", "a"),
    ("GetBucketRequestPayment", "GET", "/{b}?requestPayment", "a"),
    ("PutBucketRequestPayment", "PUT", "/{b}?requestPayment", "a"),
    ("GetBucketReplication", "GET", "/{b}?replication", "a"),
    ("DeleteBucketReplication", "DELETE", "/{b}?replication", "a"),
    ("GetObjectLockConfiguration", "GET", "/{b}?object-lock", "a"),
    ("PutObjectLockConfiguration", "PUT", "/{b}?object-lock", "a"),
    ("ListObjects", "GET", "/{b}", "rwaR"),
    ("ListObjectsV2", "GET", "/{b}?list-type=2", "rwaR"),
    ("ListObjectVersions", "GET", "/{b}?versions", "rwaR"),
    ("ListMultipartUploads", "GET", "/{b}?uploads", "rwaR"),
    ("DeleteObjects", "POST", "/{b}?delete", "waW"),
    ("GetObject", "GET", "/{b}/{k}", "rwabo1"),
    ("HeadObject", "HEAD", "/{b}/{k}", "rwabo1"),
    ("GetObject, part", "GET", "/{b}/{k}?partNumber=1", "rwabo1"),
    ("GetObject, missing", "GET", "/{b}/none", "rwaR"),
    ("GetObject, version", "GET", "/{b}/{k}?versionId=null", "rwa1"),
    ("HeadObject, version", "HEAD", "/{b}/{k}?versionId=null", "rwa1"),
    ("GetObject, missing version", "GET", "/{b}/none?versionId=null", "rwa"),
    ("GetObjectAttributes", "GET", "/{b}/{k}?attributes", "rwa"),
    ("GetObjectTagging", "GET", "/{b}/{k}?tagging", "rwa"),
    ("PutObjectTagging", "PUT", "/{b}/{k}?tagging", "wa"),
    ("DeleteObjectTagging", "DELETE", "/{b}/none?tagging", "wa"),
    ("GetObjectAcl", "GET", "/{b}/{k}?acl", "rwa2"),
    ("PutObjectAcl", "PUT", "/{b}/none?acl", "wa"),
    ("PutObjectAcl, there", "PUT", "/{b}/{k}?acl", "wa3"),
    ("GetObjectRetention", "GET", "/{b}/{k}?retention", "a"),
    ("PutObjectRetention", "PUT", "/{b}/{k}?retention", "a"),
    ("GetObjectLegalHold", "GET", "/{b}/{k}?legal-hold", "a"),
    ("PutObjectLegalHold", "PUT", "/{b}/{k}?legal-hold", "a"),
    ("PutObject", "PUT", "/{b}/new", "waW"),
    ("DeleteObject", "DELETE", "/{b}/none", "waW"),
    ("DeleteObject, version", "DELETE", "/{b}/none?versionId=null", "waW"),
    ("CreateMultipartUpload", "POST", "/{b}/parts?uploads", "waW"),
    ("UploadPart", "PUT", "/{b}/parts?partNumber=1&uploadId=0", "waW"),
    ("ListParts", "GET", "/{b}/parts?uploadId=0", "rwa"),
    ("CompleteMultipartUpload", "POST", "/{b}/parts?uploadId=0", "waW"),
    ("AbortMultipartUpload", "DELETE", "/{b}/parts?uploadId=0", "waW"),
];

fn without_key(address: &str, method: &str, target: &str) -> Answer {
    let request =
        format!("{method} {target} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    raw(address, request.as_bytes())
}

fn judge(answer: &Answer, method: &str, is_allowed: bool, what: &str) {
    let is_denied = answer.status == 403 && (method == "HEAD" || code(answer).1 == "AccessDenied");
    assert_ne!(is_denied, is_allowed, "{what}: {} {}", answer.status, answer.text());
    // Nothing that is allowed may look like another refusal of who asks.
    let is_other = matches!(answer.status, 401 | 403) && !is_denied;
    assert!(
        !is_other && answer.status < 502,
        "{what}: {} {}",
        answer.status,
        answer.text()
    );
}

#[test]
fn every_operation_by_every_way_of_access() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    let address = client.address.as_str();
    for bucket in ["closed", "open"] {
        client.send("PUT", &format!("/{bucket}"), &[], b"").status(200);
        client.put(&format!("/{bucket}/k"), b"v", Mode::Whole).status(200);
    }
    client
        .send("PUT", "/closed/p", &[("x-amz-acl", "public-read")], b"v")
        .status(200);
    open_to_all(client, "open");
    let keys = ["read", "write", "admin"].map(|level| key(&place, &service, &format!("closed={level}")));
    let stranger = key(&place, &service, "open=admin");
    for (operation, method, target, allowed) in TABLE {
        let at = |bucket: &str, key: &str| target.replace("{b}", bucket).replace("{k}", key);
        let closed = at("closed", "k");
        let is_root = *target == "/";
        let open = without_key(address, method, &at("open", "k"));
        judge(
            &open,
            method,
            allowed.contains('b'),
            &format!("{operation} in a public bucket"),
        );
        let public = without_key(address, method, &at("closed", "p"));
        judge(
            &public,
            method,
            allowed.contains('o'),
            &format!("{operation} of a public object"),
        );
        let nobody = without_key(address, method, &closed);
        judge(&nobody, method, false, &format!("{operation} without a key"));
        let other = stranger.send(method, &closed, &[], b"");
        judge(
            &other,
            method,
            is_root,
            &format!("{operation} with another bucket's key"),
        );
        for (key, letter) in keys.iter().zip(['r', 'w', 'a']) {
            let what = format!("{operation} with a key to {letter}");
            judge(
                &key.send(method, &closed, &[], b""),
                method,
                allowed.contains(letter),
                &what,
            );
            let session = session(key, None);
            judge(
                &session.send(method, &closed, &[], b""),
                method,
                allowed.contains(letter),
                &format!("{what}, in a session"),
            );
            let presigned = without_key(address, method, &key.presigned(method, &closed));
            judge(
                &presigned,
                method,
                allowed.contains(letter),
                &format!("{what}, presigned"),
            );
        }
    }
    forms_and_copies(client, &keys);
}

/// There was one account, so nobody could be granted anything but everybody.
#[test]
fn every_operation_by_what_another_account_is_granted() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/closed", &[], b"").status(200);
    client.put("/closed/k", b"v", Mode::Whole).status(200);
    let (press, press_id) = key_of(&place, &service, "press", &["*=admin"]);
    let (reader, _) = key_of(&place, &service, "press", &["closed=read"]);
    let (other, _) = key_of(&place, &service, "other", &["*=admin"]);
    let whom = format!("id=\"{press_id}\"");
    let grant = |target: &str, header: &str| {
        let headers: &[_] = if header.is_empty() {
            &[("x-amz-acl", "private")]
        } else {
            &[(header, whom.as_str())]
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
        for (operation, method, path, allowed) in TABLE {
            let path = path.replace("{b}", "closed").replace("{k}", "k");
            let what = format!("{operation} with a key of an account that is granted {letter}");
            let is_anybodys = allowed.contains('x');
            let answer = press.send(method, &path, &[], b"");
            judge(&answer, method, is_anybodys || allowed.contains(letter), &what);
            let presigned = without_key(&client.address, method, &press.presigned(method, &path));
            judge(&presigned, method, is_anybodys || allowed.contains(letter), &what);
            // The key's own level is a bound for what is granted to its account.
            let may_read = allowed.contains(letter) && allowed.contains('r');
            let read = reader.send(method, &path, &[], b"");
            judge(&read, method, path == "/" || may_read, &format!("{what} to read"));
            let answer = other.send(method, &path, &[], b"");
            judge(&answer, method, is_anybodys, &format!("{what}, asked by a third"));
        }
        grant(target, "");
    }
}

/// What a row cannot say: an operation that has a form, and those that read one object and write
/// another.
fn forms_and_copies(client: &Client, keys: &[Client; 3]) {
    for bucket in ["closed", "open"] {
        let nobody = post_form(&client.address, bucket, &[("key", "form")]);
        judge(&nobody, "POST", false, "a form without a key");
    }
    let created = client.send("POST", "/closed/copied?uploads=", &[], b"").status(200);
    let upload = crate::elements(&created, "UploadId").remove(0);
    let part = format!("/closed/copied?partNumber=1&uploadId={upload}");
    for (key, may_write) in keys.iter().zip([false, true, true]) {
        judge(
            &key.form("closed", &[("key", "form")], 0, 600),
            "POST",
            may_write,
            "a form",
        );
        for target in ["/closed/copy", part.as_str()] {
            for (source, may_read) in [
                ("/closed/k", true),
                ("/open/k", true),
                ("/open/k?versionId=null", false),
            ] {
                let answer = key.send("PUT", target, &[("x-amz-copy-source", source)], b"");
                judge(
                    &answer,
                    "PUT",
                    may_write && may_read,
                    &format!("a copy of {source} to {target}"),
                );
            }
        }
    }
}
