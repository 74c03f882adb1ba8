//! Traffic keys of both directions and their updates (RFC 8446, 4.6.3 and 5.5).
//!
//! For one connection after its handshake; the caller sends KeyUpdate messages.

use std::fmt;

use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{Error, ExtractedSecrets, SupportedCipherSuite};

use super::record::RecordKey;

/// Traffic secrets from which rustls derives the next keys.
enum Secrets {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

/// Current keys of both directions.
pub(super) struct TrafficKeys {
    pub(super) sending: RecordKey,
    pub(super) receiving: RecordKey,
    /// Limit of records under one key.
    pub(super) records_max: u64,
    secrets: Secrets,
}

impl fmt::Debug for TrafficKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TrafficKeys(secret)")
    }
}

impl TrafficKeys {
    /// Creates the keys of a client's handshake.
    pub(super) fn client(
        (first, next): (ExtractedSecrets, KernelConnection<ClientConnectionData>),
    ) -> Result<Self, Error> {
        let suite = next.negotiated_cipher_suite();
        Self::new(first, suite, Secrets::Client(next))
    }

    /// Creates the keys of a server's handshake.
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

    /// True if the next record must be the last under the sending key.
    pub(super) fn sending_is_old(&self) -> bool {
        self.sending.records() + 1 >= self.records_max
    }

    /// Switches to the next sending key.
    pub(super) fn update_sending(&mut self) -> Result<(), Error> {
        let next = match &mut self.secrets {
            Secrets::Client(secrets) => secrets.update_tx_secret(),
            Secrets::Server(secrets) => secrets.update_tx_secret(),
        };
        self.sending = RecordKey::new(next?)?;
        Ok(())
    }

    /// Switches to the next receiving key.
    pub(super) fn update_receiving(&mut self) -> Result<(), Error> {
        let next = match &mut self.secrets {
            Secrets::Client(secrets) => secrets.update_rx_secret(),
            Secrets::Server(secrets) => secrets.update_rx_secret(),
        };
        self.receiving = RecordKey::new(next?)?;
        Ok(())
    }
}
