//! Delivers lines to the target buckets.

use super::{day_of, line::Entry};
use crate::s3::{
    Gateway,
    access::{decide::Claim, denied},
    bucket::Bucket,
    commit::{Place, Requirement},
    digest::{Algorithm, Digests},
    errors::Told as _,
    figures::Figures,
    receive::{self, WHOLE_BYTES_MAX},
    record,
};
use crate::s3::{crypt::by_default, kms::Caller, logging::Logging as _};
use bytes::Bytes;
use parking_lot::Mutex;
use s3s::S3Result;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};
use terrace::{Attributes, Store};
use terrace_objects::keep;
use tokio::sync::Notify;

/// How often gathered lines are written: a crash loses at most these.
const INTERVAL: Duration = Duration::from_secs(60);
/// Most bytes of lines in memory: a fast server's for some seconds. Further lines are lost.
const WAITING_BYTES_MAX: usize = 8 << 20;
/// Longest log: its value is stored in one piece up to this length.
const LOG_BYTES_MAX: usize = WHOLE_BYTES_MAX;

/// Lines of one bucket's requests of one day.
#[derive(Debug)]
struct Page {
    source: Arc<Bucket>,
    day: u64,
    text: String,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Pages that are appended to, by bucket and day. A later bucket of the same name has its own.
    open: BTreeMap<(String, u64, u64), Page>,
    /// Pages of a log's full length.
    full: VecDeque<Page>,
    /// Bytes of all pages.
    bytes: usize,
}

/// Gathered lines.
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
        let (source, day) = (&entry.logged.bucket, day_of(entry.of_all.time));
        let new = || Page {
            source: Arc::clone(source),
            day,
            text: String::new(),
        };
        let place = (source.name.clone(), source.record().created_ms, day);
        let open = waiting.open.entry(place).or_insert_with(new);
        let is_full = open.text.len() + line.len() > LOG_BYTES_MAX;
        let before = is_full.then(|| std::mem::replace(open, new()));
        open.text.push_str(line);
        if let Some(page) = before {
            waiting.full.push_back(page);
            self.is_full.notify_one();
        }
    }

    /// Takes a page to be written; an incomplete one only if `all` is set.
    fn take(&self, all: bool) -> Option<Page> {
        let mut waiting = self.waiting.lock();
        let mut page = waiting.full.pop_front();
        if page.is_none() && all {
            page = waiting.open.pop_first().map(|(_, page)| page);
        }
        let page = page?;
        waiting.bytes -= page.text.len();
        Some(page)
    }
}

/// Writes gathered lines; never returns.
pub async fn run(gateway: Arc<Gateway>) {
    loop {
        let is_time = tokio::time::timeout(INTERVAL, gateway.delivery.is_full.notified())
            .await
            .is_err();
        write(&gateway, is_time).await;
    }
}

/// Writes the full pages, or all.
pub async fn write(gateway: &Arc<Gateway>, all: bool) {
    while let Some(page) = gateway.delivery.take(all) {
        let lines = page.text.lines().count() as u64;
        let source = Arc::clone(&page.source);
        let written = gateway.run(move |gateway, store| keep(gateway, store, page)).await;
        if let Err(error) = written {
            gateway.figures.log_lines_lost.inc_by(lines);
            tracing::warn!(%error, bucket = source.name, lines, "the log of a bucket's requests could not be written");
        }
    }
}

