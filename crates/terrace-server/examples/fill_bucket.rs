//! Fills a bucket with many small objects, as S3 would have stored them, but without going through
//! S3. For measuring.
//!
//! `cargo run --release -p terrace-server --example fill_bucket DIR BUCKET OBJECTS BYTES`. The
//! store in DIR must not be open elsewhere; the bucket itself is made over S3. Keys are
//! `obj-00000000` and so on, values are the key again and again.

use std::{error::Error, time::Instant};
use terrace::{Attributes, Batch, Condition, Durability, Options, Store};

/// Objects of one commit.
const BATCH: u64 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, bucket, objects, bytes] = arguments.as_slice() else {
        return Err("usage: fill_bucket DIR BUCKET OBJECTS BYTES".into());
    };
    let (objects, bytes): (u64, usize) = (objects.parse()?, bytes.parse()?);
    let store = Store::open(Options::new(dir))?;
    let started = Instant::now();
    for first in (0..objects).step_by(usize::try_from(BATCH)?) {
        let mut batch = Batch::new();
        for number in first..objects.min(first + BATCH) {
            let key = format!("obj-{number:08}");
            let value: Vec<u8> = key.bytes().cycle().take(bytes).collect();
            let attributes = Attributes::new()
                .with("content-type", "binary/octet-stream")
                .with("etag", format!("\"{number:032x}\""))
                .with("s3-modified-ms", "1700000000000");
            batch.put_with(format!("{bucket}/{key}"), value, attributes, Condition::None);
        }
        store.write(batch, Durability::Buffered)?;
    }
    store.flush()?;
    println!("{objects} objects in {:.1} s", started.elapsed().as_secs_f64());
    store.close()?;
    Ok(())
}
