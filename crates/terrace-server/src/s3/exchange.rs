//! One request and its answer, from the head to the last byte of the answer's body, for counting
//! and logging.

use super::{
    Gateway,
    access_log::Entry,
    front::number_text,
    head::Head,
    logging::{self, Each, Logged},
};
use crate::http::budget::Ticket;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::{
    HeaderMap, Response,
    header::{self, HeaderValue},
};
use s3s::Body;
use std::{
    cell::RefCell,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant, SystemTime},
};

/// Facts about a request found during its processing.
#[derive(Debug, Default)]
pub struct Noted {
    /// S3's name of the operation; empty until it is known.
    pub operation: String,
    /// The access key, if the signature was valid.
    pub key: Option<String>,
    /// The operation was begun.
    pub has_begun: bool,
}

tokio::task_local! {
    /// The facts about the task's request.
    pub static NOTED: RefCell<Noted>;
}

/// Records a request's operation and key.
pub fn note(operation: &str, key: Option<&str>) {
    // Tests may call this without a request.
    let _ = NOTED.try_with(|noted| {
        *noted.borrow_mut() = Noted {
            operation: operation.to_owned(),
            key: key.map(str::to_owned),
            has_begun: false,
        };
    });
}

/// Records that the operation was begun.
pub fn note_begun() {
    let _ = NOTED.try_with(|noted| noted.borrow_mut().has_begun = true);
}

/// A request being answered.
pub struct Exchange {
    gateway: Arc<Gateway>,
    /// Its head.
    pub head: Arc<Head>,
    noted: Noted,
    agent: Option<HeaderValue>,
    time: SystemTime,
    began: Instant,
    received: Arc<AtomicU64>,
    /// Ticket for memory collected for it, until its answer is sent.
    ticket: Option<Arc<Ticket>>,
    /// 0 until there is an answer.
    status: u16,
    until_head: Duration,
    sent: u64,
    is_complete: bool,
    /// Data for its bucket's log, if there is one.
    logged: Option<Box<Logged>>,
}

impl Exchange {
    /// The caller's access key.
    pub fn key(&self) -> Option<&str> {
        self.noted.key.as_deref()
    }

    /// Begins one.
    pub fn begin(gateway: &Arc<Gateway>, head: Arc<Head>, headers: &HeaderMap) -> Self {
        gateway.figures.in_flight.inc();
        let logged = gateway.buckets.logged(|| head.bucket());
        let logged = logged.map(|bucket| Box::new(Logged::of(headers, bucket)));
        let is_read = logged.is_some() || gateway.access_log.is_some();
        let agent = headers.get(header::USER_AGENT).filter(|_| is_read);
        Self {
            gateway: Arc::clone(gateway),
            time: head.peer.arrived(),
            head,
            noted: Noted::default(),
            agent: agent.cloned(),
            began: Instant::now(),
            received: Arc::default(),
            ticket: None,
            status: 0,
            until_head: Duration::ZERO,
            sent: 0,
            is_complete: false,
            logged,
        }
    }

    /// Collects the results of each deleted key, if its bucket has a log.
    pub fn each(&self) -> Option<Each> {
        self.logged.as_ref().map(|logged| logged.each())
    }

    /// The counter of the bytes of its body.
    pub fn received(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.received)
    }

    /// Ticket for memory collected for it. Most requests never need it.
    pub fn ticket(&mut self) -> Arc<Ticket> {
        let peer = self.head.sender();
        let memory = &self.gateway.memory;
        Arc::clone(self.ticket.get_or_insert_with(|| Arc::new(memory.ticket(peer))))
    }

    /// S3's name of its operation; empty if it is not known.
    pub fn operation(&self) -> &str {
        &self.noted.operation
    }

    /// Whether its operation was begun.
    pub const fn has_begun(&self) -> bool {
        self.noted.has_begun
    }

    /// Takes the recorded facts.
    pub fn note(&mut self, noted: Noted) {
        self.noted = noted;
    }

    /// Wraps the answer; the end of its body ends the exchange.
    pub fn answer(mut self, response: Response<Body>) -> Response<Counted> {
        self.status = response.status().as_u16();
        self.until_head = self.began.elapsed();
        if let Some(logged) = &mut self.logged {
            logged.answered(&response);
        }
        response.map(|body| Counted {
            expected: body.size_hint().exact(),
            body,
            exchange: Some(self),
        })
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.end();
        // Last: when nothing is in flight, everything has been counted and logged.
        self.gateway.figures.in_flight.dec();
    }
}

impl Exchange {
    /// Counts and logs it.
    fn end(&self) {
        let received = self.received.load(Ordering::Relaxed);
        let figures = &self.gateway.figures;
        let operation = match self.noted.operation.as_str() {
            "" => "none",
            operation => operation,
        };
        let seconds = self.until_head.as_secs_f64();
        figures.count(operation, self.status, seconds, received, self.sent);
        let until_end = self.began.elapsed();
        tracing::info!(
            target: "terrace::access",
            number = number_text(self.head.peer.number),
            method = self.head.method.as_str(),
            path = self.head.uri.path(),
            status = self.status,
            milliseconds = u64::try_from(until_end.as_millis()).unwrap_or(u64::MAX),
            "request"
        );
        if self.logged.is_none() && self.gateway.access_log.is_none() {
            return;
        }
        let entry = Entry {
            head: &self.head,
            time: self.time,
            key: self.noted.key.as_deref(),
            operation,
            agent: self.agent.as_ref().and_then(|agent| agent.to_str().ok()),
            status: self.status,
            received,
            sent: self.sent,
            is_complete: self.is_complete,
            until_head: self.until_head,
            until_end,
        };
        if let Some(log) = &self.gateway.access_log {
            log.add(&entry);
        }
        if let Some(logged) = &self.logged {
            let account = entry.key.and_then(|key| self.gateway.access_keys.account(key));
            let entry = logging::Entry {
                of_all: entry,
                logged,
                account: account.as_deref(),
            };
            self.gateway.delivery.add(&entry, figures);
        }
    }
}

/// The body of an answer, which counts the bytes sent.
pub struct Counted {
    body: Body,
    /// Its length, if known.
    expected: Option<u64>,
    // Last field: dropped after the body, sent or not. None while the store is being opened.
    exchange: Option<Exchange>,
}

impl Counted {
    /// A body that is not counted.
    pub const fn not(body: Body) -> Self {
        Self {
            body,
            expected: None,
            exchange: None,
        }
    }
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = <Body as http_body::Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if let (Poll::Ready(frame), Some(exchange)) = (&frame, &mut self.exchange) {
            match frame {
                None => exchange.is_complete = true,
                Some(Ok(frame)) => {
                    exchange.sent += frame.data_ref().map_or(0, |data| data.len() as u64);
                }
                Some(Err(_)) => {}
            }
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // A consumer that knows the length does not poll for the end.
        if let Some(exchange) = &mut self.exchange
            && self.expected == Some(exchange.sent)
        {
            exchange.is_complete = true;
        }
    }
}
