//! `POST` of a request for a derived token, as gfal2 sends it before its operations.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use penstock_http::ProblemDetails;
use penstock_scopes::ScopePath;
use penstock_tokens::MintRequest;
use penstock_tokens::macaroon::{MACAROON_REQUEST, REQUEST_BYTES_MAX};
use serde::Serialize;
use tokio::time::timeout;

use crate::dispatch::{DavRequest, Gateway, blocking};
use crate::error::refused;

/// Time for the body of a request to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Serialize)]
struct MintedResponse {
    macaroon: String,
}

/// True if the body of a `POST` is a request for a token.
pub(crate) fn is_request(request: &DavRequest) -> bool {
    let kind = request.header(header::CONTENT_TYPE).and_then(|kind| kind.split(';').next());
    kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case(MACAROON_REQUEST))
}

/// Answers with a token for the path of the request, which has no more rights than the client's own.
pub(crate) async fn mint(
    gateway: &Arc<Gateway>,
    request: &DavRequest,
    body: Body,
) -> Result<Response, ProblemDetails> {
    let body = timeout(BODY_TIMEOUT, axum::body::to_bytes(body, REQUEST_BYTES_MAX)).await;
    let body = body.ok().and_then(Result::ok).ok_or_else(|| {
        let text = format!("the body did not arrive, or is longer than {REQUEST_BYTES_MAX} bytes");
        ProblemDetails::bad_request(text)
    })?;
    let path = ScopePath::new(request.path.bytes())
        .map_err(|error| ProblemDetails::bad_request(format!("the path {error}")))?;
    let wanted = MintRequest::parse(&body, path)
        .map_err(|error| ProblemDetails::bad_request(error.to_string()))?;
    let (minter, caller) = (Arc::clone(&gateway.minter), request.caller.clone());
    let minted = blocking(move || Ok(minter.mint(&caller, &wanted))).await;
    let minted = minted.map_err(|error: io::Error| {
        ProblemDetails::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    })?;
    let macaroon = minted.map_err(refused)?;
    // The answer is a secret.
    let headers = [(header::CACHE_CONTROL, "no-store")];
    Ok((headers, Json(MintedResponse { macaroon })).into_response())
}
