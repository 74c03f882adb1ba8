//! Record of each ended transfer with what was known when it began, for a history.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use penstock_host::load::HostLoad;
use penstock_protocol::open::Protection;
use penstock_tuner::TunerSample;

use super::listing::ListedTransfer;
use crate::client::stream_tuning::KnownStreams;

/// Settings, load and company of a transfer at its start.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StartConditions {
    /// Block size in bytes; `None` for transfers of a gateway.
    pub block_bytes: Option<u32>,
    /// Protection of the data streams; `None` for transfers of a gateway.
    pub protection: Option<Protection>,
    /// Other transfers that ran at this agent.
    pub other_transfers: u32,
    /// Data streams of the other transfers.
    pub other_streams: u32,
    /// Load of this host.
    pub load: HostLoad,
}

/// Transfer of the agent that has ended.
#[derive(Debug, Clone)]
pub struct EndedTransfer {
    /// Its counters and its end.
    pub listed: ListedTransfer,
    /// `penstock`, or the protocol of a gateway.
    pub protocol: &'static str,
    /// Host of the other end of the data, without a port: its name where this agent connected to a name, since a host
    /// may have several addresses; else its address.
    pub other_host: String,
    /// Most streams that were connected at once.
    pub streams_peak: u16,
    /// Streams that it had for most of its second half; `None` where its client chose them.
    pub streams_settled: Option<u16>,
    /// Smallest round-trip time of the data streams.
    pub rtt_us: Option<u32>,
    /// Conditions at its start.
    pub start: StartConditions,
    /// Latest samples of its tuner; none where it had none.
    pub samples: Arc<VecDeque<TunerSample>>,
}

/// Receiver of ended transfers. Called by threads of transfers: it must not block.
pub trait EndedTransferLog: Debug + Send + Sync {
    /// Takes an ended transfer.
    fn record(&self, ended: EndedTransfer);

    /// Streams that the best of the latest transfers to `host` ended with; `None` where too few are known.
    fn best_streams(&self, host: &str, protection: Protection) -> Option<KnownStreams> {
        let _ = (host, protection);
        None
    }
}

/// Host of an address as transfers show it: without port and brackets, IPv4 in its own form.
pub(super) fn host_of(peer: &str) -> String {
    if let Ok(address) = peer.parse::<SocketAddr>() {
        return address.ip().to_canonical().to_string();
    }
    match peer.rsplit_once(':') {
        Some((host, port))
            if port.bytes().all(|byte| byte.is_ascii_digit()) && !host.contains(':') =>
        {
            host.to_owned()
        }
        _ => peer.trim_start_matches('[').trim_end_matches(']').to_owned(),
    }
}

/// Host that this agent connected to as `shown`: its name in lower case, else the address that was used.
pub(super) fn dialed_host(shown: &str, address: Option<IpAddr>) -> String {
    let host = host_of(shown);
    match (host.parse::<IpAddr>(), address) {
        (Ok(_), Some(used)) => used.to_canonical().to_string(),
        (Ok(_), None) => host,
        (Err(_), _) => host.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::{dialed_host, host_of};

    #[test]
    fn dialed_name_outlives_addresses() {
        let used = Some("192.0.2.8".parse().unwrap());
        for (shown, host) in [
            ("DTN2.example.org:8620", "dtn2.example.org"),
            ("192.0.2.7:8620", "192.0.2.8"),
            ("[2001:db8::7]:8620", "192.0.2.8"),
        ] {
            assert_eq!(dialed_host(shown, used), host, "{shown}");
        }
        assert_eq!(dialed_host("192.0.2.7:8620", None), "192.0.2.7");
    }

    #[test]
    fn hosts_lose_ports_and_brackets() {
        for (peer, host) in [
            ("192.0.2.7:8620", "192.0.2.7"),
            ("[2001:db8::7]:8620", "2001:db8::7"),
            ("[::ffff:192.0.2.7]:1", "192.0.2.7"),
            ("dtn1.example.org:8620", "dtn1.example.org"),
            ("dtn1.example.org", "dtn1.example.org"),
            ("2001:db8::7", "2001:db8::7"),
            ("[2001:db8::7]", "2001:db8::7"),
            ("", ""),
        ] {
            assert_eq!(host_of(peer), host, "{peer}");
        }
    }
}
