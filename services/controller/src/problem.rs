//! An error as the API answers it: a problem document (RFC 9457).

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::store::WriteError;

/// A problem: what failed, why, and what to do. Sent as `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemDetails {
    /// Type of the problem; `about:blank` if the status says it all (RFC 9457 section 4.2.1).
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The kind in words.
    pub title: &'static str,
    /// HTTP status of the response.
    pub status: u16,
    /// One line for human readers.
    pub detail: String,
    /// The same line, under the name that this server's other roles use.
    pub error: String,
    /// Faults of single parts of the request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldProblem>,
}

/// Fault of a part of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FieldProblem {
    /// Location: a JSON pointer (RFC 6901), or the name of a parameter.
    pub pointer: String,
    /// Fault and its remedy.
    pub detail: String,
}

impl ProblemDetails {
    /// Creates a problem with a status and one line of text.
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self {
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            error: detail.clone(),
            detail,
            errors: Vec::new(),
        }
    }

    /// Creates a 422 problem about one field.
    pub(crate) fn field(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::at(StatusCode::UNPROCESSABLE_ENTITY, pointer, detail)
    }

    /// Creates a problem about one field.
    pub(crate) fn at(
        status: StatusCode,
        pointer: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        let (pointer, detail) = (pointer.into(), detail.into());
        let mut problem = Self::new(status, format!("{pointer}: {detail}"));
        problem.errors.push(FieldProblem { pointer, detail });
        problem
    }

    pub(crate) fn unauthorized(detail: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, detail)
    }

    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }
}

impl From<WriteError> for ProblemDetails {
    fn from(error: WriteError) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, format!("{error}: try it again"))
    }
}

impl From<sqlx::Error> for ProblemDetails {
    fn from(error: sqlx::Error) -> Self {
        tracing::warn!("the database did not answer: {error}");
        let text = "the database did not answer: try it again";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, text)
    }
}

impl IntoResponse for ProblemDetails {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match status {
            // RFC 9110 section 11.6.1: a 401 names the scheme.
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}
