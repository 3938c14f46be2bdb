//! Charges scans for values that they had to read one by one, and queues their ranges to be
//! rewritten ([`crate::scan_order`]).

use super::{scan::Listed, small_reads::moving};
use crate::{
    Result,
    engine::Engine,
    log::{format::record_bytes_max, move_queue::Moving},
    ordered_index::Home,
    scan_order::{Bill, Form, form},
};
use bytes::Bytes;

/// Values in order are read in this many reads even if they lie in one place: it may have an end.
const READS_IN_ORDER: u64 = 2;

/// The form that a scanned value would get, if it is in the log and not in that form yet.
pub fn form_of(item: &Listed) -> Option<Form> {
    let entry = &item.entry;
    let is_apart = matches!(entry.home, Home::Flash { .. }) && entry.copy.is_none();
    form(entry.length).filter(|_| is_apart)
}

/// Charges a scan that got `values`, where `read_for` has an object of each read of the device.
pub fn charge(
    engine: &Engine,
    items: &[Listed],
    values: &[Option<Result<Bytes>>],
    read_for: impl Iterator<Item = usize>,
) {
    if !engine.scan_order.queue.is_on() || engine.options.read_only {
        return;
    }
    let (mut copied, mut ordered) = (Bill::default(), Bill::default());
    for at in read_for {
        match form_of(&items[at]) {
            Some(Form::Copied) => copied.reads += 1,
            Some(Form::Ordered) => ordered.reads += 1,
            None => {}
        }
    }
    ordered.reads = ordered.reads.saturating_sub(READS_IN_ORDER);
    engine.scan_order.sweep.pay(copied.reads);
    if (copied.reads, ordered.reads) == (0, 0) {
        return;
    }
    for item in items {
        let Some(form) = form_of(item) else { continue };
        let entry = &item.entry;
        let record_bytes = record_bytes_max(item.key.len(), entry.attributes.len(), entry.length);
        let bill = if form == Form::Copied {
            &mut copied
        } else {
            &mut ordered
        };
        bill.add(form, item.key.len(), entry.length, record_bytes);
    }
    for (form, bill) in [(Form::Copied, copied), (Form::Ordered, ordered)] {
        let comes_anyway = form == Form::Copied && engine.scan_order.sweep.is_near();
        if !comes_anyway && engine.scan_order.buys(&bill) {
            let bought = items.iter().zip(values).filter(|(item, _)| form_of(item) == Some(form));
            engine.scan_order.enqueue(bought.filter_map(value_of));
        }
    }
}

fn value_of((item, value): (&Listed, &Option<Result<Bytes>>)) -> Option<Moving> {
    Some(moving(item.key.clone(), &item.entry, value.as_ref()?.as_ref().ok()?))
}
