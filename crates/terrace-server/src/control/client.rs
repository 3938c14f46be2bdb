//! Client of a running `serve`.

use super::{Answer, Request, SOCKET, short_path};
use crate::failure::{Code, Failure, Outcome};
use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// Longest silence; the server reports progress several times a second.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Sends a request to the server of the store in `flash_dir`; `None`: no process listens, so the
/// process that has the store is no server. `show` gets the progress; setting `stop` ends the
/// connection, which stops the work.
///
/// # Errors
/// The server's, or that the connection ended.
pub fn ask(flash_dir: &Path, request: &Request, stop: &AtomicBool, show: impl Fn(u64, u64)) -> Outcome<Option<Answer>> {
    let fail = |error: io::Error| Failure::io("asking the server", &error);
    let Ok(dir) = File::open(flash_dir) else {
        return Ok(None);
    };
    let stream = match UnixStream::connect(short_path(&dir, SOCKET)) {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(Failure::new(
                Code::Error,
                "the server of this store belongs to another user; run this as that user",
            ));
        }
        Err(_) => return Ok(None),
    };
    stream.set_read_timeout(Some(SILENCE_MAX)).map_err(fail)?;
    let mut line = serde_json::to_vec(request).map_err(|error| Failure::error(error.to_string()))?;
    line.push(b'\n');
    (&stream).write_all(&line).map_err(fail)?;
    for line in BufReader::new(&stream).lines() {
        let line = match line {
            Ok(line) => line,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(fail(error)),
        };
        let answer = serde_json::from_str(&line)
            .map_err(|error| Failure::error(format!("the server's answer is not understood: {error}")))?;
        match answer {
            Answer::Progress {
                done_bytes,
                total_bytes,
            } => show(done_bytes, total_bytes),
            Answer::Failed { code, message } => return Err(Failure::new(code, message)),
            done => return Ok(Some(done)),
        }
        if stop.load(Ordering::Relaxed) {
            return Err(Failure::new(
                Code::Interrupted,
                "interrupted; what was asked for is not complete, and the next time begins again",
            ));
        }
    }
    Err(Failure::error("the server went away before it was done; ask again"))
}
