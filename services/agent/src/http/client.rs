//! Clients of the paths of transfers.
//!
//! The daemon has checked those who may read or change everything. A client's token comes here unchecked: it has the
//! rights that the mover gives it.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::Method;
use axum::http::request::Parts;
use penstock_http::server::PeerAddress;
use penstock_http::tokens::bearer;
use penstock_http::{ApiCaller, ProblemDetails};
use penstock_mover::{Caller, Gatekeeper};
use penstock_protocol::open::RefusalKind;

use super::AgentApi;
use super::api::{TransferFacts, name_owners};

/// Client of the paths of transfers.
#[derive(Debug, Clone)]
pub(super) enum TransferClient {
    /// The bearer of the agent's own token.
    Owner,
    /// A client that may read, or read and change, everything, as the daemon has checked.
    Admitted,
    /// A client with its own transfers.
    Bearer(Caller),
}

impl TransferClient {
    /// Name of the client for log lines.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Owner | Self::Admitted => "the operator",
            Self::Bearer(caller) => &caller.name,
        }
    }

    /// Returns true if the client may see and change the transfer.
    pub(super) fn may_see(&self, transfer: &TransferFacts) -> bool {
        match self {
            Self::Owner | Self::Admitted => true,
            Self::Bearer(caller) => transfer.caller == caller.name,
        }
    }

    /// Transfers that the client may see, by number.
    pub(super) fn seen(&self, api: &AgentApi) -> Vec<TransferFacts> {
        let listed = api.mover.transfers();
        let mut all = match &api.submitted {
            Some(submitted) => submitted.list_with(listed),
            None => listed.into_iter().map(TransferFacts::from).collect(),
        };
        all.retain(|transfer| self.may_see(transfer));
        all.sort_by_key(|transfer| transfer.id);
        name_owners(api, &mut all);
        all
    }
}

impl FromRequestParts<Arc<AgentApi>> for TransferClient {
    type Rejection = ProblemDetails;

    async fn from_request_parts(
        parts: &mut Parts,
        api: &Arc<AgentApi>,
    ) -> Result<Self, ProblemDetails> {
        let token = match parts.extensions.get::<ApiCaller>().cloned() {
            Some(ApiCaller::Owner) => return Ok(Self::Owner),
            Some(ApiCaller::Bearer(token)) => token,
            // A submission needs rights on files, which the scope operate does not give.
            _ if parts.method == Method::POST => {
                bearer(&parts.headers).unwrap_or_default().to_owned()
            }
            _ => return Ok(Self::Admitted),
        };
        let peer = parts.extensions.get::<PeerAddress>();
        let peer = peer.map_or_else(String::new, |peer| peer.0.to_string());
        let authorizer = Arc::clone(&api.authorizer);
        // Keys of an issuer may have to be fetched.
        let checked =
            tokio::task::spawn_blocking(move || authorizer.authenticate(&token, None, &peer));
        match checked.await {
            Ok(Ok(caller)) => Ok(Self::Bearer(caller)),
            Ok(Err(refusal)) if refusal.kind == RefusalKind::Busy => {
                Err(ProblemDetails::new(axum::http::StatusCode::SERVICE_UNAVAILABLE, refusal.text))
            }
            Ok(Err(refusal)) if refusal.kind == RefusalKind::Permission => {
                Err(ProblemDetails::forbidden(refusal.text))
            }
            Ok(Err(refusal)) => Err(ProblemDetails::unauthorized(refusal.text)),
            Err(_) => Err(ProblemDetails::new(
                axum::http::StatusCode::INTERNAL_SERVER_ERROR,
                "the token could not be checked",
            )),
        }
    }
}
