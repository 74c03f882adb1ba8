//! Clients with tokens that state their rights: those of other issuers, and those that this agent derived.
//!
//! Such a client needs both: an export that admits its issuer, group or subject, and a scope that covers the path. The
//! scope confines symbolic links, too.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use penstock_daemon::api::ClaimsAccess;
use penstock_mover::{Caller, ResolvedPath};
use penstock_protocol::manifest::display_path;
use penstock_protocol::open::{Refusal, RefusalKind};
use penstock_scopes::{PathAccess, ScopePath, TokenGrant, TokenIssuer};
use penstock_sys::fs::Kind;
use penstock_sys::machine::unix_seconds;
use penstock_tokens::jwt::{CLOCK_SKEW_S, looks_like_jwt};
use penstock_tokens::macaroon::{DerivedToken, MacaroonKey, MintRequest, TokenMinter};
use penstock_tokens::{IssuerConfig, TokenAuthError};

use super::{AccessRules, Authorizer, components};
use crate::config::{Export, Principal};
use crate::tokens::CONTROLLER;

/// Issuer of a client's token.
pub(super) fn issuer(caller: &Caller) -> Option<&TokenIssuer> {
    caller.grant.as_ref()?.issuer.as_ref()
}

/// True if the claims of the client's token make it this principal.
pub(super) fn is_principal(principal: &Principal, caller: &Caller) -> bool {
    let (Some(grant), Some(own)) = (&caller.grant, issuer(caller)) else { return false };
    match principal {
        Principal::Issuer(issuer) => *issuer == own.name,
        Principal::Group { issuer, group } => *issuer == own.name && grant.groups.contains(group),
        Principal::Subject { issuer, subject } => {
            *issuer == own.name && grant.subject.as_ref() == Some(subject)
        }
        Principal::Anyone | Principal::Token(_) | Principal::Certificate(_) => false,
    }
}

/// True if the client has some right in the export or above it.
pub(super) fn touches(caller: &Caller, export: &Export) -> bool {
    let name = export.name.to_scope_path();
    caller.grant.as_ref().is_none_or(|grant| grant.touches(&name))
}

fn identity_refusal(text: impl ToString) -> Refusal {
    Refusal::new(RefusalKind::Identity, text.to_string())
}

fn token_refusal(error: &TokenAuthError) -> Refusal {
    match error {
        TokenAuthError::Rejected(_) => identity_refusal(error),
        TokenAuthError::Unavailable(_) => Refusal::new(RefusalKind::Busy, error.to_string()),
    }
}

/// A scope that covers a path.
#[derive(Debug, Clone, Copy)]
pub(super) struct CoveringScope {
    /// Number of components of the scope's path.
    depth: usize,
}

impl Authorizer {
    /// Authenticates the bearer of a token with claims; `None` for a token of another form.
    pub(super) fn authenticate_claims(
        &self,
        rules: &AccessRules,
        token: &str,
    ) -> Option<Result<Caller, Refusal>> {
        if looks_like_jwt(token) {
            let grant = rules.issuers.authenticate(token, unix_seconds());
            return Some(match grant {
                Ok(grant) => Ok(Caller {
                    name: grant.bearer_name(),
                    pass: None,
                    token: None,
                    grant: Some(Arc::new(grant)),
                }),
                Err(error) => Err(token_refusal(&error)),
            });
        }
        let key = self.macaroons.as_ref().filter(|_| MacaroonKey::looks_derived(token))?;
        let opened = key.open(token, unix_seconds()).map_err(identity_refusal);
        Some(opened.and_then(|derived| self.bearer_of_derived(rules, derived)))
    }

    /// The client of a derived token, unless the token that it comes from was withdrawn.
    fn bearer_of_derived(
        &self,
        rules: &AccessRules,
        derived: DerivedToken,
    ) -> Result<Caller, Refusal> {
        let DerivedToken { name, parent, grant } = derived;
        let issued = |hash| Some(self.issued.as_ref()?.find_hash(hash)?.name);
        let is_valid = match (&grant.issuer, &parent) {
            (Some(issuer), _) => rules.issuers.config(issuer).is_some(),
            (None, Some(hash)) => {
                let present = rules.tokens.name_of_hash(hash).or_else(|| issued(hash));
                present.as_ref() == Some(&name)
            }
            (None, None) => rules.names_certificate(&name),
        };
        match is_valid {
            true => Ok(Caller { name, pass: None, token: parent, grant: Some(Arc::new(grant)) }),
            false => Err(identity_refusal(
                "the token or certificate that this one was derived from is not valid any more: ask for a new one",
            )),
        }
    }
}

impl AccessRules {
    /// True while the rights of a token last and its issuer is configured.
    pub(super) fn still_grants(&self, grant: &TokenGrant) -> bool {
        let is_configured =
            grant.issuer.as_ref().is_none_or(|issuer| self.issuers.config(issuer).is_some());
        is_configured && unix_seconds() < grant.expires_s.saturating_add(CLOCK_SKEW_S)
    }

    /// Access of the bearer of an issuer's token to the HTTP API.
    pub(super) fn claims_access(&self, token: &str) -> ClaimsAccess {
        let grant = match self.issuers.authenticate(token, unix_seconds()) {
            Ok(grant) => grant,
            Err(error) => return ClaimsAccess::Refused(error.to_string()),
        };
        let config = grant.issuer.as_ref().and_then(|issuer| self.issuers.config(issuer));
        match config {
            Some(IssuerConfig { reads_api: true, .. }) => ClaimsAccess::Read,
            _ => ClaimsAccess::NoRead(grant.bearer_name()),
        }
    }

