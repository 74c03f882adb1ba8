//! An error as the API answers it.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Its status and one line; see [`crate::http`] for what the statuses mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    text: String,
}

/// An error: what failed, why, and what to do.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Error)]
pub(crate) struct ErrorBody {
    /// One line.
    pub(crate) error: String,
}

impl ApiError {
    /// This line with this status.
    pub fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    pub(crate) fn unauthorized(text: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, text)
    }

    pub(crate) fn bad_request(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(ErrorBody { error: self.text })).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            // RFC 9110 section 11.6.1: a 401 names the scheme.
            let challenge = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

/// The line of an error, if `body` is one.
pub(crate) fn error_text(body: &[u8]) -> Option<String> {
    serde_json::from_slice::<ErrorBody>(body).ok().map(|body| body.error)
}
