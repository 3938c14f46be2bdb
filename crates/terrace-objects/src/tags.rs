//! Tags of an object as stored: in query encoding.

use crate::text::{percent_decode, percent_encode};

/// Encodes tags.
pub fn encode(tags: &[(String, String)]) -> String {
    let pairs = tags
        .iter()
        .map(|(name, value)| format!("{}={}", percent_encode(name), percent_encode(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// Decodes tags. `None` if the text is not valid.
pub fn decode(text: &str) -> Option<Vec<(String, String)>> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((percent_decode(name)?, percent_decode(value)?))
        })
        .collect()
}
