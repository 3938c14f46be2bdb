//! Versions against a model of S3's documentation: every operation, in random order, and every page
//! size.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::{
    access::decide::Permit,
    bucket::{Buckets, Record},
    commit::{self, NewObject, Outcome, Place, Requirement},
    list::Entry,
    record,
};
use bytes::Bytes;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use std::collections::{BTreeMap, BTreeSet};
use terrace::{Attributes, Clock, Durability, Options};

const KEYS: [&str; 4] = ["a", "a/b", "a/c", "b\u{1}"];

struct World {
    _dir: tempfile::TempDir,
    store: Store,
    buckets: Buckets,
    claim: Claim,
    permit: Permit,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        let buckets = Buckets::load(&store).unwrap();
        for name in ["abc", "abcd"] {
            buckets.create(&store, name, Record::default()).unwrap();
        }
        // Objects and versions of another bucket.
        store.put("abcd/a", "").unwrap();
        store
            .put(keyspace::version("abcd", "a", Id::new(&Clock::default())), "")
            .unwrap();
        let claim = Claim::of_system(&buckets.get("abc").unwrap());
        Self {
            _dir: dir,
            store,
            buckets,
            permit: claim.on_bucket().unwrap(),
            claim,
        }
    }

    fn at<'a>(&'a self, key: &'a str) -> Place<'a> {
        Place {
            store: &self.store,
            durability: Durability::Buffered,
            permit: &self.permit,
            key,
        }
    }

    fn switch(&self, versioning: Versioning) {
        self.buckets.set_versioning(&self.store, "abc", versioning).unwrap();
    }

    /// Puts an object with separate values, and returns its version ID.
    fn put(&self, key: &str, values: Id) -> Name {
        let mut attributes = Attributes::new();
        record::stamp(&mut attributes, &values.to_string(), Clock::default().now_ms());
        record::place(&mut attributes, values, 10);
        let new = NewObject {
            value: Bytes::from(values.to_string()),
            attributes,
        };
        match commit::change(self.at(key), &Requirement::default(), Some(&new), &|_| {}).unwrap() {
            Outcome::Done(done) => done.version.unwrap_or(Name::Null),
            other => panic!("{other:?}"),
        }
    }

    fn delete(&self, key: &str) -> Outcome {
        commit::change(self.at(key), &Requirement::default(), None, &|_| {}).unwrap()
    }

    fn delete_version(&self, key: &str, name: Name) -> Outcome {
        commit::delete_version(self.at(key), name, &Requirement::default()).unwrap()
    }

    fn page(&self, query: &Query<'_>) -> (Vec<Entry<Version>>, bool) {
        let page = page(&self.store, query).unwrap();
        (page.entries, page.truncated)
    }

    fn query<'a>(&self, after: After<'a>, limit: usize) -> Query<'a> {
        Query {
            bucket: "abc",
            prefix: "",
            delimiter: None,
            after,
            limit,
        }
    }

    /// All pages of this size.
    fn listed(&self, limit: usize) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        loop {
            let last = lines.last().cloned();
            let after = last
                .as_ref()
                .map_or(After::Nothing, |last| After::Version(&last.key, last.name));
            let (entries, truncated) = self.page(&self.query(after, limit));
            assert!(entries.len() <= limit && (!truncated || entries.len() == limit));
            lines.extend(entries.into_iter().map(Line::of));
            if !truncated {
                return lines;
            }
        }
    }

    fn garbage(&self) -> BTreeSet<Id> {
        let scan = self.store.scan(ScanRange::prefix(keyspace::GARBAGE)).unwrap();
        scan.map(|item| keyspace::parse_id(&item.unwrap().key).unwrap())
            .collect()
    }

    /// Checks the invariants.
    fn check_invariants(&self) {
        let mut owned = BTreeSet::new();
        for key in KEYS {
            let current = self.store.head(keyspace::object("abc", key)).unwrap();
            let current = current.map(|info| Facts::of(&info));
            let others = latest(&self.store, "abc", key, usize::MAX).unwrap();
            let orders: Vec<_> = others.iter().map(|found| found.facts.order.unwrap()).collect();
            assert!(orders.is_sorted_by(|one, other| one > other), "{key}");
            for found in &others {
                let order = found.facts.order.unwrap();
                assert_eq!(found.place, keyspace::version("abc", key, order), "{key}");
            }
            match (&current, others.first()) {
                (Some(current), Some(latest)) => {
                    let current = current.order.expect("one that has others has an order");
                    assert!(current > latest.facts.order.unwrap(), "{key}");
                }
                (None, Some(latest)) => assert!(latest.facts.is_delete_marker, "{key}"),
                _ => {}
            }
            assert!(current.as_ref().is_none_or(|facts| !facts.is_delete_marker));
            let nulls: Vec<_> = others.iter().filter(|found| found.facts.is_null).collect();
            let noted = null_order(&|key| self.store.head(key), "abc", key).unwrap();
            assert_eq!(noted, nulls.first().and_then(|found| found.facts.order), "{key}");
            let is_null = current.as_ref().is_some_and(|facts| facts.is_null);
            assert!(nulls.len() + usize::from(is_null) <= 1, "{key}");
            for values in others
                .iter()
                .map(|found| &found.facts)
                .chain(&current)
                .filter_map(|facts| facts.values)
            {
                assert!(owned.insert(values), "values with two owners");
            }
        }
        assert!(owned.is_disjoint(&self.garbage()), "an owner's values are garbage");
    }
}

