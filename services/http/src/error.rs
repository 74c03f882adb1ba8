//! Errors of the API as problem documents (RFC 9457).

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An HTTP status and one line; each role documents its statuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    text: String,
}

/// Media type of all errors.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// Longest text of a library's error in a problem document.
const FOREIGN_TEXT_CHARS_MAX: usize = 300;

/// An error: what failed, why, and what to do. Sent as `application/problem+json`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Error)]
pub struct ErrorBody {
    /// `about:blank`: the status says it all (RFC 9457 section 4.2.1).
    #[serde(rename = "type", default)]
    pub kind: String,
    /// Reason phrase of the status.
    #[serde(default)]
    pub title: String,
    /// HTTP status code of the answer.
    #[serde(default)]
    pub status: u16,
    /// One line: what failed, why, and what to do.
    #[serde(default)]
    pub detail: String,
    /// The same line as in `detail`.
    pub error: String,
}

impl ApiError {
    /// Creates an error of this status with one line.
    #[must_use]
    pub fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    /// 401 with the challenge `Bearer`.
    pub fn unauthorized(text: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, text)
    }

    /// 400 with one line.
    pub fn bad_request(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = ErrorBody {
            kind: "about:blank".to_owned(),
            title: self.status.canonical_reason().unwrap_or("Error").to_owned(),
            status: self.status.as_u16(),
            detail: self.text.clone(),
            error: self.text,
        };
        let json = serde_json::to_vec(&body).unwrap_or_default();
        let mut response = (self.status, json).into_response();
        let kind = HeaderValue::from_static(PROBLEM_JSON);
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        if self.status == StatusCode::UNAUTHORIZED {
            // RFC 9110 section 11.6.1: a 401 names the scheme.
            let challenge = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

/// Turns an error of a library, which is plain text, into a problem document.
pub async fn as_problem(response: Response) -> Response {
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    let kind = response.headers().get(header::CONTENT_TYPE);
    if !is_error || kind.is_some_and(|kind| kind.as_bytes().starts_with(PROBLEM_JSON.as_bytes())) {
        return response;
    }
    let (parts, body) = response.into_parts();
    let body = axum::body::to_bytes(body, 64 * 1024).await.unwrap_or_default();
    let text: String = String::from_utf8_lossy(&body)
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(FOREIGN_TEXT_CHARS_MAX)
        .collect();
    let text = match text.trim() {
        "" => status.canonical_reason().unwrap_or("Error"),
        text => text,
    };
    let mut problem = ApiError::new(status, text).into_response();
    for (name, value) in &parts.headers {
        if *name != header::CONTENT_TYPE && *name != header::CONTENT_LENGTH {
            problem.headers_mut().insert(name, value.clone());
        }
    }
    problem
}

/// Returns the line of a problem document, or `None` if `body` is none.
#[must_use]
pub fn error_text(body: &[u8]) -> Option<String> {
    serde_json::from_slice::<ErrorBody>(body).ok().map(|body| body.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn foreign_errors_become_problem_documents() {
        let plain = (StatusCode::BAD_REQUEST, [(header::ALLOW, "GET")], "no\nway").into_response();
        let problem = as_problem(plain).await;
        assert_eq!(problem.headers()[header::CONTENT_TYPE], PROBLEM_JSON);
        assert_eq!(problem.headers()[header::ALLOW], "GET");
        let body = axum::body::to_bytes(problem.into_body(), 1000).await.unwrap();
        let body: ErrorBody = serde_json::from_slice(&body).unwrap();
        assert_eq!((body.status, body.detail.as_str()), (400, "no way"));
        assert_eq!((body.title.as_str(), body.error.as_str()), ("Bad Request", "no way"));
        let good = as_problem((StatusCode::OK, "text").into_response()).await;
        assert_ne!(good.headers()[header::CONTENT_TYPE], PROBLEM_JSON);
        assert_eq!(error_text(b"{\"error\": \"x\"}").as_deref(), Some("x"));
    }
}
