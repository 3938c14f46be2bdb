//! Access control lists as they are stored and evaluated. The server's `ops::acl` converts them
//! from and to the form of requests.
//!
//! A list is stored as text. The empty text, the default, grants everything to the owner and
//! nothing to others. `public-read` also lets every client read. Any other text is a series of
//! grants, each a grantee and a permission: `press=FULL_CONTROL @all=READ`. A grantee is an
//! account's name, or a group, which begins with `@`. A list without grants is `-`.

use std::fmt::{self, Write as _};

/// Stored text of a list that lets every client read and the owner do everything.
pub const PUBLIC_READ: &str = "public-read";
/// Stored text of a list without grants.
const NO_GRANTS: &str = "-";
/// Most grants of a list, S3's limit.
pub const GRANTS_MAX: usize = 100;

/// Permissions that can be granted on a bucket or an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// List the bucket, read the object.
    Read,
    /// Write into the bucket.
    Write,
    /// Read the list.
    ReadAcp,
    /// Change the list.
    WriteAcp,
    /// All of these.
    FullControl,
}

impl Permission {
    /// All permissions.
    pub const ALL: [Self; 5] = [
        Self::FullControl,
        Self::Read,
        Self::Write,
        Self::ReadAcp,
        Self::WriteAcp,
    ];

    /// S3's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::ReadAcp => "READ_ACP",
            Self::WriteAcp => "WRITE_ACP",
            Self::FullControl => "FULL_CONTROL",
        }
    }

    /// Parses S3's name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|permission| permission.name() == text)
    }

    fn includes(self, asked: Self) -> bool {
        self == asked || self == Self::FullControl
    }
}

/// The grantee of a permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grantee<'a> {
    /// Every client.
    All,
    /// Every client that signs its requests.
    Authenticated,
    /// The server itself, which delivers logs.
    Logs,
    /// Amazon EC2, which reads machine images in AWS; no client here.
    Ec2,
    /// An account, by its name.
    Account(&'a str),
}

impl<'a> Grantee<'a> {
    /// The groups with S3's URIs, and the other grantees that are not accounts.
    const GROUPS: [(Self, &'static str, Option<&'static str>); 4] = [
        (
            Self::All,
            "@all",
            Some("http://acs.amazonaws.com/groups/global/AllUsers"),
        ),
        (
            Self::Authenticated,
            "@authenticated",
            Some("http://acs.amazonaws.com/groups/global/AuthenticatedUsers"),
        ),
        (
            Self::Logs,
            "@logs",
            Some("http://acs.amazonaws.com/groups/s3/LogDelivery"),
        ),
        (Self::Ec2, "@ec2", None),
    ];

    /// The group with this URI.
    pub fn of_uri(uri: &str) -> Option<Grantee<'static>> {
        let group = Grantee::GROUPS.into_iter().find(|(_, _, known)| *known == Some(uri));
        group.map(|(group, ..)| group)
    }

    /// The URI, of a group.
    pub fn uri(self) -> Option<&'static str> {
        let group = Grantee::GROUPS.into_iter().find(|(group, ..)| *group == self);
        group.and_then(|(_, _, uri)| uri)
    }

    /// Parses stored text.
    pub fn read(text: &'a str) -> Self {
        let group = Grantee::GROUPS.into_iter().find(|(_, known, _)| *known == text);
        group.map_or(Self::Account(text), |(group, ..)| group)
    }

    /// Whether it includes clients that are not named.
    pub const fn is_public(self) -> bool {
        matches!(self, Self::All | Self::Authenticated)
    }
}

impl fmt::Display for Grantee<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let group = Grantee::GROUPS.into_iter().find(|(group, ..)| group == self);
        match (self, group) {
            (Self::Account(name), _) => f.write_str(name),
            (_, Some((_, text, _))) => f.write_str(text),
            (_, None) => Ok(()),
        }
    }
}

/// A grant.
pub type Grant<'a> = (Grantee<'a>, Permission);

/// A list, and the owner of its bucket or object.
#[derive(Debug, Clone, Copy)]
pub struct List<'a> {
    /// The stored text.
    pub text: &'a str,
    /// The owner.
    pub owner: &'a str,
}

impl<'a> List<'a> {
    /// The grants. Text that cannot be parsed grants nothing.
    pub fn grants(self) -> impl Iterator<Item = Grant<'a>> {
        let is_canned = matches!(self.text, "" | PUBLIC_READ);
        let own = is_canned.then_some((Grantee::Account(self.owner), Permission::FullControl));
        let all = (self.text == PUBLIC_READ).then_some((Grantee::All, Permission::Read));
        let written = if is_canned { "" } else { self.text };
        let written = written.split(' ').filter_map(|grant| {
            let (grantee, permission) = grant.rsplit_once('=')?;
            Some((Grantee::read(grantee), Permission::parse(permission)?))
        });
        own.into_iter().chain(all).chain(written)
    }

    /// Whether it grants this permission to `account`, or, if that is `None`, to unsigned requests.
    /// Grants to groups that include clients not named count only if `with_public`.
    pub fn allows(self, asked: Permission, account: Option<&str>, with_public: bool) -> bool {
        // Most objects have no list of their own.
        if self.text.is_empty() {
            return account == Some(self.owner);
        }
        self.grants().any(|(grantee, permission)| {
            let is_meant = match grantee {
                Grantee::All => with_public,
                Grantee::Authenticated => with_public && account.is_some(),
                Grantee::Account(name) => account == Some(name),
                Grantee::Logs | Grantee::Ec2 => false,
            };
            is_meant && permission.includes(asked)
        })
    }

    /// Whether it has a grant to clients that are not named.
    pub fn is_public(self) -> bool {
        self.grants().any(|(grantee, _)| grantee.is_public())
    }

    /// Whether it has a grant to any account but these.
    pub fn opens_beyond(self, accounts: &[&str]) -> bool {
        self.grants().any(|(grantee, _)| match grantee {
            Grantee::Account(name) => !accounts.contains(&name),
            Grantee::All | Grantee::Authenticated | Grantee::Logs | Grantee::Ec2 => true,
        })
    }
}

