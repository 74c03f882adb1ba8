//! The keys of both directions, and those that come after them (RFC 8446, 4.6.3 and 5.5).
//!
//! For: one connection after its handshake. Not for: telling the peer.

use std::fmt;

use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{Error, ExtractedSecrets, SupportedCipherSuite};

use super::record::RecordKey;

/// What rustls makes the next keys from.
enum Secrets {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

/// The keys in use.
pub(super) struct Keys {
    pub(super) sending: RecordKey,
    pub(super) receiving: RecordKey,
    /// Records that one key may protect.
    pub(super) records_max: u64,
    secrets: Secrets,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(secret)")
    }
}

impl Keys {
    /// The keys that a client's handshake led to.
    pub(super) fn client(
        (first, next): (ExtractedSecrets, KernelConnection<ClientConnectionData>),
    ) -> Result<Self, Error> {
        let suite = next.negotiated_cipher_suite();
        Self::new(first, suite, Secrets::Client(next))
    }

    /// The keys that a server's handshake led to.
    pub(super) fn server(
        (first, next): (ExtractedSecrets, KernelConnection<ServerConnectionData>),
    ) -> Result<Self, Error> {
        let suite = next.negotiated_cipher_suite();
        Self::new(first, suite, Secrets::Server(next))
    }

    fn new(
        first: ExtractedSecrets,
        suite: SupportedCipherSuite,
        secrets: Secrets,
    ) -> Result<Self, Error> {
        let records_max = suite.tls13().map_or(0, |suite| suite.common.confidentiality_limit);
        let (sending, receiving) = (RecordKey::new(first.tx)?, RecordKey::new(first.rx)?);
        Ok(Self { sending, receiving, records_max, secrets })
    }

    /// Whether the next record must be the last under the sending key.
    pub(super) fn sending_is_old(&self) -> bool {
        self.sending.records() + 1 >= self.records_max
    }

    /// Goes on to the next sending key.
    pub(super) fn update_sending(&mut self) -> Result<(), Error> {
        let next = match &mut self.secrets {
            Secrets::Client(secrets) => secrets.update_tx_secret(),
            Secrets::Server(secrets) => secrets.update_tx_secret(),
        };
        self.sending = RecordKey::new(next?)?;
        Ok(())
    }

    /// Goes on to the next receiving key.
    pub(super) fn update_receiving(&mut self) -> Result<(), Error> {
        let next = match &mut self.secrets {
            Secrets::Client(secrets) => secrets.update_rx_secret(),
            Secrets::Server(secrets) => secrets.update_rx_secret(),
        };
        self.receiving = RecordKey::new(next?)?;
        Ok(())
    }
}
