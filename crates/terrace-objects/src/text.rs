//! Hex and percent-encoding.

/// Lowercase hex.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    // Not with `fmt`: each signed request formats its hash, which was 2 % of the time of a GET.
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

/// Percent-encodes text, except slashes.
pub fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let digit = |half: u8| char::from(b"0123456789ABCDEF"[usize::from(half)]);
            out.extend(['%', digit(byte >> 4), digit(byte & 15)]);
        }
    }
    out
}

/// Decodes percent-encoded text of a query; `None` if it is not valid.
pub fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || {
                    char::from(bytes.next()?)
                        .to_digit(16)
                        .and_then(|digit| u8::try_from(digit).ok())
                };
                digit()? << 4 | digit()?
            }
            byte => byte,
        });
    }
    String::from_utf8(out).ok()
}

/// Like [`percent_decode`], for a path: a plus stays a plus.
pub fn percent_decode_path(text: &str) -> Option<String> {
    percent_decode(&text.replace('+', "%2B"))
}
