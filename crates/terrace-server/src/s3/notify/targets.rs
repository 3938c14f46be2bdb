//! Targets of events: webhooks, and subjects of NATS, in the server's settings.

use super::{nats::Login, tls};
use crate::s3::{
    figures::Figures,
    keyspace::{self, Id},
};
use parking_lot::Mutex;
use rustls::{ClientConfig, pki_types::ServerName};
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};
use terrace::{Clock, ScanRange, Store};
use tokio::sync::Notify;

/// Most queued events of a target: about a hundred megabytes of the store.
const WAITING_MAX: i64 = 100_000;
/// Longest name of a target.
const NAME_BYTES_MAX: usize = 64;

/// The address of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Host and port to connect to.
    pub host: String,
    pub port: u16,
    /// Host, and port if it is given, as in requests.
    pub authority: String,
    /// Path and query; of NATS, the subject.
    pub path: String,
    /// The publishing user, if this is a server of NATS.
    pub nats: Option<Login>,
    /// The expected server name, if the target uses TLS.
    pub server: Option<ServerName<'static>>,
}

impl Address {
    /// Reads `http://HOST[:PORT][/PATH]`, the same with `https`, or
    /// `nats://[USER:PASSWORD@]HOST[:PORT]/SUBJECT`.
    ///
    /// # Errors
    /// A message that describes the error.
    pub fn parse(url: &str) -> Result<Self, String> {
        let uri: hyper::Uri = url.parse().map_err(|error| format!("{url}: {error}"))?;
        let is_https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some("nats") => return Self::of_nats(url, &uri),
            _ => return Err(format!("{url}: only http://, https:// and nats:// can be called")),
        };
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let authority = authority.ok_or_else(|| format!("{url}: there is no host in it, or more than a host"))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let server = is_https.then(|| ServerName::try_from(host.to_owned())).transpose();
        Ok(Self {
            server: server.map_err(|error| format!("{url}: {error}"))?,
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(if is_https { 443 } else { 80 }),
            authority: authority.to_string(),
            path: uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string),
            nats: None,
        })
    }

    fn of_nats(url: &str, uri: &hyper::Uri) -> Result<Self, String> {
        let authority = uri
            .authority()
            .ok_or_else(|| format!("{url}: there is no host in it"))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let login = authority.as_str().rsplit_once('@').map(|(login, _)| login);
        let login = Login::parse(login).ok_or_else(|| format!("{url}: write USER:PASSWORD before the host"))?;
        let subject = uri.path().trim_start_matches('/');
        let is_plain = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_graphic());
        let is_subject = subject
            .split('.')
            .all(|part| is_plain(part) && part != "*" && part != ">");
        if !is_subject || subject.contains('%') || uri.query().is_some() {
            return Err(format!("{url}: a subject without wildcards belongs behind the host"));
        }
        Ok(Self {
            server: None,
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(4222),
            authority: String::new(),
            path: subject.to_owned(),
            nats: Some(login),
        })
    }
}

/// A target.
#[derive(Debug)]
pub struct Target {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: Address,
    /// The TLS settings, if it uses TLS.
    pub tls: Option<Arc<ClientConfig>>,
    /// Events in the store. Below zero for a moment, if one is delivered before it is counted.
    waiting: AtomicI64,
    /// The same of all targets, for metrics.
    figures: Figures,
    /// Wakes the worker after an event was added.
    pub wake: Notify,
}

impl Target {
    /// The number of queued events.
    pub fn waiting(&self) -> i64 {
        self.waiting.load(Ordering::Relaxed).max(0)
    }

    /// Counts an event.
    pub fn add(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.figures.events_waiting.inc();
        self.wake.notify_one();
    }

    /// Counts events that were delivered or given up.
    pub fn done(&self, count: usize) {
        let count = i64::try_from(count).unwrap_or(0);
        self.waiting.fetch_sub(count, Ordering::Relaxed);
        self.figures.events_waiting.dec_by(count);
    }
}

/// All targets.
#[derive(Debug, Default)]
pub struct Targets {
    by_name: BTreeMap<String, Arc<Target>>,
    /// The ID of the last event.
    last: Mutex<Option<Id>>,
    figures: Figures,
}

