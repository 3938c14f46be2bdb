//! The content of a simulated file: a length, and the pages that are not zero.
//!
//! Pages are shared between clones (copy on write), so that keeping the durable and the visible
//! state, and copying a whole disk, costs little.

use crate::io::PAGE_BYTES;
use std::{collections::BTreeMap, sync::Arc};

const PAGE: u64 = PAGE_BYTES as u64;

#[derive(Clone, Default)]
pub(super) struct Image {
    len: u64,
    /// Bytes from the start that `allocate` reserved.
    reserved: u64,
    pages: BTreeMap<u64, Arc<[u8; PAGE_BYTES]>>,
    /// Pages that take up space: reserved ones, and written ones behind them.
    pages_used: u64,
}

impl Image {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.pages_used * PAGE
    }

    /// Bytes a write would add to [`Image::used_bytes`].
    pub(super) fn growth_by_write(&self, offset: u64, bytes: usize) -> u64 {
        let new = spans(offset, bytes).filter(|span| self.takes_new_page(span.page));
        new.count() as u64 * PAGE
    }

    /// Bytes `allocate` would add to [`Image::used_bytes`].
    pub(super) fn growth_by_allocate(&self, bytes: u64) -> u64 {
        let pages = bytes.div_ceil(PAGE);
        let behind = self.pages.range(pages.max(self.reserved_pages())..).count() as u64;
        (pages.max(self.reserved_pages()) + behind - self.pages_used) * PAGE
    }

    /// Bytes read; fewer than requested only at the end.
    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> usize {
        let bytes = self.len.saturating_sub(offset).min(buffer.len() as u64) as usize;
        for span in spans(offset, bytes) {
            let target = &mut buffer[span.start..span.end];
            match self.pages.get(&span.page) {
                Some(page) => target.copy_from_slice(&page[span.within..span.within + target.len()]),
                None => target.fill(0),
            }
        }
        bytes
    }

    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) {
        for span in spans(offset, bytes.len()) {
            self.pages_used += u64::from(self.takes_new_page(span.page));
            let page = self.pages.entry(span.page).or_insert_with(|| Arc::new([0; PAGE_BYTES]));
            let source = &bytes[span.start..span.end];
            Arc::make_mut(page)[span.within..span.within + source.len()].copy_from_slice(source);
        }
        if !bytes.is_empty() {
            self.extend(offset + bytes.len() as u64);
        }
    }

    /// Makes the file at least `bytes` long.
    pub(super) fn extend(&mut self, bytes: u64) {
        self.len = self.len.max(bytes);
    }

    pub(super) fn set_len(&mut self, bytes: u64) {
        if bytes < self.len {
            self.pages.split_off(&bytes.div_ceil(PAGE));
            if let Some(page) = self.pages.get_mut(&(bytes / PAGE)) {
                Arc::make_mut(page)[(bytes % PAGE) as usize..].fill(0);
            }
            self.reserved = self.reserved.min(bytes);
            self.recount();
        }
        self.len = bytes;
    }

    pub(super) fn allocate(&mut self, bytes: u64) {
        self.reserved = self.reserved.max(bytes);
        self.extend(bytes);
        self.recount();
    }

    fn reserved_pages(&self) -> u64 {
        self.reserved.div_ceil(PAGE)
    }

    fn takes_new_page(&self, page: u64) -> bool {
        page >= self.reserved_pages() && !self.pages.contains_key(&page)
    }

    fn recount(&mut self) {
        let reserved = self.reserved_pages();
        self.pages_used = reserved + self.pages.range(reserved..).count() as u64;
    }
}

/// The part of a range that falls into one page.
struct Span {
    page: u64,
    /// Where in the page it begins.
    within: usize,
    /// Which bytes of the caller's buffer it is.
    start: usize,
    end: usize,
}

fn spans(offset: u64, bytes: usize) -> impl Iterator<Item = Span> {
    let mut start = 0;
    std::iter::from_fn(move || {
        if start == bytes {
            return None;
        }
        let position = offset + start as u64;
        let within = (position % PAGE) as usize;
        let end = bytes.min(start + PAGE_BYTES - within);
        let page = position / PAGE;
        let span = Span {
            page,
            within,
            start,
            end,
        };
        start = end;
        Some(span)
    })
}