/// An entry of a listing.
#[derive(Debug, Clone, PartialEq)]
struct Line {
    key: String,
    name: Name,
    /// `None` for a delete marker.
    values: Option<Id>,
    is_latest: bool,
}

impl Line {
    fn of(entry: Entry<Version>) -> Self {
        match entry {
            Entry::Key(version) => Self {
                name: Name::of(&version.facts),
                values: version.facts.values,
                is_latest: version.is_latest,
                key: version.key,
            },
            Entry::Prefix(prefix) => panic!("{prefix}"),
        }
    }
}

/// The versions of each key, the latest first: ID, and values or a delete marker.
#[derive(Default)]
struct Model {
    versions: BTreeMap<String, Vec<(Name, Option<Id>)>>,
    garbage: BTreeSet<Id>,
}

impl Model {
    fn of(&mut self, key: &str) -> &mut Vec<(Name, Option<Id>)> {
        self.versions.entry(key.to_owned()).or_default()
    }

    fn remove(&mut self, key: &str, name: Name) -> bool {
        let versions = self.of(key);
        let Some(at) = versions.iter().position(|(its, _)| *its == name) else {
            return false;
        };
        let (_, values) = versions.remove(at);
        self.garbage.extend(values);
        true
    }

    fn add(&mut self, key: &str, name: Name, values: Option<Id>) {
        if name == Name::Null {
            self.remove(key, name);
        }
        self.of(key).insert(0, (name, values));
    }

    fn lines(&self) -> Vec<Line> {
        let mut lines = Vec::new();
        for (key, versions) in &self.versions {
            for (at, (name, values)) in versions.iter().enumerate() {
                lines.push(Line {
                    key: key.clone(),
                    name: *name,
                    values: *values,
                    is_latest: at == 0,
                });
            }
        }
        lines
    }
}

/// The name of an error.
fn code<T>(result: ObjectResult<T>) -> String {
    let text = result.err().map_or_else(String::new, |error| format!("{error:?}"));
    text.split(['(', ' ']).next().unwrap_or_default().to_owned()
}

#[test]
fn names() {
    let id = Id::new(&Clock::default());
    assert_eq!(Name::parse(Some(&id.to_string())).unwrap(), Some(Name::Id(id)));
    assert_eq!(Name::parse(Some("null")).unwrap(), Some(Name::Null));
    assert_eq!(Name::parse(None).unwrap(), None);
    for text in ["NULL", "1", "../x", &"f".repeat(33), "\0"] {
        assert_eq!(code(Name::parse(Some(text))), "NoVersionName", "{text}");
    }
}

