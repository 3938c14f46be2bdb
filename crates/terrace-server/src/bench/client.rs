//! A persistent connection to an S3 server, which reads answers to their end.

use super::sign::{Signed, Signer};
use crate::s3::notify::targets::Address;
use bytes::{Buf as _, Bytes};
use futures_util::FutureExt as _;
use http_body::{Body, Frame, SizeHint};
use hyper::{Request, body::Incoming, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use std::{
    convert::Infallible,
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::SystemTime,
};
use tokio::{net::TcpStream, task::JoinHandle};
use tokio_rustls::TlsConnector;

/// Values are cut from a block of this length, repeatedly.
const BLOCK_BYTES: usize = 1 << 20;
/// Answers other than values are kept up to this length.
const KEPT_BYTES_MAX: usize = 4 << 20;
/// Bytes of a value's beginning that are compared with the original.
const COMPARED_BYTES: usize = 64;
/// Beginning of the error if a connection ended before an answer.
const ENDED: &str = "the connection ended before the answer";

/// The target of requests, and the key that signs them.
#[derive(Clone)]
pub struct Target {
    /// The server.
    pub address: Address,
    /// The TLS settings.
    pub tls: Option<Arc<ClientConfig>>,
    /// ID of the access key.
    pub id: String,
    /// Its secret.
    pub secret: String,
    /// The region in signatures.
    pub region: String,
    /// Random bytes, from which values are cut.
    pub block: Bytes,
}

impl Target {
    /// A block for [`Target::block`]: the same incompressible bytes each time.
    pub fn block() -> Bytes {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let words = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        words.flatten().take(BLOCK_BYTES).collect()
    }

    /// The value of an object with this number.
    pub fn value(&self, number: u64, bytes: u64) -> Value {
        // Objects begin differently, so that a mix-up is detected.
        let at = number.wrapping_mul(0x9E37_79B9) % (BLOCK_BYTES - COMPARED_BYTES) as u64;
        Value {
            block: self.block.clone(),
            at: usize::try_from(at).unwrap_or(0),
            left: bytes,
        }
    }
}

/// A value to send.
#[derive(Clone)]
pub struct Value {
    block: Bytes,
    at: usize,
    left: u64,
}

impl Value {
    /// A part of a value, as long as this.
    pub const fn cut(mut self, bytes: u64) -> Self {
        self.left = bytes;
        self
    }

    /// Its first bytes.
    pub fn beginning(&self) -> Bytes {
        let bytes = usize::try_from(self.left).unwrap_or(usize::MAX).min(COMPARED_BYTES);
        self.block.slice(self.at..self.at + bytes)
    }
}

impl Body for Value {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let rest = self.block.len() - self.at;
        let bytes = usize::try_from(self.left).unwrap_or(usize::MAX).min(rest);
        let piece = self.block.slice(self.at..self.at + bytes);
        self.left -= bytes as u64;
        self.at = 0;
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// A request.
pub struct Call<'a> {
    /// Its method.
    pub method: &'a str,
    /// Path, without percent signs.
    pub path: &'a str,
    /// The query, from [`super::sign::query`].
    pub query: &'a str,
    /// First and last requested byte.
    pub range: Option<(u64, u64)>,
    /// The body.
    pub body: Sent,
}

/// The body of a request.
#[derive(Clone)]
pub enum Sent {
    /// A value, or a part of one.
    Value(Value),
    /// XML.
    Text(Bytes),
    /// Nothing.
    Nothing,
}

impl Body for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Value(value) => Pin::new(value).poll_frame(context),
            Self::Text(text) => {
                let text = std::mem::take(text);
                Poll::Ready((!text.is_empty()).then(|| Ok(Frame::data(text))))
            }
            Self::Nothing => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Value(value) => value.is_end_stream(),
            Self::Text(text) => text.is_empty(),
            Self::Nothing => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Value(value) => value.size_hint(),
            Self::Text(text) => SizeHint::with_exact(text.len() as u64),
            Self::Nothing => SizeHint::with_exact(0),
        }
    }
}

/// A complete answer.
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Bytes of its body.
    pub bytes: u64,
    /// Its first bytes.
    pub body: Vec<u8>,
    /// `etag`
    pub etag: Option<String>,
}

/// A connection that is opened on demand.
pub struct Client {
    target: Arc<Target>,
    signer: Signer,
    open: Option<Open>,
}

/// A connection, and the task that moves its bytes.
struct Open {
    sender: http1::SendRequest<Sent>,
    ended: JoinHandle<()>,
}

impl Client {
    /// A client without a connection.
    pub fn new(target: &Arc<Target>) -> Self {
        let signer = Signer::new(&target.id, &target.secret, &target.region, &target.address.authority);
        Self {
            target: Arc::clone(target),
            signer,
            open: None,
        }
    }

