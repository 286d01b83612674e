//! TLS in front of both, and the files it needs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ciqadamq_gate::{GateConfig, GateListener, Transport, tls_config};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::support::{
    CONNECT, Site, frame, listener, read, read_close, read_frame, read_to_end, site_with, soon, upgrade,
};

/// An authority, and a certificate it signed, in files.
struct Files {
    dir: TempDir,
    ca: CertifiedIssuer<'static, KeyPair>,
}

impl Files {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let files = Self { dir: tempfile::tempdir().unwrap(), ca };
        files.write("ca.pem", &files.ca.pem(), 0o644);
        files.issue("server", "localhost");
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, content: &str, mode: u32) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        #[cfg(unix)]
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        path
    }

    fn issue(&self, name: &str, host: &str) {
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(vec![host.into()]).unwrap().signed_by(&key, &self.ca).unwrap();
        self.write(&format!("{name}.pem"), &cert.pem(), 0o644);
        self.write(&format!("{name}.key"), &key.serialize_pem(), 0o600);
    }

    async fn site(&self, transport: Transport, client_ca: bool) -> Site {
        let ca = self.path("ca.pem");
        let tls = tls_config(&self.path("server.pem"), &self.path("server.key"), client_ca.then_some(&ca)).unwrap();
        let door = GateListener { tls: Some(tls), ..listener("door", transport, false) };
        let mut config = GateConfig::new(vec![door]);
        config.connect_timeout = Duration::from_secs(3);
        site_with(config).await
    }

    /// A client that trusts the authority, and shows the certificate called `identity`.
    async fn connect(&self, site: &Site, identity: Option<&str>) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.ca.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match identity {
            Some(name) => {
                let cert = CertificateDer::from_pem_file(self.path(&format!("{name}.pem"))).unwrap();
                let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).unwrap();
                builder.with_client_auth_cert(vec![cert], key).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        let connector = TlsConnector::from(Arc::new(config));
        soon(connector.connect(ServerName::try_from("localhost").unwrap(), site.connect().await)).await
    }
}

