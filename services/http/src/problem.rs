//! Problem documents (RFC 9457): the body of every error that a server of this project sends.
//!
//! For: handlers, which return a [`ProblemDetails`] as their error, and clients ([`error_text`]). The server
//! ([`crate::server::serve`]) adds `instance`, and turns errors of libraries, which are plain text, into problem
//! documents. Extension members: `error`, the text of `detail` for older clients, and `errors`, faults of single
//! fields.

use std::borrow::Cow;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

/// Media type of a problem document.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// Longest text of a library's error in a problem document, in characters.
const FOREIGN_TEXT_CHARS_MAX: usize = 300;

/// Longest body of a library's error that is read, in bytes.
const FOREIGN_BODY_BYTES_MAX: usize = 64 << 10;

/// Pause before a retry that 429 and 503 ask for unless the problem sets another.
const RETRY_AFTER_S: u16 = 1;

/// A problem: what failed, why, and what to do. Sent as `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemDetails {
    /// Type of the problem: `about:blank`, as the status says it all (RFC 9457 section 4.2.1).
    #[serde(rename = "type", default)]
    #[schema(value_type = String, required)]
    pub kind: AboutBlank,
    /// Reason phrase of the status.
    #[serde(default)]
    #[schema(value_type = String, required)]
    pub title: Cow<'static, str>,
    /// HTTP status code of the response.
    #[serde(default)]
    #[schema(required)]
    pub status: u16,
    /// One line: what failed, why, and what to do.
    #[serde(default)]
    #[schema(required)]
    pub detail: String,
    /// Path of the request that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub instance: Option<Box<str>>,
    /// The same line as in `detail`.
    #[serde(default)]
    #[schema(required)]
    pub error: String,
    /// Faults of single parts of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldProblem>,
    /// Value of the header `Retry-After`, in seconds.
    #[serde(skip)]
    retry_after_s: Option<u16>,
}

/// Fault of a part of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldProblem {
    /// Location: a JSON pointer (RFC 6901), or the name of a parameter.
    pub pointer: String,
    /// Fault and its remedy.
    pub detail: String,
}

/// The type `about:blank` of a problem without a type of its own. Other types are read as this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AboutBlank;

impl Serialize for AboutBlank {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("about:blank")
    }
}

impl<'de> Deserialize<'de> for AboutBlank {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

impl ProblemDetails {
    /// Creates a problem with a status and one line of text.
    #[must_use]
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        let retry =
            matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS);
        Self {
            kind: AboutBlank,
            title: Cow::Borrowed(status.canonical_reason().unwrap_or("Error")),
            status: status.as_u16(),
            error: detail.clone(),
            detail,
            instance: None,
            errors: Vec::new(),
            retry_after_s: retry.then_some(RETRY_AFTER_S),
        }
    }

    /// Creates a 422 problem about one field.
    #[must_use]
    pub fn field(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::at(StatusCode::UNPROCESSABLE_ENTITY, pointer, detail)
    }

    /// Creates a problem about one field.
    #[must_use]
    pub fn at(status: StatusCode, pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        let (pointer, detail) = (pointer.into(), detail.into());
        let mut problem = Self::new(status, format!("{pointer}: {detail}"));
        problem.errors.push(FieldProblem { pointer, detail });
        problem
    }

    /// Creates a 400 problem.
    #[must_use]
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// Creates a 401 problem; its response carries the challenge `Bearer`.
    #[must_use]
    pub fn unauthorized(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, detail)
    }

    /// Creates a 403 problem.
    #[must_use]
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, detail)
    }

    /// Creates a 404 problem.
    #[must_use]
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// Creates a 409 problem.
    #[must_use]
    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, detail)
    }

    /// Sets the header `Retry-After`.
    #[must_use]
    pub fn retry_after(self, seconds: u16) -> Self {
        Self { retry_after_s: Some(seconds), ..self }
    }

    fn json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Returns a complete HTTP/1.1 response that closes the connection, for use before a request exists.
    pub(crate) fn raw_response(&self) -> Vec<u8> {
        let mut body = self.json();
        body.push(b'\n');
        let retry = self.retry_after_s.map(|seconds| format!("retry-after: {seconds}\r\n"));
        let head = format!(
            "HTTP/1.1 {} {}\r\ncontent-type: {PROBLEM_JSON}\r\nconnection: close\r\n{}content-length: {}\r\n\r\n",
            self.status,
            self.title,
            retry.unwrap_or_default(),
            body.len()
        );
        [head.into_bytes(), body].concat()
    }
}

impl IntoResponse for ProblemDetails {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, self.json()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if status == StatusCode::UNAUTHORIZED {
            // RFC 9110 section 11.6.1: a 401 names the scheme.
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        // `complete` adds the path of the request.
        response.extensions_mut().insert(self);
        response
    }
}

