//! An error as the API answers it.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Its status and one line; each role says what the statuses mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    text: String,
}

/// An error: what failed, why, and what to do.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Error)]
pub struct ErrorBody {
    /// One line.
    pub error: String,
}

impl ApiError {
    /// This line with this status.
    #[must_use]
    pub fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    /// 401, with the way to authenticate.
    pub fn unauthorized(text: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, text)
    }

    /// 400.
    pub fn bad_request(text: impl Into<String>) -> Self {
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
#[must_use]
pub fn error_text(body: &[u8]) -> Option<String> {
    serde_json::from_slice::<ErrorBody>(body).ok().map(|body| body.error)
}