fn check(world: &World, model: &Model, limit: usize) {
    world.check_invariants();
    assert_eq!(world.listed(limit), model.lines(), "pages of {limit}");
    assert_eq!(world.garbage(), model.garbage);
    for key in KEYS {
        let versions = model.versions.get(key).cloned().unwrap_or_default();
        let current = describe(&world.store, &world.claim, key, None);
        match versions.first() {
            Some((_, Some(values))) => assert_eq!(current.unwrap().values, Some(*values)),
            Some((name, None)) => {
                let Err(ObjectError::NoSuchKey(Some(marker))) = current else {
                    panic!()
                };
                assert_eq!(marker.version, name.to_string());
            }
            None => assert_eq!(code(current), "NoSuchKey"),
        }
        for (name, values) in &versions {
            let found = describe(&world.store, &world.claim, key, Some(*name));
            match values {
                Some(values) => assert_eq!(found.unwrap().values, Some(*values)),
                None => assert_eq!(code(found), "IsDeleteMarker"),
            }
        }
        for name in [Name::Null, Name::Id(Id::new(&Clock::default()))] {
            if versions.iter().all(|(its, _)| *its != name) {
                let found = describe(&world.store, &world.claim, key, Some(name));
                assert_eq!(code(found), "NoSuchVersion");
            }
        }
    }
}

#[test]
fn random_histories() {
    for seed in 0..6 {
        let mut random = StdRng::seed_from_u64(seed);
        let (world, mut model) = (World::new(), Model::default());
        let mut versioning = Versioning::Never;
        for _ in 0..250 {
            let key = KEYS[random.random_range(0..KEYS.len())];
            match random.random_range(0..10) {
                0..4 => {
                    let values = Id::new(&Clock::default());
                    let name = world.put(key, values);
                    assert_eq!(matches!(name, Name::Id(_)), versioning == Versioning::Enabled);
                    model.add(key, name, Some(values));
                }
                4..6 => match (world.delete(key), versioning) {
                    (Outcome::Nothing, Versioning::Never) => assert!(model.of(key).is_empty()),
                    (Outcome::Done(_), Versioning::Never) => assert!(model.remove(key, Name::Null)),
                    (Outcome::Done(done), _) => {
                        assert!(done.is_delete_marker);
                        model.add(key, done.version.unwrap(), None);
                    }
                    other => panic!("{other:?}"),
                },
                6..9 => {
                    let versions = model.of(key);
                    let chosen = random.random_range(0..=versions.len());
                    let name = versions
                        .get(chosen)
                        .map_or(Name::Id(Id::new(&Clock::default())), |(name, _)| *name);
                    let was_marker = versions.get(chosen).map(|(_, values)| values.is_none());
                    match world.delete_version(key, name) {
                        Outcome::Done(done) => assert_eq!(Some(done.is_delete_marker), was_marker),
                        other => assert_eq!((other, was_marker), (Outcome::Nothing, None)),
                    }
                    model.remove(key, name);
                }
                _ => {
                    versioning = if random.random_bool(0.6) {
                        Versioning::Enabled
                    } else {
                        Versioning::Suspended
                    };
                    world.switch(versioning);
                }
            }
            check(&world, &model, random.random_range(1..6));
        }
        for limit in [1, 2, 1000] {
            check(&world, &model, limit);
        }
        for line in model.lines() {
            world.delete_version(&line.key, line.name);
        }
        let left = |prefix: &str| world.store.scan(ScanRange::prefix(prefix)).unwrap().count();
        assert_eq!(
            (left("abc/"), left("\0s3/version/abc/"), left("\0s3/null-version/")),
            (0, 0, 0)
        );
        world.buckets.delete(&world.store, "abc").unwrap();
    }
}

/// Under concurrent changes each commit keeps the invariants, and every value has an owner or a
/// marker.
#[test]
fn changes_that_meet() {
    let world = World::new();
    world.switch(Versioning::Enabled);
    let made = parking_lot::Mutex::new(BTreeSet::new());
    std::thread::scope(|scope| {
        for seed in 0..6 {
            let (world, made) = (&world, &made);
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed);
                let mut names = vec![Name::Null];
                for _ in 0..60 {
                    let key = KEYS[random.random_range(0..2)];
                    match random.random_range(0..10) {
                        0..5 => {
                            let values = Id::new(&Clock::default());
                            made.lock().insert(values);
                            names.push(world.put(key, values));
                        }
                        5..7 => {
                            world.delete(key);
                        }
                        7..9 => {
                            world.delete_version(key, names[random.random_range(0..names.len())]);
                        }
                        _ if random.random_bool(0.5) => world.switch(Versioning::Suspended),
                        _ => world.switch(Versioning::Enabled),
                    }
                }
            });
        }
    });
    world.check_invariants();
    let listed: BTreeSet<_> = world.listed(3).into_iter().filter_map(|line| line.values).collect();
    let all: BTreeSet<_> = listed.union(&world.garbage()).copied().collect();
    assert_eq!(all, made.into_inner(), "nothing is lost, and nothing left over");
}

