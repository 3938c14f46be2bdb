//! Page-aligned memory, as required by direct I/O.

use super::PAGE_BYTES;
use bytemuck::{Pod, Zeroable, zeroed_vec};
use std::ops::{Deref, DerefMut};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

/// A growable byte buffer whose memory starts at a page boundary. Bytes between the length and the
/// end of the last page are unspecified until [`AlignedBuffer::pad_to_page`] zeroes them.
#[derive(Clone, Default)]
pub struct AlignedBuffer {
    pages: Vec<Page>,
    len: usize,
}

impl AlignedBuffer {
    /// An empty buffer without memory.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            pages: Vec::new(),
            len: 0,
        }
    }

    /// An empty buffer with room for `bytes`.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        let mut buffer = Self::new();
        buffer.reserve(bytes);
        buffer
    }

    /// A buffer of `bytes` zeros.
    #[must_use]
    pub fn zeroed(bytes: usize) -> Self {
        Self {
            pages: zeroed_vec(bytes.div_ceil(PAGE_BYTES)),
            len: bytes,
        }
    }

    /// Makes room for `bytes` in total, without changing the length.
    pub fn reserve(&mut self, bytes: usize) {
        let pages = bytes.div_ceil(PAGE_BYTES);
        if self.pages.is_empty() {
            // The kernel clears fresh memory when it is used, page by page; to clear it here as
            // well would touch all of it twice.
            self.pages = zeroed_vec(pages);
        } else if pages > self.pages.len() {
            self.pages.reserve(pages - self.pages.len());
            self.pages.resize(pages, Page([0; PAGE_BYTES]));
        }
    }

    /// Bytes that fit without growing.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.pages.len() * PAGE_BYTES
    }

    /// Sets the length; grows as needed. Newly exposed bytes are unspecified.
    pub fn set_len(&mut self, bytes: usize) {
        if bytes > self.capacity() {
            self.reserve(bytes.max(self.capacity() * 2));
        }
        self.len = bytes;
    }

    /// Empties the buffer, keeping its memory.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends bytes.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let start = self.len;
        self.set_len(start + bytes.len());
        self[start..].copy_from_slice(bytes);
    }

    /// Appends zeros until the length is a multiple of `unit`.
    ///
    /// # Panics
    /// If `unit` is zero.
    pub fn pad_to(&mut self, unit: usize) {
        let start = self.len;
        self.set_len(start.next_multiple_of(unit));
        self[start..].fill(0);
    }

    /// Appends zeros until the length is a multiple of [`PAGE_BYTES`].
    pub fn pad_to_page(&mut self) {
        self.pad_to(PAGE_BYTES);
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.pages)[..self.len]
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.pages)[..self.len]
    }
}

impl std::fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuffer({} of {} bytes)", self.len, self.capacity())
    }
}
