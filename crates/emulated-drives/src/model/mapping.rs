//! An SSD's mapping of logical pages: the mapping table, erase blocks, and garbage collection.
//!
//! A page is never written in place: its new version goes to the open block of a channel, and the
//! old one is garbage. A channel with few free blocks takes the block with the fewest valid pages,
//! moves them, and erases it.
//!
//! Invariants: a logical page has at most one valid physical page. A channel's count is the sum of
//! its blocks' valid pages. Every channel keeps a block free for collecting.

use crate::profile::FlashProfile;
use crate::random::Random;

/// No page.
const NONE: u32 = 0;

/// Work of garbage collection for a write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Pages read and programmed elsewhere.
    pub pages: u64,
    /// Blocks erased.
    pub blocks: u64,
}

#[derive(Debug)]
struct Channel {
    /// Blocks erased and not begun, by number within the channel.
    free: Vec<u32>,
    /// The block being filled, and its next page.
    open: u32,
    next: u32,
    /// Valid pages of each block.
    valid: Vec<u32>,
    valid_pages: u64,
}

/// See the module. In the tables pages are numbered from 1, so that 0 is none and new tables, which
/// are zero pages, take no memory.
#[derive(Debug)]
pub struct Mapping {
    block_pages: u32,
    channel_blocks: u32,
    reserve: usize,
    /// Physical page of each logical page.
    physical: Vec<u32>,
    /// Logical page of each physical page.
    logical: Vec<u32>,
    channels: Vec<Channel>,
    turn: usize,
}

impl Mapping {
    /// An erased drive, with a share of it written in random order.
    pub fn new(profile: &FlashProfile, bytes: u64, seed: u64) -> Self {
        let pages = bytes.div_ceil(profile.page_bytes);
        let blocks = (pages as f64 * (1.0 + profile.spare_share) / profile.block_pages as f64).ceil() as u64;
        // One block is open, and one is kept for collecting.
        let channel_blocks = blocks.div_ceil(profile.channels as u64) + profile.reserve_blocks as u64 + 2;
        let channel = || Channel {
            free: (1..channel_blocks as u32).rev().collect(),
            open: 0,
            next: 0,
            valid: vec![0; channel_blocks as usize],
            valid_pages: 0,
        };
        let physical = channel_blocks * profile.channels as u64 * profile.block_pages;
        let mut mapping = Self {
            block_pages: profile.block_pages as u32,
            channel_blocks: channel_blocks as u32,
            reserve: profile.reserve_blocks,
            physical: vec![NONE; pages as usize],
            logical: vec![NONE; physical as usize],
            channels: (0..profile.channels).map(|_| channel()).collect(),
            turn: 0,
        };
        mapping.age((pages as f64 * profile.aged_share) as u64, seed);
        mapping
    }

    fn age(&mut self, pages: u64, seed: u64) {
        let mut random = Random::branch(seed, 0xA6E);
        for page in 0..pages {
            let idle = vec![0; self.channels.len()];
            let channel = self.pick(&idle);
            self.write(page, channel);
        }
        for _ in 0..pages {
            let idle = vec![0; self.channels.len()];
            let channel = self.pick(&idle);
            self.write(random.below(pages), channel);
        }
    }

    /// The channel of a logical page; one that was never written has a channel too.
    pub fn channel(&self, page: u64) -> usize {
        match self.physical.get(page as usize) {
            Some(&physical) if physical != NONE => self.place(physical).0,
            _ => (page % self.channels.len() as u64) as usize,
        }
    }

    /// Channel and block of a physical page.
    fn place(&self, physical: u32) -> (usize, usize) {
        let block = (physical - 1) / self.block_pages;
        (
            (block / self.channel_blocks) as usize,
            (block % self.channel_blocks) as usize,
        )
    }

    /// The channel for the next write: the one that is free first and has space for a page; in
    /// rotation among equals.
    pub fn pick(&mut self, free_at: &[u64]) -> usize {
        let count = self.channels.len();
        let limit = u64::from(self.channel_blocks - self.reserve as u32 - 1) * u64::from(self.block_pages);
        let turns = (0..count).map(|step| (self.turn + step) % count);
        let roomy = turns.filter(|channel| self.channels[*channel].valid_pages < limit);
        let channel = roomy
            .min_by_key(|channel| free_at[*channel])
            .unwrap_or(self.turn % count);
        self.turn = (channel + 1) % count;
        channel
    }

    /// Writes a logical page to a channel. Returns the work of garbage collection.
    pub fn write(&mut self, page: u64, channel: usize) -> Moved {
        let mut moved = Moved::default();
        if self.channels[channel].next == self.block_pages {
            moved = self.collect(channel);
        }
        self.put(page, channel);
        moved
    }

    /// Adds a page to the open block, or to a free one if that is full.
    fn put(&mut self, page: u64, channel: usize) {
        let target = &mut self.channels[channel];
        if target.next == self.block_pages {
            let Some(block) = target.free.pop() else {
                return; // cannot happen, by `pick`; the old version stays valid
            };
            (target.open, target.next) = (block, 0);
        }
        let block = channel as u32 * self.channel_blocks + target.open;
        let physical = block * self.block_pages + target.next + 1;
        target.next += 1;
        target.valid[target.open as usize] += 1;
        target.valid_pages += 1;
        self.logical[(physical - 1) as usize] = page as u32 + 1;
        let old = std::mem::replace(&mut self.physical[page as usize], physical);
        if old != NONE {
            let (old_channel, block) = self.place(old);
            self.logical[(old - 1) as usize] = NONE;
            self.channels[old_channel].valid[block] -= 1;
            self.channels[old_channel].valid_pages -= 1;
        }
    }

    /// Frees blocks up to the reserve.
    fn collect(&mut self, channel: usize) -> Moved {
        let mut moved = Moved::default();
        while self.channels[channel].free.len() <= self.reserve {
            let candidates = &self.channels[channel];
            let is_candidate =
                |block: &usize| *block as u32 != candidates.open && !candidates.free.contains(&(*block as u32));
            let blocks = (0..candidates.valid.len()).filter(is_candidate);
            let Some(victim) = blocks.min_by_key(|block| candidates.valid[*block]) else {
                return moved;
            };
            if candidates.valid[victim] >= self.block_pages {
                return moved; // only valid pages: moving them frees nothing
            }
            let first = (channel as u32 * self.channel_blocks + victim as u32) * self.block_pages;
            for physical in first..first + self.block_pages {
                let page = self.logical[physical as usize];
                if page != NONE {
                    self.put(u64::from(page) - 1, channel);
                    moved.pages += 1;
                }
            }
            moved.blocks += 1;
            self.channels[channel].free.insert(0, victim as u32);
        }
        moved
    }

    /// Checks the invariants.
    #[cfg(test)]
    pub fn check(&self) {
        for (page, physical) in self
            .physical
            .iter()
            .enumerate()
            .filter(|(_, physical)| **physical != NONE)
        {
            assert_eq!(self.logical[(*physical - 1) as usize] as usize, page + 1);
        }
        for (number, channel) in self.channels.iter().enumerate() {
            let blocks = channel.valid.len();
            for (block, valid) in channel.valid.iter().enumerate() {
                let first = (number * blocks + block) * self.block_pages as usize;
                let pages = &self.logical[first..first + self.block_pages as usize];
                assert_eq!(pages.iter().filter(|page| **page != NONE).count(), *valid as usize);
            }
            assert_eq!(u64::from(channel.valid.iter().sum::<u32>()), channel.valid_pages);
        }
    }
}
