//! Scopes of tokens that a node issues: of its HTTP API, and of its storage.
//!
//! | scope | allows |
//! |---|---|
//! | `read` | to read everything over the HTTP API |
//! | `submit:CLASS`, `submit:*` | to submit to the class of a controller, and to read and change its requests |
//! | `operate` | to read and change everything over the HTTP API |
//! | `agent:HOST` | to report as the host to a controller and to receive its orders |
//! | `disk:NAME`, `disk:*` | to list the disk that the agent exports, and to learn its address and the secrets of its hosts |
//! | `disk:NAME@NQN`, `disk:*@NQN` | the same for the host with this qualified name alone |
//! | `disk.export` | to export further disks of the agent, below paths that its operator allows, and to change and end these exports |
//! | `storage.read:/PATH`, `storage.create:/PATH`, `storage.modify:/PATH` | to use files of the agent's exports, as in the WLCG profile |

use std::fmt;
use std::str::FromStr;

use crate::grant::PathGrant;
use crate::scope::{self, ScopeSyntax};

/// Longest name of a class, host or disk.
const NAME_BYTES_MAX: usize = 128;

/// Longest qualified name of an NVMe host.
const HOST_NQN_BYTES_MAX: usize = 223;

/// Longest scope that an error shows, in characters.
const SHOWN_CHARS_MAX: usize = 100;

/// A permission on the HTTP API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiScope {
    /// Read access to everything.
    Read,
    /// Submission to a class; none for all classes.
    Submit(Option<String>),
    /// Change of all requests and transfers, and of the network's state.
    Operate,
    /// Reports and orders of this host.
    Agent(String),
    /// Address of an exported disk and secrets of its hosts.
    Disk(DiskScope),
    /// Creation, change and end of exports of disks.
    DiskExport,
}

/// Disks and hosts of a scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskScope {
    /// Name of the disk; none for all disks.
    pub disk: Option<String>,
    /// Qualified name of the host; none for all hosts.
    pub host: Option<String>,
}

impl DiskScope {
    fn parse(text: &str) -> Option<Self> {
        let (disk, host) = match text.split_once('@') {
            Some((disk, host)) => (disk, Some(host)),
            None => (text, None),
        };
        if !host.is_none_or(is_host_nqn) {
            return None;
        }
        let host = host.map(str::to_owned);
        match disk {
            "*" => Some(Self { disk: None, host }),
            disk => is_name(disk).then(|| Self { disk: Some(disk.to_owned()), host }),
        }
    }

    /// True where the scope covers the disk of this name, for one host at least.
    #[must_use]
    pub fn covers(&self, disk: &str) -> bool {
        self.disk.as_ref().is_none_or(|name| name == disk)
    }

    /// True where the scope covers the disk of this name for this host.
    #[must_use]
    pub fn covers_host(&self, disk: &str, host: &str) -> bool {
        self.covers(disk) && self.host.as_ref().is_none_or(|name| name == host)
    }
}

impl fmt::Display for DiskScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "disk:{}", self.disk.as_deref().unwrap_or("*"))?;
        self.host.iter().try_for_each(|host| write!(f, "@{host}"))
    }
}

/// A text that is no scope of the HTTP API.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no scope: write read, submit:CLASS, submit:*, operate, agent:HOST, disk:NAME, disk:NAME@NQN, disk:* or disk.export, with names of letters, digits and any of - . _"
)]
pub struct ApiScopeError(String);

impl FromStr for ApiScope {
    type Err = ApiScopeError;

    fn from_str(text: &str) -> Result<Self, ApiScopeError> {
        match text.split_once(':') {
            None if text == "read" => Ok(Self::Read),
            None if text == "operate" => Ok(Self::Operate),
            None if text == "disk.export" => Ok(Self::DiskExport),
            Some(("submit", "*")) => Ok(Self::Submit(None)),
            Some(("submit", class)) if is_name(class) => Ok(Self::Submit(Some(class.to_owned()))),
            Some(("disk", rest)) => {
                DiskScope::parse(rest).map(Self::Disk).ok_or_else(|| ApiScopeError(visible(text)))
            }
            Some(("agent", host)) if is_name(host) => Ok(Self::Agent(host.to_owned())),
            _ => Err(ApiScopeError(visible(text))),
        }
    }
}

/// True for a name of a class, host or disk, as their configurations take them.
fn is_name(text: &str) -> bool {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.chars().all(is_good)
}

