//! Who may do what: scopes of tokens.
//!
//! | scope | allows |
//! |---|---|
//! | `read` | to see every request, host, link and round, and what the other roles of the node show |
//! | `submit:CLASS`, `submit:*` | to submit to that class, and to see and change the requests of that class |
//! | `operate` | to read, to change every request, to drain hosts and sites, to say that links are down |
//! | `agent:HOST` | to report as that host, and to take its orders |
//!
//! The node's own token may do everything. Who needs no token to read (`[http] read`) has `read`.

use std::collections::HashMap;
use std::str::FromStr;

use penstock_http::ApiCaller;
use penstock_http::tokens::Tokens;
use penstock_operations::class::WorkClass;

use crate::problem::Problem;

/// What a token allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// To see everything.
    Read,
    /// To submit to a class; none for all.
    Submit(Option<String>),
    /// To change everything.
    Operate,
    /// To be a host.
    Agent(String),
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "read" => Ok(Self::Read),
            None if text == "operate" => Ok(Self::Operate),
            Some(("submit", "*")) => Ok(Self::Submit(None)),
            Some(("submit", class)) if !class.is_empty() => {
                Ok(Self::Submit(Some(class.to_owned())))
            }
            Some(("agent", host)) if !host.is_empty() => Ok(Self::Agent(host.to_owned())),
            _ => Err(format!(
                "'{text}' is no scope: write read, submit:CLASS, submit:*, operate or agent:HOST"
            )),
        }
    }
}

/// Scopes by the names of tokens.
#[derive(Debug, Clone, Default)]
pub struct TokenScopes(HashMap<String, Vec<Scope>>);

impl TokenScopes {
    /// Adds a token; true where there was one of this name.
    pub fn insert(&mut self, name: String, scopes: Vec<Scope>) -> bool {
        self.0.insert(name, scopes).is_some()
    }

    /// Whether the token of this name reads everything.
    #[must_use]
    pub fn may_read(&self, name: &str) -> bool {
        let reads = |scope: &Scope| matches!(scope, Scope::Read | Scope::Operate);
        self.0.get(name).is_some_and(|scopes| scopes.iter().any(reads))
    }
}

/// Who asks, and what that one may do.
#[derive(Debug, Clone)]
pub(crate) struct Who {
    pub(crate) name: String,
    scopes: Vec<Scope>,
    everything: bool,
}

impl Who {
    /// The one that a request comes from.
    pub(crate) fn of(
        caller: Option<&ApiCaller>,
        tokens: &Tokens,
        scopes: &TokenScopes,
    ) -> Result<Self, Problem> {
        match caller {
            Some(ApiCaller::Owner) => {
                Ok(Self { name: "owner".into(), scopes: Vec::new(), everything: true })
            }
            Some(ApiCaller::Reader) => {
                Ok(Self { name: "anyone".into(), scopes: vec![Scope::Read], everything: false })
            }
            Some(ApiCaller::Bearer(token)) => match tokens.name_of(token) {
                Some(name) => {
                    let scopes = scopes.0.get(&name).cloned().unwrap_or_default();
                    Ok(Self { name, scopes, everything: false })
                }
                None => Err(Problem::unauthorized(
                    "the token is not known here: [[controller.token]] lists those that are",
                )),
            },
            Some(ApiCaller::Unauthorized(why)) => Err(Problem::unauthorized(why)),
            None => Err(Problem::unauthorized("give a token: Authorization: Bearer TOKEN")),
        }
    }

    fn has(&self, wanted: impl Fn(&Scope) -> bool) -> bool {
        self.everything || self.scopes.iter().any(wanted)
    }

    /// Whether it sees what belongs to no class.
    pub(crate) fn may_read(&self) -> bool {
        self.has(|scope| matches!(scope, Scope::Read | Scope::Operate))
    }

    /// Whether it may submit to some class, or see something at all.
    pub(crate) fn is_client(&self) -> bool {
        self.has(|scope| !matches!(scope, Scope::Agent(_)))
    }

    /// Whether it changes what is not its own.
    pub(crate) fn may_operate(&self) -> bool {
        self.has(|scope| *scope == Scope::Operate)
    }

    /// Whether it sees requests of this class.
    pub(crate) fn may_see(&self, class: &str) -> bool {
        self.may_read() || self.may_change(class)
    }

    /// Whether it changes requests of this class.
    pub(crate) fn may_change(&self, class: &str) -> bool {
        self.has(|scope| match scope {
            Scope::Operate | Scope::Submit(None) => true,
            Scope::Submit(Some(one)) => one == class,
            Scope::Read | Scope::Agent(_) => false,
        })
    }

    /// Whether it submits to this class.
    pub(crate) fn may_submit(&self, class: &WorkClass) -> bool {
        let named = class.who.is_empty() || class.who.contains(&self.name);
        self.everything
            || (named
                && self.has(|scope| match scope {
                    Scope::Submit(one) => one.as_ref().is_none_or(|one| *one == class.name),
                    _ => false,
                }))
    }

    /// Whether it is this host.
    pub(crate) fn is_host(&self, host: &str) -> bool {
        self.has(|scope| matches!(scope, Scope::Agent(one) if one == host))
    }

    /// The classes whose requests it sees; none for all.
    pub(crate) fn sees(&self) -> Option<Vec<String>> {
        if self.may_read() || self.has(|scope| *scope == Scope::Submit(None)) {
            return None;
        }
        let classes = self.scopes.iter().filter_map(|scope| match scope {
            Scope::Submit(class) => class.clone(),
            _ => None,
        });
        Some(classes.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(name: &str, scopes: &[&str]) -> Who {
        let scopes = scopes.iter().map(|text| text.parse().unwrap()).collect();
        Who { name: name.into(), scopes, everything: false }
    }

    #[test]
    fn a_token_may_what_its_scopes_say() {
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
            assert!(text.parse::<Scope>().unwrap_err().contains("submit:CLASS"), "{text}");
        }
    }
}
