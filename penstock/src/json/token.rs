//! `penstock token`.

use penstock_http::issued_tokens::IssuedToken;
use serde::Serialize;
use utoipa::ToSchema;

/// An issued token, without its secret.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct TokenJson {
    /// Id of the token, as `revoke` takes it; part of the token and no secret.
    pub(crate) id: String,
    /// Name of the bearer.
    pub(crate) name: String,
    /// Rights of the bearer, as `--scope` takes them.
    pub(crate) scopes: Vec<String>,
    /// Time of the issue.
    pub(crate) created_unix_seconds: u64,
    /// End of the validity.
    pub(crate) expires_unix_seconds: u64,
    /// Most submitted transfers that an agent runs at once for it; null for the limit of the agent.
    pub(crate) transfers_max: Option<usize>,
}

impl From<&IssuedToken> for TokenJson {
    fn from(token: &IssuedToken) -> Self {
        Self {
            id: token.id.clone(),
            name: token.name.clone(),
            scopes: token.scopes.clone(),
            created_unix_seconds: token.created_unix_seconds,
            expires_unix_seconds: token.expires_unix_seconds,
            transfers_max: token.transfers_max,
        }
    }
}

/// A token that was created.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct CreatedTokenJson {
    /// The token, which is not shown again.
    pub(crate) token: String,
    /// The part that the node keeps.
    pub(crate) issued: TokenJson,
}

/// Valid tokens, or those that were revoked.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct TokenListJson {
    /// Tokens, the oldest first.
    pub(crate) tokens: Vec<TokenJson>,
}
