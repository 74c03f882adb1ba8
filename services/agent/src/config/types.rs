//! Types of configuration values. Each parses from text, with an error that shows the right form.

use std::fmt;
use std::str::FromStr;

use penstock_daemon::deserialize_from_text;
use penstock_http::access::{ReadAccess, ReadAccessError};
use penstock_http::tokens::TokenNameError;
use penstock_identity::Fingerprint;
use penstock_mover::{TransportChoice, TuningMode};
use penstock_scitags::registry::LookupError;
use penstock_scitags::{Registry, Scitag};
use penstock_scopes::ScopePath;

use crate::destinations::{CleartextNetwork, DestinationRule};
use crate::tokens::{CONTROLLER, OWNER, check_token_name};

/// An invalid value of the agent's configuration: the fault and the right form, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AgentValueError {
    /// No name of an export.
    #[error("'{0}' cannot name an export: write it like /store or /store/cms")]
    ExportName(String),
    /// No mode of an export.
    #[error("'{0}' is no mode: write read, write or read-write")]
    Mode(String),
    /// No fingerprint of a principal.
    #[error("'{0}' names no certificate: write cert:SHA256: and 64 hexadecimal digits")]
    Certificate(String),
    /// Incomplete principal.
    #[error("'{text}': write {form}")]
    Principal {
        /// The principal.
        text: String,
        /// Its right form.
        form: &'static str,
    },
    /// No name of a token or an issuer.
    #[error(transparent)]
    TokenName(#[from] TokenNameError),
    /// No access to metrics.
    #[error("'{0}' does not say who reads metrics: write open, loopback or token")]
    Metrics(String),
    /// No use of the tuner.
    #[error("'{0}' is no mode of the tuner: write auto, history, observe or off")]
    Tuner(String),
    /// No transport of orders.
    #[error("'{0}' is no transport of orders: write tcp, or auto for RDMA where it is possible")]
    TransportSetting(String),
    /// No role.
    #[error("'{0}' is no role: write agent, collector or controller")]
    Role(String),
    /// No audience.
    #[error("'{0}' is no audience: write it like https://dtn1.example.org:8443")]
    Audience(String),
    /// No fingerprint.
    #[error("'{0}' is no fingerprint: write SHA256: and 64 hexadecimal digits")]
    Fingerprint(String),
    /// `force_scitag` alone.
    #[error("force_scitag has no scitag to force: add scitag = \"OWNER/ACTIVITY\"")]
    NoForcedScitag,
}

/// Name of an export for clients: `/`, or `/store/cms` without a trailing slash.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ExportName(String);

impl ExportName {
    /// The export that contains every path.
    #[must_use]
    pub fn root() -> Self {
        Self("/".to_owned())
    }

    /// The name as text, beginning with `/`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as a path of scopes.
    #[must_use]
    pub fn to_scope_path(&self) -> ScopePath {
        ScopePath::new(self.0.as_bytes()).expect("a name has no '..' and no NUL byte")
    }

    /// Components of the name; none for `/`.
    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0.as_bytes().split(|byte| *byte == b'/').filter(|part| !part.is_empty())
    }
}

impl fmt::Display for ExportName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ExportName {
    type Err = AgentValueError;

    fn from_str(text: &str) -> Result<Self, AgentValueError> {
        let good = |part: &str| !part.is_empty() && part != "." && part != "..";
        let name = text.strip_prefix('/').unwrap_or("/");
        if text != "/" && !name.split('/').all(good) || text.contains('\0') {
            return Err(AgentValueError::ExportName(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }
}

/// Operations that an export permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessMode {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Reading and writing.
    ReadWrite,
}

impl AccessMode {
    /// Returns true if the mode permits writing, or reading where `write` is false.
    #[must_use]
    pub fn allows(self, write: bool) -> bool {
        match self {
            Self::Read => !write,
            Self::Write => write,
            Self::ReadWrite => true,
        }
    }

    /// Value in the configuration file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::ReadWrite => "read-write",
        }
    }
}

impl FromStr for AccessMode {
    type Err = AgentValueError;

