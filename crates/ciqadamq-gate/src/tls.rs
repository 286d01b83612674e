//! Certificate, key and client CA from PEM files, with errors that say what to do.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{self, InconsistentKeys, RootCertStore, ServerConfig};

/// PEM files are a few kilobytes; a CA bundle a few hundred. More is a wrong path.
const PEM_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Why the TLS files cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file is missing or unreadable.
    #[error("{what} file `{}` cannot be read: {source}", path.display())]
    Read {
        /// Which of the files: certificate, key or client CA.
        what: &'static str,
        /// Its path as configured.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is far too large for PEM.
    #[error("{what} file `{}` is larger than 4 MiB; is the path right?", path.display())]
    TooLarge {
        /// Which of the files.
        what: &'static str,
        /// Its path as configured.
        path: PathBuf,
    },
    /// The file has no PEM section of the kind needed.
    #[error("{what} file `{}` has no {section} section in PEM format", path.display())]
    Empty {
        /// Which of the files.
        what: &'static str,
        /// Its path as configured.
        path: PathBuf,
        /// What is missing from it.
        section: &'static str,
    },
    /// The file is not valid PEM, or what it holds is not usable.
    #[error("{what} file `{}` is not usable: {reason}", path.display())]
    Invalid {
        /// Which of the files.
        what: &'static str,
        /// Its path as configured.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Anybody on the machine can use the key.
    #[error("key file `{}` is readable by others; run chmod 600", path.display())]
    KeyExposed {
        /// The key's path as configured.
        path: PathBuf,
    },
    /// The key is another certificate's.
    #[error(
        "key file `{}` does not belong to the first certificate in `{}`; the server's own certificate has to come first",
        key.display(), cert.display()
    )]
    KeyMismatch {
        /// The certificate's path as configured.
        cert: PathBuf,
        /// The key's path as configured.
        key: PathBuf,
    },
}

/// Reads a server's TLS files: TLS 1.2 and 1.3, the certificate chain with the server's own first, its key, and, if
/// `client_ca` is given, the authorities one of which must have signed every client's certificate.
///
/// # Errors
/// A file that is missing, empty, not PEM or not fitting the others, and, on Unix, a key file that others can read.
pub fn tls_config(cert: &Path, key: &Path, client_ca: Option<&Path>) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = read_certs("certificate", cert)?;
    let private = read_key(key)?;
    let provider = Arc::new(ring::default_provider());
    let invalid_cert = |e: rustls::Error| invalid("certificate", cert, e);

    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(invalid_cert)?;
    let builder = match client_ca {
        Some(path) => builder.with_client_cert_verifier(client_verifier(path, provider)?),
        None => builder.with_no_client_auth(),
    };
    let config = builder.with_single_cert(chain, private).map_err(|e| match e {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            TlsError::KeyMismatch { cert: cert.into(), key: key.into() }
        }
        rustls::Error::InvalidCertificate(_) => invalid_cert(e),
        other => invalid("key", key, other),
    })?;
    Ok(Arc::new(config))
}

fn client_verifier(
    path: &Path,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    for ca in read_certs("client CA", path)? {
        roots.add(ca).map_err(|e| invalid("client CA", path, e))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|e| invalid("client CA", path, e))
}

fn read_certs(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = read(what, path, &open(what, path)?)?;
    let certs =
        CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>().map_err(|e| invalid(what, path, e))?;
    if certs.is_empty() {
        return Err(TlsError::Empty { what, path: path.into(), section: "CERTIFICATE" });
    }
    Ok(certs)
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let file = open("key", path)?;
    // Judged on the opened file, not on the path: nothing can be swapped in between.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let meta = file.metadata().map_err(|source| TlsError::Read { what: "key", path: path.into(), source })?;
        // A group may have it: Debian's ssl-cert and Kubernetes' fsGroup hand keys out that way.
        if meta.permissions().mode() & 0o007 != 0 {
            return Err(TlsError::KeyExposed { path: path.into() });
        }
    }
    let pem = read("key", path, &file)?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|e| match e {
        pem::Error::NoItemsFound => TlsError::Empty { what: "key", path: path.into(), section: "PRIVATE KEY" },
        other => invalid("key", path, other),
    })
}

fn open(what: &'static str, path: &Path) -> Result<File, TlsError> {
    File::open(path).map_err(|source| TlsError::Read { what, path: path.into(), source })
}

fn read(what: &'static str, path: &Path, file: &File) -> Result<Vec<u8>, TlsError> {
    let mut content = Vec::new();
    file.take(PEM_BYTES_MAX + 1).read_to_end(&mut content).map_err(|source| TlsError::Read {
        what,
        path: path.into(),
        source,
    })?;
    if content.len() as u64 > PEM_BYTES_MAX {
        return Err(TlsError::TooLarge { what, path: path.into() });
    }
    Ok(content)
}

fn invalid(what: &'static str, path: &Path, reason: impl std::fmt::Display) -> TlsError {
    TlsError::Invalid { what, path: path.into(), reason: reason.to_string() }
}
