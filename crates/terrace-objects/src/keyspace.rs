//! Layout of S3's data in the store's one ordered keyspace. docs/s3.md has it as a table.
//!
//! An object is at `BUCKET/KEY`. Bucket names contain no slash, so `BUCKET/` is a prefix of that
//! bucket's keys only, and listing a bucket is a scan of one range. The image page's keys under
//! `images/` and `catalogue/` therefore are the objects of two buckets with these names, once a
//! request creates them.
//!
//! Everything else is below [`SYSTEM_PREFIX`], which begins with a zero byte. No bucket name
//! contains one, so no S3 request can name such a key.

use std::fmt;
use terrace::Clock;

/// Prefix of all keys that are not objects.
pub const SYSTEM_PREFIX: &str = "\0s3/";
/// Access keys: the access key's ID follows.
pub const ACCESS_KEYS: &str = "\0s3/key/";
/// Accounts: the account's name follows.
pub const ACCOUNTS: &str = "\0s3/account/";
/// The key from which temporary credentials are derived.
pub const SESSION_KEY: &str = "\0s3/session-key";
/// The master key that the store generated because none was given.
pub const OWN_MASTER_KEY: &str = "\0s3/own-master-key";
/// KMS keys that clients name: the name of one follows.
pub const KMS_KEYS: &str = "\0s3/kms-key/";
/// Which master keys have been used: the name of one follows.
pub const MASTER_KEYS: &str = "\0s3/master-key/";
/// Buckets: the bucket's name follows.
pub const BUCKETS: &str = "\0s3/bucket/";
/// Incomplete multipart uploads.
pub const UPLOADS: &str = "\0s3/upload/";
/// Values that no object refers to any more: an [`Id`] follows.
pub const GARBAGE: &str = "\0s3/garbage/";
/// Values that are being written and that no object refers to yet: an [`Id`] follows.
pub const PENDING: &str = "\0s3/pending/";

/// Events that wait to be delivered: the target's name and an [`Id`] follow.
pub const EVENTS: &str = "\0s3/event/";

/// Versions of objects that are not the current one, and delete markers.
pub const VERSIONS: &str = "\0s3/version/";
/// Which version of an object is the `null` version, if the current object is not.
const NULL_VERSIONS: &str = "\0s3/null-version/";
/// Values of parts that are being written: the value's key after `VALUES` follows.
pub const PENDING_PARTS: &str = "\0s3/pending-part/";
/// Records of parts of uploads: the upload's [`Id`] and the part's number follow.
const PARTS: &str = "\0s3/part/";
/// Values.
const VALUES: &str = "\0s3/data/";

/// A part of the keyspace.
#[derive(Debug, Clone, Copy)]
pub struct Space {
    /// Prefix of its keys; the whole key if there is only one.
    pub prefix: &'static str,
    /// The module that encodes the values.
    pub codec: &'static str,
    /// What deletes its keys.
    pub deleted_by: &'static str,
}

/// All spaces except the objects. A test compares the table of docs/s3.md with this one.
#[rustfmt::skip]
pub const SPACES: [Space; 16] = [
    Space { prefix: BUCKETS,        codec: "`bucket`",     deleted_by: "DeleteBucket" },
    Space { prefix: SESSION_KEY,    codec: "`session`",    deleted_by: "nothing" },
    Space { prefix: MASTER_KEYS,    codec: "`secrets`",    deleted_by: "`terrace rewrap`" },
    Space { prefix: OWN_MASTER_KEY, codec: "`secrets`",    deleted_by: "nothing" },
    Space { prefix: KMS_KEYS,       codec: "`secrets`",    deleted_by: "`terrace kms delete`" },
    Space { prefix: ACCOUNTS,       codec: "`account`",    deleted_by: "nothing" },
    Space { prefix: ACCESS_KEYS,    codec: "`access_key`", deleted_by: "`terrace key remove`" },
    Space { prefix: VERSIONS,       codec: "`record`",     deleted_by: "deletes of a version, rules" },
    Space { prefix: NULL_VERSIONS,  codec: "`commit`",     deleted_by: "the commit that deletes or moves it" },
    Space { prefix: UPLOADS,        codec: "`upload`",     deleted_by: "its completion or abort, rules" },
    Space { prefix: PARTS,          codec: "`part`",       deleted_by: "the upload's completion or abort" },
    Space { prefix: VALUES,         codec: "`write`",      deleted_by: "the collector" },
    Space { prefix: PENDING,        codec: "–",            deleted_by: "the commit, the collector" },
    Space { prefix: PENDING_PARTS,  codec: "–",            deleted_by: "the commit, the collector" },
    Space { prefix: EVENTS,         codec: "the server's `notify`", deleted_by: "its delivery" },
    Space { prefix: GARBAGE,        codec: "–",            deleted_by: "the collector" },
];

