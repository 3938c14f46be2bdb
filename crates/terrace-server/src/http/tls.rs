//! TLS of the listeners: certificate and key from files, read again on a signal.
//!
//! A connection keeps its certificate; new ones get the last that was read. Unusable files change
//! nothing, and the reason is logged.

use crate::{
    failure::{Failure, Outcome},
    signals::Received,
};
use parking_lot::RwLock;
use rustls::{
    CommonState, ProtocolVersion, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject as _},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio_rustls::TlsAcceptor;

/// The TLS version of a connection, for policies. It is passed with each request of the connection.
#[derive(Debug, Clone, Copy)]
pub struct TlsVersion(pub &'static str);

impl TlsVersion {
    /// That of a connection after its handshake.
    pub fn of(connection: &CommonState) -> Option<Self> {
        match connection.protocol_version()? {
            ProtocolVersion::TLSv1_2 => Some(Self("1.2")),
            ProtocolVersion::TLSv1_3 => Some(Self("1.3")),
            _ => None,
        }
    }
}

/// A certificate and its key.
#[derive(Debug)]
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    config: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads the files: a certificate with its chain, and its key, all in PEM.
    ///
    /// # Errors
    /// Naming the invalid file.
    pub fn load(certificate: PathBuf, key: PathBuf) -> Outcome<Arc<Self>> {
        let config = RwLock::new(read(&certificate, &key)?);
        Ok(Arc::new(Self {
            certificate,
            key,
            config,
        }))
    }

    /// The acceptor of the next connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config.read()))
    }

    /// Reads the files again on each signal; never returns.
    pub async fn reload_on(self: Arc<Self>, mut told: Received) {
        loop {
            told.next().await;
            self.reload();
        }
    }

    fn reload(&self) {
        match read(&self.certificate, &self.key) {
            Ok(config) => {
                *self.config.write() = config;
                tracing::info!("the certificate was read again");
            }
            Err(failure) => tracing::error!(%failure, "the certificate stays as it was"),
        }
    }
}

fn read(certificate: &Path, key: &Path) -> Outcome<Arc<ServerConfig>> {
    let unusable = |path: &Path, reason: String| Failure::error(format!("{}: {reason}", path.display()));
    let of_pem = |path: &Path, what: &str, error: pem::Error| match error {
        pem::Error::Io(error) => unusable(path, error.to_string()),
        pem::Error::NoItemsFound => unusable(path, format!("there is no {what} in it; it must be in PEM")),
        error => unusable(path, format!("it is not PEM: {error}")),
    };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(|items| items.collect::<Result<Vec<_>, _>>())
        .map_err(|error| of_pem(certificate, "certificate", error))?;
    if chain.is_empty() {
        return Err(of_pem(certificate, "certificate", pem::Error::NoItemsFound));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| of_pem(key, "private key", error))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private));
    let mut config = config.map_err(|error| {
        Failure::error(format!(
            "{} and {} cannot be used: {error}",
            certificate.display(),
            key.display()
        ))
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let made = |name: &str| {
            let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
            let certificate = write(&format!("{name}.crt"), &made.cert.pem());
            (
                certificate,
                write(&format!("{name}.key"), &made.signing_key.serialize_pem()),
            )
        };
        let (one, other) = (made("one"), made("other"));
        let nothing = write("nothing", "this is not PEM\n");
        let missing = dir.path().join("missing");
        let refused = |certificate: &PathBuf, key: &PathBuf| {
            let failure = Tls::load(certificate.clone(), key.clone()).unwrap_err();
            failure.message
        };
        assert!(Tls::load(one.0.clone(), one.1.clone()).is_ok());
        assert!(refused(&missing, &one.1).contains("missing: No such file"));
        assert!(refused(&one.0, &missing).contains("missing: No such file"));
        assert!(refused(&nothing, &one.1).contains("nothing: there is no certificate in it"));
        assert!(refused(&one.0, &nothing).contains("nothing: there is no private key in it"));
        assert!(refused(&one.1, &one.1).contains("one.key: there is no certificate in it"));
        assert!(
            refused(&one.0, &other.1).contains("cannot be used"),
            "a key of another certificate"
        );
    }
}
