//! Reads lists of requests, and writes those of answers.

use crate::s3::{
    access_key::Keys,
    account::{self, Accounts},
    acl::{self, GRANTS_MAX, Grantee, List, Permission},
};
use s3s::{
    S3Error, S3Result,
    dto::{AccessControlPolicy, Grant, Grantee as GranteeXml, Owner, Permission as PermissionXml, TargetGrant, Type},
    s3_error,
};

/// The canned list that gives an object to the bucket's owner.
pub const TO_BUCKET_OWNER: &str = "bucket-owner-full-control";

/// The kind of a list's resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Bucket,
    Object,
}

/// The list headers of a request.
#[derive(Debug, Default)]
pub struct Asked {
    /// `x-amz-acl`
    pub canned: Option<String>,
    /// `x-amz-grant-…`: permissions, and grantees as in the header.
    pub granted: Vec<(Permission, String)>,
}

/// Takes the headers out of an input; many have these fields.
#[macro_export]
macro_rules! asked_acl {
    ($input:expr) => {{
        use $crate::s3::{acl::Permission, ops::acl};
        let granted = [
            (Permission::FullControl, $input.grant_full_control.take()),
            (Permission::Read, $input.grant_read.take()),
            (Permission::ReadAcp, $input.grant_read_acp.take()),
            (Permission::WriteAcp, $input.grant_write_acp.take()),
        ];
        acl::Asked {
            canned: $input.acl.take().map(|acl| acl.as_str().to_owned()),
            granted: granted
                .into_iter()
                .filter_map(|(permission, grantee)| Some((permission, grantee?)))
                .collect(),
        }
    }};
}

/// The owners and accounts that a list may name.
#[derive(Clone, Copy)]
pub struct Owners<'a> {
    /// The owner of the resource.
    pub owner: &'a str,
    /// The owner of the bucket.
    pub of_bucket: &'a str,
    /// The accounts.
    pub keys: &'a Keys,
}

/// A parsed grant: its grantee in stored form.
type Read = (String, Permission);

impl Asked {
    /// Adds `x-amz-grant-write`, which only buckets have.
    pub fn with_write(mut self, grantee: Option<String>) -> Self {
        self.granted.extend(grantee.map(|grantee| (Permission::Write, grantee)));
        self
    }

    /// Whether there are no list headers.
    pub const fn is_nothing(&self) -> bool {
        self.canned.is_none() && self.granted.is_empty()
    }

    /// The list in stored form. Without headers the owner has all permissions.
    ///
    /// # Errors
    /// Errors of the list.
    pub fn list(&self, kind: Kind, owners: Owners<'_>) -> S3Result<String> {
        match (&self.canned, self.granted.as_slice()) {
            (Some(_), [_, ..]) => Err(s3_error!(
                InvalidRequest,
                "Specifying both Canned ACLs and Header Grants is not allowed"
            )),
            (Some(name), []) => canned(name, kind, owners),
            (None, []) => Ok(String::new()),
            (None, granted) => {
                let read = owners.keys.accounts(|accounts| {
                    let lists = granted
                        .iter()
                        .map(|(permission, grantee)| read_header(grantee, *permission, accounts));
                    lists.collect::<S3Result<Vec<_>>>()
                })?;
                stored(&read.concat(), owners.owner)
            }
        }
    }

    /// Whether it only gives the object to the bucket's owner.
    pub fn is_to_bucket_owner(&self, owners: Owners<'_>) -> bool {
        self.canned.as_deref() == Some(TO_BUCKET_OWNER)
            || !self.granted.is_empty() && self.list(Kind::Object, owners).is_ok_and(|list| list.is_empty())
    }
}

/// The stored form of grants.
///
/// # Errors
/// `MalformedACLError` if they are too many.
pub fn stored(grants: &[Read], owner: &str) -> S3Result<String> {
    if grants.len() > GRANTS_MAX {
        return Err(malformed());
    }
    let grants: Vec<_> = grants
        .iter()
        .map(|(grantee, permission)| (Grantee::read(grantee), *permission))
        .collect();
    Ok(acl::stored(&grants, owner))
}

