//! Tests of the journal: states it accepts and rejects.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::workload::op;

fn put(key: &str) -> Change {
    Change::new(key, Some(100))
}

fn gone(key: &str) -> Change {
    Change::new(key, None)
}

fn held(version: u64, op: u64) -> Held {
    Held {
        version,
        op,
        length: 100,
    }
}

fn state(objects: &[(&str, u64, u64)]) -> State {
    objects
        .iter()
        .map(|&(key, version, op)| (key.to_owned(), held(version, op)))
        .collect()
}

/// `a` at 10 durable, `b` at 11, batch of `a` and `c` at 12, `b` deleted at 13, `d` under way.
fn journal() -> Journal {
    let mut journal = Journal::starting_with(state(&[("z", 3, 1)]));
    let done = |journal: &mut Journal, number: u64, is_sync: bool, changes: Vec<Change>, version: u64| {
        let op = op(1, 0, number);
        journal.announced(op, is_sync, changes);
        journal.done(op, version).unwrap();
    };
    done(&mut journal, 0, true, vec![put("a")], 10);
    done(&mut journal, 1, false, vec![put("b")], 11);
    done(&mut journal, 2, false, vec![put("a"), put("c")], 12);
    done(&mut journal, 3, false, vec![gone("b")], 13);
    journal.announced(op(1, 0, 4), true, vec![put("d")]);
    journal
}

fn check(objects: &[(&str, u64, u64)]) -> Result<Survived, Check> {
    journal().judge(&state(objects)).map_err(|violation| violation.check)
}

fn first_ops() -> [u64; 5] {
    [0, 1, 2, 3, 4].map(|number| op(1, 0, number))
}

#[test]
fn every_prefix_from_the_durable_commit_on_is_right() {
    let [a, b, batch, _, d] = first_ops();
    let survived = |lost, unheard| Ok(Survived { lost, unheard });
    assert_eq!(check(&[("z", 3, 1), ("a", 10, a)]), survived(3, 0));
    assert_eq!(check(&[("z", 3, 1), ("a", 10, a), ("b", 11, b)]), survived(2, 0));
    let whole = [("z", 3, 1), ("a", 12, batch), ("b", 11, b), ("c", 12, batch)];
    assert_eq!(check(&whole), survived(1, 0));
    assert_eq!(
        check(&[("z", 3, 1), ("a", 12, batch), ("c", 12, batch)]),
        survived(0, 0)
    );
    let unheard = [("z", 3, 1), ("a", 12, batch), ("c", 12, batch), ("d", 15, d)];
    assert_eq!(check(&unheard), survived(0, 1));
}

/// `d` at 15 was read before its acknowledgement, and then is acknowledged or not.
#[test]
fn a_sync_commit_that_was_read_must_be_there() {
    let [a, b, batch, _, d] = first_ops();
    let without = state(&[("z", 3, 1), ("a", 12, batch), ("c", 12, batch)]);
    let with = state(&[("z", 3, 1), ("a", 12, batch), ("c", 12, batch), ("d", 15, d)]);
    for is_acknowledged in [false, true] {
        let read = || {
            let mut journal = journal();
            journal.read(d, 15).unwrap();
            if is_acknowledged {
                journal.done(d, 15).unwrap();
            }
            journal
        };
        assert_eq!(read().judge(&with).unwrap(), Survived { lost: 0, unheard: 0 });
        assert_eq!(read().judge(&without).unwrap_err().check, Check::Durable);
    }
    let mut other = journal();
    other.read(d, 15).unwrap();
    assert!(other.done(d, 16).is_err(), "another version than was read");
    // A commit acknowledged before it is durable may be read and lost.
    let mut journal = journal();
    let buffered = op(1, 1, 0);
    journal.announced(buffered, false, vec![put("e")]);
    journal.read(buffered, 16).unwrap();
    journal.read(b, 11).unwrap();
    let survived = journal.judge(&state(&[("z", 3, 1), ("a", 10, a)])).unwrap();
    assert_eq!(survived.lost, 3);
}

#[test]
fn what_was_durable_must_be_there() {
    let [a, b, ..] = first_ops();
    assert_eq!(check(&[("z", 3, 1)]), Err(Check::Durable));
    assert_eq!(check(&[("z", 3, 1), ("b", 11, b)]), Err(Check::Durable));
    // Objects from before are as durable.
    assert_eq!(check(&[("a", 10, a)]), Err(Check::Durable));
}

#[test]
fn a_later_commit_without_an_earlier_one_is_a_hole() {
    let [a, _, batch, _, d] = first_ops();
    let hole = [("z", 3, 1), ("a", 10, a), ("d", 15, d)];
    assert_eq!(check(&hole), Err(Check::Order));
    let torn = [("z", 3, 1), ("a", 10, a), ("c", 12, batch)];
    assert_eq!(check(&torn), Err(Check::Batch));
}

#[test]
fn what_was_not_written_is_wrong() {
    let [a, ..] = first_ops();
    assert!(check(&[("z", 3, 1), ("a", 10, a), ("e", 10, a)]).is_err());
    assert!(check(&[("z", 3, 1), ("a", 10, a), ("f", 99, 77)]).is_err());
    // An unacknowledged commit cannot be older than its caller's previous one.
    let [.., d] = first_ops();
    assert_eq!(check(&[("z", 3, 1), ("a", 10, a), ("d", 9, d)]), Err(Check::Order));
}

#[test]
fn a_delete_under_way_may_have_happened() {
    let with_delete = |key: &str, found: &[(&str, u64, u64)]| {
        let mut journal = journal();
        journal.announced(op(1, 1, 0), false, vec![gone(key)]);
        journal.judge(&state(found)).is_ok()
    };
    let [_, _, batch, ..] = first_ops();
    assert!(with_delete("z", &[("a", 12, batch), ("c", 12, batch)]));
    assert!(!with_delete("z", &[("z", 3, 1), ("c", 12, batch)]));
    assert!(with_delete("c", &[("z", 3, 1), ("a", 12, batch)]));
}

#[test]
fn a_batch_under_way_is_whole_or_absent() {
    let op = op(1, 1, 0);
    let with_batch = |found: &[(&str, u64, u64)]| {
        let [_, _, batch, ..] = first_ops();
        let mut journal = journal();
        journal.announced(op, false, vec![put("x"), put("y"), gone("z")]);
        let all: Vec<_> = [("a", 12, batch), ("c", 12, batch)]
            .iter()
            .chain(found)
            .copied()
            .collect();
        journal.judge(&state(&all)).map_err(|violation| violation.check)
    };
    assert!(with_batch(&[("x", 20, op), ("y", 20, op)]).is_ok());
    assert!(with_batch(&[("z", 3, 1)]).is_ok());
    assert!(with_batch(&[("x", 20, op), ("z", 3, 1)]).is_err());
    assert!(with_batch(&[("x", 20, op)]).is_err());
    assert!(with_batch(&[("x", 20, op), ("y", 21, op)]).is_err());
    assert!(with_batch(&[]).is_err());
}

#[test]
fn versions_rise() {
    let mut journal = journal();
    journal.announced(op(1, 0, 5), true, vec![put("e")]);
    assert!(journal.done(op(1, 0, 5), 13).is_err());
    journal.announced(op(1, 1, 5), true, vec![put("e")]);
    assert!(journal.done(op(1, 1, 5), 12).is_err(), "a version is given out once");
}
