//! URLs of HTTP servers.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use hyper::Uri;
use serde::de::{self, Deserialize, Deserializer};

use super::{HttpError, excerpt};

/// A URL `http://HOST[:PORT]/PATH` or `https://...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    encrypted: bool,
    host: String,
    port: u16,
    path: String,
}

/// A text that is no URL of HTTP.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no address to fetch from: write it like https://www.scitags.org/api.json")]
pub struct UrlError(String);

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let bad = || UrlError(text.to_owned());
        let uri: Uri = text.trim().parse().map_err(|_| bad())?;
        let encrypted = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(bad()),
        };
        let authority = uri.authority().ok_or_else(bad)?;
        // A password in a URL would end up in logs.
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(bad());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let default_port = if encrypted { 443 } else { 80 };
        // `Authority::port` takes a port above 65535 as none.
        let port = match authority.as_str().strip_prefix(authority.host()).ok_or_else(bad)? {
            "" | ":" => default_port,
            rest => {
                let digits = rest.strip_prefix(':').ok_or_else(bad)?;
                let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
                digits.parse().ok().filter(|port| is_number && *port > 0).ok_or_else(bad)?
            }
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Self { encrypted, host, port, path })
    }
}

/// Parses inside the visitor, so that an error gets the line of this value.
impl<'de> Deserialize<'de> for Url {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct UrlVisitor;
        impl de::Visitor<'_> for UrlVisitor {
            type Value = Url;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text in quotes")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Url, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(UrlVisitor)
    }
}

impl Url {
    /// Returns the URL of the root of a server; `host` has no brackets.
    #[must_use]
    pub fn of_host(encrypted: bool, host: &str, port: u16) -> Self {
        Self { encrypted, host: host.to_owned(), port, path: "/".to_owned() }
    }

    /// Parses a URL of a storage, where `davs` and `dav` are other names of `https` and `http`.
    ///
    /// # Errors
    /// If it is none of HTTP, or has a `#`, which the parser would cut: in a path it is `%23`.
    pub fn of_storage(text: &str) -> Result<Self, UrlError> {
        let text = text.trim();
        let bad = || UrlError(text.to_owned());
        let (scheme, rest) = text.split_once("://").ok_or_else(bad)?;
        if rest.contains('#') {
            return Err(bad());
        }
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "davs" | "https" => "https",
            "dav" | "http" => "http",
            _ => return Err(bad()),
        };
        format!("{scheme}://{rest}").parse()
    }

    /// Returns true if the scheme is `https`.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.encrypted
    }

    /// Host without brackets, and port.
    #[must_use]
    pub fn host_and_port(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// Path with its query, beginning with `/`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// True for a path that ends with a slash, before its query.
    #[must_use]
    pub fn has_final_slash(&self) -> bool {
        self.path.split('?').next().is_some_and(|path| path.ends_with('/'))
    }

    /// Host and port as in the Host header: without the scheme's default port.
    #[must_use]
    pub fn authority(&self) -> String {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.encrypted, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    /// Host is an address of this machine, or its name `localhost`.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
    }

    /// Returns true if the query has a parameter by which servers take a bearer token: `authz` of XRootD, or
    /// `access_token` (RFC 6750 section 2.3).
    #[must_use]
    pub fn has_token(&self) -> bool {
        let query = self.path.split_once('?').map_or("", |(_, query)| query);
        let name = |one: &str| one.split('=').next().unwrap_or_default().to_ascii_lowercase();
        query.split(['&', ';']).any(|one| matches!(name(one).as_str(), "authz" | "access_token"))
    }

    /// Resolves the location of a redirect (RFC 3986 section 5.2), which must not lead from HTTPS to HTTP.
    ///
    /// # Errors
    /// When it does, or is no URL.
    pub fn redirected(&self, location: &str) -> Result<Self, HttpError> {
        let location = location.trim();
        let scheme = if self.encrypted { "https" } else { "http" };
        let text = if location.starts_with("//") {
            format!("{scheme}:{location}")
        } else if has_scheme(location) {
            location.to_owned()
        } else {
            format!("{scheme}://{}{}", self.authority(), self.resolved(location))
        };
        let next: Self = text.parse().map_err(|_| HttpError::RedirectAddress(excerpt(location)))?;
        if self.encrypted && !next.encrypted {
            return Err(HttpError::RedirectDowngrade(next));
        }
        Ok(next)
    }

    /// Returns path and query of a reference without scheme and authority.
    fn resolved(&self, reference: &str) -> String {
        let reference = reference.split('#').next().unwrap_or_default();
        let (own, _) = self.path.split_once('?').unwrap_or((&self.path, ""));
        let (path, query) = match reference.split_once('?') {
            Some((path, query)) => (path, format!("?{query}")),
            None => (reference, String::new()),
        };
        match path {
            "" if query.is_empty() => self.path.clone(),
            "" => format!("{own}{query}"),
            _ if path.starts_with('/') => without_dots(path) + &query,
            _ => {
                let directory = own.rfind('/').map_or("/", |end| &own[..=end]);
                without_dots(&format!("{directory}{path}")) + &query
            }
        }
    }
}

