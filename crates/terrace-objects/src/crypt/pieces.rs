//! Format of encrypted values: separate pieces, so that a range can be read alone.
//!
//! A value is cut into pieces of [`PIECE_BYTES`]; the last may be shorter, and an empty value has
//! one empty piece. Each piece is encrypted with AES-256-GCM and followed by its tag. The key is
//! the value's own ([`DataKey::of_value`](super::DataKey::of_value)) and the nonce is the piece's
//! number, so no nonce repeats under a key. The number, and whether the piece is the last, are
//! additional data: pieces cannot be reordered, and a value cannot be truncated.

use super::PieceKey;
use bytes::Bytes;
use ring::aead::{Aad, NONCE_LEN, Nonce};
use std::{collections::VecDeque, ops::Range};

/// Bytes of a piece before encryption.
pub const PIECE_BYTES: usize = 64 << 10;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;
/// Stored bytes of a piece.
const SEALED_BYTES: u64 = (PIECE_BYTES + TAG_BYTES) as u64;
/// Prefix of the additional data.
const CONTEXT: &[u8; 14] = b"terrace piece ";

/// A piece is damaged, or could not be encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damaged;

/// Stored length of a value.
pub const fn sealed_length(length: u64) -> u64 {
    length + count(length) * TAG_BYTES as u64
}

/// Number of pieces of a value.
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

/// Encrypts a stream. Buffers one piece, since only the end tells which piece is the last.
pub struct Sealer {
    key: PieceKey,
    number: u64,
    piece: Vec<u8>,
}

impl Sealer {
    /// Begins a value.
    pub fn new(key: PieceKey) -> Self {
        Self {
            key,
            number: 0,
            piece: Vec::new(),
        }
    }

    /// Adds bytes. `write` receives encrypted pieces.
    ///
    /// # Errors
    /// Errors of `write`; [`Damaged`].
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

