//! Where everything of S3 is in the store's one ordered keyspace. docs/s3.md shows the same as a
//! table.
//!
//! An object is at `BUCKET/KEY`. Bucket names have no slash, so `BUCKET/` is a prefix of that
//! bucket's keys and of nothing else, and a listing of a bucket is a scan of one range. What the
//! image page keeps under `images/` and `catalogue/` are therefore the objects of two buckets with
//! these names, once a request creates them.
//!
//! Everything else is below [`SYSTEM_PREFIX`]. It begins with a zero byte, which no bucket name
//! has, so no S3 request can name such a key.

use std::{
    fmt,
    time::{SystemTime, UNIX_EPOCH},
};

/// How the keys of everything begin that is not an object.
pub const SYSTEM_PREFIX: &str = "\0s3/";
/// Access keys: the access key's ID follows.
pub const ACCESS_KEYS: &str = "\0s3/key/";
/// Accounts: the account's name follows.
pub const ACCOUNTS: &str = "\0s3/account/";
/// What temporary credentials are made with.
pub const SESSION_KEY: &str = "\0s3/session-key";
/// The master key that a store has drawn for itself, because none was given.
pub const OWN_MASTER_KEY: &str = "\0s3/own-master-key";
/// Keys that clients name for SSE-KMS: the name of one follows.
pub const KMS_KEYS: &str = "\0s3/kms-key/";
/// Which master keys have been used: the name of one follows.
pub const MASTER_KEYS: &str = "\0s3/master-key/";
/// Buckets: the bucket's name follows.
pub const BUCKETS: &str = "\0s3/bucket/";
/// Multipart uploads that are not complete.
pub const UPLOADS: &str = "\0s3/upload/";
/// Values that no object refers to any more: an [`Id`] follows.
pub const GARBAGE: &str = "\0s3/garbage/";
/// Values that are being written and that no object refers to yet: an [`Id`] follows.
pub const PENDING: &str = "\0s3/pending/";

/// Events that wait to be delivered: the target's name and an [`Id`] follow.
pub const EVENTS: &str = "\0s3/event/";

/// Versions of objects that are not the current one, and delete markers.
pub const VERSIONS: &str = "\0s3/version/";
/// Which of those has no ID of its own.
const NULL_VERSIONS: &str = "\0s3/null-version/";
/// Values of parts that are being written: what follows `VALUES` in the key of the value follows.
pub const PENDING_PARTS: &str = "\0s3/pending-part/";
/// Records of parts of uploads: the upload's [`Id`] and the part's number follow.
const PARTS: &str = "\0s3/part/";
/// Values.
const VALUES: &str = "\0s3/data/";

/// A part of the keyspace.
#[derive(Debug, Clone, Copy)]
pub struct Space {
    /// How its keys begin; the whole key of a space of one.
    pub prefix: &'static str,
    /// The module that knows what is stored there.
    pub codec: &'static str,
    /// What takes something out of it.
    pub deleted_by: &'static str,
}

/// All of them but the objects. The table of docs/s3.md is held against this one.
#[rustfmt::skip]
pub const SPACES: [Space; 16] = [
    Space { prefix: BUCKETS,        codec: "`bucket`",     deleted_by: "DeleteBucket" },
    Space { prefix: SESSION_KEY,    codec: "`session`",    deleted_by: "nobody" },
    Space { prefix: MASTER_KEYS,    codec: "`secrets`",    deleted_by: "`terrace rewrap`" },
    Space { prefix: OWN_MASTER_KEY, codec: "`secrets`",    deleted_by: "nobody" },
    Space { prefix: KMS_KEYS,       codec: "`secrets`",    deleted_by: "`terrace kms delete`" },
    Space { prefix: ACCOUNTS,       codec: "`account`",    deleted_by: "nobody" },
    Space { prefix: ACCESS_KEYS,    codec: "`access_key`", deleted_by: "`terrace key remove`" },
    Space { prefix: VERSIONS,       codec: "`record`",     deleted_by: "deletes of a version, rules" },
    Space { prefix: NULL_VERSIONS,  codec: "`commit`",     deleted_by: "the commit that ends it" },
    Space { prefix: UPLOADS,        codec: "`upload`",     deleted_by: "its end, rules" },
    Space { prefix: PARTS,          codec: "`part`",       deleted_by: "the upload's end" },
    Space { prefix: VALUES,         codec: "`write`",      deleted_by: "the collector" },
    Space { prefix: PENDING,        codec: "–",            deleted_by: "the commit, the collector" },
    Space { prefix: PENDING_PARTS,  codec: "–",            deleted_by: "the commit, the collector" },
    Space { prefix: EVENTS,         codec: "the server's `notify`", deleted_by: "its delivery" },
    Space { prefix: GARBAGE,        codec: "–",            deleted_by: "the collector" },
];

