//! Tags of an object as they are stored: as a query.

use crate::text::{percent_decode, percent_encode};

/// Tags as a query.
pub fn encode(tags: &[(String, String)]) -> String {
    let pairs = tags
        .iter()
        .map(|(name, value)| format!("{}={}", percent_encode(name), percent_encode(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// Reads a query. `None` if it is none.
pub fn decode(text: &str) -> Option<Vec<(String, String)>> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((percent_decode(name)?, percent_decode(value)?))
        })
        .collect()
}
