//! What a key's group is, and where in the group the key stands.

/// What part of a key names its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroupRule {
    /// Up to and with the last `/`: for `titles/17/seg-0012.ts` it is `titles/17/`.
    #[default]
    LastSlash,
    /// Up to and with this many `/` (or the last, if there are fewer): for 1, `titles/`.
    Slashes(usize),
    /// Each object by itself.
    Object,
}

impl GroupRule {
    /// The start of `key` that names its group. A key without a `/` is in the group of the empty name.
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
}

/// The number in the last part of a key that says its place in the order: `seg-0012.ts` is 12. What follows the last dot is
/// no part of it unless there are digits nowhere else.
#[must_use]
pub fn ordinal(name: &[u8]) -> Option<u64> {
    let stem = name
        .iter()
        .rposition(|byte| *byte == b'.')
        .map_or(name, |dot| &name[..dot]);
    last_number(stem).or_else(|| last_number(name))
}

fn last_number(text: &[u8]) -> Option<u64> {
    let end = text.iter().rposition(u8::is_ascii_digit)? + 1;
    let start = text[..end]
        .iter()
        .rposition(|byte| !byte.is_ascii_digit())
        .map_or(0, |at| at + 1);
    // More digits than that count nothing.
    std::str::from_utf8(&text[start..end]).ok()?.parse().ok()
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
}
