//! Publishes events to a subject of NATS, to which a JetStream stream must be bound: an event is
//! accepted once a stream has acknowledged it, since it is stored then. Without such a stream
//! events stay queued here, as they do while a webhook is down.
//!
//! The protocol is lines of text ("NATS Protocol" in its documentation). Each event has its own
//! connection, as with webhooks, and its key's ID as `Nats-Msg-Id`: a stream drops recent
//! duplicates.

use super::targets::Address;
use serde_json::{Value, json};
use std::fmt;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};

/// Longest line and message of a server: its information is the longest.
const BYTES_MAX: usize = 64 << 10;

/// The publishing user, with the password, if there is one.
#[derive(Clone, PartialEq, Eq)]
pub struct Login(Option<(String, String)>);

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a login")
    }
}

impl Login {
    /// Reads `USER:PASSWORD`, or no credentials.
    pub fn parse(text: Option<&str>) -> Option<Self> {
        let Some(text) = text else { return Some(Self(None)) };
        let (user, password) = text.split_once(':')?;
        Some(Self(Some((user.to_owned(), password.to_owned()))))
    }
}

/// Publishes an event, and waits until a stream has stored it.
///
/// # Errors
/// Why no stream has stored it.
pub async fn publish(address: &Address, login: &Login, place: &[u8], body: &[u8]) -> Result<(), String> {
    let wrong = |error: std::io::Error| error.to_string();
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await;
    converse(
        BufReader::new(stream.map_err(wrong)?),
        &said(address, login, place, body),
    )
    .await
}

/// Sends `all` to a server, and waits until a stream has stored it.
async fn converse(mut stream: BufReader<impl AsyncRead + AsyncWrite + Unpin>, all: &[u8]) -> Result<(), String> {
    let wrong = |error: std::io::Error| error.to_string();
    let greeting = line(&mut stream).await?;
    let server = greeting.strip_prefix("INFO ").ok_or("this is no server of NATS")?;
    let server: Value = serde_json::from_str(server).map_err(|error| error.to_string())?;
    if server["tls_required"] == true {
        return Err("the server asks for TLS, which is not supported".to_owned());
    }
    if server["headers"] != true {
        return Err("the server takes no headers".to_owned());
    }
    stream.write_all(all).await.map_err(wrong)?;
    stream.flush().await.map_err(wrong)?;
    loop {
        let line = line(&mut stream).await?;
        let mut words = line.split(' ');
        match words.next().unwrap_or_default() {
            "PING" => stream.write_all(b"PONG\r\n").await.map_err(wrong)?,
            "MSG" => return answer(&message(&mut stream, words.next_back()).await?),
            // Only a status has headers: no stream is bound to the subject.
            "HMSG" => return Err("no stream takes this subject".to_owned()),
            "-ERR" => return Err(line),
            _ => {}
        }
    }
}

/// All bytes for a server: no answer is needed in between.
fn said(address: &Address, login: &Login, place: &[u8], body: &[u8]) -> Vec<u8> {
    let mut options = json!({
        "verbose": false, "pedantic": false, "tls_required": false, "name": "Terrace", "lang": "rust",
        "version": env!("CARGO_PKG_VERSION"), "protocol": 1, "headers": true, "no_responders": true,
    });
    if let Login(Some((user, password))) = login {
        options["user"] = json!(user);
        options["pass"] = json!(password);
    }
    // Its key in the store ends with a unique ID in hex digits.
    let id = place.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let id = String::from_utf8_lossy(id);
    let inbox = format!("_INBOX.terrace.{id}");
    let head = format!("NATS/1.0\r\nNats-Msg-Id: {id}\r\n\r\n");
    let (subject, head_bytes, bytes) = (&address.path, head.len(), head.len() + body.len());
    let lines = format!("CONNECT {options}\r\nSUB {inbox} 1\r\nHPUB {subject} {inbox} {head_bytes} {bytes}\r\n{head}");
    [lines.as_bytes(), body, b"\r\n"].concat()
}

async fn line(stream: &mut BufReader<impl AsyncRead + Unpin>) -> Result<String, String> {
    let mut text = Vec::new();
    let mut bounded = stream.take(BYTES_MAX as u64);
    bounded
        .read_until(b'\n', &mut text)
        .await
        .map_err(|error| error.to_string())?;
    let text = text.strip_suffix(b"\r\n").ok_or("the server broke off")?;
    Ok(String::from_utf8_lossy(text).into_owned())
}

async fn message(stream: &mut BufReader<impl AsyncRead + Unpin>, bytes: Option<&str>) -> Result<Vec<u8>, String> {
    let bytes = bytes
        .and_then(|bytes| bytes.parse().ok())
        .filter(|bytes| *bytes <= BYTES_MAX);
    let mut message = vec![0; bytes.ok_or("the server sent what is no message")?];
    stream
        .read_exact(&mut message)
        .await
        .map_err(|error| error.to_string())?;
    Ok(message)
}

/// Reads a stream's acknowledgement.
fn answer(message: &[u8]) -> Result<(), String> {
    let said: Value = serde_json::from_slice(message).map_err(|error| error.to_string())?;
    if said["stream"].is_string() && said["error"].is_null() {
        return Ok(());
    }
    Err(format!("the stream did not take it: {said}"))
}

/// What happens to an event after this answer of a server, read through a buffer of so many bytes.
///
/// # Errors
/// Why none has it.
#[cfg(feature = "fuzzing")]
pub async fn published(answers: &[u8], buffer_bytes: usize) -> Result<(), String> {
    let stream = tokio::io::join(answers, tokio::io::sink());
    converse(BufReader::with_capacity(buffer_bytes, stream), b"").await
}
