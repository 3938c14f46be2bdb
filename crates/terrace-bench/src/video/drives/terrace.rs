//! Terrace on the two drives: segments are objects below their titles, in the large tier whatever
//! their length.

use super::{Segment, Server, Settings};
use crate::{
    Outcome,
    harness::{
        setup::{Places, Setup},
        values::{Values, buffered},
    },
};
use std::sync::Arc;
use terrace::{
    Options, Store,
    io::{Disk, FileDisk},
};

/// The store.
#[derive(Debug)]
pub struct Terrace {
    store: Store,
    disk: Arc<FileDisk>,
    settings: Settings,
}

impl Terrace {
    /// A store with the catalogue, stored title by title. Copies on flash may take four fifths of
    /// it, and space that the log does not need.
    pub fn open(places: &Places, name: &str, settings: &Settings, values: &Values) -> Outcome<Self> {
        let scene = &settings.scene;
        let capacity = (scene.bytes() as f64 * settings.share.unwrap_or_default()) as u64;
        let placed = Setup::Hybrid.options(places, name);
        let disk = Arc::new(FileDisk::new(&placed.large_dir)?);
        // The log keeps some segments free, whatever their length. The study's flash would have
        // hundreds of segments of 64 MiB, with 28 video segments in each; so here they are short,
        // with a length that leaves little unused at their ends.
        let of_video = scene.segment_bytes as u64 + 8192;
        let videos = (capacity / of_video / 300).clamp(3, 28);
        let segment_bytes = (videos * of_video).next_multiple_of(64 << 10);
        // ext4 divides a disk into groups of 128 MiB. Two blocks of 64 MiB do not fit into a group
        // with a copy of the superblock, which on so small a disk is every second one, and then
        // blocks are half as far apart again.
        let split_threshold_bytes = 60 << 20;
        let store = Store::open(
            Options {
                segment_bytes,
                split_threshold_bytes,
                log_capacity_bytes: Some(capacity.max(8 * segment_bytes)),
                size_threshold_bytes: 16 << 10,
                cache_bytes: 0,
                large_disk: Some(Arc::clone(&disk) as Arc<dyn Disk>),
                ..placed
            }
            .tuned(|tuning| {
                tuning.copies_share_percent = 80;
                tuning.staging_bytes = scene.ram_bytes;
            }),
        )?;
        for object in 0..scene.catalogue.objects() {
            let value = values.piece(object as u64, scene.segment_bytes);
            store.put_with(scene.catalogue.key(object), value, &buffered())?;
        }
        store.flush()?;
        Ok(Self {
            store,
            disk,
            settings: settings.clone(),
        })
    }
}

impl Server for Terrace {
    fn read(&self, object: usize) -> Outcome<Segment> {
        let key = self.settings.scene.catalogue.key(object);
        let found = self.store.get(key)?.ok_or_else(|| format!("object {object} is gone"))?;
        Ok(Box::new(found))
    }

    fn disk_read_bytes(&self) -> u64 {
        self.disk.counters().bytes_read
    }

    fn flash_written_bytes(&self) -> u64 {
        self.store.stats().written.flash_bytes()
    }

    fn close(self: Box<Self>) -> Outcome {
        Ok(self.store.close()?)
    }
}
