//! Entry points for fuzzing: parsers of requests, with the properties that their results have for any input.

use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};

use crate::digest::{self, DigestField};
use crate::range::{RequestedRanges, requested};
use crate::third_party::{CopyEnds, failure_line};
use crate::url_path::{UrlPath, encode};
use crate::{account, properties};

/// Parses a request head: the target on the first line, then headers, each `name: value`.
///
/// # Panics
/// If a result breaks its promises.
pub fn request_head(head: &[u8], size: u64) {
    let mut lines = head.split(|byte| *byte == b'\n');
    let target = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    let mut headers = HeaderMap::new();
    for line in lines.take(100) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let name = HeaderName::from_bytes(&line[..colon]);
        let value = HeaderValue::from_bytes(&line[colon + 1..]);
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    let text = |name: &'static str| headers.get(name).and_then(|value| value.to_str().ok());
    path(&target, text("host"));
    ranges(text("range"), size);
    for field in [DigestField::Digest, DigestField::ReprDigest] {
        let name = if field == DigestField::Digest { "digest" } else { "repr-digest" };
        if let Some(header) = text(name) {
            let _ = digest::sent(header, field);
        }
    }
    let _ = digest::wanted(text("want-digest"), text("want-repr-digest"));
    let _ = account::requested_scitag(&headers, target.split_once('?').map(|(_, query)| query));
    if let Ok(CopyEnds::ThirdParty(copy)) = CopyEnds::of(&headers) {
        for name in ["host", "content-length", "transfer-encoding", "connection"] {
            assert!(!copy.headers.contains_key(name), "{name} is forwarded");
        }
        let is_secret = copy.headers.contains_key("authorization");
        assert!(!is_secret || copy.remote.is_encrypted() || copy.remote.is_loopback());
    }
    let line = failure_line(&target);
    assert!(line.len() <= 4096 && line.matches('\n').count() == 1 && line.ends_with('\n'));
}

fn path(target: &str, host: Option<&str>) {
    let parsed = target.parse::<Uri>().map(|uri| UrlPath::of(&uri));
    let destination = UrlPath::of_destination(target, host);
    for path in parsed.into_iter().flatten().chain(destination) {
        let bytes = path.bytes();
        assert!(bytes.first() == Some(&b'/') && !bytes.contains(&0));
        let mut names = bytes.split(|byte| *byte == b'/');
        assert!(!names.any(|name| matches!(name, b"." | b"..")), "{}", path.shown());
        // What a listing shows leads back to the same path.
        let again: Uri = encode(bytes).parse().expect("an encoded path is a URI");
        let again = UrlPath::of(&again).expect("an encoded path is accepted");
        assert_eq!(again.bytes(), bytes);
    }
}

fn ranges(header: Option<&str>, size: u64) {
    if let RequestedRanges::Parts(parts) = requested(header, size) {
        let mut total = 0_u64;
        for part in &parts {
            assert!(part.bytes > 0 && part.start < size && part.bytes <= size - part.start);
            total = total.saturating_add(part.bytes);
        }
        assert!(!parts.is_empty() && total <= size.saturating_mul(2));
    }
}

/// Parses the body of `PROPFIND` or `PROPPATCH`.
pub fn property_body(body: &[u8]) {
    let _ = properties::elements(body);
}
