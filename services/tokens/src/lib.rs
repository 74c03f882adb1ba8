//! Tokens that state what their bearers may do: those of other issuers (WLCG profile, SciTokens), and those that an
//! agent derives for third-party copies and redirects.
//!
//! ```text
//! token ── issuer, key id ── keys (cache ── JWKS over https) ── signature ── claims ── rights by path
//! ```
//!
//! | module | purpose |
//! |---|---|
//! | [`jwt`] | verification of a token by a set of keys: pure |
//! | [`keys`] | the keys of a JWKS document: pure |
//! | [`rejection`] | claims and other parts that make a token invalid |
//! | [`key_cache`] | keys of an issuer, fetched again when they age or a new one appears |
//! | [`issuer`] | the configured issuers |
//! | [`macaroon`] | requests for derived tokens, and these tokens |
//! | [`redirect`] | tokens in the URLs of redirects between the agents of a site |
//! | `signed` | what both are made of: JSON with its HMAC |
//!
//! Not for: tokens that the agent knows by name (`penstock_http::tokens`), nor for exports (`penstock-agent`).

#![forbid(unsafe_code)]

mod fetch;
pub mod issuer;
pub mod jwt;
pub mod key_cache;
pub mod keys;
pub mod macaroon;
pub mod redirect;
pub mod rejection;
mod signed;

pub use fetch::KeyFetchError;
pub use issuer::{IssuerConfig, IssuerFileError, IssuerRegistry, TokenAuthError};
pub use macaroon::{MacaroonKey, MintRequest, TokenMinter};
pub use redirect::{RedirectGrant, RedirectKey, RedirectTokenError, RedirectedClient};
pub use rejection::TokenRejection;

/// Returns the first characters of a text from outside, control characters replaced.
fn excerpt(text: &str) -> String {
    text.chars().take(100).map(|c| if c.is_control() { '?' } else { c }).collect()
}
