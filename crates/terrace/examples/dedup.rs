//! Inline deduplication (FlashStore, sections 3.2 and 5.9): files are cut into chunks at positions
//! that depend on their contents; each chunk is hashed, looked up, and stored if it is new. A file
//! becomes a recipe: the hashes of its chunks, in order.
//!
//! `cargo run --release -p terrace --example dedup [TREE [DIR]]`. Without TREE it uses the sources
//! of this crate; without DIR it uses a temporary directory and removes it. The tree is backed up
//! twice, like two nightly backups; then every file is reassembled from its recipe.

use fastcdc::v2020::StreamCDC;
use sha2::{Digest, Sha256};
use std::{
    error::Error,
    fs::File,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::Instant,
};
use terrace::{Attributes, Condition, Durability, Expiry, Options, PutOptions, ScanRange, Store};
use walkdir::WalkDir;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Minimum, mean and maximum bytes of a chunk. The paper's trace used 4 KiB.
const CHUNK_BYTES: (usize, usize, usize) = (1 << 10, 4 << 10, 16 << 10);
const HASH_BYTES: usize = 32;

fn main() -> Outcome {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let tree = arguments
        .next()
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    if let Some(dir) = arguments.next() {
        return backups(&tree, &dir);
    }
    let dir = std::env::temp_dir().join(format!("terrace-dedup-{}", std::process::id()));
    let outcome = backups(&tree, &dir);
    std::fs::remove_dir_all(&dir)?;
    outcome
}

fn backups(tree: &Path, dir: &Path) -> Outcome {
    let mut options = Options::new(dir);
    // Chunks are looked up and hardly ever read: RAM is for the index.
    options.cache_bytes = 0;
    options.segment_bytes = 16 << 20;
    let store = Store::open(options)?;
    let empty_bytes = store.stats().hash_index.ram_bytes;
    for name in ["first", "second"] {
        let stream = backup(&store, tree)?;
        println!("{name} backup: {}", stream.in_words());
    }
    let (files, bytes) = check(&store)?;
    println!("{files} files, {bytes} bytes, put together again from their chunks");
    // The hash index does not have commits that are not applied yet; closing applies them.
    store.close()?;
    let index = store.stats().hash_index;
    println!(
        "hash index: {} chunks and recipes in {} bytes of RAM, {:.1} bytes for each ({empty_bytes} bytes when it was empty)",
        index.entries,
        index.ram_bytes,
        index.ram_bytes as f64 / index.entries.max(1) as f64
    );
    Ok(())
}

/// Statistics of a backup.
#[derive(Debug, Default)]
struct Stream {
    files: u64,
    /// Files that could not be read, and non-files.
    left_out: u64,
    bytes: u64,
    chunks: u64,
    new_chunks: u64,
    new_bytes: u64,
    seconds: f64,
}

impl Stream {
    fn in_words(&self) -> String {
        let ratio = if self.new_bytes == 0 {
            "nothing new".to_owned()
        } else {
            format!("{:.2} : 1", self.bytes as f64 / self.new_bytes as f64)
        };
        format!(
            "{} files ({} left out), {:.1} MB in {} chunks, {} of them new: {ratio}; {:.1} MB/s",
            self.files,
            self.left_out,
            self.bytes as f64 / 1e6,
            self.chunks,
            self.new_chunks,
            self.bytes as f64 / 1e6 / self.seconds
        )
    }
}

/// Backs up a tree. It is durable when this returns, and the time includes that.
fn backup(store: &Store, tree: &Path) -> Outcome<Stream> {
    let (mut stream, started) = (Stream::default(), Instant::now());
    for entry in WalkDir::new(tree) {
        let Some(entry) = entry.ok().filter(|entry| !entry.file_type().is_dir()) else {
            continue;
        };
        match File::open(entry.path()) {
            Ok(file) if entry.file_type().is_file() => backup_file(store, entry.path(), file, &mut stream)?,
            _ => stream.left_out += 1,
        }
    }
    store.flush()?;
    stream.seconds = started.elapsed().as_secs_f64();
    Ok(stream)
}

