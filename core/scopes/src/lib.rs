//! Scopes of tokens: what their bearers may do below which paths.
//!
//! | module | purpose |
//! |---|---|
//! | [`path`] | normalised paths, compared by component |
//! | [`rights`] | uses of a path, and sets of them |
//! | [`scope`] | the claim `scope` of the WLCG profile and of SciTokens |
//! | [`token`] | scopes of tokens that a node issues |
//! | [`grant`] | the rights of one bearer, and narrower ones |
//!
//! Not for: signatures and other claims (`penstock-tokens`), nor for exports, which the agent checks as well.

#![forbid(unsafe_code)]

pub mod grant;
pub mod path;
pub mod rights;
pub mod scope;
pub mod token;

pub use grant::{PathGrant, TokenGrant, TokenIssuer};
pub use path::{ScopePath, ScopePathError};
pub use rights::{AccessRights, PathAccess};
pub use scope::{ScopeError, ScopeSyntax};
pub use token::{ApiScope, ApiScopeError, DiskScope, IssuedScope, IssuedScopeError};
