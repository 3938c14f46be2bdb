//! Helpers of the engine's tests, both inside the crate (as `crate::test_common`) and outside it.
#![allow(dead_code, clippy::unwrap_used)] // no test uses all of it

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

/// Waits on this thread until a future is ready.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// A number in an environment variable.
pub fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The seed of a randomised test: constant, unless `TERRACE_MODEL_SEED` is set. `.ci/long` uses new
/// ones.
pub fn seed() -> u64 {
    let seed = variable("TERRACE_MODEL_SEED").unwrap_or(1);
    println!("TERRACE_MODEL_SEED={seed}");
    seed
}

/// Reports that a test could test nothing here, directly to the terminal, since the runner hides
/// the output of tests that pass; and lets `.ci/run` count it.
pub fn left_out(test: &str, why: &str) {
    let line = format!("test {test}: {why}\n");
    let _ = io::stderr().write_all(format!("left out: {line}").as_bytes());
    if let Some(list) = std::env::var_os("CI_LEFT_OUT") {
        let list = fs::OpenOptions::new().append(true).open(list);
        list.and_then(|mut list| list.write_all(line.as_bytes())).unwrap();
    }
}

/// Pseudo-random bytes of a seed.
pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[4]
    };
    (0..length).map(next).collect()
}

/// Every file under `dir`, sorted.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for item in fs::read_dir(dir).unwrap() {
        let path = item.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Copies a directory recursively.
///
/// # Errors
/// The system's, for example if a file vanished meanwhile.
pub fn copy_directory(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for item in fs::read_dir(from)? {
        let item = item?;
        let target = to.join(item.file_name());
        if item.file_type()?.is_dir() {
            copy_directory(&item.path(), &target)?;
        } else {
            fs::copy(item.path(), target)?;
        }
    }
    Ok(())
}
