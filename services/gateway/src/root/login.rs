//! Client of a connection: TLS, login, and the token of the session or of a path.
//!
//! At an agent behind a head node a client may have a token that only the head node knows: XrdCl sends it to each server
//! that asks for one. Its session then has no client, and can open what a token of a redirect in the path permits.

use std::collections::VecDeque;

use penstock_http::ProblemDetails;
use penstock_mover::Caller;
use penstock_tokens::RedirectKey;
use penstock_xrootd::response::{self, TlsDemand};
use penstock_xrootd::{XrdError, XrdErrorCode, XrdPath};

use super::files::refused;
use super::session::{RootAnswer, RootSession};
use crate::access::authenticate_token;
use crate::redirected::{self, ROOT_OPEN_METHOD};

/// Rejected tokens after which the connection ends.
pub(super) const REJECTED_TOKENS_MAX: u32 = 5;

/// Opened paths that a connection remembers for checksums.
const OPENED_PATHS_MAX: usize = 16;

/// Progress of a client towards its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoginState {
    Connected,
    Greeted,
    /// Logged in, and must show a token.
    NeedsToken,
    LoggedIn,
}

/// Client of a request.
#[derive(Debug, Clone)]
pub(super) struct RootClient {
    pub(super) caller: Caller,
    /// True if a head node redirected it here: its token is not known here.
    pub(super) is_redirected: bool,
}

/// Paths opened last, with their clients.
#[derive(Debug, Default)]
pub(super) struct OpenedPaths(VecDeque<(Vec<u8>, RootClient)>);

impl OpenedPaths {
    pub(super) fn push(&mut self, path: Vec<u8>, client: RootClient) {
        if self.0.len() >= OPENED_PATHS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((path, client));
    }

    /// Client that opened `path` last.
    fn client(&self, path: &[u8]) -> Option<&RootClient> {
        self.0.iter().rev().find(|one| one.0 == path).map(|(_, client)| client)
    }
}

impl RootSession<'_> {
    /// True if both ends are on this machine, so that tokens may travel in the clear.
    fn is_local(&self) -> bool {
        self.peer.ip().is_loopback() && self.local.ip().is_loopback()
    }

    pub(super) fn protocol(
        &self,
        id: [u8; 2],
        able: bool,
        wanted: bool,
    ) -> Result<RootAnswer, XrdError> {
        if self.is_encrypted {
            return Ok(RootAnswer::Bytes(response::protocol(id, TlsDemand::InUse)));
        }
        let is_before_login = self.state == LoginState::Greeted;
        if is_before_login && able && (wanted || !self.is_local()) {
            return Ok(RootAnswer::StartTls(response::protocol(id, TlsDemand::Start)));
        }
        if !self.is_local() {
            return Err(tls_required());
        }
        Ok(RootAnswer::Bytes(response::protocol(id, TlsDemand::Optional)))
    }

    pub(super) fn login(&mut self, id: [u8; 2], user: &str) -> Result<RootAnswer, XrdError> {
        if !self.is_encrypted && !self.is_local() {
            return Err(tls_required());
        }
        tracing::debug!(peer = %self.peer, user, "login over root://");
        self.state = if self.is_encrypted { LoginState::NeedsToken } else { LoginState::LoggedIn };
        Ok(RootAnswer::Bytes(response::login(id, &self.id, self.is_encrypted)))
    }

    /// Takes the token of the session.
    pub(super) async fn show_token(&mut self, token: String) -> Result<(), XrdError> {
        match self.authenticate(token).await {
            Ok(caller) => self.caller = Some(caller),
            Err(refusal) if self.server.gateway.config.redirected.is_some() => {
                self.refusal = Some(refusal);
            }
            Err(refusal) => return Err(refusal),
        }
        self.state = LoginState::LoggedIn;
        Ok(())
    }

    async fn authenticate(&mut self, token: String) -> Result<Caller, XrdError> {
        let keeper = &self.server.gateway.keeper;
        match authenticate_token(keeper, token, self.peer.to_string()).await {
            Ok(caller) => {
                self.set_known();
                Ok(caller)
            }
            Err(refusal) => {
                self.rejected_tokens += 1;
                Err(refused(refusal))
            }
        }
    }

    fn set_known(&mut self) {
        self.is_known = true;
        self.proof.set();
    }

    /// Client of a request: the token in its path, else that of the session.
    pub(super) async fn caller_of(&mut self, path: &XrdPath<'_>) -> Result<Caller, XrdError> {
        if let Some(token) = path.token()? {
            return self.authenticate(token).await;
        }
        let Some(caller) = &self.caller else {
            return Err(self.refusal.clone().unwrap_or_else(|| {
                let text = "no token: use roots:// with BEARER_TOKEN, or on this machine PATH?authz=Bearer%20TOKEN";
                XrdError::new(XrdErrorCode::NotAuthorized, text)
            }));
        };
        self.check_token(caller)?;
        Ok(caller.clone())
    }

    /// Client that opens a file: also one that a head node redirected here.
    pub(super) async fn opener(&mut self, path: &XrdPath<'_>) -> Result<RootClient, XrdError> {
        let token = path.token()?.filter(|token| RedirectKey::looks_redirected(token));
        let Some(token) = token else {
            return Ok(RootClient { caller: self.caller_of(path).await?, is_redirected: false });
        };
        let config = self.server.gateway.config.redirected.as_ref();
        let path = path.normalized();
        match redirected::authenticate(config, &token, ROOT_OPEN_METHOD, &path) {
            Ok(caller) => {
                self.set_known();
                Ok(RootClient { caller, is_redirected: true })
            }
            Err(ProblemDetails { detail, .. }) => {
                self.rejected_tokens += 1;
                Err(XrdError::new(XrdErrorCode::AuthFailed, detail))
            }
        }
    }

    /// Client of a query for a checksum. xrdcp leaves the token out of it: without one, the client that opened the same path
    /// over this connection may ask.
    pub(super) async fn caller_of_checksum(
        &mut self,
        path: &XrdPath<'_>,
    ) -> Result<Caller, XrdError> {
        let by_opened = match path.token()? {
            Some(token) => RedirectKey::looks_redirected(&token),
            None => self.caller.is_none(),
        };
        if by_opened && let Some(client) = self.opened.client(&path.normalized()) {
            self.check_admitted(client)?;
            return Ok(client.caller.clone());
        }
        self.caller_of(path).await
    }

    /// Refuses a client whose token was withdrawn. A redirect permits what was opened by it.
    pub(super) fn check_admitted(&self, client: &RootClient) -> Result<(), XrdError> {
        if client.is_redirected {
            return Ok(());
        }
        self.check_token(&client.caller)
    }

    fn check_token(&self, caller: &Caller) -> Result<(), XrdError> {
        if self.server.gateway.keeper.still_admits(caller) {
            return Ok(());
        }
        Err(XrdError::new(XrdErrorCode::NotAuthorized, "the token was withdrawn"))
    }
}

fn tls_required() -> XrdError {
    XrdError::new(XrdErrorCode::TlsRequired, "this server needs TLS: use roots:// with XRootD 5")
}