    /// Ends the value: `write` receives the last piece.
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

/// Encrypts a value in memory.
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

/// Decrypts a range of a value as its stored bytes arrive, a few pieces at a time, so that these
/// can be sent while later ones are decrypted. No byte of a piece is returned before its tag is
/// verified.
pub struct Opener {
    key: PieceKey,
    /// Length of the value before encryption.
    length: u64,
    /// Number of the next piece.
    number: u64,
    /// Number after the last piece needed.
    end: u64,
    /// Bytes of the next piece before the range.
    skip: usize,
    /// Stored bytes not yet decrypted, from the next piece on.
    sealed: VecDeque<Bytes>,
    /// Their number.
    sealed_bytes: u64,
    /// A piece was damaged: nothing more is returned.
    is_damaged: bool,
}

impl Opener {
    /// Begins a non-empty range of a value of this length.
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
            sealed: VecDeque::new(),
            sealed_bytes: 0,
            is_damaged: false,
        }
    }

    /// Offset of the range's first piece in the stored value.
    pub const fn start(&self) -> u64 {
        self.number * SEALED_BYTES
    }

    /// Stored bytes from the next piece to the end of piece `end`.
    fn sealed_up_to(&self, end: u64) -> u64 {
        let end = (end * SEALED_BYTES).min(sealed_length(self.length));
        end.saturating_sub(self.number * SEALED_BYTES)
    }

    /// Stored bytes still needed.
    pub fn wanted(&self) -> u64 {
        self.sealed_up_to(self.end).saturating_sub(self.sealed_bytes)
    }

    /// All stored bytes have arrived and been decrypted.
    pub const fn is_over(&self) -> bool {
        self.number == self.end
    }

    /// Whether this many whole pieces, or all that are needed, have arrived, or the value is
    /// damaged.
    pub fn has(&self, pieces: u64) -> bool {
        self.is_damaged || self.sealed_bytes >= self.sealed_up_to(self.end.min(self.number + pieces))
    }

    /// Adds stored bytes, in order.
    pub fn push(&mut self, data: Bytes) {
        self.sealed_bytes += data.len() as u64;
        self.sealed.push_back(data);
    }

    /// Decrypts up to `pieces_max` whole pieces that have arrived, without the bytes before the
    /// range. Empty if there is no whole piece.
    ///
    /// # Errors
    /// [`Damaged`], and again at each later call.
    pub fn open(&mut self, pieces_max: u64) -> Result<Bytes, Damaged> {
        if self.is_damaged {
            return Err(Damaged);
        }
        let opened = self.open_whole(self.end.min(self.number + pieces_max));
        self.is_damaged = opened.is_err();
        opened
    }

    fn open_whole(&mut self, end: u64) -> Result<Bytes, Damaged> {
        let bytes = self.sealed_up_to(end).min(self.sealed_bytes);
        let mut out = Vec::with_capacity(usize::try_from(bytes).map_err(|_| Damaged)?);
        while self.number < end && self.has(1) {
            let start = out.len();
            let is_last = self.number + 1 == count(self.length);
            self.take_sealed(self.sealed_up_to(self.number + 1), &mut out);
            let opened = self
                .key
                .0
                .open_in_place(nonce(self.number), aad(self.number, is_last), &mut out[start..]);
            let bytes = opened.map_err(|_| Damaged)?.len();
            out.truncate(start + bytes);
            self.number += 1;
        }
        let skipped = self.skip.min(out.len());
        self.skip -= skipped;
        Ok(Bytes::from(out).slice(skipped..))
    }

    /// Moves stored bytes to the end of `out`. They are copied since they belong to the cache; the
    /// decryption that follows finds them in the processor's caches.
    fn take_sealed(&mut self, mut bytes: u64, out: &mut Vec<u8>) {
        self.sealed_bytes -= bytes;
        while let Some(mut first) = self.sealed.pop_front() {
            let now = first.split_to(usize::try_from(bytes).unwrap_or(usize::MAX).min(first.len()));
            out.extend_from_slice(&now);
            bytes -= now.len() as u64;
            if !first.is_empty() {
                self.sealed.push_front(first);
            }
            if bytes == 0 {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{super::DataKey, *};

    /// Empty, less than a piece, exactly one, one byte more, several, and several with a remainder.
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

    /// Reads a range from stored bytes that arrive in runs of this length.
    fn open(sealed: &[u8], length: usize, range: Range<u64>, run: usize) -> Result<Vec<u8>, Damaged> {
        let mut opener = Opener::new(key(), length as u64, &range);
        let mut out = Vec::new();
        let mut at = usize::try_from(opener.start()).unwrap().min(sealed.len());
        while opener.wanted() > 0 && at < sealed.len() {
            let bytes = run
                .min(sealed.len() - at)
                .min(usize::try_from(opener.wanted()).unwrap());
            opener.push(Bytes::copy_from_slice(&sealed[at..at + bytes]));
            at += bytes;
            out.extend_from_slice(&opener.open(2)?);
        }
        while opener.has(1) && !opener.is_over() {
            out.extend_from_slice(&opener.open(2)?);
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

    /// Pieces before the damage are valid and were sent. The damaged piece and later ones are never
    /// returned, however often they are asked for.
    #[test]
    fn what_comes_before_a_flipped_byte_is_right_and_nothing_else_comes() {
        let length = 4 * PIECE_BYTES + 777;
        let plain = plain(length);
        let mut sealed = seal(key(), &plain).unwrap();
        sealed[2 * (PIECE_BYTES + TAG_BYTES) + 5] ^= 1;
        let mut opener = Opener::new(key(), length as u64, &(10..length as u64));
        opener.push(sealed.into());
        assert!(opener.has(5) && opener.wanted() == 0);
        assert!(opener.open(1).unwrap() == plain[10..PIECE_BYTES]);
        assert!(opener.open(1).unwrap() == plain[PIECE_BYTES..2 * PIECE_BYTES]);
        for _ in 0..3 {
            assert_eq!(opener.open(1), Err(Damaged));
        }
        assert!(!opener.is_over());
    }

    #[test]
    fn pieces_stay_in_their_places() {
        let length = 3 * PIECE_BYTES;
        let sealed = seal(key(), &plain(length)).unwrap();
        let bytes = PIECE_BYTES + TAG_BYTES;
        let pieces: Vec<_> = sealed.chunks(bytes).collect();
        let swapped = [pieces[1], pieces[0], pieces[2]].concat();
        assert_eq!(open(&swapped, length, 0..length as u64, bytes), Err(Damaged));
        // Truncated, with the shorter length.
        let shorter = 2 * PIECE_BYTES;
        let cut = &sealed[..2 * bytes];
        assert_eq!(open(cut, shorter, 0..shorter as u64, bytes), Err(Damaged));
        // Extended, with a last piece in the middle.
        let longer = [&sealed[..], pieces[0]].concat();
        assert_eq!(
            open(&longer, 4 * PIECE_BYTES, 0..4 * PIECE_BYTES as u64, bytes),
            Err(Damaged)
        );
        // Of another part, and with another salt.
        let data_key = DataKey::of_bytes([9; 32], false);
        for other in [data_key.of_value(2, &[3; 16]), data_key.of_value(1, &[4; 16])] {
            let sealed = seal(other.unwrap(), &plain(length)).unwrap();
            assert_eq!(open(&sealed, length, 0..length as u64, bytes), Err(Damaged));
        }
    }

    /// The stored bytes: a later server must decrypt them.
    #[test]
    fn golden() {
        let sealed = seal(key(), b"value").unwrap();
        assert_eq!(crate::text::hex(&sealed), GOLDEN);
        let long = seal(key(), &plain(PIECE_BYTES + 1)).unwrap();
        assert_eq!(crate::text::hex(&long[PIECE_BYTES..]), GOLDEN_OF_TWO);
    }

    // Computed with Python's `cryptography` from the format described above.
    const GOLDEN: &str = "13796ec7357b54e786c49908c01b01e46a65bcef97";
    const GOLDEN_OF_TWO: &str = "13f217d38b3a95dedca9f44cf1a4eeb01cf5236f1f52ad4219052731e6ddb2cea7";
}
