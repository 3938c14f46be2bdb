//! Write-behind: whole extents wait here, in RAM, until a thread writes them; adjacent ones in one
//! write.
//!
//! A device needs long writes, and more than one in flight, for its full rate; a value is one short
//! write. A caller that puts a value therefore queues its extent and returns. Two threads write:
//! while both are busy, extents gather, and the next write takes all that are adjacent to the first
//! one, up to 1 MiB. No write is delayed to make it longer, except on a disk that seeks while
//! callers read it: there each write costs the readers a seek, so extents gather as long as no
//! caller waits for them and they are few ([`LARGE_GATHER_MAX`], [`LARGE_GATHER_BYTES`]).
//!
//! Invariants:
//! - A queued extent is written once, or its write fails; either way its ordinal ends.
//! - From before any reader can know its place until it is written its bytes are in its block's
//!   `behind`, so a reader finds them there or on the device.
//! - At most [`QUEUED_BYTES_MAX`] wait or are being written (and one extent of any length); a
//!   caller with more waits.
//!
//! On failure: the extents of a failed write fail, each with its ordinal. They can be read until
//! they are abandoned or the space is closed, no footer gives them a version, and their block gets
//! no further extents. Once the space, or the sync of a block, has failed, queued extents fail
//! unwritten. A write that panics makes the space fail.

use super::{block::Block, group::GroupSync};
use crate::{
    Error, Result,
    io::{AlignedBuffer, DiskFile, threads, throttle::Paces},
};
use parking_lot::{Condvar, Mutex};
use std::{
    collections::BTreeMap,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Threads that write, and so the writes under way.
const WRITERS: usize = 2;
/// No write gets longer by gathering.
const RUN_BYTES_MAX: usize = 1 << 20;
/// Limit of queued bytes and bytes being written.
pub(super) const QUEUED_BYTES_MAX: usize = 8 << 20;
/// How long values for a disk that seeks may gather, and the frames with their records: 30 values a
/// second then cost readers a few seeks a second and not a hundred. A crash of the process loses up
/// to this much of buffered commits.
pub const LARGE_GATHER_MAX: Duration = Duration::from_millis(500);
/// At this many bytes they are written: the disk writes them in a tenth of a second, and there is
/// room for as many meanwhile.
pub(super) const LARGE_GATHER_BYTES: usize = QUEUED_BYTES_MAX / 2;

/// Buffers for the next write or read.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    buffers: Vec<AlignedBuffer>,
    bytes: usize,
}

impl Buffers {
    /// An empty buffer, with memory if there is one.
    pub fn take(&self) -> AlignedBuffer {
        let mut kept = self.kept.lock();
        let buffer = kept.buffers.pop().unwrap_or_default();
        kept.bytes -= buffer.capacity();
        buffer
    }

    /// RAM that waits, in bytes.
    pub fn spare_bytes(&self) -> usize {
        self.kept.lock().bytes
    }

    /// Keeps a buffer, unless it is long or enough are kept.
    pub fn give_back(&self, mut buffer: AlignedBuffer) {
        let bytes = buffer.capacity();
        let mut kept = self.kept.lock();
        if bytes > 0 && bytes <= 2 * RUN_BYTES_MAX && kept.bytes + bytes <= 2 * QUEUED_BYTES_MAX {
            buffer.clear();
            kept.bytes += bytes;
            kept.buffers.push(buffer);
        }
    }
}

/// The extents that wait, and the threads that write them.
#[derive(Debug)]
pub(super) struct WriteQueue {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Something waits, or the end has come.
    work: Condvar,
    /// Something was written.
    room: Condvar,
    buffers: Arc<Buffers>,
    failure: Arc<Failure>,
    /// What callers' reads take, which says whether the device seeks.
    paces: Arc<Paces>,
}

/// Why the space refuses writes, if it does.
#[derive(Debug, Default)]
pub(super) struct Failure(Mutex<Option<String>>);

impl Failure {
    pub fn reason(&self) -> Option<String> {
        self.0.lock().clone()
    }

