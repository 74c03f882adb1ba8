//! Credentials of a request: a bearer token, or the same token as the password of basic authentication, which clients
//! without bearer tokens send (cadaver, web browsers); without either the certificate of the connection's client.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use penstock_http::ProblemDetails;
use penstock_http::server::HttpConnection;
use penstock_identity::certificate_fingerprint;
use penstock_mover::{Caller, Gatekeeper};
use penstock_protocol::open::{Refusal, RefusalKind};
use penstock_tokens::jwt::looks_like_jwt;
use percent_encoding::percent_decode_str;

use crate::error::refused;

/// Challenges of a 401 response (RFC 9110 section 11.6.1).
pub(crate) const CHALLENGES: [&str; 2] =
    ["Bearer realm=\"penstock\"", "Basic realm=\"penstock\", charset=\"UTF-8\""];

/// Authenticates the client of a request.
///
/// # Errors
/// 401 with the reason.
pub(crate) async fn authenticate(
    keeper: &Arc<dyn Gatekeeper>,
    headers: &HeaderMap,
    query: Option<&str>,
    connection: &HttpConnection,
) -> Result<Caller, ProblemDetails> {
    let peer = connection.peer().to_string();
    let token = match query.and_then(token_in_query) {
        _ if headers.contains_key(AUTHORIZATION) => token(headers)?,
        Some(token) => token,
        None => {
            let certificate = connection.certificate().and_then(certificate_fingerprint);
            let certificate = certificate.ok_or_else(no_credentials)?;
            return keeper.authenticate("", Some(&certificate), &peer).map_err(refused);
        }
    };
    authenticate_token(keeper, token, peer).await.map_err(refused)
}

/// Authenticates the bearer of a token.
///
/// # Errors
/// With the reason.
pub(crate) async fn authenticate_token(
    keeper: &Arc<dyn Gatekeeper>,
    token: String,
    peer: String,
) -> Result<Caller, Refusal> {
    if !looks_like_jwt(&token) {
        return keeper.authenticate(&token, None, &peer);
    }
    // The keys of its issuer may have to be fetched.
    let keeper = Arc::clone(keeper);
    let checked =
        tokio::task::spawn_blocking(move || keeper.authenticate(&token, None, &peer)).await;
    checked.unwrap_or_else(|error| {
        let text = format!("the token cannot be checked: {error}");
        Err(Refusal::new(RefusalKind::Busy, text))
    })
}

/// Returns the token that XRootD's clients put into a URL: `?authz=Bearer%20TOKEN`.
pub(crate) fn token_in_query(query: &str) -> Option<String> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix("authz="))?;
    let text = percent_decode_str(value).decode_utf8().ok()?;
    text.strip_prefix("Bearer ").map(|token| token.trim().to_owned())
}

fn no_credentials() -> ProblemDetails {
    ProblemDetails::unauthorized(
        "no token: send Authorization: Bearer TOKEN (X.509 proxies are not accepted)",
    )
}

/// Returns the token of a request.
fn token(headers: &HeaderMap) -> Result<String, ProblemDetails> {
    let missing = no_credentials;
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or_else(missing)?;
    if values.next().is_some() {
        return Err(ProblemDetails::bad_request("two Authorization headers"));
    }
    let text = value.to_str().map_err(|_| missing())?;
    let (scheme, credentials) = text.split_once(' ').ok_or_else(missing)?;
    let credentials = credentials.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Ok(credentials.to_owned());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return Err(missing());
    }
    let decoded = STANDARD.decode(credentials).ok().and_then(|text| String::from_utf8(text).ok());
    let (_, password) = decoded
        .as_deref()
        .and_then(|text| text.split_once(':'))
        .ok_or_else(|| ProblemDetails::unauthorized("the basic credentials are damaged"))?;
    Ok(password.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token_of(value: &str) -> Result<String, u16> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, value.parse().unwrap());
        token(&headers).map_err(|problem| problem.status)
    }

    #[test]
    fn token_in_url_is_decoded() {
        let token = |query| token_in_query(query);
        assert_eq!(token("a=b&authz=Bearer%20abc&c=d").as_deref(), Some("abc"));
        for none in ["", "authz=abc", "authz=Basic%20abc", "xauthz=Bearer%20abc", "authz=%FF"] {
            assert_eq!(token(none), None, "{none}");
        }
    }

    #[test]
    fn token_is_bearer_or_password() {
        assert_eq!(token_of("Bearer abc"), Ok("abc".to_owned()));
        assert_eq!(token_of("bearer  abc "), Ok("abc".to_owned()));
        // alice:the:token
        assert_eq!(token_of("Basic YWxpY2U6dGhlOnRva2Vu"), Ok("the:token".to_owned()));
        for damaged in ["Basic !", "Basic YWxpY2U=", "Bearer", "Negotiate x", ""] {
            assert_eq!(token_of(damaged), Err(401), "{damaged}");
        }
        assert_eq!(token(&HeaderMap::new()).unwrap_err().status, 401);
    }
}
