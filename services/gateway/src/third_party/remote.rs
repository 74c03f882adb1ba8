//! The other server of a third-party copy.
//!
//! Every address is checked against `third_party.to` of the agent before it is connected to, also after redirects, so
//! that clients cannot reach through the agent what they could not reach by themselves.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode};
use penstock_http::ProblemDetails;
use penstock_http::client::{ServerTrustError, Url};
use penstock_http::storage_client::{
    AdmissionError, StorageAdmission, StorageClient, StorageConnections, StorageError,
};
use penstock_mover::Gatekeeper;

use crate::dispatch::{DavRequest, Gateway};

/// Longest wait for the head of a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(120);

/// Policy of the agent for the client of one copy.
struct AgentAdmission {
    keeper: Arc<dyn Gatekeeper>,
    /// True if the client is on this host.
    from_here: bool,
}

impl StorageAdmission for AgentAdmission {
    fn check_address(&self, _: &Url, address: SocketAddr) -> Result<(), AdmissionError> {
        let checked = self.keeper.may_send_to(address, self.from_here);
        checked.map_err(|refusal| AdmissionError::new(refusal.text))
    }
}

/// Creates a client of the other server that sends `headers` with every request.
///
/// # Errors
/// When the certificates that copies trust cannot be loaded.
pub(crate) async fn client(
    gateway: &Gateway,
    request: &DavRequest,
    headers: HeaderMap,
) -> Result<StorageClient, ServerTrustError> {
    let open = || StorageConnections::new(gateway.config.trust());
    let connections = Arc::clone(gateway.storages.get_or_init(open).await);
    connections.trust().await?;
    let from_here = penstock_sys::net::is_own_address(request.connection.peer().ip());
    let keeper = Arc::clone(&gateway.keeper);
    let admission = Arc::new(AgentAdmission { keeper, from_here });
    Ok(StorageClient::new(connections, admission, headers, RESPONSE_TIMEOUT))
}

/// The problem with which a copy is refused before it begins.
pub(crate) fn problem(error: &StorageError, url: &Url) -> ProblemDetails {
    let status = match error {
        StorageError::Status(StatusCode::NOT_FOUND, _) => StatusCode::NOT_FOUND,
        StorageError::Forbidden(_)
        | StorageError::Status(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => {
            StatusCode::FORBIDDEN
        }
        StorageError::Silent(_) => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::BAD_GATEWAY,
    };
    ProblemDetails::new(status, format!("{url}: {error}"))
}

/// Value of `Range` for a part of a file.
pub(crate) fn range_value(range: crate::range::ByteRange) -> HeaderValue {
    let last = range.start + range.bytes - 1;
    let text = format!("bytes={}-{last}", range.start);
    HeaderValue::from_str(&text).expect("numbers make a header")
}
