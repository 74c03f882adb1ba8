//! Paths of URLs: decoded once, without segments that lead elsewhere.

use axum::http::Uri;
use axum::http::uri::Authority;
use penstock_http::ProblemDetails;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

/// Bytes that a path keeps as they are: the separator and those of a segment (RFC 3986 section 3.3), as davix and gfal2 show
/// names of a listing encoded. Not `&` and `'`, which markup has for itself.
const PATH_KEPT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@');

/// Longest path, as PATH_MAX of Linux.
const PATH_BYTES_MAX: usize = 4096;

/// Path of a file or a collection below the root of the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UrlPath {
    /// Decoded path with a leading slash and without a trailing one; `/` for the root.
    bytes: Vec<u8>,
    /// True if the URL ends with a slash, as that of a collection.
    is_collection: bool,
}

impl UrlPath {
    /// Decodes the path of a request. The query is no part of a name.
    ///
    /// # Errors
    /// 400 for a path that names nothing unambiguously: `..`, an encoded slash, a NUL byte, or too long a path.
    pub(crate) fn of(uri: &Uri) -> Result<Self, ProblemDetails> {
        Self::decode(uri.path())
    }

    fn decode(path: &str) -> Result<Self, ProblemDetails> {
        let invalid = |what: &str| {
            ProblemDetails::bad_request(format!("the path {what}: write the path of the file out"))
        };
        if !path.starts_with('/') {
            return Err(invalid("does not begin with a slash"));
        }
        let mut bytes = Vec::with_capacity(path.len());
        for segment in path.split('/') {
            let name: Vec<u8> = percent_decode_str(segment).collect();
            if name.contains(&b'/') {
                return Err(invalid("has an encoded slash"));
            }
            if name.contains(&0) {
                return Err(invalid("has a NUL byte"));
            }
            match name.as_slice() {
                b"" | b"." => {}
                b".." => return Err(invalid("has a segment '..'")),
                name => {
                    bytes.push(b'/');
                    bytes.extend_from_slice(name);
                }
            }
        }
        if bytes.len() > PATH_BYTES_MAX {
            return Err(invalid("is too long"));
        }
        let is_collection = path.ends_with('/');
        if bytes.is_empty() {
            bytes.push(b'/');
        }
        Ok(Self { bytes, is_collection })
    }

    /// Decodes the header `Destination` of a request to `host`: a URL of this server, or an absolute path.
    ///
    /// # Errors
    /// 400 if it is neither, 502 (RFC 4918 section 9.8.5) for another server.
    pub(crate) fn of_destination(text: &str, host: Option<&str>) -> Result<Self, ProblemDetails> {
        if text.contains('#') {
            // The parser would cut it.
            return Err(ProblemDetails::bad_request("Destination has a '#': write it as %23"));
        }
        let uri: Uri = text.parse().map_err(|_| {
            ProblemDetails::bad_request("Destination is no URL: write https://HOST:PORT/PATH")
        })?;
        match uri.authority() {
            Some(there) if !is_own_server(&uri, host) => {
                let text = format!("the destination is on another server: {there}");
                Err(ProblemDetails::new(axum::http::StatusCode::BAD_GATEWAY, text))
            }
            _ => Self::decode(uri.path()),
        }
    }

    /// The decoded path, with a leading slash and any bytes but NUL.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// True if the URL ends with a slash.
    pub(crate) fn is_collection(&self) -> bool {
        self.is_collection
    }

    /// True for the root of the gateway.
    pub(crate) fn is_root(&self) -> bool {
        self.bytes == b"/"
    }

    /// True if `other` is this path or below it.
    pub(crate) fn contains(&self, other: &Self) -> bool {
        self.is_root()
            || other
                .bytes
                .strip_prefix(self.bytes.as_slice())
                .is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
    }

    /// Path for logs and errors.
    pub(crate) fn shown(&self) -> String {
        self.bytes.escape_ascii().to_string()
    }
}

