//! Parts that copies by the mover's protocol share, whichever gateway is the active side: the offer of the other one,
//! the way to its agent, and the session.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, Uri, header};
use penstock_http::client::Url;
use penstock_http::storage_client::{StorageClient, StorageResponse};
use penstock_identity::{Fingerprint, tls_client_config};
use penstock_mover::{
    Agent, CleartextNetworks, CopyError, InitiatedTransfer, PeerConnector, ResolvedPath,
    StreamDscp, TcpDial, TransportChoice,
};
use penstock_protocol::control::{Settings, TransferTally};
use penstock_protocol::digest::Algorithm;
use penstock_protocol::open::{Existing, Mark, Options, Protection, Refusal, RefusalKind};
use penstock_sys::fs::{Dir, Kind, describe};

use super::{BrokenConnection, CopyFailure, CopyRequest, ObservedTransfer};
use crate::dispatch::blocking;
use crate::namespace::native;
use crate::url_path::UrlPath;

/// Header of the offer, and of the request that asks for the offer to receive a file.
pub(crate) const OFFER_HEADER: HeaderName = HeaderName::from_static("penstock-mover");

/// Header of the response to `COPY` that names the protocol of the data.
pub(crate) const PROTOCOL_HEADER: HeaderName = HeaderName::from_static("penstock-protocol");

/// Smallest file for which the handshakes of a session pay.
pub(crate) const FILE_BYTES_MIN: u64 = 16 << 20;

/// Block size of a copy in bytes.
const BLOCK_BYTES: u32 = 4 << 20;

/// Time without contact after which a copy that had begun fails.
const CONTACT_TIMEOUT: Duration = Duration::from_secs(60);

/// Offer to send or receive a file by the mover's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MoverOffer {
    /// TCP port of the agent on the host of the gateway.
    pub(crate) port: u16,
    /// Certificate of the agent.
    pub(crate) fingerprint: Fingerprint,
}

impl MoverOffer {
    /// Offer of this agent; `None` while it does not listen.
    pub(crate) fn of(agent: &Agent) -> Option<Self> {
        let port = agent.addresses().first()?.port();
        Some(Self { port, fingerprint: agent.fingerprint() })
    }

    /// Offer in a response to a request for `url`. The connection vouches for the certificate in it; a redirect leads to
    /// another host.
    pub(crate) fn in_response(response: &StorageResponse, url: &Url) -> Option<Self> {
        let vouches = url.is_encrypted() || url.is_loopback();
        let is_from_url = response.url.authority() == url.authority()
            && response.url.is_encrypted() == url.is_encrypted();
        let offer = response.header(OFFER_HEADER.as_str())?.parse().ok();
        offer.filter(|_| vouches && is_from_url)
    }
}

impl fmt::Display for MoverOffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port={}; certificate={}", self.port, self.fingerprint)
    }
}

/// Error of a malformed offer, which is no offer then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MalformedOffer;

impl FromStr for MoverOffer {
    type Err = MalformedOffer;

    fn from_str(text: &str) -> Result<Self, MalformedOffer> {
        let (mut port, mut fingerprint) = (None, None);
        for part in text.split(';') {
            // Later versions may add parameters.
            match part.trim().split_once('=').ok_or(MalformedOffer)? {
                ("port", value) => port = value.parse().ok().filter(|port| *port != 0),
                ("certificate", value) => fingerprint = value.parse().ok(),
                _ => {}
            }
        }
        match (port, fingerprint) {
            (Some(port), Some(fingerprint)) => Ok(Self { port, fingerprint }),
            _ => Err(MalformedOffer),
        }
    }
}

/// The other agent, and the path of the file there.
pub(crate) struct MoverPeer {
    pub(crate) connector: PeerConnector,
    pub(crate) path: Vec<u8>,
    pub(crate) port: u16,
}

impl MoverPeer {
    /// Resolves the agent of an offer; `None` where it may not be connected to.
    pub(crate) async fn of(
        client: &StorageClient,
        copy: &CopyRequest,
        offer: MoverOffer,
    ) -> Option<Self> {
        let uri: Uri = copy.remote.path().parse().ok()?;
        let path = UrlPath::of(&uri).ok()?.bytes().to_vec();
        let (url, port) = (&copy.remote, offer.port);
        let at = Url::of_host(url.is_encrypted(), url.host_and_port().0, port);
        let resolved = client.resolve(&at).await.ok()?;
        let connector = PeerConnector {
            dial: Arc::new(TcpDial::to_any(&resolved).ok()?),
            tls: tls_client_config(offer.fingerprint, None).ok()?,
            token: bearer(&copy.headers).to_owned(),
            protection: Protection::Full,
            transport: TransportChoice::Tcp,
            cleartext: CleartextNetworks::default(),
            dscp: StreamDscp::default(),
            give_up_after: CONTACT_TIMEOUT,
        };
        Some(Self { connector, path, port })
    }
}

