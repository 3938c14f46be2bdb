//! Short texts that clients and other servers send.

use super::{block_on, secret};
use crate::{
    s3::{judged, notify, ops::listings, sts},
    time_span::Moment,
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use std::{
    collections::BTreeMap,
    time::{Duration, UNIX_EPOCH},
};

/// Continuation tokens of listings: one text for each key.
pub fn continuation_token(token: &[u8]) -> bool {
    let Ok(token) = std::str::from_utf8(token) else {
        return false;
    };
    let Ok(last) = listings::read_token(token) else {
        return false;
    };
    assert_eq!(URL_SAFE_NO_PAD.encode(&last), token);
    !last.is_empty()
}

/// The time of a signature: one text for each second.
pub fn signature_time(text: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(text) else {
        return false;
    };
    let Some(ms) = judged::milliseconds_of(text) else {
        return false;
    };
    let time = UNIX_EPOCH.checked_add(Duration::from_millis(ms));
    assert_eq!(time.map(|time| Moment(time).of_signature()).as_deref(), Some(text));
    true
}

/// The answer of a NATS server to a publish: the same for any split into pieces.
pub fn nats_answer(said: &[u8]) -> bool {
    let publish = |buffer_bytes| block_on(notify::published(said, buffer_bytes));
    let whole = publish(8 << 10);
    for buffer_bytes in [1, 7] {
        assert_eq!(publish(buffer_bytes), whole, "in pieces of {buffer_bytes} bytes");
    }
    let names_stream = said.windows(8).any(|part| part == b"\"stream\"") || said.contains(&b'\\');
    assert!(whole.is_err() || names_stream, "a stream has it");
    whole.is_ok()
}

/// A call of STS: the requested session is within the limits of AWS.
pub fn sts_call(body: &[u8]) -> bool {
    let fields: BTreeMap<String, String> = form_urlencoded::parse(body).into_owned().collect();
    debug_assert!(secret("").is_none());
    sts::checked(&fields)
}
