//! Little-endian numbers in bytes, as in all stored forms.
//!
//! Readers accept any bytes: they return `None` where there are too few, and never panic.

/// Takes numbers and bytes off the front, in order.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next bytes.
    #[inline]
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    /// The next `N` bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    /// A number of `N` bytes, at most 8.
    pub fn number<const N: usize>(&mut self) -> Option<u64> {
        let mut wide = [0; 8];
        wide[..N].copy_from_slice(&self.array::<N>()?);
        Some(u64::from_le_bytes(wide))
    }

    /// A number of two bytes.
    #[inline]
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// A number of four bytes.
    #[inline]
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// A number of eight bytes.
    #[inline]
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Bytes behind their length, a number of four bytes.
    pub fn sized(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.bytes(usize::try_from(length).ok()?)
    }

    /// A number in LEB128.
    pub fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            let part = u64::from(byte & 0x7f);
            if (part << shift) >> shift != part {
                return None;
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

/// Appends bytes behind their length, a number of four bytes.
///
/// # Panics
/// If there are 4 GiB or more.
pub fn push_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).expect("stored parts are shorter than 4 GiB");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Appends a number in LEB128.
// Seven bits at a time.
pub fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The number of four bytes at `at`.
#[inline]
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Reader(bytes.get(at..)?).u32()
}

/// The number of eight bytes at `at`.
#[inline]
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Reader(bytes.get(at..)?).u64()
}

/// Writes a number of two bytes at `at`.
#[inline]
pub fn put_u16(out: &mut [u8], at: usize, number: u16) {
    out[at..at + 2].copy_from_slice(&number.to_le_bytes());
}

/// Writes a number of four bytes at `at`.
#[inline]
pub fn put_u32(out: &mut [u8], at: usize, number: u32) {
    out[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

/// Writes a number of eight bytes at `at`.
#[inline]
pub fn put_u64(out: &mut [u8], at: usize, number: u64) {
    out[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

/// Whether there is nothing but zeros.
pub fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_little_endian_and_too_few_bytes_are_none() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        let mut reader = Reader(&bytes);
        assert_eq!((reader.u16(), reader.number::<3>()), (Some(0x0201), Some(0x05_0403)));
        assert_eq!((reader.u32(), reader.0), (Some(0x0908_0706), &[][..]));
        assert_eq!(
            (reader.u16(), reader.bytes(1), reader.bytes(0)),
            (None, None, Some(&[][..]))
        );
        assert_eq!(
            (u64_at(&bytes, 1), u64_at(&bytes, 2)),
            (Some(0x0908_0706_0504_0302), None)
        );
        assert_eq!(
            (u32_at(&bytes, 5), u32_at(&bytes, usize::MAX)),
            (Some(0x0908_0706), None)
        );
    }

    #[test]
    fn long_numbers_have_one_encoding_and_bounds() {
        for value in [0, 1, 0x7f, 0x80, 300, 1 << 33, u64::MAX] {
            let mut bytes = Vec::new();
            push_varint(&mut bytes, value);
            assert_eq!(Reader(&bytes).varint(), Some(value));
            assert_eq!(Reader(&bytes[..bytes.len() - 1]).varint(), None);
        }
        assert_eq!(Reader(&[0x80; 10]).varint(), None);
        assert_eq!(
            Reader(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]).varint(),
            None
        );
    }
}
