//! Rights of one bearer.

use crate::path::ScopePath;
use crate::rights::{AccessRights, PathAccess};

/// Rights below one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathGrant {
    /// Path of the tree, as clients name it.
    pub path: ScopePath,
    /// Uses of the path and of all below it.
    pub rights: AccessRights,
}

/// Configured issuer of a token with claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenIssuer {
    /// Name in the configuration.
    pub name: String,
    /// URL of the issuer, the claim `iss`.
    pub url: String,
}

/// Rights that a token states by itself, and their end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenGrant {
    /// Issuer of the token; `None` for one derived from a token that the agent knows by name.
    pub issuer: Option<TokenIssuer>,
    /// Bearer as its issuer names it, the claim `sub`.
    pub subject: Option<String>,
    /// Groups of the bearer (`wlcg.groups`).
    pub groups: Vec<String>,
    /// Rights by path, in the names of the agent's exports.
    pub paths: Vec<PathGrant>,
    /// Time when the rights end, in seconds since 1970.
    pub expires_s: u64,
}

impl TokenGrant {
    /// Name of the bearer in logs, lists and configurations: `issuer:NAME:SUBJECT`, without a subject `issuer:NAME`.
    #[must_use]
    pub fn bearer_name(&self) -> String {
        let issuer = self.issuer.as_ref().map_or("", |issuer| issuer.name.as_str());
        match &self.subject {
            Some(subject) => format!("issuer:{issuer}:{subject}"),
            None => format!("issuer:{issuer}"),
        }
    }

    /// Union of the rights at a path.
    #[must_use]
    pub fn rights_at(&self, path: &ScopePath) -> AccessRights {
        let covering = self.paths.iter().filter(|grant| grant.path.covers(path));
        covering.fold(AccessRights::NONE, |rights, grant| rights.union(grant.rights))
    }

    /// The outermost granted path that contains `path` and allows `access`; `None` if none does.
    #[must_use]
    pub fn covering(&self, path: &ScopePath, access: PathAccess) -> Option<&ScopePath> {
        self.paths
            .iter()
            .filter(|grant| grant.path.covers(path) && grant.rights.allows(access))
            .map(|grant| &grant.path)
            .min_by_key(|path| path.components().len())
    }

    /// True if some right is at, above or below a path, so that a listing may show its name.
    #[must_use]
    pub fn touches(&self, path: &ScopePath) -> bool {
        self.paths.iter().any(|grant| grant.path.covers(path) || path.covers(&grant.path))
    }

    /// Rights that this grant and the `wanted` one have in common.
    #[must_use]
    pub fn narrowed(&self, wanted: &PathGrant) -> Vec<PathGrant> {
        let mut common = Vec::new();
        for grant in &self.paths {
            let path = match (grant.path.covers(&wanted.path), wanted.path.covers(&grant.path)) {
                (true, _) => &wanted.path,
                (false, true) => &grant.path,
                (false, false) => continue,
            };
            let rights = grant.rights.intersection(wanted.rights);
            if !rights.is_empty() {
                common.push(PathGrant { path: path.clone(), rights });
            }
        }
        common
    }
}