#[tokio::test]
async fn mqtt_over_tls_is_carried_and_ended_in_order() {
    let files = Files::new();
    let site = files.site(Transport::Tls, false).await;
    let mut client = files.connect(&site, None).await.unwrap();
    client.write_all(CONNECT).await.unwrap();
    let mut engine = site.engine.accept_client().await;
    assert_eq!(engine.source, client.get_ref().0.local_addr().unwrap());

    let large: Vec<u8> = (0..3_000_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
    let (received, ()) = tokio::join!(read(&mut client, large.len()), async {
        engine.stream.write_all(&large).await.unwrap();
    });
    assert!(received == large);
    let (received, ()) = tokio::join!(read(&mut engine.stream, large.len()), async {
        client.write_all(&large).await.unwrap();
        client.flush().await.unwrap();
    });
    assert!(received == large);

    engine.stream.write_all(b"\xe0\0").await.unwrap();
    drop(engine);
    // With a missing close_notify, reading to the end would fail.
    let mut last = Vec::new();
    soon(tokio::io::AsyncReadExt::read_to_end(&mut client, &mut last)).await.unwrap();
    assert_eq!(last, b"\xe0\0");
    drop(client);
    site.wait_for_open(0.0).await;
}

#[tokio::test]
async fn websocket_over_tls_is_carried() {
    let files = Files::new();
    let site = files.site(Transport::WebSocketTls, false).await;
    let mut client = files.connect(&site, None).await.unwrap();
    upgrade(&mut client).await;
    client.write_all(&frame(0x89, b"")).await.unwrap();
    assert_eq!(read_frame(&mut client).await, (0x8a, vec![]));
    client.write_all(&frame(0x82, CONNECT)).await.unwrap();
    let mut engine = site.engine.accept_client().await;
    engine.stream.write_all(b"\xd0\0").await.unwrap();
    assert_eq!(read_frame(&mut client).await, (0x82, b"\xd0\0".to_vec()));
    drop(engine);
    assert_eq!(read_close(&mut client).await, 1000);
}

#[tokio::test]
async fn client_that_leaves_without_close_notify_ends_the_engines_connection() {
    let files = Files::new();
    let site = files.site(Transport::Tls, false).await;
    let mut client = files.connect(&site, None).await.unwrap();
    client.write_all(CONNECT).await.unwrap();
    client.flush().await.unwrap();
    let mut engine = site.engine.accept_client().await;
    drop(client);
    assert_eq!(read_to_end(&mut engine.stream).await, b"");
    drop(engine);
    site.wait_for_open(0.0).await;
}

#[tokio::test]
async fn client_certificates_are_required_when_an_authority_is_set() {
    let files = Files::new();
    files.issue("device", "device");
    let site = files.site(Transport::Tls, true).await;
    let mut known = files.connect(&site, Some("device")).await.unwrap();
    known.write_all(CONNECT).await.unwrap();
    site.engine.accept_client().await;

    // In TLS 1.3 the client learns of it only when it reads.
    let mut unknown = files.connect(&site, None).await.unwrap();
    assert_eq!(read_to_end(&mut unknown).await, b"");
    site.wait_for_failures("tls", 1.0).await;
    assert!(site.engine.is_unbothered().await);
}

#[tokio::test]
async fn plain_and_silent_clients_of_a_tls_listener_are_closed() {
    let files = Files::new();
    let site = files.site(Transport::Tls, false).await;
    let mut silent = site.connect().await;
    let mut plain = site.connect().await;
    plain.write_all(CONNECT).await.unwrap();
    read_to_end(&mut plain).await;
    site.wait_for_failures("tls", 1.0).await;
    assert_eq!(read_to_end(&mut silent).await, b"");
    site.wait_for_failures("timeout", 1.0).await;
}

fn fault(cert: &Path, key: &Path, ca: Option<&Path>) -> String {
    tls_config(cert, key, ca).unwrap_err().to_string()
}

#[test]
fn unusable_files_are_named_with_what_is_wrong() {
    let files = Files::new();
    let (cert, key) = (files.path("server.pem"), files.path("server.key"));
    let show = |path: &Path| format!("`{}`", path.display());

    let missing = files.path("missing.pem");
    assert!(fault(&missing, &key, None).starts_with(&format!("certificate file {} cannot be read: ", show(&missing))));
    assert!(fault(&cert, &missing, None).starts_with(&format!("key file {} cannot be read: ", show(&missing))));
    assert!(
        fault(&cert, &key, Some(&missing)).starts_with(&format!("client CA file {} cannot be read: ", show(&missing)))
    );

    let empty = files.write("empty.pem", "no PEM here\n", 0o600);
    assert_eq!(
        fault(&empty, &key, None),
        format!("certificate file {} has no CERTIFICATE section in PEM format", show(&empty))
    );
    assert_eq!(
        fault(&cert, &empty, None),
        format!("key file {} has no PRIVATE KEY section in PEM format", show(&empty))
    );

    let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let garbage = files.write("garbage.pem", garbage, 0o600);
    assert!(fault(&garbage, &key, None).starts_with(&format!("certificate file {} is not usable: ", show(&garbage))));
    assert!(
        fault(&cert, &key, Some(&garbage)).starts_with(&format!("client CA file {} is not usable: ", show(&garbage)))
    );

    files.issue("other", "other");
    assert!(
        fault(&cert, &files.path("other.key"), None)
            .starts_with(&format!("key file {} does not belong to", show(&files.path("other.key"))))
    );
}

#[cfg(unix)]
#[test]
fn key_readable_by_others_is_refused_with_the_remedy() {
    use std::os::unix::fs::PermissionsExt;
    let files = Files::new();
    let (cert, key) = (files.path("server.pem"), files.path("server.key"));
    for (mode, ok) in [(0o644, false), (0o604, false), (0o640, true), (0o400, true)] {
        std::fs::set_permissions(&key, PermissionsExt::from_mode(mode)).unwrap();
        match tls_config(&cert, &key, None) {
            Ok(_) => assert!(ok, "{mode:o} is taken"),
            Err(e) => {
                assert!(!ok, "{mode:o}: {e}");
                assert_eq!(e.to_string(), format!("key file `{}` is readable by others; run chmod 600", key.display()));
            }
        }
    }
}
