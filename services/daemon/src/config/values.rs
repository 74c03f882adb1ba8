//! Types of configuration values. Each parses from text, with an error that shows the right form.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer};

use super::ConfigError;

/// An invalid value: the fault and the right form, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// No address to listen on.
    #[error("'{0}' is no address to listen on: write it like 127.0.0.1:8620, [::]:8620 or dtn1")]
    ListenAddress(String),
    /// No time for which something is kept.
    #[error("'{0}' is no time to keep something: write 7d, 12h or forever")]
    Retention(String),
    /// No IP address with a port.
    #[error("'{0}' is no address with a port: write it like [2001:db8::1]:8620")]
    AddressAndPort(String),
    /// No positive whole number.
    #[error("'{0}' is no count: write a whole number, at least 1")]
    Count(String),
}

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
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let bad = || ValueError::ListenAddress(text.to_owned());
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

/// Resolves addresses to listen on; each address is returned once, except those with port 0.
///
/// # Errors
/// With the host that does not resolve.
pub fn resolve_listen_addresses(
    listen: &[ListenAddress],
    default_port: u16,
) -> Result<Vec<SocketAddr>, ConfigError> {
    let mut seen = HashSet::new();
    let mut addresses = Vec::new();
    for one in listen {
        let port = one.port.unwrap_or(default_port);
        let found = (one.host.as_str(), port)
            .to_socket_addrs()
            .map_err(|error| ConfigError::ListenHost { host: one.host.clone(), error })?;
        // Each port 0 is a different free port.
        addresses.extend(found.filter(|address| address.port() == 0 || seen.insert(*address)));
    }
    Ok(addresses)
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

/// Time for which something is kept; none for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention(pub Option<Duration>);

impl Retention {
    /// Default duration: one week.
    pub const DEFAULT: Self = Self(Some(Duration::from_secs(7 * 86_400)));
}

impl FromStr for Retention {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "forever" => Ok(Self(None)),
            text => match penstock_units::parse_duration(text) {
                Ok(time) if !time.is_zero() => Ok(Self(Some(time))),
                _ => Err(ValueError::Retention(text.to_owned())),
            },
        }
    }
}

/// An IP address with a port.
#[derive(Debug, Clone, Copy)]
pub struct AddressAndPort(pub SocketAddr);

impl FromStr for AddressAndPort {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        text.parse().map(Self).map_err(|_| ValueError::AddressAndPort(text.to_owned()))
    }
}

/// Implements `serde::Deserialize` for types by their `FromStr`.
#[macro_export]
macro_rules! deserialize_from_text {
    ($($word:ident),* $(,)?) => {$(
        impl<'de> ::serde::Deserialize<'de> for $word {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::config::values::text(deserializer)
            }
        }
    )*};
}

deserialize_from_text!(ListenAddress, Retention, AddressAndPort);

/// Deserializes a value from text in quotes.
///
/// # Errors
/// When the value is no text, or the text does not parse.
pub fn text<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    // Parsing within the visitor gives the error the line of this text.
    struct TextVisitor<T>(PhantomData<T>);
    impl<T: FromStr<Err: fmt::Display>> de::Visitor<'_> for TextVisitor<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("text in quotes")
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }
    }
    deserializer.deserialize_str(TextVisitor(PhantomData))
}

/// Deserializes a list of values, or one value as plain text.
///
/// # Errors
/// The error of the first invalid value.
pub fn one_or_many<'de, D, T>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
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
            let mut values = Vec::new();
            while let Some(value) = list.next_element()? {
                values.push(value);
            }
            Ok(values)
        }
    }
    deserializer.deserialize_any(ListVisitor(PhantomData)).map(Some)
}

/// Parses a positive count.
///
/// # Errors
/// When the text is no whole number, is zero, or exceeds the type.
pub fn parse_count<T: FromStr>(text: &str) -> Result<T, ValueError> {
    text.parse().map_err(|_| ValueError::Count(text.to_owned()))
}

/// Deserializes a count from a number or text.
///
/// # Errors
/// As [`parse_count`].
pub fn count<'de, D: Deserializer<'de>, T: FromStr>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    deserializer.deserialize_any(QuantityVisitor(parse_count)).map(Some)
}

/// Deserializes a rate or a size from a number or text.
///
/// # Errors
/// When the text does not parse.
pub fn quantity<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    deserializer.deserialize_any(QuantityVisitor(|text: &str| text.parse())).map(Some)
}

/// Visits a number as its text, so that errors are the same for both.
struct QuantityVisitor<P>(P);

impl<T, X: fmt::Display, P: Fn(&str) -> Result<T, X>> de::Visitor<'_> for QuantityVisitor<P> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_parse() {
        for (text, host, port) in [
            ("127.0.0.1:8620", "127.0.0.1", Some(8620)),
            ("127.0.0.1", "127.0.0.1", None),
            ("::", "::", None),
            ("[::1]:0", "::1", Some(0)),
            ("dtn1.example.org:99", "dtn1.example.org", Some(99)),
        ] {
            assert_eq!(text.parse(), Ok(ListenAddress { host: host.into(), port }), "{text}");
        }
        for text in ["", ":1", "[::1", "[x]:1", "a b", "h:70000", "http://x", "::1:x"] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text}");
        }
    }
}
