//! Ends of encrypted connections: a client takes one without close_notify (RFC 8446 section 6.1) for an attack.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use penstock_testkit::raw::uninterrupted;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::raw::RootClient;
use super::root_site;
use crate::site::{HostCertificate, Site};

/// A connection that has changed to TLS.
type EncryptedClient = StreamOwned<ClientConnection, TcpStream>;

/// Opens a connection, changes to TLS, and waits for the answer to a request there.
fn connect(site: &Site, certificate: &HostCertificate) -> EncryptedClient {
    let mut authorities = RootCertStore::empty();
    authorities.add(CertificateDer::from_pem_file(certificate.path("ca.pem")).unwrap()).unwrap();
    let provider = Arc::new(penstock_http::crypto_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(authorities)
        .with_no_client_auth();
    let mut client = RootClient::connect(site);
    client.handshake();
    // kXR_protocol of version 5.1.0, with kXR_wantTLS.
    let mut protocol = [0; 16];
    protocol[..4].copy_from_slice(&0x510_u32.to_be_bytes());
    protocol[4] = 4;
    assert_eq!(client.ask(3006, protocol, b"").unwrap().status, 0);
    let name = "localhost".try_into().unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(session, client.stream);
    // kXR_login.
    stream.write_all(&[&[0, 1, 0x0b, 0xbf][..], &[0; 20]].concat()).unwrap();
    stream.read_exact(&mut [0; 8]).unwrap();
    stream
}

/// Reads to the end, and fails where it comes without close_notify.
fn assert_closed(mut stream: EncryptedClient) {
    let mut rest = Vec::new();
    uninterrupted(|| stream.read_to_end(&mut rest)).expect("close_notify");
}

#[test]
fn evicted_connection_ends_with_close_notify() {
    let certificate = HostCertificate::new();
    let site = root_site(&format!("{}connections = 1\n", certificate.config()));
    let first = connect(&site, &certificate);
    let second = connect(&site, &certificate);
    assert_closed(first);
    drop(second);
}

/// The same end as that of an idle connection, for which no test waits.
#[test]
fn stopped_server_sends_close_notify() {
    let certificate = HostCertificate::new();
    let site = root_site(&certificate.config());
    let idle = connect(&site, &certificate);
    site.agent.signal("TERM");
    assert_closed(idle);
}