    /// Refuses writes from now on. Gives the reason, which is that of before if there was one.
    pub fn set(&self, reason: String) -> String {
        tracing::error!(%reason, "the large space refuses writes");
        self.0.lock().get_or_insert(reason).clone()
    }
}

#[derive(Debug, Default)]
struct State {
    /// By block and offset, so that neighbours are found and the oldest come first.
    waiting: BTreeMap<(u64, u64), Extent>,
    /// Bytes that wait or are being written.
    bytes: usize,
    /// When the first waiting extent was queued.
    since: Option<Instant>,
    /// Waiters that need queued extents written now.
    hurrying: usize,
    /// They have gathered, and all of them are written.
    is_due: bool,
    closed: bool,
}

/// While it exists, nothing gathers.
pub(super) struct Hurry<'a>(&'a Shared);

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        self.0.state.lock().hurrying -= 1;
    }
}

#[derive(Debug)]
struct Extent {
    block: Arc<Block>,
    file: Arc<dyn DiskFile>,
    offset: u64,
    buffer: Arc<AlignedBuffer>,
    ordinal: u64,
}

impl WriteQueue {
    /// Starts the threads, if anything is to be written at all.
    pub fn start(buffers: Arc<Buffers>, failure: Arc<Failure>, read_only: bool) -> Result<Self> {
        let queue = Self {
            shared: Arc::new(Shared {
                state: Mutex::default(),
                work: Condvar::new(),
                room: Condvar::new(),
                buffers,
                failure,
                paces: Arc::default(),
            }),
            threads: Mutex::default(),
        };
        for number in 0..if read_only { 0 } else { WRITERS } {
            let shared = Arc::clone(&queue.shared);
            let name = format!("terrace-large-{number}");
            let thread = threads::start(&name, move || shared.write_until_closed())
                .map_err(|error| Error::io(format!("start the thread {name}"), &error))?;
            queue.threads.lock().push(thread);
        }
        Ok(queue)
    }

    /// Hands an extent over; waits while too much is waiting. Returns its ordinal in the block's
    /// group.
    pub fn push(&self, block: &Arc<Block>, file: &Arc<dyn DiskFile>, offset: u64, buffer: AlignedBuffer) -> u64 {
        let buffer = Arc::new(buffer);
        let mut state = self.shared.state.lock();
        while !state.closed && state.bytes > 0 && state.bytes + buffer.len() > QUEUED_BYTES_MAX {
            self.shared.room.wait(&mut state);
        }
        block.behind.lock().insert(offset, Arc::clone(&buffer));
        let ordinal = block.group.begin();
        let bytes = buffer.len();
        let extent = Extent {
            block: Arc::clone(block),
            file: Arc::clone(file),
            offset,
            buffer,
            ordinal,
        };
        if state.closed {
            drop(state);
            self.shared.end(extent, Some(&io::Error::other("the store is closed")));
            return ordinal;
        }
        state.bytes += bytes;
        state.since.get_or_insert_with(Instant::now);
        state.waiting.insert((block.number, offset), extent);
        self.shared.work.notify_one();
        ordinal
    }

    /// Latencies of callers' reads are recorded here: extents gather while the device seeks.
    pub fn paces(&self) -> &Arc<Paces> {
        &self.shared.paces
    }

    /// For a thread that waits for extents to be written: queued ones are written now, and none
    /// gathers until this is dropped.
    pub fn hurry(&self) -> Hurry<'_> {
        let mut state = self.shared.state.lock();
        state.hurrying += 1;
        if !state.waiting.is_empty() {
            self.shared.work.notify_all();
        }
        Hurry(&self.shared)
    }

    /// Returns when no write of these is under way, and none waits.
    pub fn wait_written(&self, group: &GroupSync) {
        let _hurry = self.hurry();
        group.wait_written();
    }

    /// Writes queued extents, and ends the threads. Later pushes fail.
    pub fn close(&self) {
        self.shared.state.lock().closed = true;
        self.shared.work.notify_all();
        self.shared.room.notify_all();
        for thread in self.threads.lock().drain(..) {
            // The thread has ended even if it panicked.
            let _ = thread.join();
        }
    }

    /// Bytes that wait or are being written.
    pub fn bytes(&self) -> usize {
        self.shared.state.lock().bytes
    }

    /// Extents that wait.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.shared.state.lock().waiting.len()
    }
}

