//! The sockets of page and S3.

use super::descriptors::connections_default;
use crate::{
    cli::ServeArgs,
    failure::{Failure, Outcome},
    http::{self, Page, opening::Opening, tls::Tls},
    s3::{self, Front},
    settings::{self, S3Listen, Settings},
    signals::{Received, Stop},
};
use std::{net::SocketAddr, sync::Arc};
use tokio::net::TcpListener;

/// The bound sockets.
pub struct Listeners {
    page: (TcpListener, SocketAddr),
    s3: Option<(TcpListener, SocketAddr)>,
    /// TLS of both, and the signal to read the certificate again.
    tls: Option<(Arc<Tls>, Option<Received>)>,
    limits: http::Limits,
    stop: Stop,
}

impl Listeners {
    /// Listens. Must be called within a runtime.
    ///
    /// # Errors
    /// An address in use; files for TLS that cannot be read.
    pub fn bind(args: &ServeArgs, settings: &Settings, stop: &Stop) -> Outcome<Self> {
        let files = settings::pair(args.tls_cert.clone(), args.tls_key.clone())?.or_else(|| settings.tls.clone());
        let tls = match files {
            None => None,
            Some((certificate, key)) => Some((Tls::load(certificate, key)?, stop.hang_up()?)),
        };
        let page = bind(page_address(args, settings), "--listen")?;
        let s3 = match args.s3_listen.or(settings.s3_listen) {
            Some(S3Listen::Off) => None,
            Some(S3Listen::At(address)) => Some(bind(address, "--s3-listen")?),
            None => Some(bind(s3::LISTEN_DEFAULT, "--s3-listen")?),
        };
        let all = args.connections.or(settings.connections);
        let limits = http::Limits {
            all: all.unwrap_or_else(|| connections_default(http::CONNECTIONS_DEFAULT)),
            of_one: args.sender_connections.or(settings.sender_connections),
        };
        Ok(Self {
            page,
            s3,
            tls,
            limits,
            stop: stop.clone(),
        })
    }

    /// The page's address.
    pub const fn page(&self) -> SocketAddr {
        self.page.1
    }

    /// The address of S3, if it is served.
    pub fn s3(&self) -> Option<SocketAddr> {
        self.s3.as_ref().map(|(_, address)| *address)
    }

    /// Whether there is TLS.
    pub const fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Serves until it is stopped. `traffic` counts the bytes of all connections.
    pub async fn serve(self, page: Opening<Page>, s3: Opening<Front>, traffic: Option<Arc<http::Traffic>>) {
        let tls = self.tls.map(|(tls, told)| {
            if let Some(told) = told {
                tokio::spawn(Arc::clone(&tls).reload_on(told));
            }
            tls
        });
        let with_tls = |listener| http::Listener {
            listener,
            tls: tls.clone(),
            limits: self.limits,
            traffic: traffic.clone(),
        };
        let (of_page, of_s3) = (self.stop.clone(), self.stop);
        let page = http::run(page, with_tls(self.page.0), of_page.begun());
        match self.s3 {
            None => page.await,
            Some((listener, _)) => {
                tokio::join!(page, s3::run(s3, with_tls(listener), of_s3.begun()));
            }
        }
    }
}

/// The page's address in the settings.
pub fn page_address(args: &ServeArgs, settings: &Settings) -> SocketAddr {
    let page = args.listen.or(settings.listen);
    page.map_or(http::LISTEN_DEFAULT, |listen| listen.0)
}

/// Binds an address, and returns the bound one.
fn bind(address: SocketAddr, flag: &str) -> Outcome<(TcpListener, SocketAddr)> {
    let listener = http::bind(address, flag)?;
    let address = listener
        .local_addr()
        .map_err(|error| Failure::io("listening", &error))?;
    Ok((listener, address))
}
