//! Bytes of a value as they are stored encrypted: in pieces, so that a range can be read without
//! what is before it.
//!
//! A value is cut into pieces of [`PIECE_BYTES`]; the last may be shorter, and of nothing there is
//! one of no bytes. Each is encrypted with AES-256-GCM and has its tag behind it. The key is the
//! value's own (see [`DataKey::of_value`](super::DataKey::of_value)), and the nonce the number of
//! the piece, so no nonce comes twice under one key. Number, and whether it is the last, are
//! additional data: pieces cannot change places, and a value cannot be cut.

use super::PieceKey;
use bytes::Bytes;
use ring::aead::{Aad, NONCE_LEN, Nonce};
use std::ops::Range;

/// Bytes of a piece before it is encrypted.
pub const PIECE_BYTES: usize = 64 << 10;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;
/// Bytes of a piece as it is stored.
const SEALED_BYTES: u64 = (PIECE_BYTES + TAG_BYTES) as u64;
/// What the additional data begins with.
const CONTEXT: &[u8; 14] = b"terrace piece ";

/// A piece is not what was encrypted, or could not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damaged;

/// How long so many bytes are once they are encrypted.
pub const fn sealed_length(length: u64) -> u64 {
    length + count(length) * TAG_BYTES as u64
}

/// How many pieces so many bytes are.
const fn count(length: u64) -> u64 {
    let pieces = length.div_ceil(PIECE_BYTES as u64);
    if pieces == 0 { 1 } else { pieces }
}

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - 8..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

fn aad(number: u64, is_last: bool) -> Aad<[u8; CONTEXT.len() + 9]> {
    let mut bytes = [0; CONTEXT.len() + 9];
    bytes[..CONTEXT.len()].copy_from_slice(CONTEXT);
    bytes[CONTEXT.len()..CONTEXT.len() + 8].copy_from_slice(&number.to_be_bytes());
    bytes[CONTEXT.len() + 8] = u8::from(is_last);
    Aad::from(bytes)
}

/// Encrypts bytes as they come. Holds one piece: which one is the last is known at the end only.
pub struct Sealer {
    key: PieceKey,
    number: u64,
    piece: Vec<u8>,
}

impl Sealer {
    /// Begins with the first piece of a value.
    pub fn new(key: PieceKey) -> Self {
        Self {
            key,
            number: 0,
            piece: Vec::new(),
        }
    }

    /// Takes bytes. `write` gets what was encrypted.
    ///
    /// # Errors
    /// What `write` fails with; [`Damaged`].
    pub fn push<E: From<Damaged>>(
        &mut self,
        mut data: &[u8],
        mut write: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while !data.is_empty() {
            if self.piece.len() == PIECE_BYTES {
                write(self.seal(false)?)?;
                self.piece.clear();
            }
            self.piece
                .reserve_exact((PIECE_BYTES + TAG_BYTES).saturating_sub(self.piece.len()));
            let (now, later) = data.split_at(data.len().min(PIECE_BYTES - self.piece.len()));
            self.piece.extend_from_slice(now);
            data = later;
        }
        Ok(())
    }

    /// Ends the value: `write` gets the last piece.
    ///
    /// # Errors
    /// As [`Sealer::push`].
    pub fn finish<E: From<Damaged>>(mut self, mut write: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        write(self.seal(true)?)
    }

    fn seal(&mut self, is_last: bool) -> Result<&[u8], Damaged> {
        let aad = aad(self.number, is_last);
        let sealed = self
            .key
            .0
            .seal_in_place_append_tag(nonce(self.number), aad, &mut self.piece);
        sealed.map_err(|_| Damaged)?;
        self.number += 1;
        Ok(&self.piece)
    }
}

/// Encrypts a value that is in memory.
///
/// # Errors
/// [`Damaged`]
pub fn seal(key: PieceKey, data: &[u8]) -> Result<Vec<u8>, Damaged> {
    let mut out = Vec::with_capacity(data.len() + data.len() / PIECE_BYTES * TAG_BYTES + 2 * TAG_BYTES);
    let mut write = |sealed: &[u8]| {
        out.extend_from_slice(sealed);
        Ok(())
    };
    let mut sealer = Sealer::new(key);
    sealer.push(data, &mut write)?;
    sealer.finish::<Damaged>(&mut write)?;
    Ok(out)
}

