//! Targets of what the object model of the S3 service stores.

use terrace::{Attributes, HomeKind, ObjectInfo, Version};
use terrace_objects::{
    acl::{self, List},
    crypt::{Encryption, SealedKey},
    fuzzing,
    keyspace::{self, Id},
    lock, manifest,
    policy::Policy,
    record::{Facts, Name},
    tags,
};

/// JSON of a record that is read is written in a form that reads as the same.
fn json(data: &[u8], decoder: fn(&[u8]) -> Option<Vec<u8>>) -> bool {
    let Some(written) = decoder(data) else {
        return false;
    };
    assert_eq!(
        decoder(&written).as_ref(),
        Some(&written),
        "its own form reads differently"
    );
    true
}

/// The record of a bucket that is read is written in a form that reads as the same.
///
/// # Panics
/// If a property is broken.
pub fn bucket_record(data: &[u8]) -> bool {
    json(data, fuzzing::bucket)
}

/// The same of accounts.
///
/// # Panics
/// If a property is broken.
pub fn account_record(data: &[u8]) -> bool {
    json(data, fuzzing::account)
}

/// The same of access keys, of the key that sessions are made with, and of what a session's token
/// has.
///
/// # Panics
/// If a property is broken.
pub fn key_record(data: &[u8]) -> bool {
    let decoders = [fuzzing::access_key, fuzzing::session_key, fuzzing::session_bounds];
    decoders.map(|decoder| json(data, decoder)).contains(&true)
}

/// A list of parts that is read is written as one that reads as the same and is as long, and its
/// lengths have a sum.
///
/// # Panics
/// If a property is broken.
pub fn part_list(data: &[u8]) -> bool {
    let Some(parts) = manifest::decode(data) else {
        return false;
    };
    assert!(data.len() as u64 <= manifest::MANIFEST_BYTES_MAX && parts.len() <= manifest::PARTS_MAX);
    let whole = parts
        .iter()
        .try_fold(0_u64, |whole, part| whole.checked_add(part.length));
    assert!(whole.is_some(), "no object is so long");
    let algorithm = parts.first().and_then(|part| part.checksum.as_ref());
    let written = manifest::encode(&parts, algorithm.map(|checksum| checksum.algorithm));
    assert_eq!(written.len(), data.len(), "a form of another length");
    assert_eq!(
        manifest::decode(&written),
        Some(parts),
        "its own form reads differently"
    );
    true
}

/// A wrapped key that is read is written as the bytes it was read from.
///
/// # Panics
/// If a property is broken.
pub fn sealed_key(data: &[u8]) -> bool {
    let Some(sealed) = SealedKey::decode(data) else {
        return false;
    };
    assert_eq!(sealed.encode(), data, "not canonical");
    true
}

/// The first bytes are the length of a value and where a range of it begins and ends; the rest is
/// added, bit by bit, to what is stored of the value, which is cut or longer if there is more. What
/// is decrypted is what was encrypted, or nothing.
///
/// # Panics
/// If a property is broken.
pub fn sealed_value(data: &[u8]) -> bool {
    let Some((head, flips)) = data.split_first_chunk::<10>() else {
        return false;
    };
    let number = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
    // Up to three pieces.
    let length = (number(0) | usize::from(head[8] & 1) << 16).min(150_000);
    let plain: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
    let start = number(2).min(length);
    let end = (start + number(4) + usize::from(head[9] & 1) * 65_536).min(length);
    if start == end {
        return false;
    }
    let mut stored = fuzzing::sealed(&plain).expect("bytes can be encrypted");
    let at = number(6) * 3 % stored.len();
    let mut is_changed = false;
    for (place, flip) in stored[at..].iter_mut().zip(flips) {
        *place ^= flip;
        is_changed |= *flip != 0;
    }
    let range = start as u64..end as u64;
    match fuzzing::opened(&stored, length as u64, range) {
        Some(opened) => assert!(opened == plain[start..end], "other bytes than were encrypted"),
        None => assert!(is_changed, "what was encrypted cannot be opened"),
    }
    !is_changed
}

/// Whatever the attributes of a record say, what a listing knows of it is what is known of it, its
/// version has a name that reads back, and what it says of locks and its list can be said again.
///
/// # Panics
/// If a property is broken.
pub fn object_attributes(data: &[u8]) -> bool {
    let Some(attributes) = Attributes::decode(data) else {
        return false;
    };
    let info = ObjectInfo {
        expires_at: None,
        version: Version(5),
        length: 7,
        checksum: 9,
        home: HomeKind::Inline,
        attributes,
    };
    let (all, listed) = (Facts::of(&info), Facts::listed(&info));
    assert_eq!(
        (&all.etag, all.modified_ms, all.length, all.order),
        (&listed.etag, listed.modified_ms, listed.length, listed.order),
        "a listing shows something else"
    );
    let name = Name::of(&all);
    let read = Name::parse(Some(&name.to_string())).expect("a version has a name");
    assert_eq!(read, Some(name), "a name that means another version");
    assert_eq!(all.encryption, Encryption::of(&info.attributes));
    let mut again = info.attributes.clone();
    lock::set_retention(&mut again, lock::retention(&info.attributes));
    assert_eq!(lock::retention(&again), lock::retention(&info.attributes));
    access_list(all.list().as_bytes());
    all.shown().count();
    all.encoded_metadata();
    all.order.is_some() || all.values.is_some() || all.is_of_s3()
}

/// A list of grants that is read is written as one that grants the same.
///
/// # Panics
/// If a property is broken.
pub fn access_list(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else {
        return false;
    };
    let list = List { text, owner: "owner" };
    let grants: Vec<_> = list.grants().collect();
    let written = acl::stored(&grants, list.owner);
    let again = List {
        text: &written,
        owner: "owner",
    };
    assert!(again.grants().eq(grants.iter().copied()), "it grants something else");
    assert_eq!(list.is_public(), again.is_public());
    !grants.is_empty()
}

/// Tags that are read are written as a query that reads as the same.
///
/// # Panics
/// If a property is broken.
pub fn tags_query(data: &[u8]) -> bool {
    let Some(read) = std::str::from_utf8(data).ok().and_then(tags::decode) else {
        return false;
    };
    let written = tags::encode(&read);
    assert_eq!(tags::decode(&written), Some(read), "its own form reads differently");
    true
}

/// A policy is read, of a bucket and of a session, without harm.
///
/// # Panics
/// If a property is broken.
pub fn policy(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else {
        return false;
    };
    Policy::of_bucket(text, "bucket").is_ok() | Policy::of_session(text).is_ok()
}

/// Keys of the store that are read are made of what was read of them.
///
/// # Panics
/// If a property is broken.
pub fn store_keys(data: &[u8]) -> bool {
    let upload = keyspace::parse_upload(data);
    if let Some((key, id)) = upload {
        let made = keyspace::upload("b", key, id);
        assert_eq!(made[keyspace::uploads("b").len()..], *data, "another upload");
        let (its, order) = keyspace::parse_version(data).expect("both have the same form");
        let made = keyspace::version("b", its, order);
        assert_eq!(made[keyspace::versions("b").len()..], *data, "another version");
    }
    if let Some(id) = keyspace::parse_id(data) {
        assert!(data.ends_with(id.to_string().as_bytes()), "another ID");
        assert_eq!(Id::parse(&id.to_string()), Some(id));
    }
    if let Some(value) = keyspace::value_of_pending_part(data) {
        assert_eq!(keyspace::pending_part(&value), data, "another part");
    }
    keyspace::object_of(data);
    upload.is_some()
}