    fn from_str(text: &str) -> Result<Self, AgentValueError> {
        [Self::Read, Self::Write, Self::ReadWrite]
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| AgentValueError::Mode(text.to_owned()))
    }
}

/// Begin of the name of a client that a certificate identifies.
const CERTIFICATE_PREFIX: &str = "cert:";

/// A principal that an export admits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Principal {
    /// Any client that the agent authenticates by a token of its own or a certificate; no bearer of an issuer's token.
    Anyone,
    /// Bearer of the token of this name.
    Token(String),
    /// Owner of this certificate.
    Certificate(Fingerprint),
    /// Bearers of tokens of the issuer of this name.
    Issuer(String),
    /// Those that belong to a group (`wlcg.groups`).
    Group {
        /// Name of the issuer.
        issuer: String,
        /// Group, such as `/cms/production`.
        group: String,
    },
    /// The one with this claim `sub`.
    Subject {
        /// Name of the issuer.
        issuer: String,
        /// Value of the claim.
        subject: String,
    },
}

impl Principal {
    /// Name of the issuer whose tokens this principal is about.
    #[must_use]
    pub fn issuer(&self) -> Option<&str> {
        match self {
            Self::Anyone | Self::Token(_) | Self::Certificate(_) => None,
            Self::Issuer(issuer) | Self::Group { issuer, .. } | Self::Subject { issuer, .. } => {
                Some(issuer)
            }
        }
    }

    /// True for the name of a client that a certificate identifies.
    #[must_use]
    pub fn is_certificate_name(name: &str) -> bool {
        name.starts_with(CERTIFICATE_PREFIX)
    }

    /// Name of a client that this certificate identifies.
    #[must_use]
    pub fn certificate_name(certificate: &Fingerprint) -> String {
        format!("{CERTIFICATE_PREFIX}{certificate}")
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anyone => f.write_str("*"),
            Self::Token(name) => f.write_str(name),
            Self::Certificate(certificate) => f.write_str(&Self::certificate_name(certificate)),
            Self::Issuer(issuer) => write!(f, "issuer:{issuer}"),
            Self::Group { issuer, group } => write!(f, "group:{issuer}:{group}"),
            Self::Subject { issuer, subject } => write!(f, "subject:{issuer}:{subject}"),
        }
    }
}

impl FromStr for Principal {
    type Err = AgentValueError;

    fn from_str(text: &str) -> Result<Self, AgentValueError> {
        if text == "*" {
            return Ok(Self::Anyone);
        }
        if let Some(fingerprint) = text.strip_prefix(CERTIFICATE_PREFIX) {
            return match fingerprint.parse() {
                Ok(fingerprint) => Ok(Self::Certificate(fingerprint)),
                Err(_) => Err(AgentValueError::Certificate(text.to_owned())),
            };
        }
        let form = |form| AgentValueError::Principal { text: text.to_owned(), form };
        if let Some(name) = text.strip_prefix("issuer:") {
            check_token_name(name)?;
            return Ok(Self::Issuer(name.to_owned()));
        }
        if let Some(rest) = text.strip_prefix("group:") {
            let parts = rest.split_once(':').filter(|(_, group)| group.starts_with('/'));
            let (issuer, group) = parts.ok_or_else(|| form("group:ISSUER:/GROUP"))?;
            check_token_name(issuer)?;
            return Ok(Self::Group { issuer: issuer.to_owned(), group: group.to_owned() });
        }
        if let Some(rest) = text.strip_prefix("subject:") {
            let parts = rest.split_once(':').filter(|(_, subject)| !subject.is_empty());
            let (issuer, subject) = parts.ok_or_else(|| form("subject:ISSUER:SUBJECT"))?;
            check_token_name(issuer)?;
            return Ok(Self::Subject { issuer: issuer.to_owned(), subject: subject.to_owned() });
        }
        if text != OWNER && text != CONTROLLER {
            check_token_name(text)?;
        }
        Ok(Self::Token(text.to_owned()))
    }
}

