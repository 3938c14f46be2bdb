//! TLS to webhooks: whose certificates are believed.

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use std::{path::Path, sync::Arc};

/// What connects to webhooks over TLS. Those servers are believed that the authorities in this file
/// vouch for, in PEM, or else those of the system.
///
/// # Errors
/// Saying why there are none.
pub fn config(authorities: Option<&Path>) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = authorities {
        let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let certificates = CertificateDer::pem_file_iter(path).map_err(|error| wrong(&error))?;
        for certificate in certificates {
            let certificate = certificate.map_err(|error| wrong(&error))?;
            roots.add(certificate).map_err(|error| wrong(&error))?;
        }
        if roots.is_empty() {
            return Err(wrong(&"there is no certificate in it; it must be in PEM"));
        }
    } else {
        // What of the system cannot be read vouches for no server.
        let of_system = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(of_system.certs);
        if roots.is_empty() {
            return Err("the system has no certificates of authorities; name a file with them".to_owned());
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
