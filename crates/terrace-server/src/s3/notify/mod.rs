//! Notifications: what happens to the objects of a bucket, told to webhooks and to NATS.
//!
//! Rules of a bucket say which events go to which target. Targets are addresses that the server's
//! settings name ([`Targets`]), so that no client can have the server call any other. An event is a
//! record below [`keyspace::EVENTS`], written in the commit of what it is about ([`Cause`]): there
//! is none without the other, whatever crashes. A worker for each target sends them and deletes
//! what was taken ([`delivery`]), so each is delivered at least once. How many wait has a bound;
//! beyond it events are lost, and counted.

pub mod delivery;
mod event;
mod nats;
pub mod targets;
pub mod tls;

pub use event::test_event;
#[cfg(feature = "fuzzing")]
pub use nats::published;
pub use targets::{Target, Targets};
pub use terrace_objects::{
    notification::{EVENTS, Kind, Rule, fits},
    outbox::{Happened, What},
};

use super::{bucket::Bucket, keyspace};
use std::{net::IpAddr, sync::Arc};
use terrace::Batch;
use terrace_objects::outbox::{self, Announce};

/// Why something is changed, as events tell it. It goes with the permit to change it.
#[derive(Debug, Clone)]
pub struct Cause {
    /// Where events go.
    pub targets: Arc<Targets>,
    /// S3's name of the operation; empty for what no request asked for.
    pub operation: String,
    /// The access key of whoever asked.
    pub key: Option<String>,
    /// Where the request came from.
    pub address: Option<IpAddr>,
    /// The request's number.
    pub number: String,
}

impl outbox::Cause for Cause {
    fn add_events(&self, batch: &mut Batch, bucket: &Bucket, happened: &Happened<'_>) -> Option<Announce> {
        let record = bucket.record();
        let event = event::name(happened, self)?;
        let rules = record.notifications.iter();
        let meant = rules.filter(|rule| rule.is_about(event, happened.key));
        let told: Vec<_> = meant
            .filter_map(|rule| {
                let target = self.targets.with_room(rule.target())?;
                let text = event::record(self, event, bucket, rule, happened);
                batch.put(keyspace::event(&target.name, self.targets.next_id()), text);
                Some(target)
            })
            .collect();
        Some(Box::new(move || told.iter().for_each(|target| target.add())))
    }
}
