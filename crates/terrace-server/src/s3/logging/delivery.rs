//! Lines on their way to the buckets that get them.

use super::{day_of, line::Entry};
use crate::s3::{
    Gateway,
    access::{decide::Claim, denied},
    bucket::Bucket,
    commit::{Place, Requirement},
    crypt::request,
    digest::{Algorithm, Digests},
    figures::Figures,
    ops::objects,
    receive::{self, WHOLE_BYTES_MAX},
    record,
};
use bytes::Bytes;
use parking_lot::Mutex;
use s3s::S3Result;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, SystemTime},
};
use terrace::{Attributes, Store};
use tokio::sync::Notify;

/// How often what has been gathered is written: as much as a crash can lose.
const INTERVAL: Duration = Duration::from_secs(60);
/// Most bytes of lines in memory: what a fast server writes in some seconds. Beyond, lines are
/// lost.
const WAITING_BYTES_MAX: usize = 8 << 20;
/// Longest log. So long it is the value of its object itself.
const LOG_BYTES_MAX: usize = WHOLE_BYTES_MAX;

/// Lines of one bucket's requests of one day.
#[derive(Debug, Default)]
struct Page {
    source: String,
    day: u64,
    text: String,
}

#[derive(Debug, Default)]
struct Waiting {
    /// What is added to, by bucket and day.
    open: BTreeMap<(String, u64), String>,
    /// What is as long as a log.
    full: VecDeque<Page>,
    /// Of all of them.
    bytes: usize,
}

/// What is gathered.
#[derive(Debug, Default)]
pub struct Delivery {
    waiting: Mutex<Waiting>,
    is_full: Notify,
}

impl Delivery {
    /// Adds the lines of a request, or counts them as lost.
    pub fn add(&self, entry: &Entry<'_>, figures: &Figures) {
        for line in entry.lines() {
            self.add_line(entry, &line, figures);
        }
    }

    fn add_line(&self, entry: &Entry<'_>, line: &str, figures: &Figures) {
        let mut waiting = self.waiting.lock();
        if waiting.bytes + line.len() > WAITING_BYTES_MAX {
            figures.log_lines_lost.inc();
            return;
        }
        waiting.bytes += line.len();
        let (source, day) = (&entry.logged.bucket, day_of(entry.time));
        let open = waiting.open.entry((source.clone(), day)).or_default();
        let before = (open.len() + line.len() > LOG_BYTES_MAX).then(|| std::mem::take(open));
        open.push_str(line);
        if let Some(text) = before {
            let source = source.clone();
            waiting.full.push_back(Page { source, day, text });
            self.is_full.notify_one();
        }
    }

    /// Takes a page that is to be written; what is still added to only if `all` is asked for.
    fn take(&self, all: bool) -> Option<Page> {
        let mut waiting = self.waiting.lock();
        let open = |waiting: &mut Waiting| {
            let ((source, day), text) = waiting.open.pop_first()?;
            Some(Page { source, day, text })
        };
        let page = waiting.full.pop_front();
        let page = page.or_else(|| if all { open(&mut waiting) } else { None })?;
        waiting.bytes -= page.text.len();
        Some(page)
    }
}

/// Writes what has been gathered, for ever.
pub async fn run(gateway: Arc<Gateway>) {
    loop {
        let is_time = tokio::time::timeout(INTERVAL, gateway.delivery.is_full.notified())
            .await
            .is_err();
        write(&gateway, is_time).await;
    }
}

/// Writes what is as long as a log, or all.
pub async fn write(gateway: &Arc<Gateway>, all: bool) {
    while let Some(page) = gateway.delivery.take(all) {
        let lines = page.text.lines().count() as u64;
        let source = page.source.clone();
        let written = gateway.run(move |gateway, store| keep(gateway, store, page)).await;
        if let Err(error) = written {
            gateway.figures.log_lines_lost.inc_by(lines);
            tracing::warn!(%error, bucket = source, lines, "the log of a bucket's requests could not be written");
        }
    }
}

/// Writes a log into the bucket that gets it now. If none does, the lines are nobody's.
fn keep(gateway: &Arc<Gateway>, store: &Store, page: Page) -> S3Result {
    let source = gateway.buckets.get(&page.source)?.record();
    let Some(settings) = &source.logging else { return Ok(()) };
    let target: Arc<Bucket> = gateway.buckets.get(&settings.target)?;
    let key = settings.key(&page.source, source.owner(), page.day, SystemTime::now());
    if !settings.may(&page.source, source.owner(), &target.record(), &key) {
        return Err(denied());
    }
    let text = Bytes::from(page.text);
    let mut digests = Digests::new(&[Algorithm::Crc64Nvme]);
    digests.update(&text);
    let place = Place {
        store,
        durability: gateway.durability,
        permit: &Claim::of_system(&target).on_bucket()?,
        key: &key,
    };
    let attributes = Attributes::new().with("content-type", "text/plain");
    let attributes = record::with_list(&attributes, settings.list_in(&target.record()));
    let sealing = request::of_bucket(&gateway.shared.secrets, &target)?;
    let data_key = sealing.as_ref().map(|sealing| &sealing.data_key);
    let received = receive::whole(text, digests.finish(), data_key)?;
    let requirement = Requirement::default();
    objects::keep(&gateway.collector, place, &requirement, attributes, (received, sealing))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::s3::logging::Logged;
    use hyper::Request;

    fn add(delivery: &Delivery, figures: &Figures, bucket: &str, day: u64, agent: &str) {
        let (parts, ()) = Request::new(()).into_parts();
        let logged = Logged::of(&parts, bucket.to_owned(), "k");
        let entry = Entry {
            logged: &logged,
            time: SystemTime::UNIX_EPOCH + Duration::from_secs(day * 24 * 3600 + 5),
            peer: "::1",
            key: None,
            account: None,
            owner: None,
            number: "1",
            operation: "GetObject",
            method: "GET",
            agent: Some(agent),
            status: 200,
            received: 0,
            sent: 0,
            until_head: Duration::ZERO,
            until_end: Duration::ZERO,
        };
        delivery.add(&entry, figures);
    }

    #[test]
    fn lines_are_gathered_by_bucket_and_day_and_have_a_bound() {
        let (delivery, figures) = (Delivery::default(), Figures::default());
        for (bucket, day) in [("b", 1), ("a", 1), ("a", 2), ("a", 1)] {
            add(&delivery, &figures, bucket, day, "x");
        }
        assert!(delivery.take(false).is_none(), "none is full");
        let pages: Vec<_> = std::iter::from_fn(|| delivery.take(true))
            .map(|page| (page.source, page.day, page.text.lines().count()))
            .collect();
        let expected = [("a", 1, 2), ("a", 2, 1), ("b", 1, 1)];
        assert_eq!(
            pages,
            expected.map(|(bucket, day, lines)| (bucket.to_owned(), day, lines))
        );
        assert_eq!(delivery.waiting.lock().bytes, 0);
        let long = "x".repeat(2000);
        let count = 2 * WAITING_BYTES_MAX / long.len();
        for _ in 0..count {
            add(&delivery, &figures, "a", 1, &long);
        }
        let waiting = delivery.waiting.lock().bytes;
        assert!(
            waiting <= WAITING_BYTES_MAX && waiting > WAITING_BYTES_MAX / 2,
            "{waiting}"
        );
        let mut lines = 0;
        while let Some(page) = delivery.take(true) {
            assert!(page.text.len() <= LOG_BYTES_MAX && page.text.ends_with('\n'));
            lines += page.text.lines().count();
        }
        assert_eq!(lines as u64 + figures.log_lines_lost.get(), count as u64);
    }
}
