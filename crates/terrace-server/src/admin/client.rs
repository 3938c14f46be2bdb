//! Client of a running `serve`.

use super::{Call, Line, SOCKET, short_path};
use crate::failure::{Code, Failure, Outcome};
use axum::body::Body;
use futures_util::StreamExt as _;
use hyper::{Request, client::conn::http1::handshake, header::HOST};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    error::Error,
    fs::File,
    io,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use tokio::{net::UnixStream, time::timeout};

type Failed = Box<dyn Error + Send + Sync>;

/// Longest silence; the server reports progress several times a second.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Calls the server of the store in `flash_dir`; `None`: no process listens, so the process that
/// has the store is no server. `show` gets the progress; setting `stop` ends the connection.
///
/// # Errors
/// The server's, or that the connection ended.
pub fn ask<T: Serialize, G: DeserializeOwned>(
    flash_dir: &Path,
    call: &Call<T, G>,
    takes: &T,
    stop: &AtomicBool,
    show: impl Fn(u64, u64),
) -> Outcome<Option<G>> {
    let Ok(dir) = File::open(flash_dir) else {
        return Ok(None);
    };
    let fail = |error: Failed| {
        Failure::error(format!(
            "asking the server: {error}; ask again, with a program of its version"
        ))
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| fail(error.into()))?.block_on(async {
        match UnixStream::connect(short_path(&dir, SOCKET)).await {
            Ok(stream) => converse(stream, call, takes, stop, show).await.map_err(fail)?.map(Some),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(Failure::error(
                "the server of this store belongs to another user; run this as that user",
            )),
            Err(_) => Ok(None),
        }
    })
}

async fn converse<T: Serialize, G: DeserializeOwned>(
    stream: UnixStream,
    call: &Call<T, G>,
    takes: &T,
    stop: &AtomicBool,
    show: impl Fn(u64, u64),
) -> Result<Outcome<G>, Failed> {
    let request = Request::builder()
        .method(&call.method)
        .uri(call.path)
        .header(HOST, "terrace");
    let request = request.body(Body::from(serde_json::to_vec(takes)?))?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let answer = timeout(SILENCE_MAX, sender.send_request(request)).await??;
    let mut pieces = Body::new(answer.into_body()).into_data_stream();
    let mut text = Vec::new();
    while let Some(piece) = timeout(SILENCE_MAX, pieces.next()).await? {
        text.extend(piece?);
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            match serde_json::from_slice(&line)? {
                Line::Progress { done, total } => show(done, total),
                Line::Failed(failure) => return Ok(Err(failure)),
                Line::Done(result) => return Ok(Ok(result)),
            }
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(Err(Failure::new(
                Code::Interrupted,
                "interrupted; what was asked for is not complete, and the next time begins again",
            )));
        }
    }
    Err("it went away, or was busy, before it was done".into())
}
