//! Headers of a third-party copy (WLCG HTTP-TPC).

use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use penstock_http::ProblemDetails;
use penstock_http::client::Url;

use crate::url_path::is_own_server;

/// Largest number of streams that clients may ask for.
const REQUESTED_STREAMS_MAX: usize = 100;

/// Headers of a connection, which are never forwarded.
const HOP_BY_HOP: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

const FORWARDED_PREFIX: &str = "transferheader";

/// Direction of a third-party copy, as this server sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyDirection {
    /// This server gets the file from the URL in `Source`.
    Pull,
    /// This server puts the file to the URL in `Destination`.
    Push,
}

/// Comparison of the checksums of both ends after the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChecksumVerification {
    /// The copy fails unless the other end offers an equal checksum.
    Required,
    /// A checksum that the other end offers must be equal.
    IfOffered,
    /// The client compares by itself.
    Off,
}

/// A request for a copy between this server and another one.
#[derive(Debug)]
pub(crate) struct CopyRequest {
    pub(crate) direction: CopyDirection,
    /// URL of the file at the other server.
    pub(crate) remote: Url,
    /// Headers of the requests to the other server.
    pub(crate) headers: HeaderMap,
    /// Number of connections that the client asks for; `None` leaves it to this server.
    pub(crate) streams: Option<usize>,
    pub(crate) verification: ChecksumVerification,
}

/// Source and destination of a `COPY`.
#[derive(Debug)]
pub(crate) enum CopyEnds {
    /// Both are on this server. `Source` names the source, and the path of the request the destination.
    LocalPull(String),
    /// Both are on this server. The path of the request is the source.
    LocalPush,
    /// One is on another server.
    ThirdParty(Box<CopyRequest>),
}

impl CopyEnds {
    /// Evaluates the headers of a `COPY`.
    ///
    /// # Errors
    /// 400 for headers that contradict each other or ask for what HTTP-TPC does not define.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, ProblemDetails> {
        let text = |name| single_header(headers, &name);
        let source = text(HeaderName::from_static("source"))?;
        let destination = text(HeaderName::from_static("destination"))?;
        let host = text(header::HOST)?;
        if [source, destination].into_iter().flatten().any(|url| url.contains('#')) {
            // The parser would cut it.
            let text = "Source or Destination has a '#': write it as %23";
            return Err(ProblemDetails::bad_request(text));
        }
        let (direction, url) = match (source, destination) {
            (Some(_), Some(_)) => {
                return Err(ProblemDetails::bad_request(
                    "Source and Destination: send Source to pull a file, or Destination to push it",
                ));
            }
            (None, None) => {
                return Err(ProblemDetails::bad_request(
                    "no Source and no Destination: send the URL of the other file in one of them",
                ));
            }
            (Some(source), None) if is_own(source, host) => {
                return Ok(Self::LocalPull(source.to_owned()));
            }
            (None, Some(destination)) if is_own(destination, host) => return Ok(Self::LocalPush),
            (Some(source), None) => (CopyDirection::Pull, source),
            (None, Some(destination)) => (CopyDirection::Push, destination),
        };
        let credential = text(HeaderName::from_static("credential"))?.unwrap_or("none");
        if !credential.eq_ignore_ascii_case("none") {
            return Err(ProblemDetails::bad_request(format!(
                "Credential: {}: only none: send the other server's token in TransferHeaderAuthorization",
                credential.escape_debug()
            )));
        }
        let remote = Url::of_storage(url).map_err(|_| {
            ProblemDetails::bad_request(
                "Source or Destination: write https://HOST:PORT/PATH, or davs, http or dav",
            )
        })?;
        let forwarded = forwarded(headers)?;
        if !remote.is_encrypted() && !remote.is_loopback() {
            let in_header = forwarded.contains_key(header::AUTHORIZATION);
            let carrier = match remote.has_token() {
                true => Some("the query of the URL"),
                false => in_header.then_some("TransferHeaderAuthorization"),
            };
            if let Some(carrier) = carrier {
                return Err(ProblemDetails::bad_request(format!(
                    "the token in {carrier} would travel in the clear: use https"
                )));
            }
        }
        let request = CopyRequest {
            direction,
            remote,
            headers: forwarded,
            streams: streams(text(HeaderName::from_static("x-number-of-streams"))?)?,
            verification: verification(text(HeaderName::from_static(
                "requirechecksumverification",
            ))?)?,
        };
        Ok(Self::ThirdParty(Box::new(request)))
    }
}

