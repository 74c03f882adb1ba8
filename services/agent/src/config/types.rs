//! Types of configuration values. Each parses from text, with an error that shows the right form.

use std::fmt;
use std::str::FromStr;

use penstock_daemon::config::ValueError;
use penstock_daemon::deserialize_from_text;
use penstock_identity::Fingerprint;
use penstock_scitags::{Registry, Scitag};

use crate::destinations::DestinationRule;
use crate::tokens::{CONTROLLER, OWNER, check_token_name};
use penstock_http::access::ReadAccess;

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
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let good = |part: &str| !part.is_empty() && part != "." && part != "..";
        let name = text.strip_prefix('/').unwrap_or("/");
        if text != "/" && !name.split('/').all(good) || text.contains('\0') {
            return Err(ValueError::new(format_args!(
                "'{text}' cannot name an export: write it like /store or /store/cms"
            )));
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
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        [Self::Read, Self::Write, Self::ReadWrite]
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| {
                ValueError::new(format_args!(
                    "'{text}' is no mode: write read, write or read-write"
                ))
            })
    }
}

/// A principal that an export admits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Principal {
    /// Any client that is authenticated by a token or a certificate.
    Anyone,
    /// Bearer of the token of this name.
    Token(String),
    /// Owner of this certificate.
    Certificate(Fingerprint),
}

impl Principal {
    /// Name of a client that this certificate identifies.
    #[must_use]
    pub fn certificate_name(certificate: &Fingerprint) -> String {
        format!("cert:{certificate}")
    }
}

impl FromStr for Principal {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text == "*" {
            return Ok(Self::Anyone);
        }
        if let Some(fingerprint) = text.strip_prefix("cert:") {
            return match fingerprint.parse() {
                Ok(fingerprint) => Ok(Self::Certificate(fingerprint)),
                Err(_) => Err(ValueError::new(format_args!(
                    "'{text}' names no certificate: write cert:SHA256: and 64 hexadecimal digits"
                ))),
            };
        }
        if text != OWNER && text != CONTROLLER {
            check_token_name(text).map_err(ValueError::new)?;
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
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "open" => Ok(Self::Open),
            "loopback" => Ok(Self::Loopback),
            "token" => Ok(Self::Token),
            _ => Err(ValueError::new(format_args!(
                "'{text}' does not say who reads metrics: write open, loopback or token"
            ))),
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
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.trim() {
            "agent" => Ok(Self::Agent),
            "collector" => Ok(Self::Collector),
            "controller" => Ok(Self::Controller),
            text => Err(ValueError::new(format_args!(
                "'{text}' is no role: write agent, collector or controller"
            ))),
        }
    }
}

/// Value of `http.read`: read access without a token.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadSetting(pub(super) ReadAccess);

impl FromStr for ReadSetting {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        text.parse().map(Self).map_err(ValueError::new)
    }
}

/// A scitag: owner and activity by the names of the built-in registry, or by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag(pub Scitag);

impl FromStr for Tag {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        Registry::builtin().find(text).map(Self).map_err(ValueError::new)
    }
}

/// SHA-256 fingerprint of a certificate.
#[derive(Debug, Clone, Copy)]
pub(super) struct CertificateFingerprint(pub(super) Fingerprint);

impl FromStr for CertificateFingerprint {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        text.parse().map(Self).map_err(|_| {
            ValueError::new(format_args!(
                "'{text}' is no fingerprint: write SHA256: and 64 hexadecimal digits"
            ))
        })
    }
}

deserialize_from_text!(
    RoleName,
    ReadSetting,
    ExportName,
    AccessMode,
    Principal,
    MetricsAccess,
    Tag,
    DestinationRule,
    CertificateFingerprint,
);
