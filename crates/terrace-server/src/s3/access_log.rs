//! The access log: a line of JSON for each finished request.
//!
//! A separate thread writes; requests queue their lines and never wait. If the file cannot keep up,
//! lines are lost and counted: the queue has a limit in bytes, and so has each field that clients
//! control. The file is appended to, so it may be truncated at any time. Only its owner can read
//! it. Signature parameters of a query are left out.

use super::{figures::Figures, front::number_text, head::Head, ops::said::date_text};
use serde_json::{Value, json};
use std::{
    borrow::Cow,
    fs::OpenOptions,
    io::{self, BufWriter, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, SystemTime},
};

/// Limit of the queue in bytes: the lines that a fast server writes in some seconds.
const WAITING_BYTES_MAX: usize = 4 << 20;
/// Longest path, query and user agent in a line. The longest key fits unless all of it is
/// percent-encoded.
const FIELD_BYTES_MAX: usize = 2 << 10;

/// The queue of lines to write.
#[derive(Debug)]
pub struct AccessLog {
    lines: Option<Sender<String>>,
    /// Bytes in the queue.
    waiting: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
    figures: Figures,
}

impl AccessLog {
    /// Opens a file, or standard output for `-`.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn open(path: &Path, figures: Figures) -> io::Result<Self> {
        let out: Box<dyn Write + Send> = if path == Path::new("-") {
            Box::new(io::stdout())
        } else {
            let mut options = OpenOptions::new();
            Box::new(options.create(true).append(true).mode(0o600).open(path)?)
        };
        Self::to(out, figures)
    }

    fn to(out: Box<dyn Write + Send>, figures: Figures) -> io::Result<Self> {
        let (lines, receiver) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let thread = thread::Builder::new().name("access-log".to_owned()).spawn({
            let waiting = Arc::clone(&waiting);
            move || write(&receiver, &waiting, out)
        })?;
        Ok(Self {
            lines: Some(lines),
            waiting,
            thread: Some(thread),
            figures,
        })
    }

    /// Adds a line.
    pub fn add(&self, entry: &Entry<'_>) {
        let line = entry.line();
        let bytes = line.len();
        let waiting = self.waiting.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let is_sent = waiting <= WAITING_BYTES_MAX && self.lines.as_ref().is_some_and(|lines| lines.send(line).is_ok());
        if !is_sent {
            self.waiting.fetch_sub(bytes, Ordering::Relaxed);
            self.figures.lines_lost.inc();
        }
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        // Closing the channel ends the thread once everything is written.
        self.lines = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn write(lines: &Receiver<String>, waiting: &AtomicUsize, out: Box<dyn Write + Send>) {
    let mut out = BufWriter::new(out);
    let mut was_told = false;
    while let Ok(first) = lines.recv() {
        // Flushed when there is nothing to add.
        let mut burst = std::iter::once(first).chain(lines.try_iter());
        let outcome = burst
            .try_for_each(|line| {
                let outcome = out.write_all(line.as_bytes());
                waiting.fetch_sub(line.len(), Ordering::Relaxed);
                outcome
            })
            .and_then(|()| out.flush());
        if let Err(error) = outcome
            && !was_told
        {
            was_told = true;
            tracing::warn!(%error, "the access log cannot be written");
        }
    }
}

/// A finished request.
#[derive(Debug, Clone)]
pub struct Entry<'a> {
    /// Its head.
    pub head: &'a Head,
    /// Time of its arrival.
    pub time: SystemTime,
    /// Its access key, if its signature was valid.
    pub key: Option<&'a str>,
    /// S3's name of the operation; `none` if it was never known.
    pub operation: &'a str,
    /// The user agent.
    pub agent: Option<&'a str>,
    /// The answer's status; 0 if the client disconnected before it.
    pub status: u16,
    /// Bytes read of its body.
    pub received: u64,
    /// Bytes sent of the answer's body.
    pub sent: u64,
    /// The whole body of the answer was sent.
    pub is_complete: bool,
    /// Time until the answer began.
    pub until_head: Duration,
    /// Time until it ended.
    pub until_end: Duration,
}

