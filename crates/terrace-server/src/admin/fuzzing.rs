//! Arguments and results of calls, for fuzz targets. Not part of the interface.

use super::{is_understood, server::parse};
use serde::{Serialize, de::DeserializeOwned};

/// Lines that a client sends, or a server answers: each is the same when it is written and read
/// once more.
pub fn admin_call(sent: &[u8]) -> bool {
    let understood = sent.split(|byte| *byte == b'\n').map(is_understood);
    understood.fold(false, |any, is_understood| any | is_understood)
}

/// Whether the bytes encode such a value.
pub(super) fn round_trip<V: Serialize + DeserializeOwned>(bytes: &[u8]) -> bool {
    let Ok(value) = parse::<V>(bytes) else { return false };
    let written = serde_json::to_vec(&value).ok();
    let again = written.as_deref().and_then(|bytes| parse::<V>(bytes).ok());
    let again = again.and_then(|again| serde_json::to_vec(&again).ok());
    assert!(written.is_some() && written == again);
    true
}
