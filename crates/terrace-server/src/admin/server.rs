//! The router of the calls, and the socket where a running server has it.

use super::{Call, Line, SOCKET, Served, routes, short_path, work::Work};
use crate::{
    failure::{Code, Failure, Outcome},
    http::{self, Accept, Limits, Listener},
    signals::Stop,
};
use axum::{
    Router,
    body::{Body, to_bytes},
    extract::State as Shared,
    http::{Method, StatusCode, Uri, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
    routing::{MethodFilter, on},
};
use futures_util::{StreamExt as _, stream};
use hyper_util::service::TowerToHyperService;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fs::{self, File, Permissions},
    io,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};

/// Calls at a time.
const CALLS_MAX: usize = 4;
/// Connections at a time; an idle one makes room for another.
const CONNECTIONS: Limits = Limits { all: 16, of_one: None };
/// Longest body of a request.
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Time for a request to arrive. It is sent immediately, but on a busy machine the sender may be
/// delayed for seconds.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);
/// Interval of progress reports.
const TELL_INTERVAL: Duration = Duration::from_millis(200);
/// Time for answers in progress when the server ends.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(10);
/// Body of the answer to another user.
const FOREIGN: &str = "{\"failed\":{\"code\":\"error\",\
    \"message\":\"only the user that runs the server may use this socket; run this as that user\"}}\n";

/// State shared by routes: the store, and permits for calls.
pub(super) type State = (Arc<Served>, Arc<Semaphore>);

/// Serves the calls until `stop`, which also stops work in progress. Must be called within a
/// runtime, by the process that has the store open for writing: so an existing socket belongs to no
/// running server.
///
/// # Errors
/// Errors of the operating system.
pub fn serve(served: Served, flash_dir: &Path, stop: Stop) -> Outcome<JoinHandle<()>> {
    let fail = |error: io::Error| Failure::io(format!("listening on {}", flash_dir.join(SOCKET).display()), &error);
    let dir = File::open(flash_dir).map_err(fail)?;
    let listener = Listener {
        listener: OwnUser(bind(&dir).map_err(fail)?),
        tls: None,
        limits: CONNECTIONS,
        traffic: None,
    };
    let service = TowerToHyperService::new(router(served));
    Ok(tokio::spawn(async move {
        http::serve(|_| service.clone(), listener, stop.begun(), SHUTDOWN_TIME_MAX).await;
        // A socket left behind would not answer.
        let _ = fs::remove_file(short_path(&dir, SOCKET));
    }))
}

fn bind(dir: &File) -> io::Result<UnixListener> {
    let new = short_path(dir, ".control.sock.new");
    let _ = fs::remove_file(&new);
    let listener = UnixListener::bind(&new)?;
    fs::set_permissions(&new, Permissions::from_mode(0o600))?;
    fs::rename(&new, short_path(dir, SOCKET))?;
    Ok(listener)
}

/// Accepts connections of the server's own user, and of root.
struct OwnUser(UnixListener);

impl Accept for OwnUser {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, SocketAddr)> {
        loop {
            let (stream, _) = self.0.accept().await?;
            let peer = stream.peer_cred()?.uid();
            if peer == 0 || peer == rustix::process::geteuid().as_raw() {
                return Ok((stream, (Ipv4Addr::LOCALHOST, 0).into()));
            }
            // With a length: the request is not read, so the client's next read fails.
            let length = FOREIGN.len();
            let head = format!("HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
            Self::send_at_once(&stream, (head + FOREIGN).as_bytes());
        }
    }

    fn send_at_once(stream: &UnixStream, answer: &[u8]) {
        let _ = stream.try_write(answer);
    }
}

/// Routes of the calls; everything else is refused.
fn router(served: Served) -> Router {
    let unknown = |status| {
        move |method: Method, uri: Uri| async move { refuse(status, misunderstood(format!("{method} {}", uri.path()))) }
    };
    routes()
        .fallback(unknown(StatusCode::NOT_FOUND))
        .method_not_allowed_fallback(unknown(StatusCode::METHOD_NOT_ALLOWED))
        .with_state((Arc::new(served), Arc::new(Semaphore::new(CALLS_MAX))))
}

/// The route of a call.
pub(super) fn route<T, G>(call: &Call<T, G>, method: MethodFilter) -> Router<State>
where
    T: DeserializeOwned + Send + 'static,
    G: Serialize + Send + 'static,
{
    let (path, work) = (call.path, call.work);
    let answer = move |Shared((served, turns)): Shared<State>, body: Body| async move {
        let takes = match taken(body).await {
            Ok(takes) => takes,
            Err((status, failure)) => return refuse(status, failure),
        };
        let Ok(turn) = turns.try_acquire_owned() else {
            let busy = Failure::error("the server is busy with other such requests; try again later");
            return refuse(StatusCode::SERVICE_UNAVAILABLE, busy);
        };
        let under_way = Arc::new(Work::default());
        let (its_served, its_work) = (Arc::clone(&served), Arc::clone(&under_way));
        let doing = spawn_blocking(move || {
            let _turn = turn;
            work(&its_served, takes, &its_work)
        });
        follow(Following {
            path,
            served,
            work: under_way,
            doing,
        })
        .await
    };
    Router::new().route(path, on(method, answer))
}

