//! Accepting connections and ending well.
//!
//! A connection has a limited time to send its request's head, there is a limited number of connections, and on
//! shutdown those in the middle of an answer get a limited time to take it. So no client can hold the server.

use super::{
    App,
    connections::{Connections, Limits},
    outgoing::Outgoing,
    router,
    tls::Tls,
};
use crate::failure::{Failure, Outcome};
use http_body::Body;
use hyper::{Request, Response, body::Incoming, service::Service};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::net::{TcpListener, TcpStream};

/// Any error.
type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Where to listen if nothing else is said.
pub const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7070);
/// Time for a request's head, and for a connection to stay idle.
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);
/// Longest a client may take nothing of what it is sent, and leave a piece of a body waiting.
pub const CLIENT_TIME_MAX: Duration = Duration::from_secs(60);
/// Time for answers under way when the server shuts down.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(10);
/// What a sender gets who has as many connections as he may.
const TOO_MANY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
/// Pause after a failed accept, which mostly means that file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where connections come from.
#[derive(Debug)]
pub struct Listener {
    /// The address.
    pub listener: TcpListener,
    /// How they are encrypted, if they are.
    pub tls: Option<Arc<Tls>>,
    /// How many there may be.
    pub limits: Limits,
}

/// Serves the page until `stop` resolves, then finishes answers under way.
pub async fn run(app: Arc<App>, listener: Listener, stop: impl Future<Output = ()>) {
    let service = TowerToHyperService::new(router(app));
    serve(|_| service.clone(), listener, stop, SHUTDOWN_TIME_MAX).await;
}

/// Serves until `stop` resolves, then finishes requests under way, for as long as `patience`. `service_for` gives the
/// service of a connection with that peer.
pub async fn serve<S, B>(
    service_for: impl Fn(SocketAddr) -> S,
    Listener { listener, tls, limits }: Listener,
    stop: impl Future<Output = ()>,
    patience: Duration,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error: Into<Failed>, Future: Send> + Send + 'static,
    B: Body<Data: Send, Error: Into<Failed>> + Send + 'static,
{
    let connections = Connections::new(limits);
    let graceful = GracefulShutdown::new();
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME_MAX);
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = async {
            let place = connections.room().await;
            (place, listener.accept().await)
        };
        let (mut place, stream) = tokio::select! {
            accepted = accepted => accepted,
            () = &mut stop => break,
        };
        let (stream, peer) = match stream {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if !place.take(peer.ip()) {
            refuse(&stream, tls.is_some());
            continue;
        }
        // Small answers go out at once. Failure only costs latency.
        let _ = stream.set_nodelay(true);
        let stream = Outgoing::new(stream, CLIENT_TIME_MAX);
        let (http, service, watcher) = (http.clone(), service_for(peer), graceful.watcher());
        let acceptor = tls.as_ref().map(|tls| tls.acceptor());
        tokio::spawn(async move {
            let _place = place;
            let outcome = match acceptor {
                None => {
                    watcher
                        .watch(http.serve_connection(TokioIo::new(stream), service))
                        .await
                }
                // Who does not finish the handshake holds a connection no longer than who does not send a head.
                Some(acceptor) => match tokio::time::timeout(HEAD_TIME_MAX, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => {
                        watcher
                            .watch(http.serve_connection(TokioIo::new(stream), service))
                            .await
                    }
                    Ok(Err(error)) => return tracing::debug!(%error, "a TLS handshake failed"),
                    Err(_) => return tracing::debug!("a TLS handshake took too long"),
                },
            };
            if let Err(error) = outcome {
                tracing::debug!(%error, "a connection ended early");
            }
        });
    }
    // New connections are refused from here on.
    drop(listener);
    if tokio::time::timeout(patience, graceful.shutdown()).await.is_err() {
        tracing::warn!("clients that did not take their answers in time were cut off");
    }
}

/// Says that there are too many, to who takes it at once. Within TLS it would be noise in a handshake.
fn refuse(stream: &TcpStream, is_encrypted: bool) {
    if !is_encrypted {
        let _ = stream.try_write(TOO_MANY);
    }
}

/// Binds `address`.
///
/// # Errors
/// Saying what to do if it is taken or not allowed.
pub async fn bind(address: SocketAddr, flag: &str) -> Outcome<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        Failure::error(format!(
            "cannot listen on {address}: {error}; choose another address with {flag}"
        ))
    })
}
