//! Clients with tokens of other issuers: which scopes the configuration grants them.
//!
//! The tokens are those that gateways accept (OpenID Connect with WLCG's or SciTokens' claims, `penstock_tokens`). Their own
//! scopes are for storage and mean nothing here: `grant` of `[[controller.issuer]]` maps subjects and groups to scopes.

use std::sync::Arc;

use axum::http::StatusCode;
use penstock_http::ApiCaller;
use penstock_scopes::{ApiScope, TokenGrant};
use penstock_tokens::jwt::looks_like_jwt;
use penstock_tokens::{IssuerConfig, TokenAuthError};
use tokio::task::spawn_blocking;

use crate::access::AuthorizedClient;
use crate::problem::ProblemDetails;
use crate::repository::now_ms;
use crate::shared::{ControllerState, LiveSettings};

/// Scopes for some of an issuer's bearers: those with the subject and the group, where they are given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeGrant {
    /// Value of the claim `sub`; none for any.
    pub subject: Option<String>,
    /// Element of the claim `wlcg.groups`; none for any.
    pub group: Option<String>,
    /// Scopes that the bearer gets.
    pub scopes: Vec<ApiScope>,
}

/// An issuer whose bearers are clients of the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIssuer {
    /// Issuer with its keys and audiences.
    pub issuer: IssuerConfig,
    /// Grants, of which each that fits a bearer counts.
    pub grants: Vec<ScopeGrant>,
}

impl ScopeGrant {
    fn fits(&self, bearer: &TokenGrant) -> bool {
        let is_subject = self.subject.is_none() || self.subject == bearer.subject;
        is_subject && self.group.as_ref().is_none_or(|group| bearer.groups.contains(group))
    }
}

impl ClientIssuer {
    /// Returns the scopes of a bearer.
    fn scopes_of(&self, bearer: &TokenGrant) -> Vec<ApiScope> {
        let mut scopes = Vec::new();
        for scope in self.grants.iter().filter(|grant| grant.fits(bearer)).flat_map(|g| &g.scopes) {
            if !scopes.contains(scope) {
                scopes.push(scope.clone());
            }
        }
        scopes
    }
}

/// Identifies the client of a request. Waits where the keys of its token's issuer have to be fetched.
pub(crate) async fn identify(
    shared: &ControllerState,
    settings: &Arc<LiveSettings>,
    caller: Option<&ApiCaller>,
) -> Result<AuthorizedClient, ProblemDetails> {
    let known =
        AuthorizedClient::of(caller, &settings.tokens, &settings.config.scopes, &shared.issued);
    match caller {
        Some(ApiCaller::Bearer(token))
            if known.is_err() && looks_like_jwt(token) && !settings.issuers.is_empty() =>
        {
            let (settings, token) = (Arc::clone(settings), token.clone());
            let checked = spawn_blocking(move || bearer_of(&settings, &token)).await;
            checked.unwrap_or(known)
        }
        _ => known,
    }
}

/// Verifies a token with claims; may block for some seconds.
fn bearer_of(settings: &LiveSettings, token: &str) -> Result<AuthorizedClient, ProblemDetails> {
    let now_s = u64::try_from(now_ms() / 1000).unwrap_or(0);
    let bearer = settings.issuers.authenticate(token, now_s).map_err(|error| match error {
        TokenAuthError::Rejected(_) => ProblemDetails::unauthorized(error.to_string()),
        TokenAuthError::Unavailable(_) => {
            ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
        }
    })?;
    let name = bearer.bearer_name();
    let issuer = bearer.issuer.as_ref().map_or("", |issuer| issuer.name.as_str());
    let of_issuer = settings.config.issuers.iter().find(|one| one.issuer.name == issuer);
    let scopes = of_issuer.map_or_else(Vec::new, |one| one.scopes_of(&bearer));
    if scopes.is_empty() {
        return Err(ProblemDetails::forbidden(format!(
            "'{name}' has no scope here: grant of [[controller.issuer]] {issuer} names subjects and groups with their scopes"
        )));
    }
    Ok(AuthorizedClient::with_claims(name, scopes))
}

#[cfg(test)]
mod tests {
    use penstock_scopes::ScopePath;

    use super::*;

    #[test]
    fn grants_of_a_bearer_add_up() {
        let grant = |subject: Option<&str>, group: Option<&str>, scopes: &[&str]| ScopeGrant {
            subject: subject.map(str::to_owned),
            group: group.map(str::to_owned),
            scopes: scopes.iter().map(|text| text.parse().unwrap()).collect(),
        };
        let issuer = ClientIssuer {
            issuer: IssuerConfig {
                name: "cms".into(),
                url: "https://cms.example.org/".into(),
                audiences: vec!["a".into()],
                base: ScopePath::new(b"/").unwrap(),
                jwks_file: None,
                authorities: None,
                reads_api: false,
            },
            grants: vec![
                grant(None, None, &["read"]),
                grant(None, Some("/cms/production"), &["submit:production", "read"]),
                grant(Some("ann"), Some("/cms/operations"), &["operate"]),
            ],
        };
        let scopes = |subject: Option<&str>, groups: &[&str]| {
            let bearer = TokenGrant {
                issuer: None,
                subject: subject.map(str::to_owned),
                groups: groups.iter().map(|group| (*group).to_owned()).collect(),
                paths: Vec::new(),
                expires_s: 0,
            };
            let scopes = issuer.scopes_of(&bearer).into_iter();
            scopes.map(|scope| format!("{scope:?}")).collect::<Vec<_>>()
        };
        let shown = |words: &[&str]| {
            let scopes = words.iter().map(|word| word.parse::<ApiScope>().unwrap());
            scopes.map(|scope| format!("{scope:?}")).collect::<Vec<_>>()
        };
        assert_eq!(scopes(None, &[]), shown(&["read"]));
        assert_eq!(scopes(None, &["/cms/production"]), shown(&["read", "submit:production"]));
        assert_eq!(scopes(Some("ann"), &["/cms"]), shown(&["read"]));
        assert_eq!(scopes(Some("ann"), &["/cms/operations"]), shown(&["read", "operate"]));
        assert_eq!(scopes(Some("bob"), &["/cms/operations"]), shown(&["read"]));
        assert_eq!(scopes(Some("Ann"), &["/cms/production/x"]), shown(&["read"]));
    }
}
