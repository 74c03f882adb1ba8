//! Certificate verifiers: pinned server certificates, and client certificates that the gatekeeper judges.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    WebPkiSupportedAlgorithms, aws_lc_rs as provider, verify_tls12_signature,
    verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use crate::fingerprint::Fingerprint;

fn algorithms() -> WebPkiSupportedAlgorithms {
    provider::default_provider().signature_verification_algorithms
}

/// True for a certificate whose signatures can be verified.
pub(crate) fn is_readable(certificate: &CertificateDer<'_>) -> bool {
    ParsedCertificate::try_from(certificate).is_ok()
}

fn verify(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    verify_tls13_signature(message, certificate, signature, &algorithms())
}

fn schemes() -> Vec<SignatureScheme> {
    algorithms().supported_schemes()
}

/// Verifier that accepts these server certificates only.
#[derive(Debug)]
pub(crate) struct PinnedServer(pub(crate) Vec<Fingerprint>);

impl ServerCertVerifier for PinnedServer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.0.contains(&Fingerprint::of(end_entity)) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes()
    }
}

/// Verifier that accepts any client certificate with proof of its key; the gatekeeper decides about it.
///
/// A certificate that webpki cannot read, such as a proxy (RFC 3820), does not end the handshake, because its client may
/// have a token. It has no proof, and [`certificate_fingerprint`](crate::certificate_fingerprint) does not identify it.
#[derive(Debug)]
pub(crate) struct AnyClient;

impl ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if !is_readable(certificate) {
            return Ok(HandshakeSignatureValid::assertion());
        }
        verify_tls12_signature(message, certificate, signature, &algorithms())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if !is_readable(certificate) {
            return Ok(HandshakeSignatureValid::assertion());
        }
        verify(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes()
    }
}