/// Longest key of an object, S3's limit, in bytes.
pub const KEY_BYTES_MAX: usize = 1024;
/// Length of an [`Id`] as text.
const ID_TEXT_BYTES: usize = 32;

/// Identifies the separate values of one object or upload. Displays as 32 hex digits that sort by
/// time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub [u8; 16]);

impl Id {
    /// A new ID: six bytes of time, ten random ones.
    pub fn new(clock: &Clock) -> Self {
        let Self(mut bytes) = Self::first_of(clock.now_ms());
        fill_random(&mut bytes[6..]);
        Self(bytes)
    }

    /// Reads the text.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != ID_TEXT_BYTES || !text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        u128::from_str_radix(text, 16)
            .ok()
            .map(|number| Self(number.to_be_bytes()))
    }
}

impl Id {
    /// The next later ID: the order of an object's versions must always advance.
    pub const fn next(self) -> Self {
        Self(u128::from_be_bytes(self.0).saturating_add(1).to_be_bytes())
    }

    /// The smallest ID of a millisecond since 1970.
    pub fn first_of(ms: u64) -> Self {
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&ms.to_be_bytes()[2..]);
        Self(bytes)
    }

    /// Its time, in milliseconds since 1970.
    pub fn ms(self) -> u64 {
        self.0[..6].iter().fold(0, |ms, byte| ms << 8 | u64::from(*byte))
    }

    /// The ID whose text sorts in the opposite order.
    const fn inverted(self) -> Self {
        Self((!u128::from_be_bytes(self.0)).to_be_bytes())
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// A text that nothing else contains: 32 hex digits.
pub fn unique_text() -> String {
    let mut bytes = [0; 16];
    fill_random(&mut bytes);
    Id(bytes).to_string()
}

/// Fills `bytes` from the operating system's generator.
pub fn fill_random(bytes: &mut [u8]) {
    if let Err(error) = getrandom::fill(bytes) {
        // Predictable names and secrets would be worse than no server.
        panic!("the operating system gives no random bytes: {error}");
    }
}

/// The key of an object.
pub fn object(bucket: &str, key: &str) -> Vec<u8> {
    [bucket.as_bytes(), b"/", key.as_bytes()].concat()
}

/// Prefix of the keys of a bucket's objects.
pub fn objects(bucket: &str) -> Vec<u8> {
    [bucket.as_bytes(), b"/"].concat()
}

/// Whether a bucket may have this name.
pub fn is_bucket_name(name: &str) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    (3..64).contains(&bytes.len())
        && bytes.iter().all(|byte| is_plain(byte) || matches!(byte, b'.' | b'-'))
        && bytes.first().is_some_and(is_plain)
        && bytes.last().is_some_and(is_plain)
        && !name.contains("..")
        && !name.starts_with("xn--")
        && name.parse::<std::net::IpAddr>().is_err()
}

/// The key of a bucket's record.
pub fn bucket(name: &str) -> Vec<u8> {
    format!("{BUCKETS}{name}").into_bytes()
}

/// The key of an access key.
pub fn access_key(id: &str) -> Vec<u8> {
    format!("{ACCESS_KEYS}{id}").into_bytes()
}

/// The key of an account.
pub fn account(name: &str) -> Vec<u8> {
    format!("{ACCOUNTS}{name}").into_bytes()
}

/// The key of the record which states that a master key has been used.
pub fn master_key(name: &str) -> Vec<u8> {
    format!("{MASTER_KEYS}{name}").into_bytes()
}

/// The key of the object to which a record belongs: the object itself, one of its versions, or an
/// upload.
pub fn object_of(place: &[u8]) -> &[u8] {
    let rest = [VERSIONS, UPLOADS]
        .into_iter()
        .find_map(|space| place.strip_prefix(space.as_bytes()));
    // Keys of objects have no zero byte.
    rest.map_or(place, |rest| rest.split(|byte| *byte == 0).next().unwrap_or_default())
}

