//! Server side of the control socket.

use super::{
    Answer, BackupRequest, KeyRequest, KeySummary, KmsRequest, REQUEST_BYTES_MAX, Request, SOCKET, TierCapacity,
    short_path,
};
use crate::{
    failure::{Code, Failure, Outcome},
    report::stats_json,
    s3::{Shared, access_key::Keys, rewrap, secrets::Secrets},
};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    fd::OwnedFd,
};
use std::{
    fs::{self, File, Permissions},
    io::{self, BufRead as _, BufReader, Read, Write as _},
    os::unix::{
        fs::PermissionsExt as _,
        net::{UnixListener, UnixStream},
    },
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use terrace::{BackupOptions, BackupProgress, Store, Tier};

/// Requests at a time.
const REQUESTS_MAX: usize = 4;
/// Time for a request to arrive. It is sent at once, but on a busy machine the sender may be
/// delayed for seconds; a shutdown of the server waits for it.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);
/// Time for a peer to read an answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// Interval of progress reports.
const TELL_INTERVAL: Duration = Duration::from_millis(200);
/// Pause after a failed accept, which usually means that file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Listens until it is stopped.
pub struct Control {
    stop: Arc<AtomicBool>,
    /// Wakes the thread, so that it sees the stop flag.
    told: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    dir: File,
}

impl Control {
    /// Begins to listen. The caller has the store open for writing, so an existing socket belongs
    /// to no running server.
    ///
    /// # Errors
    /// The operating system's.
    pub fn start(served: Served, flash_dir: &Path) -> Outcome<Self> {
        let fail = |error: io::Error| Failure::io(format!("listening on {}", flash_dir.join(SOCKET).display()), &error);
        let dir = File::open(flash_dir).map_err(fail)?;
        let listener = bind(&dir).map_err(fail)?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| fail(error.into()))?;
        let told = Arc::new(told);
        let thread = thread::Builder::new()
            .name("control".to_owned())
            .spawn({
                let (stop, told) = (Arc::clone(&stop), Arc::clone(&told));
                move || listen(&listener, &served, &stop, &told)
            })
            .map_err(fail)?;
        Ok(Self {
            stop,
            told,
            thread: Some(thread),
            dir,
        })
    }

    /// Stops work in progress and waits for its end: nothing uses the store afterwards.
    pub fn stop(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = rustix::io::write(&*self.told, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic in it has been printed.
            let _ = thread.join();
        }
        // A socket left behind would not answer.
        let _ = fs::remove_file(short_path(&self.dir, SOCKET));
    }
}

fn bind(dir: &File) -> io::Result<UnixListener> {
    let new = short_path(dir, ".control.sock.new");
    let _ = fs::remove_file(&new);
    let listener = UnixListener::bind(&new)?;
    fs::set_permissions(&new, Permissions::from_mode(0o600))?;
    fs::rename(&new, short_path(dir, SOCKET))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// State for requests.
pub struct Served {
    /// The store.
    pub store: Store,
    /// Its access keys.
    pub keys: Arc<Keys>,
    /// The server's shared state, which includes the master keys.
    pub shared: Shared,
    /// Reads the master keys again.
    pub read_secrets: Box<dyn Fn() -> Outcome<Secrets> + Send + Sync>,
}

/// Serves until `stop` is set and `told` is signalled.
fn listen(listener: &UnixListener, served: &Served, stop: &AtomicBool, told: &OwnedFd) {
    thread::scope(|scope| {
        let mut under_way = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, _)) => {
                    under_way.retain(|request: &thread::ScopedJoinHandle<'_, ()>| !request.is_finished());
                    let is_busy = under_way.len() >= REQUESTS_MAX;
                    under_way.push(scope.spawn(move || {
                        if let Err(error) = converse(&stream, served, stop, is_busy) {
                            tracing::debug!(%error, "a request at the control socket ended early");
                        }
                    }));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let mut both = [PollFd::new(listener, PollFlags::IN), PollFd::new(told, PollFlags::IN)];
                    // An early return only causes one more check.
                    let _ = poll(&mut both, None);
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection to the control socket could not be accepted");
                    thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    });
}

fn converse(stream: &UnixStream, served: &Served, stop: &AtomicBool, is_busy: bool) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(REQUEST_TIME_MAX))?;
    stream.set_write_timeout(Some(ANSWER_TIME_MAX))?;
    let refuse = |message: &str| Answer::Failed {
        code: Code::Error,
        message: message.to_owned(),
    };
    let peer = rustix::net::sockopt::socket_peercred(stream)?.uid;
    if peer != rustix::process::geteuid() && !peer.is_root() {
        return tell(
            stream,
            &refuse("only the user that runs the server may use this socket"),
        );
    }
    let line = request_line(stream)?;
    if is_busy {
        return tell(
            stream,
            &refuse("the server is busy with other such requests; try again later"),
        );
    }
    match serde_json::from_str(&line) {
        Ok(Request::Stats) => tell(stream, &Answer::Stats(stats_json(&served.store.stats()))),
        Ok(Request::Backup(request)) => back_up(stream, &served.store, stop, &request),
        Ok(Request::Rewrap) => encrypt_anew(stream, served, stop),
        Ok(Request::Capacity { large_bytes }) => tell(stream, &set_capacity(&served.store, Tier::Large, large_bytes)),
        Ok(Request::FlashCapacity { bytes }) => tell(stream, &set_capacity(&served.store, Tier::Flash, Some(bytes))),
        Ok(Request::Key(request)) => tell(stream, &change_keys(served, request).unwrap_or_else(failed)),
        Ok(Request::Kms(request)) => tell(stream, &change_kms(served, request).unwrap_or_else(failed)),
        Err(error) => tell(
            stream,
            &refuse(&format!(
                "the server does not understand the request ({error}); use programs of one version"
            )),
        ),
    }
}

