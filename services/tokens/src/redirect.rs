//! Tokens in the URLs of redirects from a head node to the agents behind it.
//!
//! A client that follows a redirect to another host sends no credentials there, or its agent may not know them. So the head
//! node, which has authenticated the client, signs who the client is and what it wants: one method, one path, one host, for
//! a minute. The agents of a site share the key.

use std::fmt;

use aws_lc_rs::hmac;
use penstock_scopes::TokenGrant;
use serde::{Deserialize, Serialize};

use crate::signed::{self, GrantPayload};

/// Time in seconds for a client to begin the redirected request.
pub const REDIRECT_LIFETIME_S: u64 = 60;

/// Most seconds by which the clock of the head node may be ahead.
const CLOCK_LEAD_MAX_S: u64 = 30;

/// Longest token in bytes: a URL has to hold it.
const REDIRECT_TOKEN_BYTES_MAX: usize = 6 << 10;

/// Beginning of a token: kind and version.
const PREFIX: &str = "pr1.";

/// A redirected request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedirectGrant {
    /// Method of the request.
    pub method: String,
    /// Decoded path of the request.
    pub path: Vec<u8>,
    /// Host and port of the agent that gets the request.
    pub host: String,
    /// Client as the head node authenticated it; `None` for a request of the head node itself.
    pub client: Option<RedirectedClient>,
    /// Time until which the request must begin, in seconds since 1970.
    pub expires_s: u64,
}

/// Client of a redirected request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedirectedClient {
    /// Name of the client at the head node, which the exports of the agent know, too.
    pub name: String,
    /// Rights that the client's token states by itself.
    pub grant: Option<TokenGrant>,
}

/// A redirected request that is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RedirectTokenError {
    /// The code does not match, or the content is damaged.
    #[error(
        "the token of the redirect is not from a head node of this agent, or damaged: ask the head node again"
    )]
    Forged,
    /// The time to begin the request is over.
    #[error("the redirect has expired {0} s ago: ask the head node again")]
    Expired(u64),
    /// The head node's clock is ahead.
    #[error(
        "the redirect is valid for {0} s, more than a minute: the clocks of the head node and this agent differ"
    )]
    Lifetime(u64),
    /// A token for another method, path or host.
    #[error("the redirect is for another {0}: ask the head node again")]
    Other(&'static str),
    /// More rights and groups than a URL can hold.
    #[error("the rights of the client are too many for a URL")]
    Long,
}

/// Content of a token, with short names.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RedirectPayload {
    m: String,
    /// The bytes of the path as characters of the same number.
    p: String,
    h: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    c: Option<ClientPayload>,
    e: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientPayload {
    n: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    g: Option<GrantPayload>,
}

/// Secret key that the agents of a site share for redirects.
pub struct RedirectKey(hmac::Key);

impl fmt::Debug for RedirectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RedirectKey")
    }
}

impl RedirectKey {
    /// Creates a key from a secret of at least 32 bytes.
    #[must_use]
    pub fn new(secret: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// Returns true for a text of the form of a token of a redirect.
    #[must_use]
    pub fn looks_redirected(token: &str) -> bool {
        token.starts_with(PREFIX)
    }

    /// Writes a token and signs it.
    ///
    /// # Errors
    /// When a URL cannot hold it.
    pub fn seal(&self, grant: &RedirectGrant) -> Result<String, RedirectTokenError> {
        let client = grant.client.as_ref();
        let payload = RedirectPayload {
            m: grant.method.clone(),
            p: grant.path.iter().copied().map(char::from).collect(),
            h: grant.host.clone(),
            c: client.map(|client| ClientPayload {
                n: client.name.clone(),
                g: client.grant.as_ref().map(GrantPayload::of),
            }),
            e: grant.expires_s,
        };
        let text = signed::seal(&self.0, PREFIX, &payload);
        match text.len() > REDIRECT_TOKEN_BYTES_MAX {
            true => Err(RedirectTokenError::Long),
            false => Ok(text),
        }
    }

    /// Reads the token of a request of `method` for `path` at `host`, at `now_s` seconds since 1970; returns the client.
    ///
    /// # Errors
    /// When it is not from this key, has expired, or is for another request.
    pub fn open(
        &self,
        token: &str,
        method: &str,
        path: &[u8],
        host: &str,
        now_s: u64,
    ) -> Result<Option<RedirectedClient>, RedirectTokenError> {
        let forged = RedirectTokenError::Forged;
        if token.len() > REDIRECT_TOKEN_BYTES_MAX {
            return Err(forged);
        }
        let payload: RedirectPayload =
            signed::open(&self.0, PREFIX, token).ok_or(RedirectTokenError::Forged)?;
        if now_s >= payload.e {
            return Err(RedirectTokenError::Expired(now_s - payload.e));
        }
        let left = payload.e - now_s;
        if left > REDIRECT_LIFETIME_S + CLOCK_LEAD_MAX_S {
            return Err(RedirectTokenError::Lifetime(left));
        }
        if payload.m != method {
            return Err(RedirectTokenError::Other("method"));
        }
        if !payload.p.chars().map(u32::from).eq(path.iter().copied().map(u32::from)) {
            return Err(RedirectTokenError::Other("path"));
        }
        if !payload.h.eq_ignore_ascii_case(host) {
            return Err(RedirectTokenError::Other("agent"));
        }
        let Some(client) = payload.c else { return Ok(None) };
        let grant = match client.g {
            Some(grant) => Some(grant.read().ok_or(forged)?),
            None => None,
        };
        Ok(Some(RedirectedClient { name: client.n, grant }))
    }
}

#[cfg(test)]
mod tests {
    use penstock_scopes::{AccessRights, PathGrant, ScopePath, TokenIssuer};
    use proptest::prelude::*;