/// Prefix of the keys of a bucket's uploads.
pub fn uploads(bucket: &str) -> Vec<u8> {
    format!("{UPLOADS}{bucket}/").into_bytes()
}

/// The key of an upload's record. Object keys have no zero byte, so these sort by object key, then
/// by time.
pub fn upload(bucket: &str, key: &str, id: Id) -> Vec<u8> {
    format!("{UPLOADS}{bucket}/{key}\0{id}").into_bytes()
}

/// Splits an upload's key after its bucket's prefix.
pub fn parse_upload(rest: &[u8]) -> Option<(&str, Id)> {
    let text = std::str::from_utf8(rest).ok()?;
    let (key, id) = text.rsplit_once('\0')?;
    Some((key, Id::parse(id)?))
}

/// Prefix of the keys of a bucket's versions.
pub fn versions(bucket: &str) -> Vec<u8> {
    format!("{VERSIONS}{bucket}/").into_bytes()
}

/// Prefix of the keys of one object's versions.
pub fn versions_of(bucket: &str, key: &str) -> Vec<u8> {
    format!("{VERSIONS}{bucket}/{key}\0").into_bytes()
}

/// The key of a version that is not the current one. Object keys have no zero byte, so these sort
/// by object key, then from the latest to the earliest.
pub fn version(bucket: &str, key: &str, order: Id) -> Vec<u8> {
    format!("{VERSIONS}{bucket}/{key}\0{}", order.inverted()).into_bytes()
}

/// Splits a version's key after its bucket's prefix.
pub fn parse_version(rest: &[u8]) -> Option<(&str, Id)> {
    let (key, order) = parse_upload(rest)?;
    Some((key, order.inverted()))
}

/// The key of the record that names an object's `null` version, if the current object is not.
pub fn null_version(bucket: &str, key: &str) -> Vec<u8> {
    format!("{NULL_VERSIONS}{bucket}/{key}").into_bytes()
}

/// Prefix of the keys of an upload's parts.
pub fn parts(id: Id) -> Vec<u8> {
    format!("{PARTS}{id}/").into_bytes()
}

/// The key of a part's record.
pub fn part(id: Id, number: u16) -> Vec<u8> {
    format!("{PARTS}{id}/{number:05}").into_bytes()
}