/// Writes a log into its target bucket. Without a target the lines are dropped.
fn keep(gateway: &Arc<Gateway>, store: &Store, page: Page) -> S3Result {
    let name = page.source.name.as_str();
    // Requests to a deleted bucket are not logged for a new bucket of the same name, which may be
    // another account's.
    if !gateway.buckets.is_there(&page.source) {
        return Ok(());
    }
    let source = page.source.record();
    let Some(settings) = &source.logging else { return Ok(()) };
    let target: Arc<Bucket> = gateway.bucket(&settings.target)?;
    let clock = store.clock();
    let key = settings.key(name, source.owner(), page.day, clock.now());
    if !settings.may(name, source.owner(), &target.record(), &key, clock.now_ms()) {
        return Err(denied());
    }
    let text = Bytes::from(page.text);
    let mut digests = Digests::new(&[Algorithm::Crc64Nvme]);
    digests.update(&text);
    let place = Place {
        store,
        durability: gateway.durability,
        permit: &Claim::of_system(&target).on_bucket().told()?,
        key: &key,
    };
    let attributes = Attributes::new().with("content-type", "text/plain");
    let attributes = record::with_list(&attributes, settings.list_in(&target.record()));
    let sealing = by_default(
        &gateway.shared.secrets,
        target.record().encryption.as_ref().map(|wanted| wanted.wanted()),
        &Caller::Server,
    )
    .told()?;
    let data_key = sealing.as_ref().map(|sealing| &sealing.data_key);
    let received = receive::whole(text, digests.finish(), data_key).told()?;
    let requirement = Requirement::default();
    keep::keep(&gateway.collector, place, &requirement, attributes, (received, sealing)).told()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::s3::{
        Choices, access_log,
        bucket::Record,
        head::tests::head,
        keyspace,
        logging::{Format, Logged, Settings},
    };
    use terrace::{Durability, ScanRange};

    fn add(delivery: &Delivery, figures: &Figures, bucket: &str, day: u64, agent: &str) {
        let bucket = Bucket::apart(bucket.to_owned(), Record::default());
        add_of(delivery, figures, Arc::new(bucket), day, agent);
    }

    fn add_of(delivery: &Delivery, figures: &Figures, bucket: Arc<Bucket>, day: u64, agent: &str) {
        let (head, headers, _) = head("GET", "/b/k", &[]);
        let logged = Logged::of(&headers, bucket);
        let of_all = access_log::Entry {
            head: &head,
            time: std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(day * 24 * 3600 + 5),
            key: None,
            operation: "GetObject",
            agent: Some(agent),
            status: 200,
            received: 0,
            sent: 0,
            is_complete: true,
            until_head: Duration::ZERO,
            until_end: Duration::ZERO,
        };
        let entry = Entry {
            of_all,
            logged: &logged,
            account: None,
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
            .map(|page| (page.source.name.clone(), page.day, page.text.lines().count()))
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

    /// Regression: requests to a deleted bucket were logged for a new bucket of the same name, even
    /// of another account, if they were not written before.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_was_asked_of_a_bucket_is_nothing_to_another_of_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(terrace::Options::new(dir.path())).unwrap();
        let gateway = Gateway::open(&store, Durability::Buffered, Choices::default()).unwrap();
        gateway.buckets.create(&store, "logs", Record::default()).unwrap();
        let make = |created_ms| {
            let record = Record {
                created_ms,
                logging: Some(Settings {
                    target: "logs".to_owned(),
                    target_created_ms: 0,
                    prefix: String::new(),
                    format: Format::Simple,
                    list: String::new(),
                    by_policy: false,
                }),
                ..Record::default()
            };
            gateway.buckets.create(&store, "bucket", record).unwrap();
            let bucket = gateway.buckets.get("bucket").unwrap();
            add_of(&gateway.delivery, &gateway.figures, bucket, 1, "x");
        };
        let logs = || {
            let range = ScanRange::prefix(keyspace::objects("logs"));
            store.scan(range).unwrap().map(|item| item.unwrap().value().unwrap())
        };
        make(1);
        gateway.buckets.delete(&store, "bucket").unwrap();
        make(2);
        write(&gateway, true).await;
        let lines: Vec<_> = logs().collect();
        assert_eq!(lines.len(), 1, "that of the second");
        assert_eq!(lines[0].iter().filter(|byte| **byte == b'\n').count(), 1);
    }
}
