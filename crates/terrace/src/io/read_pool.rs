//! Threads that help a call which reads many values.
//!
//! Reads wait for a device, and a device serves several in little more time than one, so the reads
//! of one caller run in parallel. The threads stay for the next call, since starting them costs
//! more than many a read. The calling thread works with them, so a call ends even if no thread can
//! be started.
//!
//! Invariant: everything that a call hands over is used up and dropped before the call returns. So
//! a helper never holds the last reference to anything.

use parking_lot::{Condvar, Mutex};
use std::{
    any::Any,
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    time::Duration,
};

/// Threads of one store. More than cores are of use, as they wait.
const THREADS_MAX: usize = 15;
/// A thread ends after so long without work.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// See the module. Threads are started when they are needed.
#[derive(Default)]
pub struct ReadPool {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    called: Condvar,
}

#[derive(Default)]
struct Queue {
    /// One entry for each requested helper.
    calls: VecDeque<Arc<dyn Call>>,
    threads: usize,
    idle: usize,
    is_closed: bool,
}

/// A call, as the helping threads see it.
trait Call: Send + Sync {
    /// Works until every part of the call has been begun.
    fn help(&self);
}

/// Why a part of the work has no result.
type Panic = Box<dyn Any + Send>;

struct Work<T, R> {
    run: fn(T) -> R,
    progress: Mutex<Progress<T, R>>,
    all_done: Condvar,
}

struct Progress<T, R> {
    left: std::vec::IntoIter<T>,
    under_way: usize,
    results: Vec<R>,
    panic: Option<Panic>,
}

impl<T: Send, R: Send> Call for Work<T, R> {
    fn help(&self) {
        let mut progress = self.progress.lock();
        while let Some(item) = progress.left.next() {
            progress.under_way += 1;
            drop(progress);
            let outcome = catch_unwind(AssertUnwindSafe(|| (self.run)(item)));
            progress = self.progress.lock();
            progress.under_way -= 1;
            match outcome {
                Ok(result) => progress.results.push(result),
                Err(panic) => progress.panic = Some(panic),
            }
        }
        if progress.under_way == 0 {
            self.all_done.notify_all();
        }
    }
}

impl ReadPool {
    /// Runs `run` on every item, side by side. The results are in no order.
    pub fn each<T: Send + 'static, R: Send + 'static>(&self, items: Vec<T>, run: fn(T) -> R) -> Vec<R> {
        if items.len() <= 1 {
            return items.into_iter().map(run).collect();
        }
        let helpers = (items.len() - 1).min(THREADS_MAX);
        let results = Vec::with_capacity(items.len());
        let work = Arc::new(Work {
            run,
            progress: Mutex::new(Progress {
                left: items.into_iter(),
                under_way: 0,
                results,
                panic: None,
            }),
            all_done: Condvar::new(),
        });
        self.call(&work, helpers);
        work.help();
        let mut progress = work.progress.lock();
        while progress.under_way > 0 {
            work.all_done.wait(&mut progress);
        }
        let results = std::mem::take(&mut progress.results);
        let panic = progress.panic.take();
        drop(progress);
        if let Some(panic) = panic {
            drop(results);
            resume_unwind(panic);
        }
        results
    }

    fn call<W: Call + 'static>(&self, work: &Arc<W>, helpers: usize) {
        let mut queue = self.shared.queue.lock();
        for _ in 0..helpers {
            queue.calls.push_back(Arc::<W>::clone(work));
        }
        let missing = queue
            .calls
            .len()
            .saturating_sub(queue.idle)
            .min(THREADS_MAX - queue.threads);
        let started = (0..missing).take_while(|_| self.start_thread()).count();
        queue.threads += started;
        let woken = helpers.min(queue.idle);
        drop(queue);
        for _ in 0..woken {
            self.shared.called.notify_one();
        }
    }

    /// Whether it could be started; otherwise the caller does the work.
    fn start_thread(&self) -> bool {
        let shared = Arc::clone(&self.shared);
        let named = std::thread::Builder::new().name("terrace-read".to_owned());
        named.spawn(move || shared.work()).is_ok()
    }
}

impl Drop for ReadPool {
    fn drop(&mut self) {
        self.shared.queue.lock().is_closed = true;
        self.shared.called.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        let mut queue = self.queue.lock();
        while !queue.is_closed {
            if let Some(call) = queue.calls.pop_front() {
                drop(queue);
                call.help();
                drop(call);
                queue = self.queue.lock();
                continue;
            }
            queue.idle += 1;
            let timed_out = self.called.wait_for(&mut queue, IDLE_MAX).timed_out();
            queue.idle -= 1;
            if timed_out && queue.calls.is_empty() {
                break;
            }
        }
        queue.threads -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        collections::BTreeSet,
        sync::{
            Barrier,
            atomic::{AtomicUsize, Ordering},
        },
    };

    #[test]
    fn everything_is_done_once_by_several() {
        let helpers = ReadPool::default();
        for round in 0..200 {
            let results: BTreeSet<usize> = helpers
                .each((0..100 + round).collect(), |item| item * 2)
                .into_iter()
                .collect();
            assert_eq!(results, (0..100 + round).map(|item| item * 2).collect());
        }
        assert!(helpers.shared.queue.lock().threads <= THREADS_MAX);
        // Each waits until all are there, so they are in it together.
        let together = Arc::new(Barrier::new(THREADS_MAX + 1));
        let all = helpers.each(vec![together; THREADS_MAX + 1], |barrier| barrier.wait().is_leader());
        assert_eq!(all.into_iter().filter(|is_leader| *is_leader).count(), 1);
    }

    #[test]
    fn many_may_call_at_once() {
        let helpers = ReadPool::default();
        let done = Arc::new(AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        helpers.each(vec![Arc::clone(&done); 7], |done| done.fetch_add(1, Ordering::Relaxed));
                    }
                });
            }
        });
        assert_eq!(done.load(Ordering::Relaxed), 8 * 50 * 7);
        assert_eq!(Arc::strong_count(&done), 1, "what was handed over is dropped");
    }

    #[test]
    fn a_panic_is_the_callers_and_the_rest_is_done() {
        let helpers = ReadPool::default();
        let done = Arc::new(AtomicUsize::new(0));
        let items = (0..40).map(|number| (number, Arc::clone(&done))).collect();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            helpers.each(items, |(number, done)| {
                assert_ne!(number, 7, "wanted");
                done.fetch_add(1, Ordering::Relaxed);
            })
        }));
        assert!(outcome.is_err());
        assert_eq!(done.load(Ordering::Relaxed), 39);
        assert_eq!(
            helpers.each(vec![1, 2, 3], |item| item).len(),
            3,
            "the threads are still there"
        );
    }

    #[test]
    fn the_threads_end_with_the_store() {
        let helpers = ReadPool::default();
        helpers.each((0..50).collect(), |item: usize| item);
        let shared = Arc::downgrade(&helpers.shared);
        drop(helpers);
        for _ in 0..6_000 {
            if shared.strong_count() == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("threads are left after a minute");
    }
}