    /// Checks a use of a path against the scopes of a token.
    pub(super) fn check_grant(
        &self,
        grant: &TokenGrant,
        path: &[u8],
        access: PathAccess,
    ) -> Result<CoveringScope, Refusal> {
        let shown = display_path(path);
        let refused = |text: String| Refusal::new(RefusalKind::Permission, text);
        if !self.still_grants(grant) {
            return Err(identity_refusal("the token has expired meanwhile: get a new one"));
        }
        let path = ScopePath::new(&[b"/", path].concat())
            .map_err(|error| refused(format!("{shown}: the path {error}")))?;
        if let Some(scope) = grant.covering(&path, access) {
            return Ok(CoveringScope { depth: scope.components().len() });
        }
        let verb = access.verb();
        let base = grant.issuer.as_ref().and_then(|issuer| self.issuers.config(issuer));
        Err(refused(match base {
            Some(IssuerConfig { base, .. }) => {
                let word = match access {
                    PathAccess::Stat | PathAccess::List | PathAccess::Read => "read",
                    PathAccess::Create => "create",
                    PathAccess::Replace | PathAccess::Delete | PathAccess::Rename => "modify",
                };
                format!(
                    "{shown}: the token does not allow you to {verb} it: get one with the scope storage.{word} of a path that contains it (the issuer's paths begin at {base})"
                )
            }
            None => format!("{shown}: the scopes of the token do not allow you to {verb} it"),
        }))
    }
}

/// Reopens `place` at the scope's directory, so that symbolic links cannot leave it. `all` is the number of components
/// of the client's path. The path of the scope itself has no links: a client could have made them, and asked for a scope
/// that goes through them.
pub(super) fn confine(
    place: ResolvedPath,
    all: usize,
    scope: CoveringScope,
) -> Result<ResolvedPath, Refusal> {
    let ResolvedPath { root, path, shown } = place;
    let parts = components(&path);
    let is_whole = scope.depth == all && !parts.is_empty();
    // A scope for the path alone may be for a file: its directory confines it.
    let within = if is_whole { scope.depth - 1 } else { scope.depth };
    let depth = within.saturating_sub(all - parts.len());
    let refused = |error: &io::Error| {
        let error = penstock_sys::fs::describe(error);
        let text = format!("{shown}: the path of the token's scope cannot be opened ({error})");
        Refusal::new(RefusalKind::Permission, text)
    };
    // Directories that are missing hold nothing that leads elsewhere.
    let mut opened = None;
    for depth in (0..=depth).rev() {
        let directory = parts[..depth].join(&b'/');
        match root.open_dir_nofollow(OsStr::from_bytes(&directory)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(refused(&error)),
            Ok(dir) => {
                opened = Some((dir, parts[depth..].join(&b'/')));
                break;
            }
        }
    }
    let (root, path) = opened.ok_or_else(|| refused(&io::ErrorKind::NotFound.into()))?;
    let is_link = |path: &[u8]| {
        let stat = root.stat(Path::new(OsStr::from_bytes(path)));
        stat.is_ok_and(|stat| stat.kind == Kind::Symlink)
    };
    if is_whole && !path.contains(&b'/') && is_link(&path) {
        let text = format!("{shown}: a symbolic link leads out of the token's scope");
        return Err(Refusal::new(RefusalKind::Permission, text));
    }
    Ok(ResolvedPath { root, path, shown })
}

impl TokenMinter for Authorizer {
    fn mint(&self, caller: &Caller, request: &MintRequest) -> Result<String, Refusal> {
        let refused = |text: &str| Err(Refusal::new(RefusalKind::Permission, text.to_owned()));
        let Some(key) = &self.macaroons else {
            return refused("this agent derives no tokens");
        };
        if caller.pass.is_some() || caller.name == CONTROLLER {
            return refused("the controller's tickets cannot be handed on");
        }
        let rules = self.rules();
        if caller.grant.is_none()
            && caller.token.is_none()
            && !rules.names_certificate(&caller.name)
        {
            return refused("the agent does not know the client's own token: ask the head node");
        }
        let is_served = rules.exports.iter().any(|export| {
            let name = export.name.to_scope_path();
            let path = &request.grant.path;
            super::admits(export, caller) && (name.covers(path) || path.covers(&name))
        });
        if !is_served {
            return Err(rules.no_export_refusal(caller, &request.grant.path.to_string()));
        }
        let expires_s = unix_seconds().saturating_add(request.validity.as_secs());
        let grant = match &caller.grant {
            Some(own) => TokenGrant {
                paths: own.narrowed(&request.grant),
                expires_s: expires_s.min(own.expires_s),
                ..TokenGrant::clone(own)
            },
            None => TokenGrant {
                issuer: None,
                subject: None,
                groups: Vec::new(),
                paths: vec![request.grant.clone()],
                expires_s,
            },
        };
        if request.grant.rights.is_empty() {
            return refused("the activity caveats leave no right: a right must be in each of them");
        }
        if grant.paths.iter().all(|grant| grant.rights.is_empty()) {
            return refused("the token has none of these rights itself");
        }
        let derived = DerivedToken { name: caller.name.clone(), parent: caller.token, grant };
        key.seal(&derived).map_err(|error| Refusal::new(RefusalKind::Request, error.to_string()))
    }
}