/// A canned list.
fn canned(name: &str, kind: Kind, owners: Owners<'_>) -> S3Result<String> {
    let own = (Grantee::Account(owners.owner), Permission::FullControl);
    let of_bucket = Grantee::Account(owners.of_bucket);
    let is_bucket = kind == Kind::Bucket;
    let is_other = owners.of_bucket != owners.owner && !is_bucket;
    let more: &[_] = match name {
        "private" => &[],
        "public-read" => &[(Grantee::All, Permission::Read)],
        "public-read-write" => &[(Grantee::All, Permission::Read), (Grantee::All, Permission::Write)],
        "authenticated-read" => &[(Grantee::Authenticated, Permission::Read)],
        "bucket-owner-read" if is_other => &[(of_bucket, Permission::Read)],
        TO_BUCKET_OWNER if is_other => &[(of_bucket, Permission::FullControl)],
        // They have no effect on objects of the bucket's owner.
        "bucket-owner-read" | TO_BUCKET_OWNER => &[],
        "log-delivery-write" if is_bucket => {
            &[(Grantee::Logs, Permission::Write), (Grantee::Logs, Permission::ReadAcp)]
        }
        "aws-exec-read" => &[(Grantee::Ec2, Permission::Read)],
        _ => return Err(s3_error!(InvalidArgument, "The canned ACL is not valid.")),
    };
    Ok(acl::stored(&[&[own], more].concat(), owners.owner))
}

/// The grantees of a header: `id="…"`, `uri="…"`, `emailAddress="…"`, separated by commas.
///
/// # Errors
/// Errors of the header.
pub fn read_header(text: &str, permission: Permission, accounts: &Accounts) -> S3Result<Vec<Read>> {
    let wrong = || s3_error!(InvalidArgument, "Argument format not recognized");
    let grants = text.split(',').map(|part| {
        let (kind, value) = part.trim().split_once('=').ok_or_else(wrong)?;
        let value = value.trim();
        let bare = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        let value = bare.unwrap_or(value);
        let grantee = match kind.trim() {
            "id" => by_id(value, accounts)?,
            "uri" => by_uri(value)?,
            "emailAddress" => by_email(value, accounts)?,
            _ => return Err(wrong()),
        };
        Ok((grantee, permission))
    });
    grants.collect()
}

fn by_id(id: &str, accounts: &Accounts) -> S3Result<String> {
    if id == account::EC2.0 {
        return Ok(Grantee::Ec2.to_string());
    }
    let found = accounts.by_id(id).map(str::to_owned);
    found.ok_or_else(|| s3_error!(InvalidArgument, "Invalid id"))
}

fn by_uri(uri: &str) -> S3Result<String> {
    let group = Grantee::of_uri(uri).map(|group| group.to_string());
    group.ok_or_else(|| s3_error!(InvalidArgument, "Invalid group uri"))
}

fn by_email(email: &str, accounts: &Accounts) -> S3Result<String> {
    accounts.by_email(email).map(str::to_owned).ok_or_else(|| {
        s3_error!(
            UnresolvableGrantByEmailAddress,
            "The e-mail address you provided does not match any account on record."
        )
    })
}

/// The list in XML, of a resource of `owner`.
fn read_xml(list: &AccessControlPolicy, owner: &str, keys: &Keys) -> S3Result<String> {
    // S3's schema requires both elements, and the owner's ID.
    let named = list.owner.as_ref().and_then(|owner| owner.id.as_deref());
    let named = named.ok_or_else(malformed)?;
    let given = list.grants.as_ref().ok_or_else(malformed)?;
    if named != account::canonical_id(owner) {
        return Err(s3_error!(AccessDenied, "Access Denied"));
    }
    let grants = keys.accounts(|accounts| {
        let grants = given.iter().map(|grant| read_grant(grant, accounts));
        grants.collect::<S3Result<Vec<_>>>()
    })?;
    stored(&grants, owner)
}

/// The list of logs of `owner`, with these grants besides the owner's.
///
/// # Errors
/// Errors of the grants.
pub fn of_logs(granted: &[TargetGrant], owner: &str, keys: &Keys) -> S3Result<String> {
    let own = (owner.to_owned(), Permission::FullControl);
    let granted = keys.accounts(|accounts| {
        let grants = granted.iter().map(|grant| {
            let permission = grant
                .permission
                .as_ref()
                .and_then(|permission| Permission::parse(permission.as_str()));
            // Logs have no grants on their lists.
            let permission =
                permission.filter(|permission| !matches!(permission, Permission::ReadAcp | Permission::WriteAcp));
            read_grantee(grant.grantee.as_ref(), permission, accounts)
        });
        grants.collect::<S3Result<Vec<_>>>()
    })?;
    stored(&[vec![own], granted].concat(), owner)
}

/// A grant in XML.
///
/// # Errors
/// Errors of the grant.
pub fn read_grant(grant: &Grant, accounts: &Accounts) -> S3Result<Read> {
    let permission = grant.permission.as_ref().map(PermissionXml::as_str);
    read_grantee(grant.grantee.as_ref(), permission.and_then(Permission::parse), accounts)
}

