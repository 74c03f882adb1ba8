//! The claim `scope` of tokens (WLCG Common JWT Profiles 1.2, section "Scope-based attributes"; SciTokens 2.0).
//!
//! Scopes for other services, such as `openid` or `compute.read`, are skipped. A scope for storage with a damaged path
//! makes the whole claim invalid, as its bearer would get something else than its issuer meant.

use crate::grant::PathGrant;
use crate::path::{ScopePath, ScopePathError};
use crate::rights::AccessRights;

/// Most scopes for storage in a token.
pub const STORAGE_SCOPES_MAX: usize = 64;

/// Longest scope that an error shows, in characters.
const SHOWN_CHARS_MAX: usize = 100;

/// Profile that defines the words of a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScopeSyntax {
    /// `storage.read:/path`, with percent-encoded paths.
    Wlcg,
    /// `read:/path`, with plain paths.
    SciTokens,
}

/// A claim `scope` that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    /// A scope for storage without a path.
    #[error("the scope '{0}' names no path: its issuer must write it like {0}:/")]
    NoPath(String),
    /// A scope with a damaged path.
    #[error("the path of the scope '{scope}' {error}")]
    Path {
        /// Scope as the token has it, at most 100 characters.
        scope: String,
        /// Fault of its path.
        error: ScopePathError,
    },
    /// More than [`STORAGE_SCOPES_MAX`] scopes.
    #[error("the token has more than {STORAGE_SCOPES_MAX} scopes for storage")]
    Count,
}

/// Reads the rights that the claim `scope` grants.
///
/// # Errors
/// When a scope for storage has no path or a damaged one, or there are too many.
pub fn parse(claim: &str, syntax: ScopeSyntax) -> Result<Vec<PathGrant>, ScopeError> {
    let mut grants: Vec<PathGrant> = Vec::new();
    for scope in claim.split(' ').filter(|scope| !scope.is_empty()) {
        let (word, path) = match scope.split_once(':') {
            Some((word, path)) => (word, Some(path)),
            None => (scope, None),
        };
        let rights = match (syntax, word) {
            (ScopeSyntax::Wlcg, "storage.read" | "storage.stage")
            | (ScopeSyntax::SciTokens, "read") => AccessRights::READ,
            (ScopeSyntax::Wlcg, "storage.create") => AccessRights::CREATE,
            (ScopeSyntax::Wlcg, "storage.modify") | (ScopeSyntax::SciTokens, "write") => {
                AccessRights::MODIFY
            }
            _ => continue,
        };
        let shown = || -> String {
            let visible = scope.chars().map(|c| if c.is_control() { '?' } else { c });
            visible.take(SHOWN_CHARS_MAX).collect()
        };
        let path = path.ok_or_else(|| ScopeError::NoPath(shown()))?.as_bytes();
        let path = match syntax {
            ScopeSyntax::Wlcg => ScopePath::decode(path),
            ScopeSyntax::SciTokens => ScopePath::new(path),
        };
        let path = path.map_err(|error| ScopeError::Path { scope: shown(), error })?;
        if grants.len() == STORAGE_SCOPES_MAX {
            return Err(ScopeError::Count);
        }
        grants.push(PathGrant { path, rights });
    }
    Ok(grants)
}
