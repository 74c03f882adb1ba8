//! Connections: transports, TLS, packet labels, handshakes and frames.

pub(crate) mod channel;
pub(crate) mod cleartext_networks;
pub(crate) mod connector;
pub(crate) mod dial;
pub(crate) mod firefly;
pub(crate) mod frame;
pub(crate) mod handshake;
pub(crate) mod labels;
pub(crate) mod rdma;
mod tls;
pub(crate) mod transport;