/// True for a path, or a URL of the server that `host` names. A port that one of them leaves out is that of the scheme.
pub(crate) fn is_own_server(uri: &Uri, host: Option<&str>) -> bool {
    let Some(there) = uri.authority() else { return true };
    let Some(own) = host.and_then(|host| host.parse::<Authority>().ok()) else { return false };
    let default = match uri.scheme_str() {
        Some("http" | "dav") => 80,
        _ => 443,
    };
    let port = |authority: &Authority| authority.port_u16().unwrap_or(default);
    there.host().eq_ignore_ascii_case(own.host()) && port(there) == port(&own)
}

/// Encodes a path for a URL.
pub(crate) fn encode(path: &[u8]) -> String {
    percent_encode(path, PATH_KEPT).to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(path: &str) -> Option<Vec<u8>> {
        UrlPath::decode(path).ok().map(|path| path.bytes)
    }

    #[test]
    fn paths_are_decoded_once() {
        for (path, bytes) in [
            ("/", &b"/"[..]),
            ("//", b"/"),
            ("/a//b/./c/", b"/a/b/c"),
            ("/a%20b%2Bc", b"/a b+c"),
            ("/%252e%252e/x", b"/%2e%2e/x"),
            ("/%ff", b"/\xff"),
            ("/...", b"/..."),
            ("/a%", b"/a%"),
        ] {
            assert_eq!(decoded(path).as_deref(), Some(bytes), "{path}");
        }
    }

    #[test]
    fn ambiguous_paths_are_refused() {
        for path in ["", "a", "*", "/..", "/a/../b", "/%2e%2E/x", "/a%2fb", "/%2F", "/a%00"] {
            assert_eq!(decoded(path), None, "{path}");
        }
        assert_eq!(decoded(&format!("/{}", "x".repeat(PATH_BYTES_MAX))), None);
    }

    #[test]
    fn destination_is_on_this_server() {
        let host = Some("dtn1.example.org:8443");
        let path = |text| UrlPath::of_destination(text, host).map(|path| path.bytes);
        assert_eq!(path("https://DTN1.example.org:8443/a%20b").unwrap(), b"/a b");
        assert_eq!(path("/a").unwrap(), b"/a");
        assert_eq!(path("https://dtn2.example.org/a").unwrap_err().status, 502);
        assert_eq!(path("https://dtn1.example.org/a").unwrap_err().status, 502);
        let path_at = |host, text| UrlPath::of_destination(text, Some(host)).map(|path| path.bytes);
        for (host, url) in [
            ("dtn1", "https://dtn1:443/a"),
            ("dtn1:443", "davs://dtn1/a"),
            ("dtn1", "http://dtn1:80/a"),
            ("[::1]:443", "https://[::1]/a"),
        ] {
            assert_eq!(path_at(host, url).unwrap(), b"/a", "{url}");
        }
        assert_eq!(path_at("dtn1", "https://dtn1:80/a").unwrap_err().status, 502);
        assert_eq!(path_at("dtn1:8443", "https://dtn1/a").unwrap_err().status, 502);
        assert_eq!(path("a b").unwrap_err().status, 400);
        assert_eq!(path("/a#b").unwrap_err().status, 400);
    }

    #[test]
    fn names_of_experiments_stay_readable() {
        let name = "/mc16_13TeV:AOD.01(2)+x=3,y;z@a!$*~";
        assert_eq!(encode(name.as_bytes()), name);
        assert_eq!(encode(b"/a b&c'd\"#?%"), "/a%20b%26c%27d%22%23%3F%25");
    }

    #[test]
    fn containment_is_by_segment() {
        let path = |text: &str| UrlPath::decode(text).unwrap();
        assert!(path("/a").contains(&path("/a/b")) && path("/").contains(&path("/a")));
        assert!(path("/a").contains(&path("/a")) && !path("/a").contains(&path("/ab")));
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn encoded_paths_decode_to_themselves(
            names in prop::collection::vec("[^/\0]{1,20}", 1..5)
        ) {
            prop_assume!(names.iter().all(|name| name != "." && name != ".."));
            let path = format!("/{}", names.join("/"));
            prop_assert_eq!(decoded(&encode(path.as_bytes())), Some(path.into_bytes()));
        }
    }
}
