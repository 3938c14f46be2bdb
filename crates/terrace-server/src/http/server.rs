//! Accepting connections and ending well.
//!
//! A connection has a limited time to send its request's head, there is a limited number of connections, and on
//! shutdown those in the middle of an answer get a limited time to take it. So no client can hold the server.

use super::{App, router, tls::Tls};
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
use tokio::{net::TcpListener, sync::Semaphore};

/// Any error.
type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Where to listen if nothing else is said.
pub const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7070);
/// Connections at a time; more wait in the operating system's queue.
const CONNECTIONS_MAX: usize = 1024;
/// Time for a request's head, and for a connection to stay idle.
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);
/// Time for answers under way when the server shuts down.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(10);
/// Pause after a failed accept, which mostly means that file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where connections come from.
#[derive(Debug)]
pub struct Listener {
    /// The address.
    pub listener: TcpListener,
    /// How they are encrypted, if they are.
    pub tls: Option<Arc<Tls>>,
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
    Listener { listener, tls }: Listener,
    stop: impl Future<Output = ()>,
    patience: Duration,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error: Into<Failed>, Future: Send> + Send + 'static,
    B: Body<Data: Send, Error: Into<Failed>> + Send + 'static,
{
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let graceful = GracefulShutdown::new();
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME_MAX);
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = async {
            // Never closed, so acquiring does not fail.
            let permit = Arc::clone(&connections).acquire_owned().await.ok();
            (permit, listener.accept().await)
        };
        let (permit, stream) = tokio::select! {
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
        // Small answers go out at once. Failure only costs latency.
        let _ = stream.set_nodelay(true);
        let (http, service, watcher) = (http.clone(), service_for(peer), graceful.watcher());
        let acceptor = tls.as_ref().map(|tls| tls.acceptor());
        tokio::spawn(async move {
            let _permit = permit;
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
