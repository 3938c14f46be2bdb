//! TLS to webhooks: trusted certificates.

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use std::{path::Path, sync::Arc};

/// The TLS settings for webhooks, with the authorities in this file, in PEM, otherwise with those
/// of the system.
///
/// # Errors
/// The reason that there are no authorities.
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
        // Certificates of the system that cannot be read are not trusted.
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
