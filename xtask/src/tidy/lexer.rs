//! Separates Rust code from comments and literals.
//!
//! Invariants: a view has the length and line breaks of its source, so offsets and line numbers are
//! the same; removed parts are replaced by spaces. A source that ends inside a comment or a literal
//! is refused, since findings after that point would be wrong.

use std::ops::Range;

/// A source with parts blanked out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Views {
    /// Code alone: comments and literals (strings, characters, bytes) are blank.
    pub code: String,
    /// Code and comments: literals are blank.
    pub spoken: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

/// Separates a source into its views, or names the line of a comment or literal that never ends.
pub fn views(source: &str) -> Result<Views, usize> {
    let mut lexer = Lexer {
        bytes: source.as_bytes(),
        position: 0,
    };
    let mut code = source.as_bytes().to_vec();
    let mut spoken = code.clone();
    while lexer.position < lexer.bytes.len() {
        let start = lexer.position;
        let kind = lexer.token().ok_or_else(|| line_of(source, start))?;
        let range = start..lexer.position;
        match kind {
            Kind::Code => {}
            Kind::Comment => blank(&mut code, range),
            Kind::Literal => {
                blank(&mut code, range.clone());
                blank(&mut spoken, range);
            }
        }
    }
    // Tokens end between characters, so a blanked source is UTF-8.
    let text = |bytes| String::from_utf8(bytes).map_err(|error| line_of(source, error.utf8_error().valid_up_to()));
    Ok(Views {
        code: text(code)?,
        spoken: text(spoken)?,
    })
}

/// The line, from 1, that an offset lies on.
pub fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count()
}

/// Whether a byte can be part of an identifier. Bytes beyond ASCII count, since identifiers may
/// contain them.
pub const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// Offsets of `word` in `text` where it is not part of a longer identifier.
pub fn find_word<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let joins = |outside: Option<&u8>, inside: Option<&u8>| {
        outside.is_some_and(|&byte| is_word(byte)) && inside.is_some_and(|&byte| is_word(byte))
    };
    text.match_indices(word)
        .map(|(offset, _)| offset)
        .filter(move |&offset| {
            let (before, rest) = text.as_bytes().split_at(offset);
            let (inside, after) = rest.split_at(word.len());
            !joins(before.last(), inside.first()) && !joins(after.first(), inside.last())
        })
}

fn blank(bytes: &mut [u8], range: Range<usize>) {
    for byte in &mut bytes[range] {
        if *byte != b'\n' {
            *byte = b' ';
        }
    }
}

struct Lexer<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> Option<u8> {
        self.bytes.get(self.position + ahead).copied()
    }

    /// Steps over one token. `None` if the source ends inside it.
    fn token(&mut self) -> Option<Kind> {
        match (self.peek(0)?, self.peek(1)) {
            (b'/', Some(b'/')) => {
                while self.peek(0).is_some_and(|byte| byte != b'\n') {
                    self.position += 1;
                }
                Some(Kind::Comment)
            }
            (b'/', Some(b'*')) => self.block_comment(),
            (b'"', _) => self.string(),
            (b'\'', _) => self.quote(),
            (byte, _) if is_word(byte) => self.word(),
            _ => {
                self.position += 1;
                Some(Kind::Code)
            }
        }
    }

    /// Block comments nest.
    fn block_comment(&mut self) -> Option<Kind> {
        let mut depth = 0_usize;
        loop {
            match (self.peek(0)?, self.peek(1)) {
                (b'/', Some(b'*')) => (depth, self.position) = (depth + 1, self.position + 2),
                (b'*', Some(b'/')) => (depth, self.position) = (depth - 1, self.position + 2),
                _ => self.position += 1,
            }
            if depth == 0 {
                return Some(Kind::Comment);
            }
        }
    }

    fn string(&mut self) -> Option<Kind> {
        self.position += 1;
        self.until(b'"')
    }

    /// Steps behind the next `end` that no backslash precedes.
    fn until(&mut self, end: u8) -> Option<Kind> {
        loop {
            let byte = self.peek(0)?;
            self.position += if byte == b'\\' { 2 } else { 1 };
            if byte == end {
                return Some(Kind::Literal);
            }
        }
    }

    /// A quote starts a character if one character and a quote follow, else a lifetime or a label.
    fn quote(&mut self) -> Option<Kind> {
        let next = self.peek(1)?;
        if next == b'\\' {
            self.position += 1;
            return self.until(b'\'');
        }
        let character_bytes = match next {
            0xf0.. => 4,
            0xe0.. => 3,
            0xc0.. => 2,
            _ => 1,
        };
        if self.peek(1 + character_bytes) == Some(b'\'') {
            self.position += character_bytes + 2;
            Some(Kind::Literal)
        } else {
            self.position += 1;
            Some(Kind::Code)
        }
    }

    /// An identifier, a number, or the prefix of a literal: `r"`, `br#"`, `c"`, `b'`.
    fn word(&mut self) -> Option<Kind> {
        let start = self.position;
        while self.peek(0).is_some_and(is_word) {
            self.position += 1;
        }
        match (&self.bytes[start..self.position], self.peek(0)) {
            (b"b" | b"c", Some(b'"')) => self.string(),
            (b"b", Some(b'\'')) => self.quote(),
            (b"r" | b"br" | b"cr", Some(b'"' | b'#')) => self.raw_string(),
            _ => Some(Kind::Code),
        }
    }

    /// A raw string, or the raw identifier that `r#` may start as well.
    fn raw_string(&mut self) -> Option<Kind> {
        let mut hashes = 0;
        while self.peek(hashes) == Some(b'#') {
            hashes += 1;
        }
        if self.peek(hashes) != Some(b'"') {
            return Some(Kind::Code);
        }
        self.position += hashes + 1;
        loop {
            let closes = self.peek(0)? == b'"' && (1..=hashes).all(|ahead| self.peek(ahead) == Some(b'#'));
            self.position += 1;
            if closes {
                self.position += hashes;
                return Some(Kind::Literal);
            }
        }
    }
}
