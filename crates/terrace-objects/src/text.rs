//! Bytes as text, and text that is written with percent signs.

/// Lowercase hex.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    // Not by `fmt`: each signed request has its hash written, which was 2 % of a GET's time.
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

/// Percent-encoded text, but for slashes.
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

/// Text of a query without percent-encoding; `None` if it is none.
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

/// The same of a path, in which a plus is a plus.
pub fn percent_decode_path(text: &str) -> Option<String> {
    percent_decode(&text.replace('+', "%2B"))
}