/// A page continues after the last entry, whatever happened to that entry meanwhile.
#[test]
fn pages_of_what_changes() {
    let world = World::new();
    world.put("a", Id::new(&Clock::default()));
    world.switch(Versioning::Enabled);
    let names: Vec<_> = (0..3).map(|_| world.put("a", Id::new(&Clock::default()))).collect();
    let rest = |name| {
        let (entries, _) = world.page(&world.query(After::Version("a", name), 10));
        entries
            .into_iter()
            .map(Line::of)
            .map(|line| line.name)
            .collect::<Vec<_>>()
    };
    assert_eq!(rest(names[2]), [names[1], names[0], Name::Null]);
    assert_eq!(rest(names[0]), [Name::Null]);
    assert!(rest(Name::Null).is_empty());
    world.delete_version("a", names[2]);
    assert_eq!(
        rest(names[2]),
        [names[1], names[0], Name::Null],
        "one came back as the current object"
    );
    world.delete_version("a", Name::Null);
    assert_eq!(
        rest(Name::Null),
        [names[1], names[0]],
        "its place is gone: from the beginning"
    );
    let behind = world.page(&world.query(After::Key("a"), 10)).0;
    assert!(behind.is_empty());
}

#[test]
fn versions_are_rolled_up_too() {
    let world = World::new();
    world.switch(Versioning::Enabled);
    for key in ["a/b", "a/b", "a/c", "b", "b", "c/d"] {
        world.put(key, Id::new(&Clock::default()));
    }
    world.delete("a/c");
    world.delete("c/d");
    let shown = |prefix: &'static str, after, limit| {
        let query = Query {
            prefix,
            delimiter: Some("/"),
            ..world.query(after, limit)
        };
        let (entries, truncated) = world.page(&query);
        let text = |entry: Entry<Version>| match entry {
            Entry::Prefix(prefix) => prefix,
            Entry::Key(version) => version.key,
        };
        (entries.into_iter().map(text).collect::<Vec<String>>(), truncated)
    };
    let whole = |texts: &[&str]| (texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>(), false);
    assert_eq!(shown("", After::Nothing, 10), whole(&["a/", "b", "b", "c/"]));
    assert_eq!(shown("", After::Key("a/"), 10), whole(&["b", "b", "c/"]));
    assert_eq!(shown("a/", After::Nothing, 10), whole(&["a/b", "a/b", "a/c", "a/c"]));
    assert_eq!(shown("", After::Nothing, 1), (vec!["a/".to_owned()], true));
    assert_eq!(shown("", After::Nothing, 0), whole(&[]));
    assert_eq!(shown("", After::Nothing, 4), whole(&["a/", "b", "b", "c/"]));
}

/// The command line's change of the current object creates no version of an earlier one.
#[test]
fn what_is_removed_without_a_server() {
    let world = World::new();
    world.switch(Versioning::Enabled);
    let first = world.put("a", Id::new(&Clock::default()));
    let second = world.put("a", Id::new(&Clock::default()));
    world.store.delete("abc/a").unwrap();
    assert_eq!(code(describe(&world.store, &world.claim, "a", None)), "NoSuchKey");
    assert_eq!(
        code(describe(&world.store, &world.claim, "a", Some(second))),
        "NoSuchVersion"
    );
    assert!(world.listed(10).iter().all(|line| !line.is_latest));
    world.store.put("abc/a", "written without a server").unwrap();
    assert!(describe(&world.store, &world.claim, "a", Some(Name::Null)).is_ok());
    let third = world.put("a", Id::new(&Clock::default()));
    let names: Vec<_> = world.listed(10).into_iter().map(|line| line.name).collect();
    assert_eq!(names, [third, Name::Null, first]);
    world.check_invariants();
}
