//! Notifications: events of a bucket's objects, delivered to webhooks and to NATS.
//!
//! Rules of a bucket say which events go to which target. Targets are addresses in the server's
//! settings ([`Targets`]), so that no client can have the server call any other. An event is a
//! record below [`keyspace::EVENTS`], written in the commit of its change ([`Cause`]): neither
//! exists without the other after a crash. A worker for each target sends them and deletes the
//! accepted ones ([`delivery`]), so each is delivered at least once. The number of queued events
//! has a bound; beyond it events are lost, and counted.

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
use terrace::{Batch, Clock};
use terrace_objects::outbox::{self, Announce};

/// The cause of a change, for events. It is passed with the permit of the change.
#[derive(Debug, Clone)]
pub struct Cause {
    /// The targets.
    pub targets: Arc<Targets>,
    /// The store's clock.
    pub clock: Clock,
    /// S3's name of the operation; empty if no request made the change.
    pub operation: String,
    /// The access key of the request.
    pub key: Option<String>,
    /// The address of the client.
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
                batch.put(keyspace::event(&target.name, self.targets.next_id(&self.clock)), text);
                Some(target)
            })
            .collect();
        Some(Box::new(move || told.iter().for_each(|target| target.add())))
    }
}