/// Decrypts a range of a value from what is stored of it, as that comes.
pub struct Opener {
    key: PieceKey,
    /// Length of the value before it was encrypted.
    length: u64,
    /// The piece that comes next.
    number: u64,
    /// Behind the last that is wanted.
    end: u64,
    /// Bytes of the next piece that are before the range.
    skip: usize,
    /// What was decrypted, and behind it what came of the piece at [`Opener::open`].
    bytes: Vec<u8>,
    /// Where in that the decrypted bytes end.
    open: usize,
}

impl Opener {
    /// Begins to read a range, which is not empty, of a value that was so long.
    pub fn new(key: PieceKey, length: u64, range: &Range<u64>) -> Self {
        let piece_bytes = PIECE_BYTES as u64;
        let number = range.start / piece_bytes;
        Self {
            key,
            length,
            number,
            end: range.end.min(length).div_ceil(piece_bytes),
            #[allow(clippy::cast_possible_truncation)] // less than a piece
            skip: (range.start % piece_bytes) as usize,
            bytes: Vec::new(),
            open: 0,
        }
    }

    /// Where in what is stored the range begins.
    pub const fn start(&self) -> u64 {
        self.number * SEALED_BYTES
    }

    /// How many bytes of what is stored are still needed.
    pub fn wanted(&self) -> u64 {
        if self.number == self.end {
            return 0;
        }
        let end = (self.end * SEALED_BYTES).min(sealed_length(self.length));
        end - self.number * SEALED_BYTES - (self.bytes.len() - self.open) as u64
    }

    /// Nothing more is needed, and all was taken.
    pub const fn is_over(&self) -> bool {
        self.number == self.end && self.bytes.is_empty()
    }

    /// How many bytes are decrypted and not taken yet.
    pub const fn at_hand(&self) -> usize {
        self.open
    }

