//! Authorisation of clients by scopes of their tokens.
//!
//! | scope | allows |
//! |---|---|
//! | `read` | to read all requests, hosts, links and rounds, and the data of the node's other roles |
//! | `submit:CLASS`, `submit:*` | to submit to the class, and to read and change its requests |
//! | `operate` | to read, to change all requests, to drain hosts and sites, to set links down |
//! | `agent:HOST` | to report as the host and to receive its orders |
//!
//! Tokens of `[[controller.token]]` have them, those that `penstock token` issued, and those of `[[controller.issuer]]` by its
//! grants. The node's own token has all scopes. Clients that may read without a token (`[http] read`) have `read`.

use std::collections::HashMap;

use penstock_control::class::WorkClass;
use penstock_http::ApiCaller;
use penstock_http::issued_tokens::IssuedTokens;
use penstock_http::tokens::Tokens;
use penstock_scopes::ApiScope;

use crate::problem::ProblemDetails;

/// Scopes of tokens by token name.
#[derive(Debug, Clone, Default)]
pub struct TokenScopes(HashMap<String, Vec<ApiScope>>);

impl TokenScopes {
    /// Adds a token. Returns true if the name was in use.
    pub fn insert(&mut self, name: String, scopes: Vec<ApiScope>) -> bool {
        self.0.insert(name, scopes).is_some()
    }

    /// True if the token may read everything.
    #[must_use]
    pub fn may_read(&self, name: &str) -> bool {
        let reads = |scope: &ApiScope| matches!(scope, ApiScope::Read | ApiScope::Operate);
        self.0.get(name).is_some_and(|scopes| scopes.iter().any(reads))
    }
}

/// A client with its scopes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AuthorizedClient {
    pub(crate) name: String,
    scopes: Vec<ApiScope>,
    everything: bool,
    /// Id of its token, if this node issued it.
    pub(crate) token_id: Option<String>,
}

/// Scopes of an issued token on the HTTP API.
fn api_scopes(scopes: &[String]) -> Vec<ApiScope> {
    // Others are for storage.
    scopes.iter().filter_map(|scope| scope.parse().ok()).collect()
}

/// True if an issued token may read everything; `None` if `token` is none.
pub(crate) fn issued_may_read(issued: &IssuedTokens, token: &str) -> Option<bool> {
    let scopes = api_scopes(&issued.find(token)?.scopes);
    Some(scopes.iter().any(|scope| matches!(scope, ApiScope::Read | ApiScope::Operate)))
}

impl AuthorizedClient {
    /// Identifies the client of a request.
    pub(crate) fn of(
        caller: Option<&ApiCaller>,
        tokens: &Tokens,
        scopes: &TokenScopes,
        issued: &IssuedTokens,
    ) -> Result<Self, ProblemDetails> {
        let with = |name: String, scopes, everything| {
            Ok(Self { name, scopes, everything, token_id: None })
        };
        match caller {
            Some(ApiCaller::Owner) => with("owner".into(), Vec::new(), true),
            Some(ApiCaller::Reader) => with("anyone".into(), vec![ApiScope::Read], false),
            Some(ApiCaller::Bearer(token)) => match tokens.name_of(token) {
                Some(name) => {
                    let scopes = scopes.0.get(&name).cloned().unwrap_or_default();
                    with(name, scopes, false)
                }
                None => match issued.find(token) {
                    Some(token) => Ok(Self {
                        scopes: api_scopes(&token.scopes),
                        name: token.name,
                        everything: false,
                        token_id: Some(token.id),
                    }),
                    None => Err(ProblemDetails::unauthorized(
                        "the token is not known here, has expired or was revoked: [[controller.token]], [[controller.issuer]] and penstock token list show those that are valid",
                    )),
                },
            },
            Some(ApiCaller::Unauthorized(why)) => Err(ProblemDetails::unauthorized(why)),
            None => Err(ProblemDetails::unauthorized("give a token: Authorization: Bearer TOKEN")),
        }
    }

    /// The bearer of another issuer's token.
    pub(crate) fn with_claims(name: String, scopes: Vec<ApiScope>) -> Self {
        Self { name, scopes, everything: false, token_id: None }
    }

