//! Accepts connections, and shuts down.
//!
//! A connection has a limited time to send its request's head, the number of connections is limited
//! ([`super::connections`]), and on shutdown answers in progress have a limited time. So no client
//! can block the server.

use super::{
    Page,
    connections::{Answering, Connections, GATHERED_BYTES_MAX, Limits, Place},
    opening::Opening,
    outgoing::Outgoing,
    tls::{Tls, TlsVersion},
    traffic::Traffic,
};
use crate::failure::{Failure, Outcome};
use futures_util::future::{Either, ready};
use http_body::Body;
use hyper::{
    Request, Response,
    body::Incoming,
    server::conn::http1::Builder,
    service::{Service, service_fn},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{
    future::poll_fn,
    io,
    net::{Ipv4Addr, SocketAddr},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::{Duration, SystemTime},
};
use terrace::Clock;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Default address.
pub const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7070);
/// Time for a request's head, and for a connection to stay idle.
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);
/// Longest time in which a client may read nothing.
const CLIENT_TIME_MAX: Duration = Duration::from_secs(60);
/// Longest read of a connection, and longest head; it reads one ahead. hyper has one limit for this
/// and for the bytes that it gathers to send.
const READ_BYTES_MAX: usize = GATHERED_BYTES_MAX;
/// Time for answers in progress when the server shuts down.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(10);
/// The answer to a sender that has its maximum of connections.
const TOO_MANY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
/// Connections in the operating system's queue before they are accepted; it has a limit of its own,
/// too (`net.core.somaxconn`). A client that finds the queue full tries again a second later. With
/// 128, the standard library's value, that happened to some of 256 that connected at once.
const WAITING_MAX: u32 = 4096;
/// Pause after a failed accept, which usually means that file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A source of connections.
pub trait Accept {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Waits for a connection, and returns it with the sender that it counts for.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, SocketAddr)>> + Send;

    /// Sends an answer, if the client can receive it immediately.
    fn send_at_once(stream: &Self::Stream, answer: &[u8]);
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let accepted = Self::accept(self).await?;
        // Sends small answers without delay. Failure only costs latency.
        let _ = accepted.0.set_nodelay(true);
        Ok(accepted)
    }

    fn send_at_once(stream: &TcpStream, answer: &[u8]) {
        let _ = stream.try_write(answer);
    }
}

/// A listener.
#[derive(Debug)]
pub struct Listener<L = TcpListener> {
    /// The address.
    pub listener: L,
    /// TLS, if it is enabled.
    pub tls: Option<Arc<Tls>>,
    /// Limits on connections.
    pub limits: Limits,
    /// Counts bytes.
    pub traffic: Option<Arc<Traffic>>,
}

/// Serves the page until `stop` resolves, then finishes answers in progress.
pub async fn run(opening: Opening<Page>, listener: Listener, stop: impl Future<Output = ()>) {
    let service_for = |peer: SocketAddr| {
        let opening = opening.clone();
        service_fn(move |mut request: Request<Incoming>| {
            let Some(page) = opening.service() else {
                return Either::Left(ready(Ok(opening.answer(&request))));
            };
            request.extensions_mut().insert(peer);
            Either::Right(page.call(request))
        })
    };
    serve(service_for, listener, stop, SHUTDOWN_TIME_MAX).await;
}

