//! Reports events inside the engine to the parent, which can then cut right after one.

use crate::protocol::Said;
use std::fmt;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// Events of the engine that a cut may follow.
pub const TOLD: &[&str] = &[
    "began a segment",
    "drained a segment",
    "freed segments",
    "flushed the index",
    "compacted the index",
    "sealed a block",
    "deleted a dead block",
];

/// Reports the engine's events from now on.
pub fn install() {
    // There can be only one subscriber in a process, and there is none before.
    let _ = tracing::subscriber::set_global_default(Teller);
}

struct Teller;

#[derive(Default)]
struct Message {
    text: String,
    fields: String,
}

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.text = format!("{value:?}");
        } else {
            self.fields.push_str(&format!(" {}={value:?}", field.name()));
        }
    }
}

impl Subscriber for Teller {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("terrace") && *metadata.level() <= Level::DEBUG
    }

    fn event(&self, event: &Event<'_>) {
        let mut message = Message::default();
        event.record(&mut message);
        if *event.metadata().level() <= Level::INFO {
            Said::Note(format!("{}{}", message.text, message.fields)).say();
        } else if TOLD.contains(&&*message.text) {
            Said::Event(message.text).say();
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