/// Value of a header that occurs at most once.
pub(crate) fn single_header<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a str>, ProblemDetails> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().map(str::trim);
    match (text, values.next()) {
        (Ok(text), None) => Ok(Some(text)),
        _ => Err(ProblemDetails::bad_request(format!("{name}: one header of printable ASCII"))),
    }
}

/// True for a path, or a URL of the host that the request names.
fn is_own(url: &str, host: Option<&str>) -> bool {
    url.parse::<Uri>().is_ok_and(|uri| is_own_server(&uri, host))
}

/// Headers for the other server: `TransferHeaderX: v` and `Copy-Header: X: v` mean `X: v`, and `SciTag` passes as it is.
pub(crate) fn forwarded(headers: &HeaderMap) -> Result<HeaderMap, ProblemDetails> {
    let mut all = HeaderMap::new();
    let mut add = |name: &str, value: HeaderValue| -> Result<(), ProblemDetails> {
        let name = HeaderName::from_bytes(name.trim().as_bytes()).map_err(|_| {
            ProblemDetails::bad_request(format!("'{}' is no header name", name.escape_debug()))
        })?;
        if !HOP_BY_HOP.contains(&name.as_str()) {
            all.insert(name, value);
        }
        Ok(())
    };
    for (name, value) in headers {
        match name.as_str() {
            "copy-header" => {
                let text = value.to_str().unwrap_or_default();
                let (name, value) = text.split_once(':').ok_or_else(|| {
                    ProblemDetails::bad_request("Copy-Header: write Copy-Header: NAME: VALUE")
                })?;
                let value = HeaderValue::from_str(value.trim()).map_err(|_| {
                    ProblemDetails::bad_request("Copy-Header: its value is malformed")
                })?;
                add(name, value)?;
            }
            name => match name.strip_prefix(FORWARDED_PREFIX) {
                Some(name) if !name.is_empty() => add(name, value.clone())?,
                _ => {}
            },
        }
    }
    if let Some(scitag) = headers.get("scitag") {
        all.insert(HeaderName::from_static("scitag"), scitag.clone());
    }
    Ok(all)
}

fn streams(text: Option<&str>) -> Result<Option<usize>, ProblemDetails> {
    let Some(text) = text else { return Ok(None) };
    match text.parse::<usize>() {
        // Clients send 0 or 1 without asking their users.
        Ok(0 | 1) => Ok(None),
        Ok(streams) if streams <= REQUESTED_STREAMS_MAX => Ok(Some(streams)),
        _ => Err(ProblemDetails::bad_request(format!(
            "X-Number-Of-Streams: a number up to {REQUESTED_STREAMS_MAX}"
        ))),
    }
}

fn verification(text: Option<&str>) -> Result<ChecksumVerification, ProblemDetails> {
    match text.map(str::to_ascii_lowercase).as_deref() {
        None => Ok(ChecksumVerification::IfOffered),
        Some("true") => Ok(ChecksumVerification::Required),
        Some("false") => Ok(ChecksumVerification::Off),
        Some(_) => Err(ProblemDetails::bad_request("RequireChecksumVerification: true or false")),
    }
}

