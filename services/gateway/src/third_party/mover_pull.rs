//! Pull from another Penstock agent: the data comes by the mover's protocol, over several streams with a checksum for
//! each block.
//!
//! A gateway offers it in the header `Penstock-Mover` of its response to `HEAD`, with the port and the certificate of
//! its agent. The token of the other server is good for both protocols. Where the other agent cannot be reached on that
//! port, or refuses, the copy goes on over HTTP.
//!
//! Not for: a copy that requires the checksum that the other server keeps, which is compared before the file appears
//! (`pull`).

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, Uri, header};
use penstock_http::client::Url;
use penstock_identity::{Fingerprint, tls_client_config};
use penstock_mover::{
    Agent, Caller, CopyError, FetchRequest, InitiatedTransfer, PeerConnector, ResolvedPath, TcpDial,
};
use penstock_protocol::control::Settings;
use penstock_protocol::digest::Algorithm;
use penstock_protocol::open::{Existing, Mark, Options, Protection, Refusal};
use penstock_sys::fs::{self, Dir, Kind};

use super::remote::RemoteClient;
use super::{CopyFailure, CopyRequest, ObservedTransfer};
use crate::conditions::Validators;
use crate::digest;
use crate::dispatch::blocking;
use crate::namespace::native;
use crate::url_path::UrlPath;

/// Header of the offer.
pub(crate) const OFFER_HEADER: HeaderName = HeaderName::from_static("penstock-mover");

/// Header of the response to `COPY` that names the protocol of the data.
pub(crate) const PROTOCOL_HEADER: HeaderName = HeaderName::from_static("penstock-protocol");

/// Block size of a copy in bytes.
const BLOCK_BYTES: u32 = 4 << 20;

/// Smallest file for which the handshakes of a session pay.
const FILE_BYTES_MIN: u64 = 16 << 20;

/// Time without contact after which a copy that had begun fails.
const CONTACT_TIMEOUT: Duration = Duration::from_secs(60);

/// Offer to send a file by the mover's protocol.
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

/// Copy of one file by the mover's protocol, for which a session is open. Dropped before its end, it is cancelled.
pub(crate) struct MoverPull {
    transfer: Arc<InitiatedTransfer>,
    port: u16,
    directory: Dir,
    name: OsString,
}

/// Destination and permissions of a copy by the mover's protocol.
pub(crate) struct MoverTarget<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) place: ResolvedPath,
    pub(crate) mark: Option<Mark>,
    /// Replaces an existing file.
    pub(crate) overwrites: bool,
    pub(crate) algorithm: Algorithm,
}

impl MoverPull {
    /// Opens a session with the agent of the other server; `None` where the copy has to use HTTP.
    ///
    /// # Errors
    /// If a limit of this agent is reached.
    pub(crate) async fn open(
        agent: &Agent,
        client: &RemoteClient,
        copy: &CopyRequest,
        offer: MoverOffer,
        target: MoverTarget<'_>,
    ) -> Result<Option<Self>, Refusal> {
        let Some(source) = source_path(copy) else { return Ok(None) };
        let (url, port) = (&copy.remote, offer.port);
        let at = Url::of_host(url.is_encrypted(), url.host_and_port().0, port);
        let Ok(resolved) = client.resolve(&at).await else { return Ok(None) };
        let MoverTarget { caller, place, mark, overwrites, algorithm } = target;
        let shown = place.shown.clone();
        let Ok(Some((directory, name))) = blocking(move || parent(&place)).await else {
            return Ok(None);
        };
        let Ok(dial) = TcpDial::to_any(&resolved) else { return Ok(None) };
        let Ok(tls) = tls_client_config(offer.fingerprint, None) else { return Ok(None) };
        let from = PeerConnector {
            dial: Arc::new(dial),
            tls,
            token: bearer(&copy.headers).to_owned(),
            protection: Protection::Full,
            give_up_after: CONTACT_TIMEOUT,
        };
        let options = Options {
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
        };
        let Ok(own_directory) = directory.try_clone() else { return Ok(None) };
        let request = FetchRequest { from, source, directory, name: name.clone(), shown, options };
        let transfer = agent.fetch(caller.clone(), request)?;
        let this = Self { transfer, port, directory: own_directory, name };
        let session = Arc::clone(&this.transfer);
        match blocking(move || session.wait_for_session()).await {
            Ok(true) => Ok(Some(this)),
            Ok(false) | Err(_) => {
                let why = this.transfer.outcome().and_then(Result::err);
                let why = why.map_or_else(|| "no session".to_owned(), |error| error.to_string());
                tracing::info!("{url}: {why}: the copy goes on over HTTP");
                Ok(None)
            }
        }
    }

