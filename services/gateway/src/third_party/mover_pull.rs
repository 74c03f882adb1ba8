//! Pull from another Penstock agent: the data comes by the mover's protocol, over several streams with a checksum for
//! each block.
//!
//! A gateway offers it in the header `Penstock-Mover` of its response to `HEAD`, with the port and the certificate of
//! its agent. The token of the other server is good for both protocols. Where the other agent cannot be reached on that
//! port, or refuses, the copy continues over HTTP.
//!
//! Not for: a copy that requires the checksum that the other server keeps, which is compared before the file appears
//! (`pull`).

use std::ffi::OsString;

use penstock_http::storage_client::StorageClient;
use penstock_mover::{Agent, Caller, FetchRequest, ResolvedPath};
use penstock_protocol::digest::Algorithm;
use penstock_protocol::open::{Mark, Refusal};
use penstock_sys::fs::{self, Dir};

use super::mover_session::{MoverOffer, MoverPeer, MoverSession, cloned, options, parent};
use super::{BrokenConnection, CopyFailure, CopyRequest};
use crate::account::admitted;
use crate::conditions::Validators;
use crate::digest;
use crate::dispatch::blocking;

/// Copy of one file from another agent, for which a session is open. Dropped before its end, it is cancelled.
pub(crate) struct MoverPull {
    pub(crate) session: MoverSession,
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
        client: &StorageClient,
        copy: &CopyRequest,
        offer: MoverOffer,
        target: MoverTarget<'_>,
    ) -> Result<Option<Self>, Refusal> {
        let Some(peer) = MoverPeer::of(client, copy, offer).await else { return Ok(None) };
        let MoverTarget { caller, place, mark, overwrites, algorithm } = target;
        let shown = place.shown.clone();
        let Ok(Some((directory, name))) = blocking(move || parent(&place)).await else {
            return Ok(None);
        };
        let begun = admitted(|| {
            let request = FetchRequest {
                from: peer.connector.clone(),
                source: peer.path.clone(),
                directory: cloned(&directory)?,
                name: name.clone(),
                shown: shown.clone(),
                options: options(copy, algorithm, overwrites, mark),
            };
            agent.fetch(caller.clone(), request)
        });
        let session = MoverSession::open(begun.await?, peer.port, &copy.remote).await;
        Ok(session.map(|session| Self { session, directory, name }))
    }

    /// Waits for the file, and keeps its digest. The source was `last_modified` at this time, which the copy has, too.
    pub(crate) async fn finish(
        self,
        algorithm: Algorithm,
        last_modified: Option<String>,
    ) -> Result<(), CopyFailure> {
        if self.session.wait().await?.files != 1 {
            return Err(BrokenConnection::NothingSent.into());
        }
        let placed = self.session.transfer().take_placed();
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
