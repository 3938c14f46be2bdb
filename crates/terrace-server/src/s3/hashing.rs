//! Hashes bodies of uploads. At most one thread per processor computes them, several waiting
//! streams at a time, which take little longer than one ([`Digests::update_side_by_side`]).
//!
//! Invariant: while a stream waits, a thread is running or has been spawned.

use super::{digest::Digests, errors};
use crate::http::engine::NotRun;
use bytes::Bytes;
use parking_lot::Mutex;
use s3s::S3Result;
use std::{collections::VecDeque, sync::Arc};
use terrace_objects::digest::LANES;
use tokio::{sync::oneshot, task::spawn_blocking};

/// The queue of streams, and the threads.
pub struct Hashing {
    queue: Mutex<Queue>,
    threads_max: usize,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Job>,
    /// Running threads.
    threads: usize,
}

struct Job {
    digests: Digests,
    data: Vec<Bytes>,
    done: oneshot::Sender<Digests>,
}

impl Default for Hashing {
    fn default() -> Self {
        Self {
            queue: Mutex::default(),
            threads_max: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

impl Hashing {
    /// Adds bytes to digests.
    ///
    /// # Errors
    /// `InternalError` if the thread panicked.
    pub async fn update(self: &Arc<Self>, digests: Digests, data: Vec<Bytes>) -> S3Result<Digests> {
        let (done, hashed) = oneshot::channel();
        let is_more_wanted = {
            let mut queue = self.queue.lock();
            queue.waiting.push_back(Job { digests, data, done });
            let is_more_wanted = queue.threads < self.threads_max;
            queue.threads += usize::from(is_more_wanted);
            is_more_wanted
        };
        if is_more_wanted {
            let turn = Turn::of(self);
            // It also serves others if this client disconnects.
            spawn_blocking(move || turn.work());
        }
        hashed.await.map_err(|_| errors::of_call(NotRun::Panicked))
    }
}

/// A thread's run, from its spawning until the queue is empty.
struct Turn {
    hashing: Arc<Hashing>,
    /// It is no longer counted.
    is_over: bool,
}

impl Turn {
    fn of(hashing: &Arc<Hashing>) -> Self {
        Self {
            hashing: Arc::clone(hashing),
            is_over: false,
        }
    }

    fn work(mut self) {
        while let Some(mut jobs) = self.next() {
            Digests::update_side_by_side(jobs.iter_mut().map(|job| (&mut job.digests, job.data.as_slice())));
            for job in jobs {
                // Without a receiver the client has disconnected.
                let _ = job.done.send(job.digests);
            }
        }
    }

    /// The streams that have waited longest. If there are none, the thread is no longer counted,
    /// under the same lock: a caller that adds a stream later spawns another.
    fn next(&mut self) -> Option<Vec<Job>> {
        let mut queue = self.hashing.queue.lock();
        let jobs = LANES.min(queue.waiting.len());
        if jobs == 0 {
            queue.threads -= 1;
            self.is_over = true;
            return None;
        }
        Some(queue.waiting.drain(..jobs).collect())
    }
}

impl Drop for Turn {
    /// After a panic it is uncounted too, so that no caller waits for a missing thread.
    fn drop(&mut self) {
        if !self.is_over {
            let mut queue = self.hashing.queue.lock();
            queue.threads -= 1;
            if queue.threads == 0 {
                queue.waiting.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::s3::digest::Algorithm;

    const STREAMS: u8 = 40;

    fn piece(stream: u8, number: u8) -> Bytes {
        vec![stream ^ number; 1_000 + 37 * usize::from(stream)].into()
    }

    /// More streams than are hashed together, some of them cancelled.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn many_streams_at_a_time() {
        let hashing = Arc::new(Hashing::default());
        let streams: Vec<_> = (0..STREAMS)
            .map(|stream| {
                let hashing = Arc::clone(&hashing);
                tokio::spawn(async move {
                    let mut digests = Digests::new(&[Algorithm::Crc64Nvme]);
                    for number in 0..20 {
                        let data = vec![piece(stream, number), piece(stream, number + 100)];
                        if stream % 8 == 7 && number == 10 {
                            drop(tokio::time::timeout(std::time::Duration::ZERO, hashing.update(digests, data)).await);
                            return None;
                        }
                        digests = hashing.update(digests, data).await.unwrap();
                    }
                    Some(digests.finish())
                })
            })
            .collect();
        for (stream, hashed) in (0..STREAMS).zip(streams) {
            let mut alone = Digests::new(&[Algorithm::Crc64Nvme]);
            for number in 0..20 {
                alone.update(&piece(stream, number));
                alone.update(&piece(stream, number + 100));
            }
            let hashed = hashed.await.unwrap();
            assert_eq!(hashed, (stream % 8 != 7).then(|| alone.finish()), "{stream}");
        }
    }

    /// After a panic of a thread, callers do not hang and hashing continues.
    #[tokio::test]
    async fn no_request_waits_for_a_thread_that_is_gone() {
        let hashing = Arc::new(Hashing::default());
        hashing.queue.lock().threads = hashing.threads_max;
        let turns: Vec<Turn> = (0..hashing.threads_max).map(|_| Turn::of(&hashing)).collect();
        let waiting = tokio::spawn({
            let hashing = Arc::clone(&hashing);
            async move { hashing.update(Digests::new(&[]), vec![piece(1, 1)]).await.is_err() }
        });
        while hashing.queue.lock().waiting.is_empty() {
            tokio::task::yield_now().await;
        }
        drop(turns);
        assert!(waiting.await.unwrap());
        let hashed = hashing.update(Digests::new(&[]), vec![piece(1, 1)]).await;
        let mut alone = Digests::new(&[]);
        alone.update(&piece(1, 1));
        assert_eq!(hashed.ok().map(Digests::finish), Some(alone.finish()));
    }
}