fn read_grantee(grantee: Option<&GranteeXml>, permission: Option<Permission>, accounts: &Accounts) -> S3Result<Read> {
    let permission = permission.ok_or_else(malformed)?;
    let grantee = grantee.ok_or_else(malformed)?;
    let grantee = match (&grantee.id, &grantee.uri, &grantee.email_address) {
        (Some(id), None, None) => by_id(id, accounts)?,
        (None, Some(uri), None) => by_uri(uri)?,
        (None, None, Some(email)) => by_email(email, accounts)?,
        _ => return Err(malformed()),
    };
    Ok((grantee, permission))
}

fn malformed() -> S3Error {
    s3_error!(
        MalformedACLError,
        "The XML you provided was not well-formed or did not validate against our published schema"
    )
}

/// The new list of a request, given once: in headers or in XML.
pub struct Put {
    /// The headers.
    pub asked: Asked,
    /// The body.
    pub xml: Option<AccessControlPolicy>,
}

impl Put {
    /// The list in stored form.
    ///
    /// # Errors
    /// `UnexpectedContent`, `MissingSecurityHeader`, errors of the list.
    pub fn list(&self, kind: Kind, owners: Owners<'_>) -> S3Result<String> {
        match &self.xml {
            Some(_) if !self.asked.is_nothing() => Err(s3_error!(
                UnexpectedContent,
                "A list in headers and one in the body cannot be combined."
            )),
            None if self.asked.is_nothing() => Err(s3_error!(
                MissingSecurityHeader,
                "Your request was missing a required header: x-amz-acl"
            )),
            Some(xml) => read_xml(xml, owners.owner, owners.keys),
            None => self.asked.list(kind, owners),
        }
    }
}