/// The line of a request, of which no more than [`REQUEST_BYTES_MAX`] are read.
pub(super) fn request_line(stream: impl Read) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(stream.take(REQUEST_BYTES_MAX)).read_line(&mut line)?;
    Ok(line)
}

fn tell(mut stream: &UnixStream, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// `None` for the large tier: its device's size.
fn set_capacity(store: &Store, tier: Tier, bytes: Option<u64>) -> Answer {
    let changed = match (tier, bytes) {
        (Tier::Flash, bytes) => store.set_flash_capacity(bytes.unwrap_or(u64::MAX)),
        (Tier::Large, bytes) => store.set_large_capacity(bytes),
    };
    if let Err(error) = changed {
        let Failure { code, message, .. } = Failure::from(error);
        return Answer::Failed { code, message };
    }
    tracing::info!(%tier, bytes, "a tier has another capacity");
    let stats = store.stats();
    let (capacity_bytes, allocated_bytes) = match tier {
        Tier::Flash => (bytes, stats.log.allocated_bytes),
        Tier::Large => (stats.large.capacity_bytes, stats.large.allocated_bytes),
    };
    Answer::Capacity(TierCapacity {
        capacity_bytes,
        allocated_bytes,
    })
}

fn failed(error: terrace::Error) -> Answer {
    let Failure { code, message, .. } = Failure::from(error);
    Answer::Failed { code, message }
}

fn change_kms(served: &Served, request: KmsRequest) -> terrace::Result<Answer> {
    let secrets = &served.shared.secrets;
    Ok(Answer::Kms(match request {
        KmsRequest::List => secrets.kms().all(),
        KmsRequest::Change(name, change) => {
            let key = secrets.kms().change(&served.store, secrets, &name, change)?;
            tracing::info!(
                name,
                is_disabled = key.is_disabled,
                versions = key.versions,
                "a key was changed"
            );
            vec![key]
        }
    }))
}

fn change_keys(served: &Served, request: KeyRequest) -> terrace::Result<Answer> {
    let Served { store, keys, .. } = served;
    Ok(Answer::Keys(match request {
        KeyRequest::Create(new) => {
            let (id, key) = keys.create(store, &new)?;
            tracing::info!(id, "an access key was made");
            vec![KeySummary::of_new(id, &key)]
        }
        KeyRequest::List => {
            let all = keys.all().into_iter();
            all.map(|(id, key)| KeySummary::of(id, &key)).collect()
        }
        KeyRequest::Remove(id) => {
            let known = keys.all().remove(&id);
            let was_there = keys.remove(store, &id)?;
            tracing::info!(id, was_there, "an access key was removed");
            let removed = known.filter(|_| was_there).into_iter();
            removed.map(|key| KeySummary::of(id.clone(), &key)).collect()
        }
        KeyRequest::SetPolicy(id, policy) => {
            let changed = keys.set_policy(store, &id, policy.as_deref())?;
            let has_policy = policy.is_some();
            tracing::info!(
                id,
                has_policy,
                is_there = changed.is_some(),
                "what an access key may do was changed"
            );
            changed.iter().map(|key| KeySummary::of(id.clone(), key)).collect()
        }
    }))
}

fn encrypt_anew(stream: &UnixStream, served: &Served, stop: &AtomicBool) -> io::Result<()> {
    let mut told = Instant::now();
    let done = (served.read_secrets)().and_then(|new| {
        let mut tell_progress = |done: u64| {
            if told.elapsed() >= TELL_INTERVAL {
                told = Instant::now();
                // The client may have gone; started work is finished all the same.
                let _ = tell(
                    stream,
                    &Answer::Progress {
                        done_bytes: done,
                        total_bytes: 0,
                    },
                );
            }
        };
        Ok(rewrap::run(
            &served.store,
            &served.shared,
            Some(&new),
            stop,
            &mut tell_progress,
        )?)
    });
    let answer = match done {
        Ok(report) => Answer::Rewrapped(report),
        Err(Failure { code, message, .. }) => Answer::Failed { code, message },
    };
    tell(stream, &answer)
}

fn back_up(stream: &UnixStream, store: &Store, stop: &AtomicBool, request: &BackupRequest) -> io::Result<()> {
    let progress = Arc::new(BackupProgress::default());
    let options = BackupOptions {
        onto: request.onto.clone(),
        copy: request.copy,
        bytes_per_second: request.bytes_per_second,
        progress: Arc::clone(&progress),
        ..BackupOptions::default()
    };
    tracing::info!(dir = %request.dir.display(), "taking a backup");
    thread::scope(|scope| {
        let backup = scope.spawn(|| store.backup(&request.dir, &options));
        let mut told = Ok(());
        while !backup.is_finished() {
            if stop.load(Ordering::Relaxed) || told.is_err() {
                progress.stop();
            } else {
                told = tell(
                    stream,
                    &Answer::Progress {
                        done_bytes: progress.done_bytes(),
                        total_bytes: progress.total_bytes(),
                    },
                );
            }
            thread::park_timeout(TELL_INTERVAL);
        }
        let answer = match backup.join() {
            Ok(Ok(report)) => Answer::BackedUp(report.into()),
            Ok(Err(error)) => {
                let failure = Failure::from(error);
                tracing::warn!(dir = %request.dir.display(), reason = failure.message, "a backup was not completed");
                Answer::Failed {
                    code: failure.code,
                    message: failure.message,
                }
            }
            Err(_) => Answer::Failed {
                code: Code::Error,
                message: "the backup failed unexpectedly; see the server's messages".to_owned(),
            },
        };
        told.and_then(|()| tell(stream, &answer))
    })
}