/// True for a qualified name of an NVMe host.
fn is_host_nqn(text: &str) -> bool {
    let is_good = |c: char| c.is_ascii_graphic() && !",/".contains(c);
    text.len() <= HOST_NQN_BYTES_MAX && text.starts_with("nqn.") && text.chars().all(is_good)
}

/// A scope as errors show it.
fn visible(text: &str) -> String {
    let visible = text.chars().map(|c| if c.is_control() { '?' } else { c });
    visible.take(SHOWN_CHARS_MAX).collect()
}

impl fmt::Display for ApiScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read => f.write_str("read"),
            Self::Submit(None) => f.write_str("submit:*"),
            Self::Submit(Some(class)) => write!(f, "submit:{class}"),
            Self::Operate => f.write_str("operate"),
            Self::Agent(host) => write!(f, "agent:{host}"),
            Self::Disk(scope) => scope.fmt(f),
            Self::DiskExport => f.write_str("disk.export"),
        }
    }
}

/// A permission of an issued token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IssuedScope {
    /// On the HTTP API.
    Api(ApiScope),
    /// On files of the agent's exports.
    Storage(PathGrant),
}

/// A text that is no scope of an issued token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IssuedScopeError {
    /// Unknown word.
    #[error(
        "'{0}' is no scope: write read, submit:CLASS, submit:*, operate, agent:HOST, disk:NAME, disk:NAME@NQN, disk:*, disk.export, storage.read:/PATH, storage.create:/PATH or storage.modify:/PATH, with names of letters, digits and any of - . _"
    )]
    Word(String),
    /// Fault of a scope for storage.
    #[error(transparent)]
    Storage(#[from] scope::ScopeError),
}

impl FromStr for IssuedScope {
    type Err = IssuedScopeError;

    fn from_str(text: &str) -> Result<Self, IssuedScopeError> {
        if let Ok(scope) = text.parse() {
            return Ok(Self::Api(scope));
        }
        let unknown = || IssuedScopeError::Word(visible(text));
        if text.contains(' ') {
            return Err(unknown());
        }
        scope::parse(text, ScopeSyntax::Wlcg)?.pop().map(Self::Storage).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rights::PathAccess;

    #[test]
    fn scopes_parse_by_their_words() {
        for text in [
            "read",
            "operate",
            "submit:*",
            "submit:analysis",
            "agent:dtn1",
            "disk:*",
            "disk:run-7",
            "disk:run-7@nqn.2020-01.org.example:h",
            "disk:*@nqn.2020-01.org.example:h",
            "disk.export",
        ] {
            let scope: ApiScope = text.parse().unwrap();
            assert_eq!(scope.to_string(), text);
            assert_eq!(text.parse(), Ok(IssuedScope::Api(scope)));
        }
        let Ok(IssuedScope::Storage(grant)) = "storage.modify:/data/a%20b".parse() else {
            panic!("a scope for storage");
        };
        assert!(grant.rights.allows(PathAccess::Delete) && !grant.rights.allows(PathAccess::Read));
        for text in
            ["", "write", "submit:", "disk", "storage.read", "storage.read:/../x", "read operate"]
        {
            assert!(text.parse::<IssuedScope>().is_err(), "{text}");
        }
    }

    #[test]
    fn disk_scopes_cover_their_hosts() {
        let covers = |text: &str, disk: &str, host: &str| {
            let Ok(ApiScope::Disk(scope)) = text.parse() else { panic!("{text}") };
            (scope.covers(disk), scope.covers_host(disk, host))
        };
        for (text, expected) in [
            ("disk:*", (true, true)),
            ("disk:a", (true, true)),
            ("disk:b", (false, false)),
            ("disk:a@nqn.h", (true, true)),
            ("disk:a@nqn.h2", (true, false)),
            ("disk:*@nqn.h", (true, true)),
            ("disk:b@nqn.h", (false, false)),
        ] {
            assert_eq!(covers(text, "a", "nqn.h"), expected, "{text}");
        }
        for text in ["disk:a@", "disk:a@h", "disk:@nqn.h", "disk:a@nqn.h/x", "disk:a@nqn.h@x y"] {
            assert!(text.parse::<IssuedScope>().is_err(), "{text}");
        }
    }

    #[test]
    fn malformed_names_are_no_scopes() {
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for name in ["", "a b", "a\u{1b}[2J", "a/b", "d\u{e9}", "**", &long] {
            for kind in ["submit", "agent", "disk"] {
                let error = format!("{kind}:{name}").parse::<IssuedScope>().unwrap_err();
                assert!(!error.to_string().contains('\u{1b}'), "{error}");
            }
        }
    }
}
