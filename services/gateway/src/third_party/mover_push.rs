//! Push to another Penstock agent by the mover's protocol.
//!
//! The active gateway asks by `HEAD` with the header `Penstock-Mover: push`. The other one answers with an offer, also where
//! the file does not exist, if the client may create and replace it there. A push that breaks leaves its blocks at the other
//! agent, and a repetition of the copy continues there.
//!
//! Not for: symbolic links, which the mover copies as links; they go over HTTP (`push`).

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use penstock_http::client::Url;
use penstock_http::storage_client::StorageClient;
use penstock_mover::{Agent, Caller, ResolvedPath, SendFileRequest, key_hasher};
use penstock_protocol::digest::Algorithm;
use penstock_protocol::open::{Mark, Push, Refusal};
use penstock_protocol::wire::Bytes;
use penstock_sys::fs::Kind;

use super::mover_session::{
    MoverOffer, MoverPeer, MoverSession, OFFER_HEADER, cloned, options, parent,
};
use super::{BrokenConnection, CopyFailure, CopyRequest};
use crate::account::admitted;
use crate::dispatch::{DavRequest, Gateway, blocking};

/// Value of [`OFFER_HEADER`] in a request.
const PUSH: &str = "push";

/// File to send, and permissions of a copy by the mover's protocol.
pub(crate) struct MoverSource<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) place: ResolvedPath,
    pub(crate) mark: Option<Mark>,
    /// Replaces an existing file.
    pub(crate) overwrites: bool,
    pub(crate) algorithm: Algorithm,
}

/// Copy of one file to another agent, for which a session is open. Dropped before its end, it is cancelled.
pub(crate) struct MoverPush {
    pub(crate) session: MoverSession,
}

/// Asks the other server for an offer to receive the file at `url`; `None` from one that makes none.
pub(crate) async fn ask_offer(client: &StorageClient, url: &Url) -> Option<MoverOffer> {
    let mut headers = HeaderMap::new();
    headers.insert(OFFER_HEADER, HeaderValue::from_static(PUSH));
    let response = client.request(&Method::HEAD, url, &headers).await.ok()?;
    let is_answer = response.status.is_success() || response.status == StatusCode::NOT_FOUND;
    MoverOffer::in_response(&response, url).filter(|_| is_answer)
}

/// Offer for the client of a `HEAD` that asks for one: it may create and replace the file, and its directory exists.
pub(crate) async fn offer_for(gateway: &Gateway, request: &DavRequest) -> Option<MoverOffer> {
    let asks = request.header(OFFER_HEADER).is_some_and(|value| value == PUSH);
    if !asks || request.method != Method::HEAD || request.path.is_collection() {
        return None;
    }
    let target = gateway.write_target(request, &request.path).ok()?;
    if target.keeps.is_some() {
        return None;
    }
    let found = blocking(move || parent(&target.place)).await;
    found.ok().flatten()?;
    MoverOffer::of(&gateway.agent)
}

impl MoverPush {
    /// Opens a session with the agent of the other server; `None` where the copy has to use HTTP.
    ///
    /// # Errors
    /// If a limit of this agent is reached.
    pub(crate) async fn open(
        agent: &Agent,
        client: &StorageClient,
        copy: &CopyRequest,
        offer: MoverOffer,
        source: MoverSource<'_>,
    ) -> Result<Option<Self>, Refusal> {
        let Some(peer) = MoverPeer::of(client, copy, offer).await else { return Ok(None) };
        let MoverSource { caller, place, mark, overwrites, algorithm } = source;
        let shown = place.shown.clone();
        let found = blocking(move || {
            let Some((directory, name)) = parent(&place)? else { return Ok(None) };
            let stat = directory.stat(&name)?;
            Ok((stat.kind == Kind::File).then_some((directory, name)))
        });
        let Ok(Some((directory, name))) = found.await else { return Ok(None) };
        let begun = admitted(|| {
            let push = Push {
                target: Bytes(peer.path.clone()),
                into_directory: false,
                transfer_key: transfer_key(caller, &shown, &copy.remote),
                options: options(copy, algorithm, overwrites, mark),
            };
            let request = SendFileRequest {
                to: peer.connector.clone(),
                directory: cloned(&directory)?,
                name: name.clone(),
                shown: shown.clone(),
                push,
            };
            agent.send_file(caller.clone(), request)
        });
        let session = MoverSession::open(begun.await?, peer.port, &copy.remote).await;
        Ok(session.map(|session| Self { session }))
    }

    /// Waits until the other agent has the file.
    pub(crate) async fn finish(&self) -> Result<(), CopyFailure> {
        match self.session.wait().await?.files {
            1 => Ok(()),
            _ => Err(BrokenConnection::NothingTaken.into()),
        }
    }
}

/// Key that repetitions of a copy share, so that they continue it.
fn transfer_key(caller: &Caller, source: &str, destination: &Url) -> [u8; 16] {
    let mut hasher = key_hasher();
    for part in ["copy", &caller.name, source, &destination.to_string()] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    let mut key = [0; 16];
    key.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    key
}