/// Serves until `stop` resolves, then finishes requests in progress, for at most `patience`.
/// `service_for` makes the service of a connection with that peer.
pub async fn serve<S, B, L: Accept>(
    service_for: impl Fn(SocketAddr) -> S,
    Listener {
        listener,
        tls,
        limits,
        traffic,
    }: Listener<L>,
    stop: impl Future<Output = ()>,
    patience: Duration,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error: Into<Failed>, Future: Send> + Send + Sync + 'static,
    B: Body<Data: Send, Error: Into<Failed>> + Send + Unpin + 'static,
{
    let connections = Connections::new(limits);
    // Each connection has a receiver, so the sender is notified when the last has ended.
    let (stopping, stopped) = watch::channel(());
    let mut http = Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(READ_BYTES_MAX);
    let mut stop = pin!(stop);
    loop {
        let admitted = async {
            let (stream, peer) = listener.accept().await?;
            let place = connections.admit(peer.ip()).await;
            Ok::<_, io::Error>((stream, peer, place))
        };
        let admitted = tokio::select! {
            admitted = admitted => admitted,
            () = &mut stop => break,
        };
        let (stream, peer, place) = match admitted {
            Ok(admitted) => admitted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(place) = place else {
            refuse::<L>(&stream, tls.is_some());
            continue;
        };
        let stream = outgoing(stream, &place, traffic.clone());
        let (http, service, stopped) = (dated(&http), service_for(peer), stopped.clone());
        let acceptor = tls.as_ref().map(|tls| tls.acceptor());
        tokio::spawn(async move {
            let outcome = match acceptor {
                None => drive(&http, stream, service, (&place, None), stopped).await,
                Some(acceptor) => match encrypted(&acceptor, stream, &place).await {
                    Some(stream) => {
                        let version = TlsVersion::of(stream.get_ref().1);
                        drive(&http, stream, service, (&place, version), stopped).await
                    }
                    None => return,
                },
            };
            if let Err(error) = outcome {
                tracing::debug!(%error, "a connection ended early");
            }
        });
    }
    // New connections are refused from here on.
    drop((listener, stopped));
    let _ = stopping.send(());
    if timeout(patience, stopping.closed()).await.is_err() {
        tracing::warn!("clients that did not take their answers in time were cut off");
    }
}

/// The stream of a connection.
fn outgoing<S>(stream: S, place: &Place, traffic: Option<Arc<Traffic>>) -> Outgoing<S> {
    Outgoing::new(stream, CLIENT_TIME_MAX)
        .telling(place.sending())
        .counted_by(traffic)
}

/// Performs the TLS handshake. A client that does not finish it holds a connection no longer than
/// one that does not send a head.
async fn encrypted<S: AsyncRead + AsyncWrite + Unpin>(
    acceptor: &TlsAcceptor,
    stream: S,
    place: &Place,
) -> Option<TlsStream<S>> {
    let accepted = tokio::select! {
        accepted = timeout(HEAD_TIME_MAX, acceptor.accept(stream)) => accepted,
        () = place.wanted_by_others() => return None,
    };
    match accepted {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
    None
}

/// The same with a date in answers, if the clock has one: hyper panics at a date that it cannot
/// write, and answers of a server without a clock need none (RFC 9110, section 6.6.1).
fn dated(http: &Builder) -> Builder {
    let (mut http, now) = (http.clone(), SystemTime::now());
    http.auto_date_header(Clock::dated(now) == now);
    http
}

/// Serves a connection until it ends, the server stops, or its place is needed.
async fn drive<S, B>(
    http: &Builder,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    service: S,
    (place, version): (&Place, Option<TlsVersion>),
    mut stopped: watch::Receiver<()>,
) -> hyper::Result<()>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error: Into<Failed>>,
    B: Body<Error: Into<Failed>> + Unpin + 'static,
{
    let service = service_fn(|mut request: Request<Incoming>| {
        let under_way = place.begin();
        if let Some(version) = version {
            request.extensions_mut().insert(version);
        }
        let answer = service.call(request);
        async move { Ok::<_, S::Error>(answer.await?.map(|body| Answering::new(body, under_way))) }
    });
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        outcome = connection.as_mut() => return outcome,
        () = place.wanted_by_others() => {
            connection.as_mut().graceful_shutdown();
            // A request that arrived at the same time is still answered. Half a head is not waited
            // for: new connections are accepted one after the other.
            let ended = poll_fn(|context| Poll::Ready(connection.as_mut().poll(context))).await;
            return match ended {
                Poll::Ready(outcome) => outcome,
                Poll::Pending if place.is_busy() => connection.await,
                Poll::Pending => Ok(()),
            };
        }
        _ = stopped.changed() => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await
}

/// Answers that there are too many connections. Within TLS it would break the handshake.
fn refuse<L: Accept>(stream: &L::Stream, is_encrypted: bool) {
    if !is_encrypted {
        L::send_at_once(stream, TOO_MANY);
    }
}

/// Binds `address`.
///
/// # Errors
/// With advice if the address is in use or not allowed.
pub fn bind(address: SocketAddr, flag: &str) -> Outcome<TcpListener> {
    listen(address).map_err(|error| {
        Failure::error(format!(
            "cannot listen on {address}: {error}; choose another address with {flag}"
        ))
    })
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Like `TcpListener::bind`: connections of an ended server do not block the address for another
    // process.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(WAITING_MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::{net::TcpStream as Client, time::Instant};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// Regression: of 256 clients that connected at once, as a load generator does for each row,
    /// some were delayed by a second: 5,000 deletions took 1.02 s instead of 0.3.
    #[tokio::test]
    async fn many_may_come_before_one_is_accepted() {
        let limit = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        let limit: usize = limit.trim().parse().unwrap();
        let listener = bind(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0), "--listen").unwrap();
        let address = listener.local_addr().unwrap();
        let connect = |_| Client::connect_timeout(&address, Duration::from_millis(700));
        let clients: Result<Vec<_>, _> = (0..limit.min(300)).map(connect).collect();
        assert!(clients.is_ok(), "{clients:?}");
    }

    /// A client of this address that has sent these bytes.
    async fn client(from: [u8; 4], to: SocketAddr, sent: &str) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(from.into(), 0)).unwrap();
        let mut stream = socket.connect(to).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        stream
    }

    /// Regression: a sender that had its share of connections, each with half a head, and kept
    /// connecting blocked all others: each of its new connections was accepted after an old one had
    /// had a second to end, and all others waited behind them.
    #[tokio::test]
    async fn half_heads_do_not_block_other_senders() {
        let listener = bind(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0), "--listen").unwrap();
        let address = listener.local_addr().unwrap();
        let listener = Listener {
            listener,
            tls: None,
            limits: Limits { all: 8, of_one: None },
            traffic: None,
        };
        let service = |_| service_fn(|_: Request<Incoming>| async { Ok::<_, io::Error>(Response::new(String::new())) });
        let server = tokio::spawn(serve(service, listener, std::future::pending(), Duration::ZERO));
        let mut held = Vec::new();
        for _ in 0..6 + 20 {
            held.push(client([127, 0, 0, 1], address, "GET / HTTP/1.1\r\nHost:").await);
        }
        let asked = Instant::now();
        let mut other = client([127, 0, 0, 2], address, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let mut answer = [0; 12];
        other.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        // It took twenty seconds.
        assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
        server.abort();
    }
}