/// The argument in a request's body.
async fn taken<T: DeserializeOwned>(body: Body) -> Result<T, (StatusCode, Failure)> {
    let Ok(body) = timeout(REQUEST_TIME_MAX, to_bytes(body, REQUEST_BYTES_MAX)).await else {
        let slow = Failure::error(format!(
            "the request took longer than {REQUEST_TIME_MAX:?}; send it again"
        ));
        return Err((StatusCode::REQUEST_TIMEOUT, slow));
    };
    let body = body.map_err(|error| {
        let long = format!("the request cannot be read ({error}); send at most {REQUEST_BYTES_MAX} bytes");
        (StatusCode::PAYLOAD_TOO_LARGE, Failure::usage(long))
    })?;
    parse(&body).map_err(|error| (StatusCode::BAD_REQUEST, misunderstood(error)))
}

/// Parses a body. An empty body is the argument of a call without arguments.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(if body.is_empty() { b"null" } else { body })
}

fn misunderstood(what: impl std::fmt::Display) -> Failure {
    Failure::usage(format!(
        "the server does not understand the request ({what}); use programs of one version"
    ))
}

fn refuse(status: StatusCode, failure: Failure) -> Response {
    answer(status, Body::from(line(&Line::<()>::Failed(failure))))
}

fn answer(status: StatusCode, body: Body) -> Response {
    (status, [(CONTENT_TYPE, "application/x-ndjson")], body).into_response()
}

fn line<G: Serialize>(line: &Line<G>) -> Vec<u8> {
    let mut text = serde_json::to_vec(line).unwrap_or_default();
    text.push(b'\n');
    text
}

/// A call that a client waits for.
struct Following<G> {
    path: &'static str,
    served: Arc<Served>,
    work: Arc<Work>,
    doing: JoinHandle<Outcome<G>>,
}

impl<G> Following<G> {
    async fn next(&mut self) -> Line<G> {
        match timeout(TELL_INTERVAL, &mut self.doing).await {
            Ok(Ok(Ok(result))) => Line::Done(result),
            Ok(Ok(Err(failure))) => {
                tracing::warn!(call = self.path, %failure, "what was asked for at the admin socket was not done");
                Line::Failed(failure)
            }
            Ok(Err(_)) => Line::Failed(Failure::error("it failed unexpectedly; see the server's messages")),
            Err(_) => {
                if self.served.stop.load(Ordering::Relaxed) {
                    self.work.backup.stop();
                }
                let (done, total) = self.work.figures();
                Line::Progress { done, total }
            }
        }
    }
}

impl<G> Drop for Following<G> {
    fn drop(&mut self) {
        // The client may have disconnected; a completed backup is not affected.
        self.work.backup.stop();
    }
}

/// Answers with the result of a call. Its status is that of a failure only if the failure comes
/// immediately.
async fn follow<G: Serialize + Send + 'static>(call: Following<G>) -> Response {
    let mut lines = Box::pin(stream::unfold(Some(call), |call| async {
        let mut call = call?;
        let line = call.next().await;
        let more = matches!(line, Line::Progress { .. }).then_some(call);
        Some((line, more))
    }));
    let first = lines.next().await;
    let status = match &first {
        Some(Line::Failed(failure)) => match failure.code {
            Code::Usage => StatusCode::BAD_REQUEST,
            Code::OutOfSpace => StatusCode::INSUFFICIENT_STORAGE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        },
        _ => StatusCode::OK,
    };
    let lines = stream::iter(first).chain(lines);
    answer(
        status,
        Body::from_stream(lines.map(|next| Ok::<_, io::Error>(line(&next)))),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rustix::process::Uid;
    use std::io::{Read as _, Write as _};

    /// What the client reads whose thread has this user, and whether it was accepted.
    async fn asked_as(uid: Uid, listener: &mut OwnUser, path: std::path::PathBuf) -> (String, bool) {
        let client = std::thread::spawn(move || {
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            let mut stream = std::os::unix::net::UnixStream::connect(path).unwrap();
            // It is refused before it asks.
            let _ = stream.write_all(b"GET /stats HTTP/1.1\r\n\r\n");
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            String::from_utf8(answer).unwrap()
        });
        let is_accepted = timeout(Duration::from_millis(500), listener.accept()).await.is_ok();
        (client.join().unwrap(), is_accepted)
    }

    /// The mode of the socket keeps others away. If someone opened it to all, they are still
    /// refused. Only root can become another user.
    #[tokio::test]
    async fn another_user_is_refused_at_a_socket_that_is_open_to_all() {
        let own = rustix::process::geteuid();
        if !own.is_root() {
            return eprintln!("left out: only root can become another user");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(SOCKET);
        let mut listener = OwnUser(bind(&File::open(dir.path()).unwrap()).unwrap());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let (answer, is_accepted) = asked_as(Uid::from_raw(65534), &mut listener, path.clone()).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, FOREIGN);
        let length = format!("Content-Length: {}", body.len());
        assert!(
            head.contains(&length),
            "a client would wait for the end, and find an error: {head}"
        );
        assert!(!is_accepted);
        // An accepted connection is dropped here, unanswered.
        assert_eq!(asked_as(own, &mut listener, path).await, (String::new(), true));
    }
}
