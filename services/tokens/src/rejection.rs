//! Parts that make a token invalid.

use penstock_scopes::ScopeError;

/// Reason for which a token is not accepted; names the claim or part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenRejection {
    /// Longer than [`crate::jwt::JWT_BYTES_MAX`].
    #[error("the token is longer than {} bytes", crate::jwt::JWT_BYTES_MAX)]
    Long,
    /// A part that cannot be decoded.
    #[error("the token is malformed: its {0} cannot be decoded")]
    Malformed(&'static str),
    /// An algorithm other than RS256 and ES256.
    #[error("'alg' is '{0}': only RS256 and ES256 are accepted")]
    Algorithm(String),
    /// The header demands extensions (RFC 7515 section 4.1.11).
    #[error("'crit' names extensions that are not supported")]
    Critical,
    /// The issuer is not configured.
    #[error("'iss' is '{0}', which is no issuer of this agent: ask its operator to add [[issuer]]")]
    Issuer(String),
    /// Without `kid` the issuer's key is ambiguous.
    #[error("'kid' is missing, and the issuer has several keys")]
    NoKeyId,
    /// The issuer does not publish this key.
    #[error("'kid' is '{0}', which the issuer does not publish")]
    UnknownKey(String),
    /// The key is for another algorithm.
    #[error("'alg' is {0}, but the issuer's key is of another type")]
    KeyType(&'static str),
    /// The signature does not match.
    #[error("the signature is not the issuer's")]
    Signature,
    /// A mandatory claim is missing.
    #[error("'{0}' is missing")]
    Missing(&'static str),
    /// A claim of another type or range.
    #[error("'{0}' has an invalid value")]
    Invalid(&'static str),
    /// The lifetime is over.
    #[error("'exp' is {0} s ago: get a new token")]
    Expired(u64),
    /// The lifetime has not begun.
    #[error("'{claim}' is {ahead_s} s in the future: get a new token, or set the clocks")]
    Early {
        /// Name of the claim.
        claim: &'static str,
        /// Seconds until then.
        ahead_s: u64,
    },
    /// The token is for another service.
    #[error("'aud' is '{0}', which is none of this agent's: ask for a token with its audience")]
    Audience(String),
    /// Neither the WLCG profile 1.x nor SciTokens 2.0.
    #[error("{0}: only tokens of the WLCG profile 1.x and SciTokens 2.0 are accepted")]
    Profile(String),
    /// A scope for storage that cannot be used.
    #[error("'scope': {0}")]
    Scope(#[from] ScopeError),
}