/// Options of a copy of one file.
pub(crate) fn options(
    copy: &CopyRequest,
    algorithm: Algorithm,
    overwrites: bool,
    mark: Option<Mark>,
) -> Options {
    Options {
        block_bytes: BLOCK_BYTES,
        algorithm,
        protection: Protection::Full,
        inplace: false,
        xattrs: false,
        // A file of equal size and time is not skipped unread.
        compare_digest: true,
        readback: false,
        existing: if overwrites { Existing::Replace } else { Existing::Keep },
        mark,
        settings: Settings {
            streams: copy.streams.and_then(|streams| u16::try_from(streams).ok()),
            ..Settings::default()
        },
    }
}

/// A session for one file. Dropped before its end, it is cancelled.
pub(crate) struct MoverSession {
    transfer: Arc<InitiatedTransfer>,
    port: u16,
}

impl MoverSession {
    /// Waits until the other agent has opened a session; `None` where the copy has to use HTTP.
    pub(crate) async fn open(
        transfer: Arc<InitiatedTransfer>,
        port: u16,
        url: &Url,
    ) -> Option<Self> {
        let this = Self { transfer, port };
        let session = Arc::clone(&this.transfer);
        if let Ok(true) = blocking(move || session.wait_for_session()).await {
            return Some(this);
        }
        let why = this.transfer.outcome().and_then(Result::err);
        let why = why.map_or_else(|| "no session".to_owned(), |error| error.to_string());
        tracing::info!("{url}: {why}: the copy continues over HTTP");
        None
    }

    pub(crate) fn transfer(&self) -> &InitiatedTransfer {
        &self.transfer
    }

    pub(crate) fn observed(&self) -> Arc<dyn ObservedTransfer> {
        Arc::new(ObservedMover { transfer: Arc::clone(&self.transfer), port: self.port })
    }

    /// Waits for the file, and returns the counters of the session.
    ///
    /// # Errors
    /// If the file has not arrived.
    pub(crate) async fn wait(&self) -> Result<TransferTally, CopyFailure> {
        let transfer = Arc::clone(&self.transfer);
        blocking(move || transfer.wait_for_end()).await.map_err(CopyFailure::Local)?;
        match self.transfer.outcome() {
            Some(Ok(())) => {}
            Some(Err(CopyError::Cancelled(_))) | None => return Err(CopyFailure::Cancelled),
            Some(Err(error)) => return Err(BrokenConnection::from(error).into()),
        }
        let tally = self.transfer.snapshot().tally;
        if let Some(error) = tally.errors.first() {
            let text = error.failure.text.clone();
            return Err(match tally.integrity_failed {
                true => CopyFailure::Integrity(text),
                false => CopyFailure::Local(io::Error::other(text)),
            });
        }
        Ok(tally)
    }
}

impl Drop for MoverSession {
    fn drop(&mut self) {
        if self.transfer.outcome().is_none() {
            self.transfer.cancel("the client disconnected");
        }
    }
}

/// View of the copy for its markers.
struct ObservedMover {
    transfer: Arc<InitiatedTransfer>,
    port: u16,
}

impl ObservedTransfer for ObservedMover {
    fn id(&self) -> u64 {
        self.transfer.id()
    }

    fn moved_bytes(&self) -> u64 {
        self.transfer.snapshot().network_bytes
    }

    fn is_cancelled(&self) -> bool {
        matches!(self.transfer.outcome(), Some(Err(CopyError::Cancelled(_))))
    }

    fn connections(&self) -> Vec<SocketAddr> {
        let address = self.transfer.peer_address();
        address.map(|address| SocketAddr::new(address, self.port)).into_iter().collect()
    }
}

/// Returns true for a file that another agent can fetch under its name: the mover copies links as links.
pub(crate) fn is_offered(place: &ResolvedPath, bytes: u64) -> bool {
    let path = native(&place.path);
    bytes >= FILE_BYTES_MIN && place.root.stat(path).is_ok_and(|stat| stat.kind == Kind::File)
}

/// Directory and name of a file; `None` if something other than a file is there, which HTTP refuses.
pub(crate) fn parent(place: &ResolvedPath) -> io::Result<Option<(Dir, std::ffi::OsString)>> {
    let (directory, name) = place.root.parent(native(&place.path))?;
    match directory.stat(&name) {
        Ok(stat) if stat.kind != Kind::File => Ok(None),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(Some((directory, name))),
    }
}

/// Another handle of an open directory.
///
/// # Errors
/// When the process has too many of them.
pub(crate) fn cloned(directory: &Dir) -> Result<Dir, Refusal> {
    directory.try_clone().map_err(|error| Refusal::new(RefusalKind::Agent, describe(&error)))
}

/// Bearer token for the other server; empty without one.
fn bearer(headers: &HeaderMap) -> &str {
    let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    value.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_are_read_back() {
        let offer = MoverOffer { port: 8620, fingerprint: Fingerprint([7; 32]) };
        let text = offer.to_string();
        assert_eq!(text.parse(), Ok(offer));
        assert_eq!(format!("{text}; later=1").parse(), Ok(offer));
        for malformed in [
            "",
            "port=8620",
            "port=0; certificate=SHA256:07",
            "port=65536",
            &text.replace("8620", "-1"),
            &text.replace("SHA256:", ""),
            &text[..text.len() - 1],
            "8620",
        ] {
            assert_eq!(malformed.parse::<MoverOffer>(), Err(MalformedOffer), "{malformed}");
        }
    }
}