/// Whether all of a stored text can be parsed.
pub fn is_readable(text: &str) -> bool {
    let is_grant = |grant: &str| {
        let (grantee, permission) = grant.rsplit_once('=').unwrap_or_default();
        !grantee.is_empty() && Permission::parse(permission).is_some()
    };
    matches!(text, "" | PUBLIC_READ | NO_GRANTS) || text.split(' ').all(is_grant)
}

/// The stored text of these grants, for a subject of `owner`.
pub fn stored(grants: &[Grant<'_>], owner: &str) -> String {
    let own = (Grantee::Account(owner), Permission::FullControl);
    match grants {
        [] => NO_GRANTS.to_owned(),
        [only] if *only == own => String::new(),
        [first, (Grantee::All, Permission::Read)] if *first == own => PUBLIC_READ.to_owned(),
        grants => {
            let mut text = String::new();
            for (at, (grantee, permission)) in grants.iter().enumerate() {
                let space = if at == 0 { "" } else { " " };
                // Writing to a String cannot fail.
                let _ = write!(text, "{space}{grantee}={}", permission.name());
            }
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Grant<'_> = (Grantee::Account("press"), Permission::FullControl);

    fn list(text: &str) -> List<'_> {
        List { text, owner: "press" }
    }

    /// The stored text, byte for byte.
    #[test]
    fn golden() {
        let all = (Grantee::All, Permission::Read);
        let more = [
            (Grantee::Account("b"), Permission::WriteAcp),
            (Grantee::Authenticated, Permission::ReadAcp),
            (Grantee::Logs, Permission::Write),
        ];
        let exec = [OWN, (Grantee::Ec2, Permission::Read)];
        for (grants, text) in [
            (&[][..], "-"),
            (&[OWN], ""),
            (&[OWN, all], "public-read"),
            (&[all], "@all=READ"),
            (&[all, OWN], "@all=READ press=FULL_CONTROL"),
            (&more, "b=WRITE_ACP @authenticated=READ_ACP @logs=WRITE"),
            (&exec, "press=FULL_CONTROL @ec2=READ"),
        ] {
            assert_eq!(stored(grants, "press"), text);
            assert_eq!(list(text).grants().collect::<Vec<_>>(), grants, "{text}");
        }
        // The form of objects written before accounts existed.
        assert!(list("public-read").is_public() && !list("").is_public() && !list("-").is_public());
        assert_eq!(
            list("nothing =READ b=EVERYTHING").grants().count(),
            1,
            "no account has no name"
        );
    }

    #[test]
    fn what_lists_allow() {
        let allowed = |text, account, with_public| {
            let permissions = [
                (Permission::Read, 'r'),
                (Permission::Write, 'w'),
                (Permission::ReadAcp, 'a'),
                (Permission::WriteAcp, 'c'),
            ];
            let allowed = permissions
                .into_iter()
                .filter(|(permission, _)| list(text).allows(*permission, account, with_public));
            allowed.map(|(_, letter)| letter).collect::<String>()
        };
        for (text, own, other, unsigned, not_public) in [
            ("", "rwac", "", "", ""),
            ("-", "", "", "", ""),
            ("public-read", "rwac", "r", "r", ""),
            ("@authenticated=WRITE", "w", "w", "", ""),
            ("@logs=WRITE", "", "", "", ""),
            ("@ec2=READ", "", "", "", ""),
            ("b=READ b=WRITE_ACP", "", "rc", "", "rc"),
            ("b=FULL_CONTROL @all=READ_ACP", "a", "rwac", "a", "rwac"),
        ] {
            assert_eq!(allowed(text, Some("press"), true), own, "{text}");
            assert_eq!(allowed(text, Some("b"), true), other, "{text}");
            assert_eq!(allowed(text, None, true), unsigned, "{text}");
            assert_eq!(allowed(text, Some("b"), false), not_public, "{text}");
        }
    }

    #[test]
    fn what_lists_open() {
        for (text, to_press, to_both) in [
            ("", false, false),
            ("b=READ", true, false),
            ("@logs=WRITE", true, true),
            ("press=FULL_CONTROL @ec2=READ", true, true),
            ("public-read", true, true),
        ] {
            assert_eq!(list(text).opens_beyond(&["press"]), to_press, "{text}");
            assert_eq!(list(text).opens_beyond(&["press", "b"]), to_both, "{text}");
        }
    }

    #[test]
    fn groups_have_uris() {
        for group in [Grantee::All, Grantee::Authenticated, Grantee::Logs] {
            assert_eq!(group.uri().and_then(Grantee::of_uri), Some(group));
        }
        assert_eq!(Grantee::of_uri("http://acs.amazonaws.com/groups/global/x"), None);
        assert_eq!(Grantee::Account("press").uri(), None);
    }
}