fn backup_file(store: &Store, path: &Path, file: File, stream: &mut Stream) -> Outcome {
    let (least, mean, most) = CHUNK_BYTES;
    let (mut recipe, mut length) = (Vec::new(), 0);
    for chunk in StreamCDC::new(file, least, mean, most) {
        let data = chunk?.data;
        let hash = Sha256::digest(&data);
        let key = chunk_key(&hash);
        if store.head(&key)?.is_none() {
            store.put_with(&key, &data, &buffered(Attributes::new()))?;
            stream.new_chunks += 1;
            stream.new_bytes += data.len() as u64;
        }
        recipe.extend_from_slice(&hash);
        length += data.len() as u64;
    }
    stream.files += 1;
    stream.bytes += length;
    stream.chunks += (recipe.len() / HASH_BYTES) as u64;
    // Commits are in the order of the calls, so no crash leaves a recipe without its chunks.
    let attributes = Attributes::new().with("length", length.to_string());
    store.put_with(recipe_key(path), recipe, &buffered(attributes))?;
    Ok(())
}

/// Nothing waits for the device except the flush at the end of a backup.
fn buffered(attributes: Attributes) -> PutOptions {
    PutOptions {
        attributes,
        durability: Durability::Buffered,
        condition: Condition::None,
        expiry: Expiry::default(),
    }
}

fn chunk_key(hash: &[u8]) -> Vec<u8> {
    [b"chunk/", hash].concat()
}

/// A path of up to 4 KiB does not fit into a key with the prefix, so longer ones are replaced by
/// their hash.
fn recipe_key(path: &Path) -> Vec<u8> {
    let path = path.as_os_str().as_bytes();
    if path.len() > 4000 {
        return [&b"long/"[..], &Sha256::digest(path)].concat();
    }
    [b"file/", path].concat()
}

/// Reassembles every file: each chunk must have its hash, and each file its length. Returns files
/// and bytes.
fn check(store: &Store) -> Outcome<(u64, u64)> {
    let (mut files, mut bytes) = (0, 0);
    for prefix in ["file/", "long/"] {
        for item in store.scan(ScanRange::prefix(prefix))? {
            let item = item?;
            let contents = restore(store, &item.value()?)?;
            let wanted = item
                .info
                .attributes
                .get_str("length")
                .ok_or("a recipe without length")?;
            if contents.len().to_string() != wanted {
                let name = String::from_utf8_lossy(&item.key);
                return Err(format!("{name}: {} bytes instead of {wanted}", contents.len()).into());
            }
            files += 1;
            bytes += contents.len() as u64;
        }
    }
    Ok((files, bytes))
}

fn restore(store: &Store, recipe: &[u8]) -> Outcome<Vec<u8>> {
    let mut contents = Vec::new();
    for hash in recipe.chunks(HASH_BYTES) {
        let chunk = store.get(chunk_key(hash))?.ok_or("a chunk is gone")?;
        if Sha256::digest(&chunk.value)[..] != *hash {
            return Err("a chunk has another hash than the one it goes by".into());
        }
        contents.extend_from_slice(&chunk);
    }
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngCore, SeedableRng, rngs::StdRng};

    #[test]
    fn what_moved_within_a_file_is_found_again_and_everything_comes_back() -> Outcome {
        let tree = tempfile::tempdir()?;
        let mut contents = vec![0; 1 << 20];
        StdRng::seed_from_u64(1).fill_bytes(&mut contents);
        let moved = [&b"a word in front"[..], &contents].concat();
        std::fs::create_dir(tree.path().join("below"))?;
        std::fs::write(tree.path().join("one"), &contents)?;
        std::fs::write(tree.path().join("below/two"), &moved)?;
        std::fs::write(tree.path().join("empty"), b"")?;

        let dir = tempfile::tempdir()?;
        let store = Store::open(Options::new(dir.path()))?;
        let first = backup(&store, tree.path())?;
        assert_eq!((first.files, first.left_out), (3, 0));
        assert_eq!(first.bytes, (contents.len() + moved.len()) as u64);
        // With fixed cuts no chunk would be found again; with cuts by contents all but those near
        // the front are.
        let once = contents.len() as u64;
        assert!((once..once + (64 << 10)).contains(&first.new_bytes), "{first:?}");
        let second = backup(&store, tree.path())?;
        assert_eq!(
            (second.chunks, second.new_chunks, second.new_bytes),
            (first.chunks, 0, 0)
        );

        let recipe = store
            .get(recipe_key(&tree.path().join("below/two")))?
            .ok_or("no recipe")?;
        assert!(restore(&store, &recipe)? == moved);
        assert_eq!(check(&store)?, (3, first.bytes));
        let stolen = chunk_key(&recipe[..HASH_BYTES]);
        store.put(&stolen, "something else")?;
        assert!(check(&store).is_err());
        store.delete(&stolen)?;
        assert!(check(&store).is_err());
        Ok(())
    }
}