/// The part number in the last five bytes of a key.
pub fn parse_part(key: &[u8]) -> Option<u16> {
    let digits = key.get(key.len().checked_sub(5)?..)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Prefix of the keys of all values of an object or an upload.
pub fn values(id: Id) -> Vec<u8> {
    format!("{VALUES}{id}/").into_bytes()
}

/// The key of a value. A part that is sent again has another `nonce`, so that the earlier value
/// stays intact until the new one replaces it.
pub fn value(id: Id, number: u16, nonce: u32) -> Vec<u8> {
    format!("{VALUES}{id}/{number:05}-{nonce:08x}").into_bytes()
}

/// Prefix of the keys of events for a target.
pub fn events(target: &str) -> Vec<u8> {
    format!("{EVENTS}{target}/").into_bytes()
}

/// The key of an event for a target.
pub fn event(target: &str, id: Id) -> Vec<u8> {
    format!("{EVENTS}{target}/{id}").into_bytes()
}

/// The key of the garbage marker of `id`.
pub fn garbage(id: Id) -> Vec<u8> {
    format!("{GARBAGE}{id}").into_bytes()
}

/// The key of the pending marker of `id`.
pub fn pending(id: Id) -> Vec<u8> {
    format!("{PENDING}{id}").into_bytes()
}

/// The key of the pending marker of a part's value.
pub fn pending_part(value: &[u8]) -> Vec<u8> {
    let rest = value.strip_prefix(VALUES.as_bytes()).unwrap_or(value);
    [PENDING_PARTS.as_bytes(), rest].concat()
}

/// The value's key for a key of [`PENDING_PARTS`].
pub fn value_of_pending_part(marker: &[u8]) -> Option<Vec<u8>> {
    let rest = marker.strip_prefix(PENDING_PARTS.as_bytes())?;
    Some([VALUES.as_bytes(), rest].concat())
}

/// A key that never exists. Deleting it with durability makes all earlier commits durable.
pub fn sync_marker() -> Vec<u8> {
    format!("{SYSTEM_PREFIX}sync").into_bytes()
}

/// The ID at the end of a key of [`GARBAGE`], [`PENDING`] or [`EVENTS`].
pub fn parse_id(key: &[u8]) -> Option<Id> {
    let start = key.len().checked_sub(ID_TEXT_BYTES)?;
    Id::parse(std::str::from_utf8(&key[start..]).ok()?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ids_survive_as_text_and_sort_by_time() {
        let first = Id::new(&Clock::default());
        assert_eq!(Id::parse(&first.to_string()), Some(first));
        let later = Id([0xff; 16]);
        assert!(first.to_string() < later.to_string());
        for text in [
            "",
            "0",
            &"g".repeat(32),
            &"A".repeat(32),
            &"0".repeat(33),
            &"+".repeat(32),
        ] {
            assert_eq!(Id::parse(text), None, "{text}");
        }
        assert_ne!(Id::new(&Clock::default()), Id::new(&Clock::default()));
    }

    #[test]
    fn keys_are_read_back() {
        let id = Id::new(&Clock::default());
        let key = upload("photos", "a/b\u{1}ü", id);
        assert_eq!(parse_upload(&key[uploads("photos").len()..]), Some(("a/b\u{1}ü", id)));
        assert_eq!(parse_part(&part(id, 10_000)), Some(10_000));
        assert_eq!(parse_id(&garbage(id)), Some(id));
        assert_eq!(parse_id(&pending(id)), Some(id));
        assert!(value(id, 3, 7).starts_with(&values(id)));
        let value = value(id, 3, 7);
        assert_eq!(value_of_pending_part(&pending_part(&value)), Some(value));
        assert_eq!(parse_id(b"short"), None);
        assert_eq!(parse_part(b"x"), None);
        assert_eq!(parse_upload(b"no id"), None);
        for place in [object("b", "k/l"), version("b", "k/l", id), upload("b", "k/l", id)] {
            assert_eq!(object_of(&place), b"b/k/l");
        }
    }

    #[test]
    fn versions_sort_by_object_then_from_the_latest() {
        let (early, late) = (Id::first_of(5), Id::first_of(5).next());
        assert!(early < late && late.ms() == 5 && Id([0xff; 16]).next() == Id([0xff; 16]));
        let sorted = [
            version("b", "k", late),
            version("b", "k", early),
            version("b", "k\u{1}", late),
            version("b", "k/x", early),
            version("b", "kk", early),
        ];
        assert!(sorted.is_sorted());
        assert_eq!(parse_version(&sorted[0][versions("b").len()..]), Some(("k", late)));
        assert!(sorted[1].starts_with(&versions_of("b", "k")) && !sorted[2].starts_with(&versions_of("b", "k")));
        let clock = Clock::default();
        let (before, made, after) = (clock.now_ms(), Id::new(&clock).ms(), clock.now_ms());
        assert!((before..=after).contains(&made));
    }

    #[test]
    fn no_space_lies_in_another() {
        for one in &SPACES {
            assert!(one.prefix.starts_with(SYSTEM_PREFIX), "{one:?}");
            let within = SPACES.iter().filter(|other| one.prefix.starts_with(other.prefix));
            assert_eq!(within.count(), 1, "{one:?} lies in another");
        }
        // The sync marker is in none of the spaces.
        let marker = String::from_utf8(sync_marker()).unwrap();
        assert!(!SPACES.iter().any(|space| marker.starts_with(space.prefix)));
    }

    #[test]
    fn the_document_has_every_space_and_no_other() {
        let document = include_str!("../../../docs/s3.md");
        let written = |space: &Space| space.prefix.replace('\0', "\\0");
        let rows: Vec<&str> = document.lines().filter(|line| line.starts_with("| `\\0s3/")).collect();
        for space in &SPACES {
            let begin = format!("| `{}", written(space));
            let end = format!("| {} | {} |", space.codec, space.deleted_by);
            let own: Vec<_> = rows.iter().filter(|row| row.starts_with(&begin)).collect();
            assert!(own.len() == 1 && own[0].ends_with(&end), "{begin} … {end}: {own:?}");
        }
        assert_eq!(rows.len(), SPACES.len());
    }

    #[test]
    fn objects_and_the_system_do_not_meet() {
        assert_eq!(object("images", "1/small"), b"images/1/small");
        assert!(object("a-bucket", "\u{0}s3/key/x") > object("a-bucket", ""));
        assert!(!object("a-bucket", "x").starts_with(SYSTEM_PREFIX.as_bytes()));
    }
}
