//! Fetch of one document, conditional on its ETag.
//!
//! For: small public documents such as the scitags registry. TLS trusts the authorities of the system. Size, time and
//! redirects are bounded; a redirect never leads from HTTPS to HTTP.

use std::time::Duration;

use hyper::header::{ACCEPT, ETAG, HeaderValue, IF_NONE_MATCH, LOCATION};
use hyper::{Method, StatusCode};
use tokio::time::timeout;

use super::{HttpClient, HttpError, HttpRequest, Url};

/// Time limit of a fetch, redirects included.
pub const FETCH_TIMEOUT: Duration = Duration::from_secs(30);

const REDIRECTS_MAX: usize = 5;

/// Result of a conditional fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchOutcome {
    /// The server's document still has the given ETag.
    NotModified,
    /// A new document.
    Modified {
        /// The document, at most as long as the given limit.
        body: Vec<u8>,
        /// ETag for the next fetch, as the server sent it.
        etag: Option<String>,
    },
}

/// Fetches the document at `url`, of at most `bytes_max` bytes, unless its ETag is `etag`.
///
/// # Errors
/// When there is no document in time, or it is too long; the caller names the address.
pub async fn fetch(
    url: &Url,
    etag: Option<&str>,
    bytes_max: usize,
) -> Result<FetchOutcome, HttpError> {
    let follow = async {
        let mut url = url.clone();
        for _ in 0..=REDIRECTS_MAX {
            match get(&url, etag, bytes_max).await? {
                FetchStep::Done(outcome) => return Ok(outcome),
                FetchStep::Redirect(location) => url = url.redirected(&location)?,
            }
        }
        Err(HttpError::Redirects(REDIRECTS_MAX))
    };
    timeout(FETCH_TIMEOUT, follow).await.unwrap_or(Err(HttpError::ResponseTimeout(FETCH_TIMEOUT)))
}

enum FetchStep {
    Done(FetchOutcome),
    Redirect(String),
}

async fn get(url: &Url, etag: Option<&str>, bytes_max: usize) -> Result<FetchStep, HttpError> {
    let accept = HeaderValue::from_static("application/json, */*");
    let mut request = HttpRequest::new(Method::GET, "")
        .header(ACCEPT, accept)
        .bytes_max(bytes_max)
        .timeout(FETCH_TIMEOUT);
    // A stored ETag that no header can hold is as good as none.
    if let Some(etag) = etag.and_then(|etag| HeaderValue::from_str(etag).ok()) {
        request = request.header(IF_NONE_MATCH, etag);
    }
    let response = HttpClient::new(url.clone()).send(request).await?;
    match response.status {
        status if status.is_success() => {
            let etag = response.header(ETAG).map(str::to_owned);
            let body = response.body.to_vec();
            Ok(FetchStep::Done(FetchOutcome::Modified { body, etag }))
        }
        StatusCode::NOT_MODIFIED => Ok(FetchStep::Done(FetchOutcome::NotModified)),
        status if status.is_redirection() => match response.header(LOCATION) {
            Some(location) => Ok(FetchStep::Redirect(location.to_owned())),
            None => Err(HttpError::NoLocation(status)),
        },
        status => Err(HttpError::Status(status)),
    }
}
