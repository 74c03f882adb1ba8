//! Types of configuration values. Each parses from text, with an error that shows the right form.

use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use penstock_mover::identity::Fingerprint;
use penstock_scitags::{Registry, Scitag};
use serde::de::{self, Deserialize, Deserializer};

use crate::destinations::DestinationRule;
use crate::tokens::{CONTROLLER, OWNER, check_token_name};
use penstock_http::access::ReadAccess;

/// An address or host name to listen on, with or without port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenAddress {
    /// IP address without brackets, or host name.
    pub host: String,
    /// Port: none for the service's default, 0 for any free one.
    pub port: Option<u16>,
}

impl ListenAddress {
    /// Combines a host and a port.
    #[must_use]
    pub fn new(host: &str, port: u16) -> Self {
        Self { host: host.to_owned(), port: Some(port) }
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "'{text}' is no address to listen on: write it like 127.0.0.1:8620, [::]:8620 or dtn1"
            )
        };
        let text = text.trim();
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        if bare.parse::<IpAddr>().is_ok() {
            return Ok(Self { host: bare.to_owned(), port: None });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().map_err(|_| bad())?)),
            None => (text, None),
        };
        let bare = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(inner) => inner.parse::<std::net::Ipv6Addr>().map(|_| inner).map_err(|_| bad())?,
            None => host,
        };
        let name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if bare.is_empty() || (bare == host && !host.chars().all(name)) {
            return Err(bad());
        }
        Ok(Self { host: bare.to_owned(), port })
    }
}

/// Parses `none`, or a list of values separated by commas.
///
/// # Errors
/// The error of the first invalid value.
pub fn parse_list<T: FromStr>(text: &str) -> Result<Vec<T>, T::Err> {
    match text.trim() {
        "none" => Ok(Vec::new()),
        text => text.split(',').map(str::parse).collect(),
    }
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
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let good = |part: &str| !part.is_empty() && part != "." && part != "..";
        let name = text.strip_prefix('/').unwrap_or("/");
        if text != "/" && !name.split('/').all(good) || text.contains('\0') {
            return Err(format!(
                "'{text}' cannot name an export: write it like /store or /store/cms"
            ));
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
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Read, Self::Write, Self::ReadWrite]
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| format!("'{text}' is no mode: write read, write or read-write"))
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
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self::Anyone);
        }
        if let Some(fingerprint) = text.strip_prefix("cert:") {
            return match fingerprint.parse() {
                Ok(fingerprint) => Ok(Self::Certificate(fingerprint)),
                Err(_) => Err(format!(
                    "'{text}' names no certificate: write cert:SHA256: and 64 hexadecimal digits"
                )),
            };
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
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "open" => Ok(Self::Open),
            "loopback" => Ok(Self::Loopback),
            "token" => Ok(Self::Token),
            _ => Err(format!(
                "'{text}' does not say who reads metrics: write open, loopback or token"
            )),
        }
    }
}

/// Time for which something is kept; none for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention(pub Option<Duration>);

impl Retention {
    /// Longest accepted duration: one week.
    pub const DEFAULT: Self = Self(Some(Duration::from_secs(7 * 86_400)));
}

impl FromStr for Retention {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "forever" => Ok(Self(None)),
            text => match penstock_units::parse_duration(text) {
                Ok(time) if !time.is_zero() => Ok(Self(Some(time))),
                _ => {
                    Err(format!("'{text}' is no time to keep something: write 7d, 12h or forever"))
                }
            },
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
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "agent" => Ok(Self::Agent),
            "collector" => Ok(Self::Collector),
            "controller" => Ok(Self::Controller),
            text => Err(format!("'{text}' is no role: write agent, collector or controller")),
        }
    }
}

/// Value of `http.read`: read access without a token.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadSetting(pub(super) ReadAccess);

impl FromStr for ReadSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self)
    }
}

/// A scitag: owner and activity by the names of the built-in registry, or by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag(pub Scitag);

impl FromStr for Tag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Registry::builtin().find(text).map(Self).map_err(|error| error.to_string())
    }
}

/// SHA-256 fingerprint of a certificate.
#[derive(Debug, Clone, Copy)]
pub(super) struct CertificateFingerprint(pub(super) Fingerprint);

impl FromStr for CertificateFingerprint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| {
            format!("'{text}' is no fingerprint: write SHA256: and 64 hexadecimal digits")
        })
    }
}

/// An IP address with a port.
#[derive(Debug, Clone, Copy)]
pub(super) struct SocketAddress(pub(super) SocketAddr);

impl FromStr for SocketAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| {
            format!("'{text}' is no address with a port: write it like [2001:db8::1]:8620")
        })
    }
}

macro_rules! deserialize_from_text {
    ($($word:ident),*) => {$(
        impl<'de> Deserialize<'de> for $word {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                // Parsing within the visitor gives the error the line of this text.
                struct TextVisitor;
                impl de::Visitor<'_> for TextVisitor {
                    type Value = $word;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("text in quotes")
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$word, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(TextVisitor)
            }
        }
    )*};
}

deserialize_from_text!(
    RoleName,
    ReadSetting,
    ListenAddress,
    ExportName,
    AccessMode,
    Principal,
    MetricsAccess,
    Retention,
    Tag,
    DestinationRule,
    CertificateFingerprint,
    SocketAddress
);

/// Deserializes a list of values, or one value as plain text.
pub(super) fn one_or_many<'de, D, T>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display> + Deserialize<'de>,
{
    struct ListVisitor<T>(PhantomData<T>);
    impl<'de, T> de::Visitor<'de> for ListVisitor<T>
    where
        T: FromStr<Err: fmt::Display> + Deserialize<'de>,
    {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an address such as \"127.0.0.1:8620\", or a list of them")
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<T>, E> {
            parse_list(text).map_err(E::custom)
        }
        fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut places = Vec::new();
            while let Some(place) = list.next_element()? {
                places.push(place);
            }
            Ok(places)
        }
    }
    deserializer.deserialize_any(ListVisitor(PhantomData)).map(Some)
}

/// Parses a positive count.
///
/// # Errors
/// When the text is no whole number, is zero, or exceeds the type.
pub fn parse_count<T: FromStr>(text: &str) -> Result<T, String> {
    let wrong = || format!("'{text}' is no count: write a whole number, at least 1");
    text.parse().map_err(|_| wrong())
}

/// Deserializes a count from a number or text.
pub(super) fn count<'de, D: Deserializer<'de>, T: FromStr>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    deserializer.deserialize_any(NumberOrText(parse_count)).map(Some)
}

/// Deserializes a rate or a size from a number or text.
pub(super) fn quantity<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    let parse = |text: &str| text.parse().map_err(|error: T::Err| error.to_string());
    deserializer.deserialize_any(NumberOrText(parse)).map(Some)
}

/// Visits a number as its text, so that errors are the same for both.
struct NumberOrText<P>(P);

impl<T, P: Fn(&str) -> Result<T, String>> de::Visitor<'_> for NumberOrText<P> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or text in quotes")
    }
    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.0)(text).map_err(E::custom)
    }
}
