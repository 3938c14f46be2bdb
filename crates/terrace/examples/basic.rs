//! A tour of the interface: put, get, conditional put, batch, scan, snapshot, a streamed large
//! value, a time to live, deletion of a prefix, statistics.
//!
//! `cargo run --release -p terrace --example basic [DIR]`. Without DIR it uses a temporary
//! directory and removes it.

use std::{
    error::Error,
    io::{Read, Write},
    path::{Path, PathBuf},
    time::Duration,
};
use terrace::{
    Attributes, Batch, Condition, Durability, Error as StoreError, Expiry, Options, PutOptions, ScanRange, Store,
    WriterOptions,
};

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    if let Some(dir) = std::env::args_os().nth(1) {
        return tour(&PathBuf::from(dir));
    }
    let dir = std::env::temp_dir().join(format!("terrace-basic-{}", std::process::id()));
    let outcome = tour(&dir);
    std::fs::remove_dir_all(&dir)?;
    outcome
}

fn tour(dir: &Path) -> Outcome {
    let mut options = Options::new(dir);
    // Small, so that the tour takes little space; the defaults are for a server.
    options.segment_bytes = 4 << 20;
    options.flash_capacity_bytes = 64 << 20;
    let store = Store::open(options)?;

    objects(&store)?;
    conditions(&store)?;
    batch_and_scan(&store)?;
    snapshot(&store)?;
    large_value(&store)?;
    passing(&store)?;
    figures(&store);
    store.close()?;
    Ok(())
}

/// An object is a key, attributes and a value. Attributes are read without reading the value.
fn objects(store: &Store) -> Outcome {
    store.put("greeting", "hello")?;
    let greeting = store.get("greeting")?.ok_or("the greeting is gone")?;
    println!(
        "greeting: {} (version {})",
        String::from_utf8_lossy(&greeting),
        greeting.version
    );

    let options = PutOptions {
        attributes: Attributes::new().with("content-type", "text/plain"),
        durability: Durability::Buffered, // returns at once; the put above waited for the device
        ..PutOptions::default()
    };
    store.put_with("note", "a note with attributes", &options)?;
    let info = store.head("note")?.ok_or("the note is gone")?;
    let content_type = info.attributes.get_str("content-type").unwrap_or("none");
    println!(
        "note: {} bytes, content type {content_type}, home {}",
        info.length, info.home
    );

    let part = store.get_range("note", 2..6)?.ok_or("the note is gone")?;
    println!("bytes 2 to 6 of the note: {}", String::from_utf8_lossy(&part));

    store.delete("note")?;
    assert!(store.get("note")?.is_none());
    Ok(())
}

/// Conditions are evaluated in the commit: of concurrent conditional writers one succeeds.
fn conditions(store: &Store) -> Outcome {
    store.delete("counter")?;
    let under = |condition| PutOptions {
        condition,
        ..PutOptions::default()
    };
    let first = store.put_with("counter", "1", &under(Condition::Absent))?;
    match store.put_with("counter", "1 again", &under(Condition::Absent)) {
        Err(StoreError::ConditionFailed { reason, .. }) => println!("a second creation is refused: {reason}"),
        other => return Err(format!("a second creation should be refused, not {other:?}").into()),
    }
    let second = store.put_with("counter", "2", &under(Condition::VersionIs(first)))?;
    println!("counter went from version {first} to {second}");
    Ok(())
}

/// A batch is committed whole or not at all, and a scan sees keys in order.
fn batch_and_scan(store: &Store) -> Outcome {
    let mut batch = Batch::new();
    for (city, country) in [("bern", "CH"), ("oslo", "NO"), ("lima", "PE")] {
        batch.put(format!("city/{city}"), country);
    }
    batch.delete("greeting");
    let version = store.write(batch, Durability::Sync)?;
    println!("cities, all of version {version}:");
    for item in store.scan(ScanRange::prefix("city/"))? {
        let item = item?;
        assert_eq!(item.info.version, version);
        println!(
            "  {} = {}",
            String::from_utf8_lossy(&item.key),
            String::from_utf8_lossy(&item.value()?)
        );
    }
    let last = store
        .scan(ScanRange::prefix("city/"))?
        .next_back()
        .transpose()?
        .ok_or("no cities")?;
    println!("the last one: {}", String::from_utf8_lossy(&last.key));
    Ok(())
}

/// A snapshot continues to show the store as it was.
fn snapshot(store: &Store) -> Outcome {
    let before = store.snapshot()?;
    store.put("city/oslo", "Norway")?;
    let then = before.get("city/oslo")?.ok_or("Oslo is gone from the snapshot")?;
    let now = store.get("city/oslo")?.ok_or("Oslo is gone")?;
    assert_eq!((&then[..], &now[..]), (&b"NO"[..], &b"Norway"[..]));
    println!(
        "the snapshot at version {} still has the old value of Oslo",
        before.version()
    );
    Ok(())
}

/// Large values are streamed in and out; nothing is visible before `finish`.
fn large_value(store: &Store) -> Outcome {
    const LENGTH: u64 = 8 << 20;
    let chunk = [0x5a; 64 << 10];
    let options = WriterOptions {
        length: Some(LENGTH),
        ..WriterOptions::default()
    };
    let mut writer = store.writer("film", options)?;
    for _ in 0..LENGTH / chunk.len() as u64 {
        writer.write_all(&chunk)?;
    }
    assert!(store.head("film")?.is_none_or(|info| info.length == LENGTH)); // absent, or from an earlier run
    writer.finish()?;

    let mut reader = store.reader("film")?.ok_or("the film is gone")?;
    println!("film: {} bytes, home {}", reader.info().length, reader.info().home);
    reader.seek_to(LENGTH - 1000)?;
    let mut end = Vec::new();
    reader.read_to_end(&mut end)?;
    assert_eq!(end, chunk[..1000]);
    Ok(())
}

/// Objects with a time to live disappear by themselves; a prefix is deleted by one commit, however
/// much is below it.
fn passing(store: &Store) -> Outcome {
    let for_an_hour = PutOptions {
        expiry: Expiry::After(Duration::from_secs(3600)),
        ..PutOptions::default()
    };
    for page in ["cache/home", "cache/about"] {
        store.put_with(page, "<html>", &for_an_hour)?;
    }
    let info = store.head("cache/home")?.ok_or("the page is gone")?;
    assert!(info.expires_at.is_some());
    let version = store.delete_prefix("cache/", Durability::Sync)?;
    assert!(store.scan(ScanRange::prefix("cache/"))?.next().is_none());
    println!("the cache was emptied by version {version}");
    Ok(())
}

fn figures(store: &Store) {
    let stats = store.stats();
    for (home, figures) in [("inline", stats.inline), ("flash", stats.flash), ("block", stats.block)] {
        println!("{home:>6}: {} objects, {} bytes", figures.objects, figures.bytes);
    }
    println!("device bytes per user byte: {:.2}", stats.written.write_amplification());
}