/// Returns true if a reference begins with a scheme (RFC 3986 section 3.1).
fn has_scheme(reference: &str) -> bool {
    let is_of_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    reference.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|letter: char| letter.is_ascii_alphabetic())
            && scheme.bytes().all(is_of_scheme)
    })
}

/// Removes the segments `.` and `..` of an absolute path (RFC 3986 section 5.2.4).
fn without_dots(path: &str) -> String {
    let mut kept = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_dots = matches!(segment, "." | "..");
        if segment == ".." {
            kept.pop();
        } else if !is_dots {
            kept.push(segment);
        }
        if is_dots && segments.peek().is_none() {
            kept.push("");
        }
    }
    format!("/{}", kept.join("/"))
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.encrypted { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for (text, shown) in [
            ("https://www.scitags.org/api.json", "https://www.scitags.org/api.json"),
            ("http://localhost:80/", "http://localhost/"),
            (" http://[::1]:8080/a?b=c ", "http://[::1]:8080/a?b=c"),
            ("https://h", "https://h/"),
        ] {
            assert_eq!(text.parse::<Url>().unwrap().to_string(), shown);
        }
        for text in [
            "",
            "/api.json",
            "ftp://h/x",
            "api.json",
            "https://",
            "https://u:p@h/",
            "http://h x/",
            "http://127.0.0.1:99999/",
            "http://[::1]:65536/",
            "http://h:+80/",
            "http://h:0/",
        ] {
            let error = text.parse::<Url>().unwrap_err().to_string();
            assert!(error.contains("https://www.scitags.org/api.json"), "{error}");
        }
    }

    #[test]
    fn tokens_in_queries_are_found() {
        for (text, has) in [
            ("http://h/f?authz=Bearer%20x", true),
            ("http://h/f?a=b&ACCESS_TOKEN=x", true),
            ("http://h/authz=f?a=authz", false),
            ("http://h/f", false),
        ] {
            assert_eq!(text.parse::<Url>().unwrap().has_token(), has, "{text}");
        }
    }

    #[test]
    fn redirects_never_downgrade_to_http() {
        let url: Url = "https://www.scitags.org/api.json".parse().unwrap();
        let next = url.redirected("https://scitags.org/api.json").unwrap();
        assert_eq!(next.to_string(), "https://scitags.org/api.json");
        assert_eq!(
            url.redirected("/v1.json").unwrap().to_string(),
            "https://www.scitags.org/v1.json"
        );
        for location in ["http://scitags.org/", "file:///etc/passwd", "mailto:x", "//", "a b"] {
            assert!(url.redirected(location).is_err(), "{location}");
        }
    }

    /// Examples of RFC 3986 section 5.4.
    #[test]
    fn relative_redirects_are_resolved() {
        let url: Url = "http://a/b/c/d;p?q".parse().unwrap();
        for (reference, target) in [
            ("g", "http://a/b/c/g"),
            ("./g", "http://a/b/c/g"),
            ("g/", "http://a/b/c/g/"),
            ("/g", "http://a/g"),
            ("//g", "http://g/"),
            ("?y", "http://a/b/c/d;p?y"),
            ("g?y", "http://a/b/c/g?y"),
            ("#s", "http://a/b/c/d;p?q"),
            ("g#s", "http://a/b/c/g"),
            ("g?y#s", "http://a/b/c/g?y"),
            (";x", "http://a/b/c/;x"),
            ("", "http://a/b/c/d;p?q"),
            (".", "http://a/b/c/"),
            ("./", "http://a/b/c/"),
            ("..", "http://a/b/"),
            ("../g", "http://a/b/g"),
            ("../..", "http://a/"),
            ("../../g", "http://a/g"),
            ("../../../g", "http://a/g"),
            ("/../g", "http://a/g"),
            ("g.", "http://a/b/c/g."),
            ("..g", "http://a/b/c/..g"),
            ("./g/.", "http://a/b/c/g/"),
            ("g/../h", "http://a/b/c/h"),
            ("g?y/../x", "http://a/b/c/g?y/../x"),
        ] {
            assert_eq!(url.redirected(reference).unwrap().to_string(), target, "{reference}");
        }
    }
}