/// Longest key of an object that S3 allows, in bytes.
pub const KEY_BYTES_MAX: usize = 1024;
/// Length of an [`Id`] as text.
const ID_TEXT_BYTES: usize = 32;

/// Names the stored values of one object, or one multipart upload. Displays as 32 hex digits, which
/// sort by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub [u8; 16]);

impl Id {
    /// A new one: six bytes of time, ten of chance.
    #[allow(clippy::new_without_default)] // each is another
    pub fn new() -> Self {
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&now_ms().to_be_bytes()[2..]);
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
    /// The first that is later than `self`: what orders the versions of one object must never stand
    /// still.
    pub const fn next(self) -> Self {
        Self(u128::from_be_bytes(self.0).saturating_add(1).to_be_bytes())
    }

    /// The earliest of a millisecond since 1970.
    pub fn first_of(ms: u64) -> Self {
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&ms.to_be_bytes()[2..]);
        Self(bytes)
    }

    /// When it was made, in milliseconds since 1970.
    pub fn ms(self) -> u64 {
        self.0[..6].iter().fold(0, |ms, byte| ms << 8 | u64::from(*byte))
    }

    /// The one whose text sorts the other way round.
    const fn inverted(self) -> Self {
        Self((!u128::from_be_bytes(self.0)).to_be_bytes())
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Fills `bytes` from the operating system's generator.
pub fn fill_random(bytes: &mut [u8]) {
    if let Err(error) = getrandom::fill(bytes) {
        // Names and secrets made without chance would be worse than no server.
        panic!("the operating system gives no random bytes: {error}");
    }
}

/// The key of an object.
pub fn object(bucket: &str, key: &str) -> Vec<u8> {
    [bucket.as_bytes(), b"/", key.as_bytes()].concat()
}

/// What the keys of a bucket's objects begin with.
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

/// The key that says that a master key has been used.
pub fn master_key(name: &str) -> Vec<u8> {
    format!("{MASTER_KEYS}{name}").into_bytes()
}

/// The key of the object that a record is of: its own, that of one of its versions, or of an upload
/// that may become one.
pub fn object_of(place: &[u8]) -> &[u8] {
    let rest = [VERSIONS, UPLOADS]
        .into_iter()
        .find_map(|space| place.strip_prefix(space.as_bytes()));
    // Keys of objects have no zero byte.
    rest.map_or(place, |rest| rest.split(|byte| *byte == 0).next().unwrap_or_default())
}

/// What the keys of a bucket's uploads begin with.
pub fn uploads(bucket: &str) -> Vec<u8> {
    format!("{UPLOADS}{bucket}/").into_bytes()
}

/// The key of an upload's record. Object keys have no zero byte, so these sort by object key, then
/// by time.
pub fn upload(bucket: &str, key: &str, id: Id) -> Vec<u8> {
    format!("{UPLOADS}{bucket}/{key}\0{id}").into_bytes()
}

/// What an upload's key is made of after its bucket's prefix.
pub fn parse_upload(rest: &[u8]) -> Option<(&str, Id)> {
    let text = std::str::from_utf8(rest).ok()?;
    let (key, id) = text.rsplit_once('\0')?;
    Some((key, Id::parse(id)?))
}

/// What the keys of a bucket's versions begin with.
pub fn versions(bucket: &str) -> Vec<u8> {
    format!("{VERSIONS}{bucket}/").into_bytes()
}

/// What the keys of the versions of one object begin with.
pub fn versions_of(bucket: &str, key: &str) -> Vec<u8> {
    format!("{VERSIONS}{bucket}/{key}\0").into_bytes()
}

/// The key of a version that is not the current one. Object keys have no zero byte, so these sort
/// by object key, then from the latest to the earliest.
pub fn version(bucket: &str, key: &str, order: Id) -> Vec<u8> {
    format!("{VERSIONS}{bucket}/{key}\0{}", order.inverted()).into_bytes()
}

/// What a version's key is made of after its bucket's prefix.
pub fn parse_version(rest: &[u8]) -> Option<(&str, Id)> {
    let (key, order) = parse_upload(rest)?;
    Some((key, order.inverted()))
}

/// The key of the record that says which of an object's versions, other than the current one, has
/// no ID of its own.
pub fn null_version(bucket: &str, key: &str) -> Vec<u8> {
    format!("{NULL_VERSIONS}{bucket}/{key}").into_bytes()
}

/// What the keys of an upload's parts begin with.
pub fn parts(id: Id) -> Vec<u8> {
    format!("{PARTS}{id}/").into_bytes()
}

/// The key of a part's record.
pub fn part(id: Id, number: u16) -> Vec<u8> {
    format!("{PARTS}{id}/{number:05}").into_bytes()
}

/// The number of the part that a key's last five bytes name.
pub fn parse_part(key: &[u8]) -> Option<u16> {
    let digits = key.get(key.len().checked_sub(5)?..)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// What the keys of all values of an object or an upload begin with.
pub fn values(id: Id) -> Vec<u8> {
    format!("{VALUES}{id}/").into_bytes()
}

/// The key of a value. A part that is sent again gets another `nonce`, so that the earlier one
/// stays as it is until the new one has taken its place.
pub fn value(id: Id, number: u16, nonce: u32) -> Vec<u8> {
    format!("{VALUES}{id}/{number:05}-{nonce:08x}").into_bytes()
}

/// What the keys of the events for a target begin with.
pub fn events(target: &str) -> Vec<u8> {
    format!("{EVENTS}{target}/").into_bytes()
}

/// The key of an event for a target.
pub fn event(target: &str, id: Id) -> Vec<u8> {
    format!("{EVENTS}{target}/{id}").into_bytes()
}

/// The key that says that the values of `id` are garbage.
pub fn garbage(id: Id) -> Vec<u8> {
    format!("{GARBAGE}{id}").into_bytes()
}

/// The key that says that the values of `id` are being written.
pub fn pending(id: Id) -> Vec<u8> {
    format!("{PENDING}{id}").into_bytes()
}

/// The key that says that the value of a part is being written.
pub fn pending_part(value: &[u8]) -> Vec<u8> {
    let rest = value.strip_prefix(VALUES.as_bytes()).unwrap_or(value);
    [PENDING_PARTS.as_bytes(), rest].concat()
}

/// The key of the value that a key of [`PENDING_PARTS`] is about.
pub fn value_of_pending_part(marker: &[u8]) -> Option<Vec<u8>> {
    let rest = marker.strip_prefix(PENDING_PARTS.as_bytes())?;
    Some([VALUES.as_bytes(), rest].concat())
}

/// A key that is never there. Deleting it durably makes everything durable that was committed
/// before.
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
        let first = Id::new();
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
        assert_ne!(Id::new(), Id::new());
    }

    #[test]
    fn keys_are_read_back() {
        let id = Id::new();
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
        let (before, made, after) = (now_ms(), Id::new().ms(), now_ms());
        assert!((before..=after).contains(&made));
    }

    #[test]
    fn no_space_lies_in_another() {
        for one in &SPACES {
            assert!(one.prefix.starts_with(SYSTEM_PREFIX), "{one:?}");
            let within = SPACES.iter().filter(|other| one.prefix.starts_with(other.prefix));
            assert_eq!(within.count(), 1, "{one:?} lies in another");
        }
        // What is deleted so that everything is durable is in none of them.
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
