//! Entity tags of JSON answers (RFC 9110 sections 8.8.3 and 13.1.2): a client that polls receives a document again only
//! after it has changed.

use aws_lc_rs::digest::{SHA256, digest};
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use penstock_http::ProblemDetails;
use penstock_http::tokens::hex;

/// Longest answer that gets a tag, in bytes.
const TAGGED_BYTES_MAX: usize = 4 << 20;

/// Headers of a request that decide on its answer.
#[derive(Debug)]
pub(crate) struct Precondition {
    is_read: bool,
    none_match: Option<String>,
}

impl Precondition {
    pub(crate) fn of(method: &Method, headers: &HeaderMap) -> Self {
        let none_match = headers.get(header::IF_NONE_MATCH);
        let none_match = none_match.and_then(|value| value.to_str().ok()).map(str::to_owned);
        Self { is_read: *method == Method::GET, none_match }
    }

    /// Adds the tag to a JSON answer, or answers 304 where the client has this document.
    pub(crate) async fn apply(&self, response: Response) -> Response {
        let is_json = response
            .headers()
            .get(header::CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes() == b"application/json");
        let size = axum::body::HttpBody::size_hint(response.body()).exact();
        let fits = size.is_some_and(|bytes| bytes <= TAGGED_BYTES_MAX as u64);
        let is_tagged = response.headers().contains_key(header::ETAG);
        if !self.is_read || response.status() != StatusCode::OK || !is_json || !fits || is_tagged {
            return response;
        }
        let (mut head, body) = response.into_parts();
        // The size is known: the body is in memory.
        let Ok(body) = to_bytes(body, TAGGED_BYTES_MAX).await else {
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            return ProblemDetails::new(status, "the answer could not be made").into_response();
        };
        let tag = format!("\"{}\"", hex(&digest(&SHA256, &body).as_ref()[..16]));
        if let Ok(value) = HeaderValue::from_str(&tag) {
            head.headers.insert(header::ETAG, value);
        }
        if !self.has(&tag) {
            return Response::from_parts(head, Body::from(body));
        }
        head.status = StatusCode::NOT_MODIFIED;
        head.headers.remove(header::CONTENT_TYPE);
        head.headers.remove(header::CONTENT_LENGTH);
        Response::from_parts(head, Body::empty())
    }

    /// Compares weakly, as RFC 9110 section 13.1.2 says.
    fn has(&self, tag: &str) -> bool {
        let Some(list) = &self.none_match else { return false };
        list.split(',').map(str::trim).any(|one| one == "*" || one.trim_start_matches("W/") == tag)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    async fn answer(none_match: Option<&str>, method: Method) -> Response {
        let mut headers = HeaderMap::new();
        if let Some(value) = none_match {
            headers.insert(header::IF_NONE_MATCH, value.parse().unwrap());
        }
        let response = axum::Json(BTreeMap::from([("id", 1)])).into_response();
        Precondition::of(&method, &headers).apply(response).await
    }

    #[tokio::test]
    async fn known_document_is_not_sent_again() {
        let first = answer(None, Method::GET).await;
        let tag = first.headers()[header::ETAG].to_str().unwrap().to_owned();
        assert_eq!(to_bytes(first.into_body(), 100).await.unwrap(), "{\"id\":1}");
        for known in [tag.clone(), format!("W/{tag}"), format!("\"x\", {tag}"), "*".into()] {
            let again = answer(Some(&known), Method::GET).await;
            assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{known}");
            assert_eq!(again.headers()[header::ETAG], tag.as_str());
            assert!(to_bytes(again.into_body(), 100).await.unwrap().is_empty());
        }
        assert_eq!(answer(Some("\"x\""), Method::GET).await.status(), StatusCode::OK);
        let change = answer(Some(&tag), Method::POST).await;
        assert!(change.status() == StatusCode::OK && !change.headers().contains_key(header::ETAG));
    }
}