/// Access to `/metrics` without a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsAccess {
    /// Any client.
    Open,
    /// Clients on this host.
    Loopback,
    /// No client.
    Token,
}

impl From<MetricsAccess> for ReadAccess {
    fn from(access: MetricsAccess) -> Self {
        match access {
            MetricsAccess::Open => Self::Open,
            MetricsAccess::Loopback => Self::Loopback,
            MetricsAccess::Token => Self::Token,
        }
    }
}

impl FromStr for MetricsAccess {
    type Err = AgentValueError;

    fn from_str(text: &str) -> Result<Self, AgentValueError> {
        match text {
            "open" => Ok(Self::Open),
            "loopback" => Ok(Self::Loopback),
            "token" => Ok(Self::Token),
            _ => Err(AgentValueError::Metrics(text.to_owned())),
        }
    }
}

/// Use of the tuner for the streams of transfers that the agent sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TunerUse(pub TuningMode);

impl FromStr for TunerUse {
    type Err = AgentValueError;

    fn from_str(text: &str) -> Result<Self, AgentValueError> {
        TuningMode::named(text).map(Self).ok_or_else(|| AgentValueError::Tuner(text.to_owned()))
    }
}

/// Transport of the data of orders that name none. RDMA alone would fail the encrypted ones.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TransportSetting(pub(super) TransportChoice);

impl FromStr for TransportSetting {
    type Err = AgentValueError;

    fn from_str(text: &str) -> Result<Self, AgentValueError> {
        match text {
            "tcp" => Ok(Self(TransportChoice::Tcp)),
            "auto" => Ok(Self(TransportChoice::Auto)),
            _ => Err(AgentValueError::TransportSetting(text.to_owned())),
        }
    }
}

/// Role of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleName {
    /// Moves files.
    Agent,
    /// Receives telemetry.
    Collector,
    /// Schedules requests and gives orders to agents.
    Controller,
}

impl FromStr for RoleName {
    type Err = AgentValueError;

    fn from_str(text: &str) -> Result<Self, AgentValueError> {
        match text.trim() {
            "agent" => Ok(Self::Agent),
            "collector" => Ok(Self::Collector),
            "controller" => Ok(Self::Controller),
            text => Err(AgentValueError::Role(text.to_owned())),
        }
    }
}

/// Value of `http.read`: read access without a token.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadSetting(pub(super) ReadAccess);

impl FromStr for ReadSetting {
    type Err = ReadAccessError;

    fn from_str(text: &str) -> Result<Self, ReadAccessError> {
        text.parse().map(Self)
    }
}

/// A scitag: owner and activity by the names of the built-in registry, or by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag(pub Scitag);

impl FromStr for Tag {
    type Err = LookupError;

    fn from_str(text: &str) -> Result<Self, LookupError> {
        Registry::builtin().find(text).map(Self)
    }
}

/// Audience of tokens that an issuer signs for this agent.
#[derive(Debug, Clone)]
pub(super) struct Audience(pub(super) String);

impl FromStr for Audience {
    type Err = AgentValueError;

    fn from_str(text: &str) -> Result<Self, AgentValueError> {
        match text.is_empty() || text.contains(char::is_whitespace) {
            true => Err(AgentValueError::Audience(text.to_owned())),
            false => Ok(Self(text.to_owned())),
        }
    }
}

/// SHA-256 fingerprint of a certificate.
#[derive(Debug, Clone, Copy)]
pub(super) struct CertificateFingerprint(pub(super) Fingerprint);

impl FromStr for CertificateFingerprint {
    type Err = AgentValueError;

    fn from_str(text: &str) -> Result<Self, AgentValueError> {
        text.parse().map(Self).map_err(|_| AgentValueError::Fingerprint(text.to_owned()))
    }
}

deserialize_from_text!(
    RoleName,
    ReadSetting,
    ExportName,
    AccessMode,
    Principal,
    MetricsAccess,
    TunerUse,
    TransportSetting,
    Tag,
    DestinationRule,
    CleartextNetwork,
    CertificateFingerprint,
    Audience,
);