    fn has(&self, wanted: impl Fn(&ApiScope) -> bool) -> bool {
        self.everything || self.scopes.iter().any(wanted)
    }

    /// True if it may read data of no class.
    pub(crate) fn may_read(&self) -> bool {
        self.has(|scope| matches!(scope, ApiScope::Read | ApiScope::Operate))
    }

    /// True if it has any scope besides `agent` and `disk`.
    pub(crate) fn is_client(&self) -> bool {
        self.has(|scope| {
            !matches!(scope, ApiScope::Agent(_) | ApiScope::Disk(_) | ApiScope::DiskExport)
        })
    }

    /// True if it may change requests of others and the network's state.
    pub(crate) fn may_operate(&self) -> bool {
        self.has(|scope| *scope == ApiScope::Operate)
    }

    /// True if it may read requests of this class.
    pub(crate) fn may_see(&self, class: &str) -> bool {
        self.may_read() || self.may_change(class)
    }

    /// True if it may change requests of this class.
    pub(crate) fn may_change(&self, class: &str) -> bool {
        self.has(|scope| match scope {
            ApiScope::Operate | ApiScope::Submit(None) => true,
            ApiScope::Submit(Some(one)) => one == class,
            ApiScope::Read | ApiScope::Agent(_) | ApiScope::Disk(_) | ApiScope::DiskExport => false,
        })
    }

    /// True if it may submit to this class.
    pub(crate) fn may_submit(&self, class: &WorkClass) -> bool {
        let named = class.who.is_empty() || class.who.contains(&self.name);
        self.everything
            || (named
                && self.has(|scope| match scope {
                    ApiScope::Submit(one) => one.as_ref().is_none_or(|one| *one == class.name),
                    _ => false,
                }))
    }

    /// True if it may act as this host.
    pub(crate) fn is_host(&self, host: &str) -> bool {
        self.has(|scope| matches!(scope, ApiScope::Agent(one) if one == host))
    }

    /// Returns the classes whose requests it may read; none for all.
    pub(crate) fn sees(&self) -> Option<Vec<String>> {
        if self.may_read() || self.has(|scope| *scope == ApiScope::Submit(None)) {
            return None;
        }
        let classes = self.scopes.iter().filter_map(|scope| match scope {
            ApiScope::Submit(class) => class.clone(),
            _ => None,
        });
        Some(classes.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(name: &str, scopes: &[&str]) -> AuthorizedClient {
        let scopes = scopes.iter().map(|text| text.parse().unwrap()).collect();
        AuthorizedClient { name: name.into(), scopes, everything: false, token_id: None }
    }

    #[test]
    fn scopes_limit_client_permissions() {
        let (cms, atlas) = (WorkClass::new("cms"), WorkClass::new("atlas"));
        let one = who("alice", &["submit:cms", "agent:dtn1"]);
        assert!(one.may_submit(&cms) && !one.may_submit(&atlas));
        assert!(one.may_see("cms") && !one.may_see("atlas") && !one.may_read());
        assert!(one.is_host("dtn1") && !one.is_host("dtn2") && !one.may_operate());
        assert_eq!(one.sees(), Some(vec!["cms".to_owned()]));
        let reader = who("bob", &["read"]);
        assert!(
            reader.may_see("atlas") && !reader.may_change("atlas") && !reader.may_submit(&atlas)
        );
        assert_eq!(reader.sees(), None);
        let operator = who("carol", &["operate"]);
        assert!(operator.may_change("cms") && operator.may_read() && !operator.may_submit(&cms));
        let named = WorkClass { who: vec!["dave".into()], ..cms };
        assert!(!one.may_submit(&named) && who("dave", &["submit:*"]).may_submit(&named));
        assert!(!who("dtn", &["agent:dtn1"]).is_client());
        for text in ["", "write", "submit", "submit:", "agent:", "READ"] {
            let error = text.parse::<ApiScope>().unwrap_err().to_string();
            assert!(error.contains("submit:CLASS"), "{text}");
        }
    }
}
