//! Charges scans for values that they had to read one by one, and queues their ranges to be
//! rewritten ([`crate::scan_order`]).

use super::{from_log::GAP_BYTES_MAX, scan::Listed, small_reads::moving};
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

/// Values that lie together are in order if they have so many bytes: as many as a device reads for
/// the price of another read.
const RUN_BYTES_MIN: u64 = 16 << 10;

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
    let mut read_for = read_for.peekable();
    if read_for.peek().is_none() || !engine.scan_order.queue.is_on() || engine.options.read_only {
        return;
    }
    let (mut copied, mut ordered) = (Bill::default(), Bill::default());
    let wanted = wanted_forms(items);
    for at in read_for {
        match wanted[at] {
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
    for (item, form) in items.iter().zip(&wanted) {
        let Some(form) = *form else { continue };
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
            let bought = items.iter().zip(values).zip(&wanted);
            let bought = bought.filter(|(_, wanted)| **wanted == Some(form));
            engine.scan_order.enqueue(bought.filter_map(|(item, _)| value_of(item)));
        }
    }
}

/// The form that each of some neighbours is to get. Longer values that lie together in key order
/// have it: to write them again for others that do not would be in vain.
fn wanted_forms(items: &[Listed]) -> Vec<Option<Form>> {
    let mut forms: Vec<_> = items.iter().map(form_of).collect();
    let mut run = 0..0;
    let mut run_bytes = 0;
    for at in 0..=items.len() {
        let goes_on = at > run.start && items.get(at).is_some_and(|item| lies_behind(&items[at - 1], item));
        if goes_on {
            run_bytes += items[at].entry.length;
            continue;
        }
        run.end = at;
        // Of one at an end of the range there may be more.
        let is_cut = (run.start == 0 || run.end == items.len()) && run.len() > 1;
        if is_cut || run_bytes >= RUN_BYTES_MIN {
            let longer = forms[run.clone()]
                .iter_mut()
                .filter(|form| **form == Some(Form::Ordered));
            longer.for_each(|form| *form = None);
        }
        run = at..at;
        run_bytes = items.get(at).map_or(0, |item| item.entry.length);
    }
    forms
}

/// Whether a value is in the log right behind another.
fn lies_behind(before: &Listed, item: &Listed) -> bool {
    let (Home::Flash { address: before_at }, Home::Flash { address }) = (&before.entry.home, &item.entry.home) else {
        return false;
    };
    let entry = &before.entry;
    let end = before_at + record_bytes_max(before.key.len(), entry.attributes.len(), entry.length);
    (*before_at..=end + GAP_BYTES_MAX).contains(address)
}

fn value_of((item, value): (&Listed, &Option<Result<Bytes>>)) -> Option<Moving> {
    Some(moving(item.key.clone(), &item.entry, value.as_ref()?.as_ref().ok()?))
}