    pub(crate) fn observed(&self) -> Arc<dyn ObservedTransfer> {
        Arc::new(ObservedMoverPull { transfer: Arc::clone(&self.transfer), port: self.port })
    }

    /// Waits for the file, and keeps its digest. The source was `last_modified` at this time, which the copy has, too.
    pub(crate) async fn finish(
        self,
        algorithm: Algorithm,
        last_modified: Option<String>,
    ) -> Result<(), CopyFailure> {
        let transfer = Arc::clone(&self.transfer);
        blocking(move || transfer.wait_for_end()).await.map_err(CopyFailure::Local)?;
        match self.transfer.outcome() {
            Some(Ok(())) => {}
            Some(Err(CopyError::Cancelled(_))) | None => return Err(CopyFailure::Cancelled),
            Some(Err(error)) => return Err(CopyFailure::Broken(error.to_string())),
        }
        let tally = self.transfer.snapshot().tally;
        if let Some(error) = tally.errors.first() {
            let text = error.failure.text.clone();
            return Err(match tally.integrity_failed {
                true => CopyFailure::Checksum(text),
                false => CopyFailure::Local(io::Error::other(text)),
            });
        }
        if tally.files != 1 {
            let text = "the other agent sent no file".to_owned();
            return Err(CopyFailure::Broken(text));
        }
        let placed = self.transfer.take_placed();
        let Some(placed) = placed.into_iter().next().filter(|one| !one.digest.0.is_empty()) else {
            return Ok(());
        };
        let (directory, name) = (self.directory.try_clone(), self.name.clone());
        let kept = blocking(move || {
            let file = directory?.open_file(&name, &fs::Open::reading())?;
            let stat = fs::stat_file(&file)?;
            // Another client may have replaced it since.
            if last_modified == Some(Validators::of(&stat).last_modified()) {
                digest::store(&file, &stat, algorithm, &placed.digest);
            }
            Ok(())
        });
        if let Err(error) = kept.await {
            tracing::debug!("the digest of a copy is not kept: {error}");
        }
        Ok(())
    }
}

impl Drop for MoverPull {
    fn drop(&mut self) {
        if self.transfer.outcome().is_none() {
            self.transfer.cancel("the client disconnected");
        }
    }
}

/// View of the copy for its markers.
struct ObservedMoverPull {
    transfer: Arc<InitiatedTransfer>,
    port: u16,
}

impl ObservedTransfer for ObservedMoverPull {
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

/// Directory and name of the destination; `None` if something other than a file is there, which HTTP refuses.
fn parent(place: &ResolvedPath) -> io::Result<Option<(Dir, OsString)>> {
    let (directory, name) = place.root.parent(native(&place.path))?;
    match directory.stat(&name) {
        Ok(stat) if stat.kind != Kind::File => Ok(None),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(Some((directory, name))),
    }
}

/// Path of the source at its agent.
fn source_path(copy: &CopyRequest) -> Option<Vec<u8>> {
    let uri: Uri = copy.remote.path().parse().ok()?;
    UrlPath::of(&uri).ok().map(|path| path.bytes().to_vec())
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
