//! The order in which moves are committed.

use crate::key_prefix;

/// Sorts by key. The index is then read and changed in key order, so most of what a lookup needs is
/// still in its cache and in the processor's from the lookup before.
pub(super) fn sort_by_key<'a, T>(items: &mut [T], key: impl Fn(&T) -> &'a [u8]) {
    items.sort_by_cached_key(|item| key_prefix(key(item)));
    // Keys that begin alike.
    for run in items.chunk_by_mut(|one, other| key_prefix(key(one)) == key_prefix(key(other))) {
        run.sort_by(|one, other| key(one).cmp(key(other)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_sorted_whether_they_begin_alike_or_not() {
        let keys = [
            "photos/2",
            "b",
            "photos/10",
            "photos/1",
            "",
            "photos/1",
            "a\u{ff}",
            "photos",
        ];
        let mut sorted: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        let mut expected = sorted.clone();
        expected.sort_unstable();
        sort_by_key(&mut sorted, |key| key);
        assert_eq!(sorted, expected);
    }
}