/// Completes the errors of all routes: `instance` is the path of the request, and the plain text of a library's error
/// becomes a problem document.
pub(crate) async fn complete(request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    completed(path, next.run(request).await).await
}

async fn completed(path: String, response: Response) -> Response {
    let status = response.status();
    if !status.is_client_error() && !status.is_server_error() {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let problem = match parts.extensions.remove::<ProblemDetails>() {
        Some(problem) => problem,
        None => {
            let kind = parts.headers.get(header::CONTENT_TYPE);
            if kind.is_some_and(|kind| kind.as_bytes().starts_with(PROBLEM_JSON.as_bytes())) {
                return Response::from_parts(parts, body);
            }
            ProblemDetails::new(status, foreign_text(status, body).await)
        }
    };
    let mut response = ProblemDetails { instance: Some(path.into()), ..problem }.into_response();
    let headers = response.headers_mut();
    parts.headers.remove(header::CONTENT_TYPE);
    parts.headers.remove(header::CONTENT_LENGTH);
    for name in parts.headers.keys() {
        headers.remove(name);
    }
    // A name may have several values, such as the challenges of a 401.
    for (name, value) in &parts.headers {
        headers.append(name, value.clone());
    }
    response
}

/// Reads the text of a library's error as one line.
async fn foreign_text(status: StatusCode, body: Body) -> String {
    let body = axum::body::to_bytes(body, FOREIGN_BODY_BYTES_MAX).await.unwrap_or_default();
    let text: String = String::from_utf8_lossy(&body)
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(FOREIGN_TEXT_CHARS_MAX)
        .collect();
    match text.trim() {
        "" => status.canonical_reason().unwrap_or("Error").to_owned(),
        text => text.to_owned(),
    }
}

/// Returns the line of a problem document, or `None` if `body` is none.
#[must_use]
pub fn error_text(body: &[u8]) -> Option<String> {
    let problem: ProblemDetails = serde_json::from_slice(body).ok()?;
    [problem.error, problem.detail].into_iter().find(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn document(response: Response) -> ProblemDetails {
        assert_eq!(response.headers()[header::CONTENT_TYPE], PROBLEM_JSON);
        let body = axum::body::to_bytes(response.into_body(), 1000).await.unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    #[tokio::test]
    async fn foreign_errors_become_problem_documents() {
        let plain = (StatusCode::BAD_REQUEST, [(header::ALLOW, "GET")], "no\nway").into_response();
        let response = completed("/x".to_owned(), plain).await;
        assert_eq!(response.headers()[header::ALLOW], "GET");
        let problem = document(response).await;
        let expected = ProblemDetails::bad_request("no way");
        assert_eq!(problem, ProblemDetails { instance: Some("/x".into()), ..expected });
        assert_eq!((problem.title.as_ref(), problem.status), ("Bad Request", 400));
        let good = completed("/x".to_owned(), (StatusCode::OK, "text").into_response()).await;
        assert_ne!(good.headers()[header::CONTENT_TYPE], PROBLEM_JSON);
    }

    #[tokio::test]
    async fn problem_members_kept_on_completion() {
        let field = ProblemDetails::field("/rate", "give a rate");
        let response = completed("/y".to_owned(), field.clone().into_response()).await;
        assert_eq!(response.status(), StatusCode::UNPROCESSABLE_ENTITY);
        let problem = document(response).await;
        assert_eq!(problem, ProblemDetails { instance: Some("/y".into()), ..field });
        let busy = ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, "busy").into_response();
        let busy = completed("/y".to_owned(), busy).await;
        assert_eq!(busy.headers()[header::RETRY_AFTER], "1");
        let unknown = completed("/y".to_owned(), ProblemDetails::unauthorized("x").into_response());
        assert_eq!(unknown.await.headers()[header::WWW_AUTHENTICATE], "Bearer");
    }

    #[test]
    fn error_text_reads_either_member() {
        assert_eq!(error_text(b"{\"error\": \"x\"}").as_deref(), Some("x"));
        assert_eq!(error_text(b"{\"detail\": \"y\"}").as_deref(), Some("y"));
        assert_eq!(error_text(b"{}"), None);
        assert_eq!(error_text(b"no"), None);
    }

    #[test]
    fn raw_response_has_its_length() {
        let busy = ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, "busy").retry_after(10);
        let text = String::from_utf8(busy.raw_response()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{head}");
        assert!(head.contains("\r\nretry-after: 10\r\n"), "{head}");
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head}");
        assert_eq!(error_text(body.as_bytes()).as_deref(), Some("busy"));
    }
}