    /// Makes room for so many bytes, so that it need not be made little by little.
    pub fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve(bytes);
    }

    /// Takes what is stored, in order.
    ///
    /// # Errors
    /// [`Damaged`]
    pub fn push(&mut self, mut data: &[u8]) -> Result<(), Damaged> {
        self.bytes.reserve(data.len());
        while self.number < self.end {
            let is_last = self.number + 1 == count(self.length);
            let sealed = if is_last {
                sealed_length(self.length) - self.number * SEALED_BYTES
            } else {
                SEALED_BYTES
            };
            let here = self.bytes.len() - self.open;
            let missing = usize::try_from(sealed).map_err(|_| Damaged)? - here;
            let (now, later) = data.split_at(data.len().min(missing));
            self.bytes.extend_from_slice(now);
            data = later;
            if now.len() < missing {
                return Ok(());
            }
            let piece = &mut self.bytes[self.open..];
            let opened = self
                .key
                .0
                .open_in_place(nonce(self.number), aad(self.number, is_last), piece);
            let bytes = opened.map_err(|_| Damaged)?.len();
            self.open += bytes;
            self.bytes.truncate(self.open);
            self.number += 1;
        }
        Ok(())
    }

    /// What was decrypted, from where the range begins.
    pub fn take(&mut self) -> Bytes {
        let rest = self.bytes.split_off(self.open);
        let taken = Bytes::from(std::mem::replace(&mut self.bytes, rest));
        self.open = 0;
        let skipped = self.skip.min(taken.len());
        self.skip -= skipped;
        taken.slice(skipped..)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{super::DataKey, *};

    /// No piece, less than one, exactly one, a byte more, several, and several with a rest.
    const LENGTHS: [usize; 8] = [
        0,
        1,
        PIECE_BYTES - 1,
        PIECE_BYTES,
        PIECE_BYTES + 1,
        2 * PIECE_BYTES,
        3 * PIECE_BYTES,
        3 * PIECE_BYTES + 777,
    ];

    fn key() -> PieceKey {
        DataKey::of_bytes([9; 32], false).of_value(1, &[3; 16]).unwrap()
    }

    fn plain(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 31 / 7) as u8).collect()
    }

    /// Reads a range from what is stored, which comes in runs of so many bytes.
    fn open(sealed: &[u8], length: usize, range: Range<u64>, run: usize) -> Result<Vec<u8>, Damaged> {
        let mut opener = Opener::new(key(), length as u64, &range);
        let mut out = Vec::new();
        let mut at = usize::try_from(opener.start()).unwrap().min(sealed.len());
        while opener.wanted() > 0 && at < sealed.len() {
            let bytes = run
                .min(sealed.len() - at)
                .min(usize::try_from(opener.wanted()).unwrap());
            opener.push(&sealed[at..at + bytes])?;
            at += bytes;
            out.extend_from_slice(&opener.take());
        }
        if !opener.is_over() {
            return Err(Damaged);
        }
        out.truncate(usize::try_from(range.end - range.start).unwrap());
        Ok(out)
    }

    #[test]
    fn ranges_of_every_length_come_back() {
        for length in LENGTHS {
            let plain = plain(length);
            let sealed = seal(key(), &plain).unwrap();
            assert_eq!(sealed.len() as u64, sealed_length(length as u64), "{length}");
            let cuts = [
                0,
                1,
                PIECE_BYTES - 1,
                PIECE_BYTES,
                PIECE_BYTES + 5,
                2 * PIECE_BYTES,
                length,
            ];
            for start in cuts {
                for end in cuts.into_iter().filter(|end| start < *end && *end <= length) {
                    for run in [1000, PIECE_BYTES + TAG_BYTES, 1 << 20] {
                        let got = open(&sealed, length, start as u64..end as u64, run);
                        assert!(got.as_deref() == Ok(&plain[start..end]), "{length}: {start}..{end}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_comes_in_other_frames_is_the_same() {
        let plain = plain(3 * PIECE_BYTES + 777);
        let whole = seal(key(), &plain).unwrap();
        for run in [1, 1000, PIECE_BYTES, PIECE_BYTES + 1] {
            let (mut sealer, mut out) = (Sealer::new(key()), Vec::new());
            let mut write = |sealed: &[u8]| {
                out.extend_from_slice(sealed);
                Ok::<_, Damaged>(())
            };
            for frame in plain.chunks(run) {
                sealer.push(frame, &mut write).unwrap();
            }
            sealer.finish(&mut write).unwrap();
            assert!(out == whole, "{run}");
        }
    }

    #[test]
    fn a_flipped_byte_is_found_in_every_length() {
        for length in LENGTHS.into_iter().filter(|length| *length > 0) {
            let sealed = seal(key(), &plain(length)).unwrap();
            let places = [0, sealed.len() / 2, sealed.len() - TAG_BYTES, sealed.len() - 1];
            for at in places {
                let mut wrong = sealed.clone();
                wrong[at] ^= 1;
                let got = open(&wrong, length, 0..length as u64, 1 << 20);
                assert_eq!(got, Err(Damaged), "{length}, byte {at}");
            }
        }
    }

    #[test]
    fn pieces_stay_in_their_places() {
        let length = 3 * PIECE_BYTES;
        let sealed = seal(key(), &plain(length)).unwrap();
        let bytes = PIECE_BYTES + TAG_BYTES;
        let pieces: Vec<_> = sealed.chunks(bytes).collect();
        let swapped = [pieces[1], pieces[0], pieces[2]].concat();
        assert_eq!(open(&swapped, length, 0..length as u64, bytes), Err(Damaged));
        // Cut, and said to be shorter.
        let shorter = 2 * PIECE_BYTES;
        let cut = &sealed[..2 * bytes];
        assert_eq!(open(cut, shorter, 0..shorter as u64, bytes), Err(Damaged));
        // Longer, with a last piece in the middle.
        let longer = [&sealed[..], pieces[0]].concat();
        assert_eq!(
            open(&longer, 4 * PIECE_BYTES, 0..4 * PIECE_BYTES as u64, bytes),
            Err(Damaged)
        );
        // Of another part, and under another salt.
        let data_key = DataKey::of_bytes([9; 32], false);
        for other in [data_key.of_value(2, &[3; 16]), data_key.of_value(1, &[4; 16])] {
            let sealed = seal(other.unwrap(), &plain(length)).unwrap();
            assert_eq!(open(&sealed, length, 0..length as u64, bytes), Err(Damaged));
        }
    }

    /// What is stored, byte for byte: a server of tomorrow must open it.
    #[test]
    fn golden() {
        let sealed = seal(key(), b"value").unwrap();
        assert_eq!(crate::s3::digest::hex(&sealed), GOLDEN);
        let long = seal(key(), &plain(PIECE_BYTES + 1)).unwrap();
        assert_eq!(crate::s3::digest::hex(&long[PIECE_BYTES..]), GOLDEN_OF_TWO);
    }

    // Computed with Python's `cryptography` from what the module says of the format.
    const GOLDEN: &str = "13796ec7357b54e786c49908c01b01e46a65bcef97";
    const GOLDEN_OF_TWO: &str = "13f217d38b3a95dedca9f44cf1a4eeb01cf5236f1f52ad4219052731e6ddb2cea7";
}