/// A list for answers.
pub fn shown(list: List<'_>) -> Vec<Grant> {
    let grants = list.grants().map(|(grantee, permission)| {
        let whose = match grantee {
            Grantee::Account(name) => Some(crate::s3::ops::shown(name)),
            Grantee::Ec2 => Some(Owner {
                id: Some(account::EC2.0.to_owned()),
                display_name: Some(account::EC2.1.to_owned()),
            }),
            _ => None,
        };
        let kind = if whose.is_some() {
            Type::CANONICAL_USER
        } else {
            Type::GROUP
        };
        let (id, display_name) = whose.map_or((None, None), |whose| (whose.id, whose.display_name));
        Grant {
            grantee: Some(GranteeXml {
                display_name,
                email_address: None,
                id,
                type_: Type::from_static(kind),
                uri: grantee.uri().map(str::to_owned),
            }),
            permission: Some(PermissionXml::from_static(permission.name())),
        }
    });
    grants.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::s3::{access_key::NewKey, secrets::Secrets};
    use terrace::{Options, Store};

    fn code<T>(result: S3Result<T>) -> String {
        result
            .err()
            .map(|error| error.code().as_str().to_owned())
            .unwrap_or_default()
    }

    /// With the accounts `terrace` and `press`, the latter with an address.
    fn keys() -> (tempfile::TempDir, Keys) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        let keys = Keys::load(&store, Secrets::default()).unwrap();
        let new = NewKey {
            account: "press".to_owned(),
            email: Some("press@example.org".to_owned()),
            ..NewKey::of_default(&["*=admin".parse().unwrap()])
        };
        keys.create(&store, &new).unwrap();
        (dir, keys)
    }

    fn owners<'a>(keys: &'a Keys, owner: &'a str) -> Owners<'a> {
        Owners {
            owner,
            of_bucket: "terrace",
            keys,
        }
    }

    #[test]
    fn canned_lists() {
        let (_dir, keys) = keys();
        let list = |name, kind, owner| canned(name, kind, owners(&keys, owner));
        for (name, own, others, of_bucket) in [
            ("private", "", "", ""),
            ("public-read", "public-read", "public-read", "public-read"),
            ("bucket-owner-read", "", "press=FULL_CONTROL terrace=READ", ""),
            (
                "bucket-owner-full-control",
                "",
                "press=FULL_CONTROL terrace=FULL_CONTROL",
                "",
            ),
        ] {
            assert_eq!(list(name, Kind::Object, "terrace").unwrap(), own);
            assert_eq!(list(name, Kind::Object, "press").unwrap(), others);
            assert_eq!(list(name, Kind::Bucket, "terrace").unwrap(), of_bucket);
        }
        let own = "terrace=FULL_CONTROL";
        for (name, text) in [
            ("public-read-write", format!("{own} @all=READ @all=WRITE")),
            ("authenticated-read", format!("{own} @authenticated=READ")),
            ("log-delivery-write", format!("{own} @logs=WRITE @logs=READ_ACP")),
        ] {
            assert_eq!(list(name, Kind::Bucket, "terrace").unwrap(), text);
        }
        assert_eq!(
            code(list("log-delivery-write", Kind::Object, "terrace")),
            "InvalidArgument"
        );
        assert_eq!(code(list("Public-Read", Kind::Object, "terrace")), "InvalidArgument");
        assert_eq!(
            list("aws-exec-read", Kind::Object, "terrace").unwrap(),
            "terrace=FULL_CONTROL @ec2=READ"
        );
    }

    #[test]
    fn headers_that_grant() {
        let (_dir, keys) = keys();
        let read = |grantee: &str| {
            let asked = Asked {
                canned: None,
                granted: vec![(Permission::Read, grantee.to_owned())],
            };
            asked.list(Kind::Object, owners(&keys, "terrace"))
        };
        let id = account::canonical_id("press");
        let all = "http://acs.amazonaws.com/groups/global/AllUsers";
        let both = format!("id=\"{id}\", uri={all},emailAddress=\"Press@example.org\"");
        assert_eq!(read(&both).unwrap(), "press=READ @all=READ press=READ");
        for (grantee, expected) in [
            ("id=x", "InvalidArgument"),
            ("id=press", "InvalidArgument"),
            ("press", "InvalidArgument"),
            ("", "InvalidArgument"),
            ("name=press", "InvalidArgument"),
            ("uri=\"http://acs.amazonaws.com/groups/x\"", "InvalidArgument"),
            ("emailAddress=a@b", "UnresolvableGrantByEmailAddress"),
        ] {
            assert_eq!(code(read(grantee)), expected, "{grantee}");
        }
        let many = vec!["id=\"terrace\""; GRANTS_MAX + 1].join(",");
        assert_eq!(code(read(&many)), "MalformedACLError");
        let twice = Asked {
            canned: Some("private".to_owned()),
            granted: vec![(Permission::Read, "id=terrace".to_owned())],
        };
        assert_eq!(
            code(twice.list(Kind::Object, owners(&keys, "terrace"))),
            "InvalidRequest"
        );
    }

    #[test]
    fn what_is_shown_is_read() {
        let (_dir, keys) = keys();
        for text in [
            "",
            "public-read",
            "-",
            "press=READ @logs=WRITE",
            "terrace=FULL_CONTROL @ec2=READ",
            "@authenticated=WRITE_ACP terrace=FULL_CONTROL",
        ] {
            let list = List { text, owner: "terrace" };
            let xml = AccessControlPolicy {
                grants: Some(shown(list)),
                owner: Some(crate::s3::ops::shown("terrace")),
            };
            assert_eq!(read_xml(&xml, "terrace", &keys).unwrap(), text);
            assert_eq!(code(read_xml(&xml, "press", &keys)), "AccessDenied", "owners stay");
            let asked = Asked {
                canned: Some("private".to_owned()),
                ..Asked::default()
            };
            let put = Put { asked, xml: Some(xml) };
            assert_eq!(
                code(put.list(Kind::Object, owners(&keys, "terrace"))),
                "UnexpectedContent"
            );
        }
        let put = Put {
            asked: Asked::default(),
            xml: None,
        };
        assert_eq!(
            code(put.list(Kind::Object, owners(&keys, "terrace"))),
            "MissingSecurityHeader"
        );
    }

    #[test]
    fn grants_that_are_wrong_are_refused_whole() {
        let (_dir, keys) = keys();
        let refused = |change: &dyn Fn(&mut Grant)| {
            let mut grants = shown(List {
                text: "public-read",
                owner: "terrace",
            });
            grants.iter_mut().rev().take(1).for_each(change);
            let list = AccessControlPolicy {
                grants: Some(grants),
                owner: Some(crate::s3::ops::shown("terrace")),
            };
            code(read_xml(&list, "terrace", &keys))
        };
        let of = |change: &dyn Fn(&mut GranteeXml)| refused(&|grant| change(grant.grantee.as_mut().unwrap()));
        assert_eq!(refused(&|grant| grant.permission = None), "MalformedACLError");
        assert_eq!(
            refused(&|grant| grant.permission = Some(PermissionXml::from_static("EVERYTHING"))),
            "MalformedACLError"
        );
        assert_eq!(refused(&|grant| grant.grantee = None), "MalformedACLError");
        assert_eq!(of(&|grantee| grantee.uri = None), "MalformedACLError");
        assert_eq!(
            of(&|grantee| grantee.id = Some("terrace".to_owned())),
            "MalformedACLError"
        );
        let unknown = "http://acs.amazonaws.com/groups/global/x";
        assert_eq!(of(&|grantee| grantee.uri = Some(unknown.to_owned())), "InvalidArgument");
    }
}