impl Drop for WriteQueue {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn write_until_closed(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(rest) = state.gathers(|| self.paces.large.seeks()) {
                self.work.wait_for(&mut state, rest);
                continue;
            }
            let run = state.take_run();
            if run.is_empty() {
                if state.closed {
                    return;
                }
                self.work.wait(&mut state);
                continue;
            }
            drop(state);
            let bytes: usize = run.iter().map(|extent| extent.buffer.len()).sum();
            let result = match self.failure.reason() {
                Some(reason) => Err(io::Error::other(reason)),
                // Threads that wait for these extents must be notified of a panic: nothing else
                // would end their ordinals.
                None => catch_unwind(AssertUnwindSafe(|| write_run(&run))).unwrap_or_else(|_| {
                    let reason = "writing large values panicked: a bug, please report it";
                    Err(io::Error::other(self.failure.set(reason.to_owned())))
                }),
            };
            for extent in run {
                self.end(extent, result.as_ref().err());
            }
            state = self.state.lock();
            state.bytes -= bytes;
            self.room.notify_all();
        }
    }

    fn end(&self, extent: Extent, error: Option<&io::Error>) {
        let Extent {
            block, offset, ordinal, ..
        } = &extent;
        match error {
            None => {
                block.behind.lock().remove(offset);
            }
            Some(error) => {
                // A full device is the matter of this value; after anything else the block is not
                // to be trusted with more.
                if error.kind() != io::ErrorKind::StorageFull {
                    block.close();
                }
                block.forget_version(*offset);
            }
        }
        block.group.end(*ordinal, error.map_or(Ok(()), Err));
        if let Some(buffer) = Arc::into_inner(extent.buffer) {
            self.buffers.give_back(buffer);
        }
    }
}

impl State {
    /// How much longer the waiting extents gather, if they do.
    fn gathers(&mut self, seeks: impl Fn() -> bool) -> Option<Duration> {
        let since = self.since?;
        if self.closed || self.hurrying > 0 || self.is_due {
            return None;
        }
        let rest = LARGE_GATHER_MAX
            .checked_sub(since.elapsed())
            .filter(|rest| !rest.is_zero());
        let rest = rest.filter(|_| self.bytes < LARGE_GATHER_BYTES && seeks());
        self.is_due = rest.is_none();
        rest
    }

    /// The first waiting extent, with those directly after it.
    fn take_run(&mut self) -> Vec<Extent> {
        let mut run: Vec<Extent> = Vec::new();
        let (mut end, mut bytes) = (None, 0);
        while let Some(first) = self.waiting.first_entry() {
            let (block, offset) = *first.key();
            let length = first.get().buffer.len();
            let adjoins =
                end.is_none_or(|end| end == (block, offset)) && (bytes == 0 || bytes + length <= RUN_BYTES_MAX);
            if !adjoins {
                break;
            }
            end = Some((block, offset + length as u64));
            bytes += length;
            run.push(first.remove());
        }
        if self.waiting.is_empty() {
            (self.since, self.is_due) = (None, false);
        }
        run
    }
}

fn write_run(run: &[Extent]) -> io::Result<()> {
    let Some(first) = run.first() else { return Ok(()) };
    if first.block.group.failed() {
        return Err(io::Error::other("a sync of the block failed; it is not written again"));
    }
    match run {
        [one] => one.file.write_all_at(&one.buffer, one.offset),
        _ => {
            let buffers: Vec<&[u8]> = run.iter().map(|extent| &extent.buffer[..]).collect();
            first.file.write_all_vectored_at(&buffers, first.offset)
        }
    }
}
