//! The tables `[gateway.head]` and `[gateway.redirected]`.

use std::path::PathBuf;
use std::sync::Arc;

use penstock_http::client::Url;
use penstock_http::tokens::{TokenError, read_token};
use penstock_tokens::RedirectKey;
use serde::Deserialize;

/// Most agents behind a head node.
const AGENTS_MAX: usize = 256;

/// Shortest secret in characters.
const SECRET_BYTES_MIN: usize = 32;

/// A gateway that redirects clients to the agents behind it.
#[derive(Debug, Clone)]
pub struct HeadConfig {
    /// Key of redirects.
    pub key: Arc<RedirectKey>,
    /// Gateways of the agents, without a path.
    pub agents: Vec<Url>,
    /// Moves files itself while no agent has room.
    pub serves: bool,
}

/// A gateway to which head nodes redirect clients.
#[derive(Debug, Clone)]
pub struct RedirectedConfig {
    /// Key of redirects.
    pub key: Arc<RedirectKey>,
    /// URL by which the head nodes know it.
    pub url: Url,
}

/// A fault in one of the two tables.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HeadConfigError {
    /// The file of the key cannot be used.
    #[error(
        "key: {0}: make one with (umask 077; openssl rand -hex 32 > redirect.key) and copy it to all agents of the site"
    )]
    Key(#[from] TokenError),
    /// The key could be guessed.
    #[error(
        "key: {} has fewer than {SECRET_BYTES_MIN} characters: openssl rand -hex 32 makes a good one", .0.display()
    )]
    ShortKey(PathBuf),
    /// No agent.
    #[error("agents: name at least one gateway, such as \"https://dtn2.example.org:8443\"")]
    NoAgents,
    /// More agents than this.
    #[error("agents: more than {AGENTS_MAX}")]
    AgentCount,
    /// The same agent twice.
    #[error("agents: {0} is there twice")]
    Twice(Url),
    /// A URL with a path or a query.
    #[error("{0}: write the URL without a path, such as https://dtn2.example.org:8443")]
    Path(Url),
    /// A URL over which tokens would travel in the clear.
    #[error(
        "{0}: tokens would travel in the clear: use https (http is for loopback addresses only)"
    )]
    Unencrypted(Url),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HeadTable {
    key: PathBuf,
    agents: Vec<Url>,
    serves: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RedirectedTable {
    key: PathBuf,
    url: Url,
}

impl HeadTable {
    /// Checks the table; `beside` resolves paths of files.
    pub(crate) fn check(
        self,
        beside: impl Fn(PathBuf) -> PathBuf,
    ) -> Result<HeadConfig, HeadConfigError> {
        if self.agents.is_empty() {
            return Err(HeadConfigError::NoAgents);
        }
        if self.agents.len() > AGENTS_MAX {
            return Err(HeadConfigError::AgentCount);
        }
        for (at, url) in self.agents.iter().enumerate() {
            check_url(url)?;
            let authority = url.authority();
            let is_same = |other: &Url| other.authority().eq_ignore_ascii_case(&authority);
            if self.agents[..at].iter().any(is_same) {
                return Err(HeadConfigError::Twice(url.clone()));
            }
        }
        let key = read_key(beside(self.key))?;
        Ok(HeadConfig { key, agents: self.agents, serves: self.serves.unwrap_or(true) })
    }
}

impl RedirectedTable {
    /// Checks the table; `beside` resolves paths of files.
    pub(crate) fn check(
        self,
        beside: impl Fn(PathBuf) -> PathBuf,
    ) -> Result<RedirectedConfig, HeadConfigError> {
        check_url(&self.url)?;
        Ok(RedirectedConfig { key: read_key(beside(self.key))?, url: self.url })
    }
}

fn check_url(url: &Url) -> Result<(), HeadConfigError> {
    if url.path() != "/" {
        return Err(HeadConfigError::Path(url.clone()));
    }
    match url.is_encrypted() || url.is_loopback() {
        true => Ok(()),
        false => Err(HeadConfigError::Unencrypted(url.clone())),
    }
}

fn read_key(file: PathBuf) -> Result<Arc<RedirectKey>, HeadConfigError> {
    let secret = read_token(&file)?;
    match secret.len() < SECRET_BYTES_MIN {
        true => Err(HeadConfigError::ShortKey(file)),
        false => Ok(Arc::new(RedirectKey::new(secret.as_bytes()))),
    }
}
