//! Rules that pin prefixes to a tier, as text: `thumbs/=flash,archive/=disk,archive/index/=none`.
//!
//! Prefixes have the syntax of `ls`; a comma in one is `\x2c`. The syntax is the same for flag,
//! variable and file.

use crate::key_text;
use serde::Deserialize;
use std::{ffi::OsStr, str::FromStr};
use terrace::{Pin, Pinning};

/// The rules of one source.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Pins(pub Vec<Pin>);

impl FromStr for Pins {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rules = text.split(',').map(str::trim).filter(|rule| !rule.is_empty());
        rules.map(rule).collect::<Result<_, _>>().map(Self)
    }
}

fn rule(text: &str) -> Result<Pin, String> {
    let wrong = || format!("`{text}`: write a prefix and where its objects live, like thumbs/=flash, =disk or =none");
    let (prefix, to) = text.rsplit_once('=').ok_or_else(wrong)?;
    let to = match to {
        "flash" => Pinning::Flash,
        "disk" => Pinning::Disk,
        "none" => Pinning::None,
        _ => return Err(wrong()),
    };
    let prefix = key_text::parse(OsStr::new(prefix)).map_err(|failure| failure.message)?;
    Ok(Pin { prefix, to })
}

impl TryFrom<String> for Pins {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rules_are_read() {
        let text = "thumbs/=flash,archive/=disk,archive/a=b/=none,x\\x2cy\\x0a=disk,=flash";
        let pins: Pins = text.parse().unwrap();
        let prefixes: Vec<&[u8]> = pins.0.iter().map(|pin| &pin.prefix[..]).collect();
        assert_eq!(prefixes, [&b"thumbs/"[..], b"archive/", b"archive/a=b/", b"x,y\n", b""]);
        let to = pins.0.iter().map(|pin| pin.to);
        use Pinning::{Disk, Flash, None};
        assert_eq!(to.collect::<Vec<_>>(), [Flash, Disk, None, Disk, Flash]);
        assert_eq!("".parse(), Ok(Pins(Vec::new())));
        assert_eq!(" a=flash , b=disk ".parse::<Pins>(), "a=flash,b=disk".parse());
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for text in ["thumbs/", "thumbs/=", "thumbs/=ssd", "a=flash,b", "a\\n=flash"] {
            assert!(text.parse::<Pins>().is_err(), "{text}");
        }
    }
}
