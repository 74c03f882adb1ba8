//! Certificate of a TLS server that may be renewed while the server runs.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::tls_config::crypto;

/// Certificate of a server with its chain and its key. One that replaces it is sent to the connections that follow; those
/// that are open keep theirs.
#[derive(Debug)]
pub struct ServerCertificate(RwLock<Arc<CertifiedKey>>);

impl ServerCertificate {
    /// Checks that the first certificate of `chain` belongs to `key`.
    ///
    /// # Errors
    /// If it does not, or TLS cannot use them.
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, rustls::Error> {
        let key = CertifiedKey::from_der(chain, key, &crypto())?;
        Ok(Self(RwLock::new(Arc::new(key))))
    }

    /// Sends the certificate of `renewed` from now on. Returns false if it is the present one.
    pub fn replace(&self, renewed: &Self) -> bool {
        let renewed = renewed.current();
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let is_other = current.cert != renewed.cert;
        *current = renewed;
        is_other
    }

    /// The certificate in DER, without its chain.
    pub(crate) fn end_entity(&self) -> CertificateDer<'static> {
        self.current().cert.first().cloned().unwrap_or_else(|| Vec::new().into())
    }

    pub(crate) fn current(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ResolvesServerCert for ServerCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}