    /// Sends a request and reads the answer. The first `keep` bytes of its body are returned.
    ///
    /// # Errors
    /// Why there is no answer; the next request has a new connection.
    pub async fn send(&mut self, call: Call<'_>, keep: usize) -> Result<Answer, String> {
        let keep = keep.min(KEPT_BYTES_MAX);
        let was_open = self.open.is_some();
        let mut answer = self.try_send(&call, keep).await;
        // A server may close an idle connection just when it is used again: every client retries
        // then, since each of these requests may be repeated.
        if answer.is_err() && was_open {
            self.open = None;
            answer = self.try_send(&call, keep).await;
        }
        if answer.is_err() {
            self.open = None;
        }
        answer
    }

    /// Fails when the connection has ended without an answer: a request that is handed over at that
    /// moment can be lost in the channel, without any error.
    async fn try_send(&mut self, call: &Call<'_>, keep: usize) -> Result<Answer, String> {
        let open = match self.open.take().filter(|open| !open.sender.is_closed()) {
            Some(open) => open,
            None => connect(&self.target).await?,
        };
        let Open { sender, ended } = self.open.insert(open);
        let exchange = exchange(sender, &self.target, &mut self.signer, call, keep);
        tokio::select! {
            biased;
            answer = exchange => answer,
            _ = ended => Err(ENDED.to_owned()),
        }
    }
}

/// Sends a request on a connection and reads the answer.
async fn exchange(
    sender: &mut http1::SendRequest<Sent>,
    target: &Target,
    signer: &mut Signer,
    call: &Call<'_>,
    keep: usize,
) -> Result<Answer, String> {
    sender.ready().await.map_err(|error| no_answer(&error))?;
    let signed = signer.sign(call.method, call.path, call.query, SystemTime::now());
    let path = if call.query.is_empty() {
        call.path.to_owned()
    } else {
        format!("{}?{}", call.path, call.query)
    };
    let mut request = Request::builder()
        .method(call.method)
        .uri(path)
        .header(header::HOST, &target.address.authority)
        .header("x-amz-content-sha256", Signed::PAYLOAD)
        .header("x-amz-date", signed.time)
        .header(header::AUTHORIZATION, signed.authorization);
    if let Some((first, last)) = call.range {
        request = request.header(header::RANGE, format!("bytes={first}-{last}"));
    }
    let request = request.body(call.body.clone()).map_err(|error| error.to_string())?;
    let answer = sender.send_request(request).await.map_err(|error| no_answer(&error))?;
    let (head, body) = answer.into_parts();
    let etag = head.headers.get(header::ETAG).and_then(|etag| etag.to_str().ok());
    let etag = etag.map(str::to_owned);
    let (bytes, body) = read(body, keep).await?;
    Ok(Answer {
        status: head.status.as_u16(),
        bytes,
        body,
        etag,
    })
}

/// The error of a missing answer. The answer of a server at its connection limit is lost if it
/// closes the connection while the request is being sent; hyper has an error for each such moment.
fn no_answer(error: &hyper::Error) -> String {
    if error.is_parse() || error.is_user() || error.is_timeout() {
        return error.to_string();
    }
    format!("{ENDED}: {error}")
}

/// Whether a request was refused temporarily, since the server is at its limit.
pub fn is_for_now(reason: &str) -> bool {
    reason.starts_with("503") || reason.starts_with(ENDED)
}

/// Reads a body to its end: its length, and its first bytes.
async fn read(body: Incoming, keep: usize) -> Result<(u64, Vec<u8>), String> {
    let mut body = pin!(body);
    let (mut bytes, mut kept) = (0, Vec::new());
    while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
        let Ok(data) = frame.map_err(|error| error.to_string())?.into_data() else {
            continue;
        };
        bytes += data.remaining() as u64;
        let room = keep - kept.len();
        kept.extend_from_slice(&data[..data.len().min(room)]);
    }
    Ok((bytes, kept))
}

async fn connect(target: &Target) -> Result<Open, String> {
    let address = &target.address;
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await;
    let stream = stream.map_err(|error| format!("connecting: {error}"))?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    match (&target.tls, &address.server) {
        (Some(config), Some(server)) => {
            let connecting = TlsConnector::from(Arc::clone(config)).connect(server.clone(), stream);
            let stream = connecting.await.map_err(|error| error.to_string())?;
            let (sender, connection) = http1::handshake(TokioIo::new(stream))
                .await
                .map_err(|error| error.to_string())?;
            let ended = tokio::spawn(connection.map(drop));
            Ok(Open { sender, ended })
        }
        _ => {
            let (sender, connection) = http1::handshake(TokioIo::new(stream))
                .await
                .map_err(|error| error.to_string())?;
            let ended = tokio::spawn(connection.map(drop));
            Ok(Open { sender, ended })
        }
    }
}