/// Checks the header `Overwrite` of a request that writes (RFC 4918 section 10.6).
///
/// # Errors
/// 400 for another value than `T` or `F`, or several.
pub(crate) fn check_overwrite(headers: &HeaderMap) -> Result<(), ProblemDetails> {
    match single_header(headers, &HeaderName::from_static("overwrite"))?.map(str::trim) {
        None | Some("T" | "t" | "F" | "f") => Ok(()),
        Some(_) => Err(ProblemDetails::bad_request("Overwrite: T or F")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(all: &[(&str, &str)]) -> Result<CopyEnds, u16> {
        let mut headers = HeaderMap::new();
        for (name, value) in [("host", "here:8443")].iter().chain(all) {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, value.parse().unwrap());
        }
        CopyEnds::of(&headers).map_err(|problem| problem.status)
    }

    fn request(all: &[(&str, &str)]) -> CopyRequest {
        match ends(all) {
            Ok(CopyEnds::ThirdParty(request)) => *request,
            other => panic!("{all:?}: {other:?}"),
        }
    }

    #[test]
    fn clients_headers_are_read() {
        // davix-cp, then gfal-copy.
        let push = request(&[
            ("Destination", "https://there:1094/a?b=c"),
            ("X-Number-Of-Streams", "1"),
            ("Secure-Redirection", "1"),
        ]);
        assert_eq!(push.direction, CopyDirection::Push);
        assert_eq!(push.remote.to_string(), "https://there:1094/a?b=c");
        assert_eq!((push.streams, push.verification), (None, ChecksumVerification::IfOffered));
        let pull = request(&[
            ("Source", "davs://there/a"),
            ("X-Number-Of-Streams", "7"),
            ("TransferHeaderAuthorization", "Bearer T"),
            ("TransferHeaderSciTag", "65"),
            ("SciTag", "66"),
            ("TransferHeaderHost", "evil"),
            ("Copy-Header", "X-Test: 1"),
            ("Credential", "none"),
            ("Authorization", "Bearer own"),
            ("RequireChecksumVerification", "true"),
        ]);
        assert_eq!(pull.direction, CopyDirection::Pull);
        assert_eq!(pull.remote.to_string(), "https://there/a");
        assert_eq!((pull.streams, pull.verification), (Some(7), ChecksumVerification::Required));
        let mut sent: Vec<String> = pull
            .headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        sent.sort();
        assert_eq!(sent, ["authorization: Bearer T", "scitag: 66", "x-test: 1"]);
    }

    #[test]
    fn own_files_are_local() {
        for own in ["https://here:8443/a", "http://HERE:8443/a", "/a"] {
            assert!(matches!(ends(&[("Source", own)]), Ok(CopyEnds::LocalPull(url)) if url == own));
            assert!(matches!(ends(&[("Destination", own)]), Ok(CopyEnds::LocalPush)));
        }
        assert!(matches!(ends(&[("Source", "https://here/a")]), Ok(CopyEnds::ThirdParty(_))));
    }

    #[test]
    fn contradictions_are_refused() {
        let source = ("Source", "https://there/a");
        for faulty in [
            &[][..],
            &[source, ("Destination", "https://there/b")],
            &[source, ("Source", "https://there/b")],
            &[("Source", "ftp://there/a")],
            &[("Source", "https://user:password@there/a")],
            &[("Source", "https://")],
            &[source, ("Credential", "gridsite")],
            &[source, ("X-Number-Of-Streams", "101")],
            &[source, ("X-Number-Of-Streams", "-1")],
            &[source, ("RequireChecksumVerification", "yes")],
            &[source, ("Copy-Header", "no colon")],
            &[source, ("Copy-Header", "a b: c")],
            &[("Source", "http://there/a"), ("TransferHeaderAuthorization", "Bearer T")],
            &[("Source", "http://there/a?authz=Bearer%20T")],
            &[("Destination", "http://there/a?access_token=T")],
            &[("Source", "http://127.0.0.1:99999/")],
            &[("Destination", "https://there:65536/a")],
            &[("Source", "https://there/a#b")],
            &[("Source", "/a#b")],
            &[("Destination", "https://here:8443/a#b")],
        ] {
            assert_eq!(ends(faulty).map(|_| ()), Err(400), "{faulty:?}");
        }
    }
}
