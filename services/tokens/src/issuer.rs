//! Issuers whose tokens an agent accepts.

use std::path::PathBuf;
use std::sync::Arc;

use penstock_http::client::{ServerTrustError, UrlError};
use penstock_http::{ServerTrust, Url};
use penstock_scopes::{PathGrant, ScopePath, TokenGrant, TokenIssuer};
use tokio::runtime::Handle;

use crate::excerpt;
use crate::fetch::is_trustworthy;
use crate::jwt::{UnverifiedToken, verify};
use crate::key_cache::{KeyCache, KeyCacheTimes, KeyFileError, KeyLookupError};
use crate::rejection::TokenRejection;

/// An issuer as an operator configures it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerConfig {
    /// Name in the principals of exports.
    pub name: String,
    /// The claim `iss`, compared as text.
    pub url: String,
    /// Accepted values of the claim `aud`.
    pub audiences: Vec<String>,
    /// Root of the paths in the issuer's scopes, in the names of exports.
    pub base: ScopePath,
    /// File of its keys, in place of those that it publishes.
    pub jwks_file: Option<PathBuf>,
    /// Authorities of its TLS certificate: PEM file or directory; those of the system without it.
    pub authorities: Option<PathBuf>,
    /// Bearers of its tokens may read the HTTP API.
    pub reads_api: bool,
}

/// A configured issuer that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IssuerConfigError {
    /// The URL is none of HTTP.
    #[error("issuer {name}: url: {error}")]
    Url {
        /// Name of the issuer.
        name: String,
        /// Fault of the URL.
        error: UrlError,
    },
    /// Keys would travel without protection.
    #[error("issuer {0}: url: keys are fetched over https only (http from this machine)")]
    Plaintext(String),
    /// No audience is configured.
    #[error("issuer {0}: audience: name at least one, such as \"https://dtn1.example.org:8443\"")]
    NoAudience(String),
}

impl IssuerConfig {
    /// Checks URL and audiences.
    ///
    /// # Errors
    /// When keys cannot be fetched from the URL, or no audience is configured.
    pub fn check(&self) -> Result<(), IssuerConfigError> {
        let name = || self.name.clone();
        let url: Url =
            self.url.parse().map_err(|error| IssuerConfigError::Url { name: name(), error })?;
        if !is_trustworthy(&url) {
            return Err(IssuerConfigError::Plaintext(name()));
        }
        match self.audiences.is_empty() {
            true => Err(IssuerConfigError::NoAudience(name())),
            false => Ok(()),
        }
    }

    /// Reads the authorities, which each fetch of keys reads anew.
    fn check_authorities(&self) -> Result<(), IssuerFileError> {
        if self.authorities.is_none() {
            return Ok(());
        }
        let loaded = ServerTrust::Authorities(self.authorities.clone()).load();
        let failed = |error| IssuerFileError::Authorities { name: self.name.clone(), error };
        loaded.map(drop).map_err(failed)
    }
}

/// A file of an issuer that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IssuerFileError {
    /// The file of its keys.
    #[error("jwks_file: {0}")]
    Keys(#[from] KeyFileError),
    /// The authorities of its TLS certificate.
    #[error("issuer {name}: {error}: name a PEM file, or a directory of files .pem, .crt or .0")]
    Authorities {
        /// Name of the issuer.
        name: String,
        /// Fault of the file.
        error: ServerTrustError,
    },
}

/// A token that is not accepted now.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TokenAuthError {
    /// The token is not valid.
    #[error("the token is not accepted: {0}")]
    Rejected(#[from] TokenRejection),
    /// The issuer's keys are not available.
    #[error("the token cannot be checked: {0}")]
    Unavailable(KeyLookupError),
}

/// A configured issuer with its keys.
#[derive(Debug)]
struct TrustedIssuer {
    config: IssuerConfig,
    keys: KeyCache,
}

/// All issuers whose tokens an agent accepts.
#[derive(Debug, Default)]
pub struct IssuerRegistry(Vec<Arc<TrustedIssuer>>);

impl IssuerRegistry {
    /// Prepares the issuers of `configs`. Those that `former` has already keep their keys. Keys are fetched on `runtime`
    /// when the first token comes.
    ///
    /// # Errors
    /// When a file of keys or of authorities cannot be used.
    pub fn open(
        configs: &[IssuerConfig],
        runtime: &Handle,
        times: KeyCacheTimes,
        former: &Self,
    ) -> Result<Self, IssuerFileError> {
        let open = |config: &IssuerConfig| {
            config.check_authorities()?;
            if let Some(same) = former.0.iter().find(|issuer| issuer.config == *config) {
                return Ok(Arc::clone(same));
            }
            let keys = match &config.jwks_file {
                Some(file) => KeyCache::of_file(file.clone())?,
                None => KeyCache::of_issuer(
                    config.url.clone(),
                    config.authorities.clone(),
                    runtime.clone(),
                    times,
                ),
            };
            Ok(Arc::new(TrustedIssuer { config: config.clone(), keys }))
        };
        configs.iter().map(open).collect::<Result<_, _>>().map(Self)
    }

    /// True without any issuer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The configuration of an issuer, unless it was withdrawn.
    #[must_use]
    pub fn config(&self, issuer: &TokenIssuer) -> Option<&IssuerConfig> {
        let configs = self.0.iter().map(|issuer| &issuer.config);
        configs.into_iter().find(|one| one.name == issuer.name && one.url == issuer.url)
    }

    /// Verifies a token at `now_s` seconds since 1970, and returns the rights of its bearer. May block for some seconds
    /// where the issuer's keys are not known yet.
    ///
    /// # Errors
    /// When the token is not valid or cannot be checked.
    pub fn authenticate(&self, token: &str, now_s: u64) -> Result<TokenGrant, TokenAuthError> {
        let unverified = UnverifiedToken::parse(token)?;
        let issuer = self.0.iter().find(|issuer| issuer.config.url == unverified.issuer);
        let issuer = issuer.ok_or_else(|| TokenRejection::Issuer(excerpt(&unverified.issuer)))?;
        let (id, algorithm) = (unverified.key_id.as_deref(), unverified.algorithm);
        let keys = issuer.keys.find(id, algorithm).map_err(|error| match error {
            KeyLookupError::Rejected(rejection) => TokenAuthError::Rejected(rejection),
            other => TokenAuthError::Unavailable(other),
        })?;
        let key = keys.find(id, algorithm)?;
        let IssuerConfig { name, url, audiences, base, .. } = &issuer.config;
        let claims = verify(token, key, url, audiences, now_s)?;
        let below = |grant: PathGrant| PathGrant { path: base.join(&grant.path), ..grant };
        Ok(TokenGrant {
            issuer: Some(TokenIssuer { name: name.clone(), url: url.clone() }),
            subject: claims.subject,
            groups: claims.groups,
            paths: claims.paths.into_iter().map(below).collect(),
            expires_s: claims.expires_s,
        })
    }
}