impl Targets {
    /// Reads a list of `NAME=URL`. Certificates are checked with the authorities in a file, or else
    /// with the system's.
    ///
    /// # Errors
    /// Which target is invalid, and why.
    pub fn parse(list: &[String], authorities: Option<&Path>, figures: Figures) -> Result<Self, String> {
        let mut by_name = BTreeMap::new();
        let mut config = None;
        for text in list {
            let (name, url) = text.split_once('=').ok_or_else(|| format!("{text}: write NAME=URL"))?;
            let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
            if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_plain) {
                return Err(format!(
                    "{text}: a name has 1 to {NAME_BYTES_MAX} letters, digits, hyphens and underscores"
                ));
            }
            let address = Address::parse(url)?;
            if address.server.is_some() && config.is_none() {
                config = Some(tls::config(authorities)?);
            }
            let target = Target {
                name: name.to_owned(),
                tls: config.clone().filter(|_| address.server.is_some()),
                address,
                waiting: AtomicI64::new(0),
                figures: figures.clone(),
                wake: Notify::new(),
            };
            if by_name.insert(name.to_owned(), Arc::new(target)).is_some() {
                return Err(format!("{name} is there twice"));
            }
        }
        Ok(Self {
            by_name,
            last: Mutex::default(),
            figures,
        })
    }

    /// Counts the events that the store has at a start.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn count(&self, store: &Store) -> terrace::Result<()> {
        let mut without_target = 0;
        for item in store.scan(ScanRange::prefix(keyspace::EVENTS))? {
            let item = item?;
            let rest = std::str::from_utf8(&item.key[keyspace::EVENTS.len()..]).unwrap_or("");
            let name = rest.split('/').next().unwrap_or("");
            match self.by_name.get(name) {
                Some(target) => target.add(),
                None => without_target += 1,
            }
        }
        if without_target > 0 {
            tracing::warn!(
                events = without_target,
                "events wait for targets that the settings do not name any more"
            );
        }
        Ok(())
    }

    /// All targets.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Target>> {
        self.by_name.values()
    }

    /// The target of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Target>> {
        self.by_name.get(name)
    }

    /// The target of this name. `None` if there is none or its queue is full; then the event is
    /// lost.
    pub fn with_room(&self, name: &str) -> Option<Arc<Target>> {
        let found = self.by_name.get(name).filter(|target| target.waiting() < WAITING_MAX);
        if found.is_none() {
            self.figures.events_lost.inc();
        }
        found.cloned()
    }

    /// The ID of an event, greater than all before it.
    pub fn next_id(&self, clock: &Clock) -> Id {
        let mut last = self.last.lock();
        let new = Id::new(clock);
        let next = last.map_or(new, |last| new.max(last.next()));
        *last = Some(next);
        next
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn targets_are_named() {
        let parse = |list: &[&str]| {
            let list: Vec<_> = list.iter().map(|text| (*text).to_owned()).collect();
            Targets::parse(&list, None, Figures::default())
        };
        let secure = Address::parse("https://hook.example.org/a").unwrap();
        assert_eq!((secure.port, secure.server.is_some()), (443, true));
        assert_eq!(Address::parse("https://[::1]:8443/").unwrap().port, 8443);
        let targets = parse(&["hook=http://localhost:8080/a?b", "six=http://[::1]"]).unwrap();
        let hook = &targets.get("hook").unwrap().address;
        assert_eq!(
            (hook.host.as_str(), hook.port, hook.path.as_str()),
            ("localhost", 8080, "/a?b")
        );
        let six = &targets.get("six").unwrap().address;
        assert_eq!((six.host.as_str(), six.port, six.path.as_str()), ("::1", 80, "/"));
        assert_eq!(six.authority, "[::1]");
        for wrong in [
            "hook",
            "=http://x",
            "a b=http://x",
            "a=ftp://x",
            "a=https://x y",
            "a=x",
            "a=http://u@x/",
            "a=http://",
        ] {
            assert!(parse(&[wrong]).is_err(), "{wrong}");
        }
        let queue = Address::parse("nats://me:se:cret@[::1]/events.s3").unwrap();
        assert_eq!((queue.host.as_str(), queue.port), ("::1", 4222));
        assert_eq!((queue.path.as_str(), queue.nats.is_some()), ("events.s3", true));
        assert_eq!(Address::parse("nats://localhost:1/s").unwrap().port, 1);
        for wrong in [
            "nats://x",
            "nats://x/",
            "nats://x/a.*",
            "nats://x/a..b",
            "nats://me@x/a",
            "nats://x/a?b",
        ] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse(&["a=http://x", "a=http://y"]).is_err());
        let nowhere = Some(Path::new("no such file"));
        let with_file = |url: &str| Targets::parse(&[url.to_owned()], nowhere, Figures::default());
        assert!(with_file("a=https://x").is_err() && with_file("a=http://x").is_ok());
        let clock = Clock::default();
        assert!(targets.next_id(&clock) < targets.next_id(&clock));
        assert!(targets.with_room("none").is_none() && targets.figures.events_lost.get() == 1);
        let hook = targets.with_room("hook").unwrap();
        (0..WAITING_MAX).for_each(|_| hook.add());
        assert!(targets.with_room("hook").is_none());
        hook.done(1);
        assert!(targets.with_room("hook").is_some());
    }
}