impl Entry<'_> {
    /// The address that it came from.
    pub fn peer(&self) -> String {
        self.head
            .peer
            .address
            .map(|address| address.to_string())
            .unwrap_or_default()
    }

    fn line(&self) -> String {
        let milliseconds = |time: Duration| Value::from((time.as_secs_f64() * 1e6).round() / 1e3);
        let head = self.head;
        let line = json!({
            "time": date_text(self.time),
            "id": number_text(head.peer.number),
            "peer": self.peer(),
            "key": self.key,
            "operation": self.operation,
            "method": head.method.as_str(),
            "path": cut(head.uri.path()),
            "query": cut(&head.shown_query()),
            "agent": self.agent.map(cut),
            "status": self.status,
            "received": self.received,
            "sent": self.sent,
            "complete": self.is_complete,
            "head_ms": milliseconds(self.until_head),
            "total_ms": milliseconds(self.until_end),
        });
        format!("{line}\n")
    }
}

/// A text truncated to the limit, with a mark.
fn cut(text: &str) -> Cow<'_, str> {
    if text.len() <= FIELD_BYTES_MAX {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}…", &text[..text.floor_char_boundary(FIELD_BYTES_MAX)]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::s3::head::tests::head;

    fn entry(head: &Head) -> Entry<'_> {
        Entry {
            head,
            time: SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_120),
            key: None,
            operation: "GetObject",
            agent: Some("a \"client\"\n"),
            status: 200,
            received: 0,
            sent: 12,
            is_complete: true,
            until_head: Duration::from_micros(1500),
            until_end: Duration::from_millis(2),
        }
    }

    #[test]
    fn a_line_is_json_without_signatures() {
        // Regression: with percent signs in their names, signature parameters were not recognised
        // and were logged.
        let query = "versionId=null&X-Amz-Signature=abc&X%2DAmz-Credential=x&%58-amz-Date=1&Signatur%65=s";
        let line = entry(&head("GET", &format!("/b/k?{query}"), &[]).0).line();
        assert!(line.ends_with("}\n") && line.matches('\n').count() == 1);
        let read: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["time"], "2023-11-14T22:13:20.120Z");
        assert_eq!(read["query"], "versionId=null");
        assert_eq!(
            (&read["id"], &read["peer"]),
            (&json!("000000000000001F"), &json!("192.0.2.3"))
        );
        assert_eq!((&read["head_ms"], &read["total_ms"]), (&json!(1.5), &json!(2.0)));
        assert_eq!((&read["key"], &read["agent"]), (&Value::Null, &json!("a \"client\"\n")));
    }

    #[test]
    fn all_lines_are_there_when_it_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "before\n").unwrap();
        let log = AccessLog::open(&path, Figures::default()).unwrap();
        for number in 0..1000 {
            log.add(&entry(&head("GET", &format!("/{number}"), &[]).0));
        }
        drop(log);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 1001);
        assert!(text.starts_with("before\n") && text.contains("\"path\":\"/999\""));
        assert!(AccessLog::open(dir.path(), Figures::default()).is_err());
    }

    /// Blocks writes until it is released.
    struct Slow(Receiver<()>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Regression: 4,096 lines waited for a slow disk, each of any length: more than a gigabyte.
    #[test]
    fn what_waits_is_bounded_in_bytes() {
        let (go_on, told) = channel();
        let figures = Figures::default();
        let log = AccessLog::to(Box::new(Slow(told)), figures.clone()).unwrap();
        let long = "/k".repeat(10_000);
        let head = head("GET", &format!("{long}?{long}"), &[]).0;
        let longest = Entry {
            agent: Some(&long),
            ..entry(&head)
        };
        assert!(longest.line().len() < 4 * FIELD_BYTES_MAX);
        for _ in 0..4096 {
            log.add(&longest);
            assert!(log.waiting.load(Ordering::Relaxed) <= WAITING_BYTES_MAX);
        }
        assert!(figures.lines_lost.get() > 0);
        drop(go_on);
        drop(log);
    }
}
