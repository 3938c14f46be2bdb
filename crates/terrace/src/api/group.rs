//! The group of a key, and its position in the group.

use std::ops::Range;

/// Which part of a key names its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroupRule {
    /// Up to and including the last `/`: for `titles/17/seg-0012.ts` it is `titles/17/`.
    #[default]
    LastSlash,
    /// Up to and including this many `/` (or the last, if there are fewer): for 1, `titles/`.
    Slashes(usize),
    /// Each object by itself.
    Object,
}

impl GroupRule {
    /// The start of `key` that names its group. A key without a `/` is in the group with the empty
    /// name.
    #[must_use]
    pub fn group<'a>(&self, key: &'a [u8]) -> &'a [u8] {
        let mut slashes = key
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'/')
            .map(|(at, _)| at + 1);
        let end = match self {
            Self::Object => return key,
            Self::LastSlash => slashes.next_back(),
            Self::Slashes(0) => None,
            Self::Slashes(count) => slashes.take(*count).last(),
        };
        &key[..end.unwrap_or(0)]
    }

    /// The next key in the order of a group.
    #[must_use]
    pub(crate) fn successor(&self, key: &[u8]) -> Option<Vec<u8>> {
        let prefix = self.group(key);
        Some([prefix, &successor(&key[prefix.len()..])?].concat())
    }
}

/// The number in the last part of a key that gives its position: `seg-0012.ts` is 12. Digits after
/// the last dot are used only if there are none elsewhere.
#[must_use]
pub fn ordinal(name: &[u8]) -> Option<u64> {
    parse(&name[number(name)?])
}

/// The next name in the order: `seg-0013.ts` after `seg-0012.ts`, `10.mp4` after `9.mp4`.
#[must_use]
pub fn successor(name: &[u8]) -> Option<Vec<u8>> {
    let place = number(name)?;
    let next = parse(&name[place.clone()])?.checked_add(1)?;
    let digits = format!("{next:0width$}", width = place.len());
    Some([&name[..place.start], digits.as_bytes(), &name[place.end..]].concat())
}

/// Where in a name the digits of its ordinal are.
fn number(name: &[u8]) -> Option<Range<usize>> {
    let stem = name
        .iter()
        .rposition(|byte| *byte == b'.')
        .map_or(name, |dot| &name[..dot]);
    last_digits(stem).or_else(|| last_digits(name))
}

fn last_digits(text: &[u8]) -> Option<Range<usize>> {
    let end = text.iter().rposition(u8::is_ascii_digit)? + 1;
    let start = text[..end]
        .iter()
        .rposition(|byte| !byte.is_ascii_digit())
        .map_or(0, |at| at + 1);
    Some(start..end)
}

/// More digits than that are not parsed.
fn parse(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_by_rule() {
        let key = b"titles/17/seg-0012.ts";
        assert_eq!(GroupRule::LastSlash.group(key), b"titles/17/");
        assert_eq!(GroupRule::Slashes(1).group(key), b"titles/");
        assert_eq!(GroupRule::Slashes(9).group(key), b"titles/17/");
        assert_eq!(GroupRule::Slashes(0).group(key), b"");
        assert_eq!(GroupRule::Object.group(key), key);
        assert_eq!(GroupRule::LastSlash.group(b"plain"), b"");
    }

    #[test]
    fn ordinals() {
        assert_eq!(ordinal(b"seg-0012.ts"), Some(12));
        assert_eq!(ordinal(b"12.mp4"), Some(12));
        assert_eq!(ordinal(b"part.007"), Some(7));
        assert_eq!(ordinal(b"1080p_00031.m4s"), Some(31));
        assert_eq!(ordinal(b"index.m3u8"), Some(8));
        assert_eq!(ordinal(b"cover.jpg"), None);
        assert_eq!(ordinal(b"99999999999999999999999"), None);
        assert_eq!(ordinal(b""), None);
    }

    #[test]
    fn successors() {
        let next = |name: &[u8]| successor(name).map(|name| String::from_utf8_lossy(&name).into_owned());
        assert_eq!(next(b"seg-0012.ts").as_deref(), Some("seg-0013.ts"));
        assert_eq!(next(b"seg-0999.ts").as_deref(), Some("seg-1000.ts"));
        assert_eq!(next(b"9.mp4").as_deref(), Some("10.mp4"));
        assert_eq!(next(b"part.099").as_deref(), Some("part.100"));
        assert_eq!(next(b"cover.jpg"), None);
        assert_eq!(next(b"18446744073709551615"), None);
    }
}