    use super::*;

    const NOW_S: u64 = 1_800_000_000;
    const HOST: &str = "dtn2.example.org:8443";

    fn grant_of(path: &[u8], groups: usize) -> RedirectGrant {
        let grant = TokenGrant {
            issuer: Some(TokenIssuer { name: "cms".into(), url: "https://cms.example.org".into() }),
            subject: Some("alice".into()),
            groups: (0..groups).map(|number| format!("/cms/group-{number}")).collect(),
            paths: vec![PathGrant {
                path: ScopePath::new(b"/store").unwrap(),
                rights: AccessRights::READ,
            }],
            expires_s: NOW_S + 3600,
        };
        RedirectGrant {
            method: "GET".into(),
            path: path.to_vec(),
            host: HOST.into(),
            client: Some(RedirectedClient { name: "issuer:cms:alice".into(), grant: Some(grant) }),
            expires_s: NOW_S + REDIRECT_LIFETIME_S,
        }
    }

    #[test]
    fn other_requests_are_refused() {
        let key = RedirectKey::new(&[7; 32]);
        let sealed = key.seal(&grant_of(b"/store/f", 1)).unwrap();
        let open = |method, path: &[u8], host, now_s| key.open(&sealed, method, path, host, now_s);
        assert_eq!(open("GET", b"/store/f", HOST, NOW_S), Ok(grant_of(b"/store/f", 1).client));
        let upper = HOST.to_uppercase();
        assert!(open("GET", b"/store/f", &upper, NOW_S + 59).is_ok());
        for (method, path, host, now_s, error) in [
            ("PUT", &b"/store/f"[..], HOST, NOW_S, RedirectTokenError::Other("method")),
            ("GET", b"/store/f/", HOST, NOW_S, RedirectTokenError::Other("path")),
            ("GET", b"/store", HOST, NOW_S, RedirectTokenError::Other("path")),
            (
                "GET",
                b"/store/f",
                "dtn3.example.org:8443",
                NOW_S,
                RedirectTokenError::Other("agent"),
            ),
            ("GET", b"/store/f", HOST, NOW_S + 60, RedirectTokenError::Expired(0)),
            ("GET", b"/store/f", HOST, NOW_S - 31, RedirectTokenError::Lifetime(91)),
        ] {
            assert_eq!(open(method, path, host, now_s), Err(error));
        }
        let other = RedirectKey::new(&[8; 32]);
        assert_eq!(
            other.open(&sealed, "GET", b"/store/f", HOST, NOW_S),
            Err(RedirectTokenError::Forged)
        );
        assert_eq!(key.seal(&grant_of(b"/f", 1000)), Err(RedirectTokenError::Long));
    }

    /// A key of one purpose signs nothing of the other.
    #[test]
    fn derived_tokens_are_no_redirects() {
        let (redirects, macaroons) =
            (RedirectKey::new(&[7; 32]), crate::MacaroonKey::new(&[7; 32]));
        let sealed = redirects.seal(&grant_of(b"/store/f", 0)).unwrap();
        assert!(macaroons.open(&sealed, NOW_S).is_err());
        assert!(!crate::MacaroonKey::looks_derived(&sealed));
        assert!(RedirectKey::looks_redirected(&sealed));
    }

    proptest! {
        #[test]
        fn any_path_is_read_back(path in proptest::collection::vec(any::<u8>(), 0..200)) {
            let key = RedirectKey::new(&[7; 32]);
            let grant = grant_of(&path, 3);
            let sealed = key.seal(&grant).unwrap();
            prop_assert!(sealed.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)));
            prop_assert_eq!(key.open(&sealed, "GET", &path, HOST, NOW_S), Ok(grant.client));
        }

        #[test]
        fn changed_tokens_are_forged(at in any::<prop::sample::Index>(), to in any::<u8>()) {
            let key = RedirectKey::new(&[7; 32]);
            let sealed = key.seal(&grant_of(b"/store/f", 2)).unwrap();
            let mut bytes = sealed.clone().into_bytes();
            let at = at.index(bytes.len());
            bytes[at] = to;
            let changed = String::from_utf8_lossy(&bytes).into_owned();
            let opened = key.open(&changed, "GET", b"/store/f", HOST, NOW_S);
            // The last character of a code has spare bits, which the decoder refuses.
            prop_assert_eq!(opened.is_ok(), changed == sealed);
        }
    }
}
