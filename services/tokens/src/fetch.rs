//! Fetch of an issuer's keys: OpenID Connect discovery, then the JWKS document.

use std::path::PathBuf;
use std::time::Duration;

use hyper::header::{ACCEPT, HeaderValue};
use hyper::{Method, StatusCode};
use penstock_http::client::ServerTrustError;
use penstock_http::{HttpClient, HttpError, HttpRequest, ServerTrust, Url};
use serde::Deserialize;

use crate::excerpt;
use crate::keys::{JWKS_BYTES_MAX, KeySet, KeySetError};

/// Longest discovery document in bytes.
const DISCOVERY_BYTES_MAX: usize = 64 << 10;

/// Path of the discovery document below the issuer's URL (OpenID Connect Discovery 1.0 section 4).
const DISCOVERY_PATH: &str = ".well-known/openid-configuration";

/// Keys that cannot be fetched.
#[derive(Debug, thiserror::Error)]
pub enum KeyFetchError {
    /// The request failed.
    #[error("{url}: {error}")]
    Http {
        /// URL of the document.
        url: Url,
        /// Error of the client.
        error: HttpError,
    },
    /// The server refuses.
    #[error("{url} answers {status}")]
    Status {
        /// URL of the document.
        url: Url,
        /// Status that is not 200.
        status: StatusCode,
    },
    /// Not the document of OpenID Connect Discovery.
    #[error("{0} is no discovery document with issuer and jwks_uri")]
    Discovery(Url),
    /// Discovery document of another issuer.
    #[error("{url} is the discovery document of '{issuer}'")]
    Issuer {
        /// URL of the document.
        url: Url,
        /// Issuer that it names.
        issuer: String,
    },
    /// Keys at an address that cannot be trusted.
    #[error("its jwks_uri '{0}' is no URL with https")]
    KeysUrl(String),
    /// No usable key set.
    #[error("{url}: {error}")]
    Keys {
        /// URL of the document.
        url: Url,
        /// Fault of the key set.
        error: KeySetError,
    },
    /// Authorities that cannot be read.
    #[error(transparent)]
    Trust(#[from] ServerTrustError),
    /// Shutdown of the agent.
    #[error("the agent is stopping")]
    Stopped,
    /// All requests together took too long.
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The caller cannot wait for the end of the fetch.
    #[error("no answer in time")]
    Late,
    /// The task of the fetch was cancelled or panicked.
    #[error("the fetch was interrupted")]
    Interrupted,
}

#[derive(Deserialize)]
struct DiscoveryDocument {
    issuer: String,
    jwks_uri: String,
}

/// Returns true if keys may come from `url`: over TLS, or from this machine.
pub(crate) fn is_trustworthy(url: &Url) -> bool {
    url.is_encrypted() || url.is_loopback()
}

/// Fetches the keys of `issuer` within `limit`; `authorities` is a PEM file or a directory.
pub(crate) async fn fetch_keys(
    issuer: &str,
    authorities: Option<PathBuf>,
    limit: Duration,
) -> Result<KeySet, KeyFetchError> {
    let all = async {
        // Reads files, and accepts servers that know TLS 1.2 only.
        let load = move || ServerTrust::Authorities(authorities).load();
        let trust =
            tokio::task::spawn_blocking(load).await.map_err(|_| KeyFetchError::Stopped)??;
        let discovery = format!("{}/{DISCOVERY_PATH}", issuer.trim_end_matches('/'));
        let discovery: Url =
            discovery.parse().map_err(|_| KeyFetchError::KeysUrl(excerpt(&discovery)))?;
        let body = get(&discovery, &trust, DISCOVERY_BYTES_MAX, limit).await?;
        let document: DiscoveryDocument = serde_json::from_slice(&body)
            .map_err(|_| KeyFetchError::Discovery(discovery.clone()))?;
        if document.issuer != issuer {
            return Err(KeyFetchError::Issuer {
                url: discovery,
                issuer: excerpt(&document.issuer),
            });
        }
        let url: Option<Url> = document.jwks_uri.parse().ok();
        // A document that came over TLS leads to no other protocol.
        let is_good =
            |url: &Url| url.is_encrypted() || (!discovery.is_encrypted() && is_trustworthy(url));
        let url = url
            .filter(is_good)
            .ok_or_else(|| KeyFetchError::KeysUrl(excerpt(&document.jwks_uri)))?;
        let body = get(&url, &trust, JWKS_BYTES_MAX, limit).await?;
        KeySet::parse(&body).map_err(|error| KeyFetchError::Keys { url, error })
    };
    tokio::time::timeout(limit, all).await.unwrap_or(Err(KeyFetchError::Timeout(limit)))
}

async fn get(
    url: &Url,
    trust: &ServerTrust,
    bytes_max: usize,
    limit: Duration,
) -> Result<Vec<u8>, KeyFetchError> {
    let request = HttpRequest::new(Method::GET, "")
        .header(ACCEPT, HeaderValue::from_static("application/json"))
        .bytes_max(bytes_max)
        .timeout(limit);
    let response = HttpClient::new(url.clone()).trust(trust.clone()).send(request).await;
    let response = response.map_err(|error| KeyFetchError::Http { url: url.clone(), error })?;
    match response.status {
        StatusCode::OK => Ok(response.body.to_vec()),
        status => Err(KeyFetchError::Status { url: url.clone(), status }),
    }
}
