//! Checks of the bytes of requests ahead of hyper, which repairs some that must be refused.
//!
//! hyper cuts a target at `#`, so that `DELETE /a#b` would delete `/a`, and ignores a `Content-Length` beside
//! `Transfer-Encoding` (RFC 9112 section 6.3). [`HeadScanner`] follows the framing of a connection's requests and
//! replaces one byte of such a head by one that no head may have: hyper answers 400 and closes the connection. Bodies are
//! not changed.

/// Byte that no request target and no name of a header may have (DEL).
const FORBIDDEN_BYTE: u8 = 0x7f;

const TRANSFER_ENCODING: &[u8] = b"transfer-encoding";
const CONTENT_LENGTH: &[u8] = b"content-length";

/// Longest name of a header that is kept, in bytes: one more than that of the longest known one.
const NAME_BYTES_MAX: usize = TRANSFER_ENCODING.len() + 1;

/// HeadPosition in the requests of one connection.
#[derive(Debug, Default)]
pub(crate) struct HeadScanner {
    position: HeadPosition,
    /// Name of the current header, cut at [`NAME_BYTES_MAX`].
    name: Vec<u8>,
    has_encoding: bool,
    /// Value of `Content-Length`.
    length: Option<u64>,
    /// Number of heads that have begun.
    heads: u64,
}

/// Part of a request to which the next byte belongs.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum HeadPosition {
    /// Empty lines before a request.
    #[default]
    Between,
    RequestLine,
    HeaderName,
    HeaderValue,
    LengthValue,
    /// As many bytes of a body.
    Body(u64),
    /// Line with the length of a chunk, as read so far; true behind its digits.
    ChunkLength(u64, bool),
    /// As many bytes of a chunk and the line's end behind it.
    Chunk(u64),
    /// Line of a trailer; true while it is empty.
    Trailer(bool),
}

impl HeadScanner {
    /// Returns the number of the head whose end has not arrived.
    pub(crate) fn unfinished_head(&self) -> Option<u64> {
        let is_head = matches!(
            self.position,
            HeadPosition::RequestLine
                | HeadPosition::HeaderName
                | HeadPosition::HeaderValue
                | HeadPosition::LengthValue
        );
        is_head.then_some(self.heads)
    }

    /// Follows the bytes that arrived, and damages heads that must be refused.
    pub(crate) fn scan(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let count = match self.position {
                HeadPosition::Body(left) | HeadPosition::Chunk(left) => {
                    let count =
                        usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
                    let left = left - count as u64;
                    self.position = match self.position {
                        HeadPosition::Body(_) if left > 0 => HeadPosition::Body(left),
                        HeadPosition::Body(_) => HeadPosition::Between,
                        _ if left > 0 => HeadPosition::Chunk(left),
                        _ => HeadPosition::ChunkLength(0, false),
                    };
                    count
                }
                _ => {
                    self.step(&mut bytes[0]);
                    1
                }
            };
            bytes = &mut bytes[count..];
        }
    }

    fn step(&mut self, byte: &mut u8) {
        if self.position == HeadPosition::Between && !matches!(*byte, b'\r' | b'\n') {
            self.heads += 1;
        }
        self.position = match (self.position, *byte) {
            (HeadPosition::Between, b'\r' | b'\n') => HeadPosition::Between,
            (HeadPosition::Between | HeadPosition::RequestLine, b'#') => {
                *byte = FORBIDDEN_BYTE;
                HeadPosition::RequestLine
            }
            (HeadPosition::RequestLine, b'\n') => {
                (self.has_encoding, self.length) = (false, None);
                self.name.clear();
                HeadPosition::HeaderName
            }
            (HeadPosition::Between | HeadPosition::RequestLine, _) => HeadPosition::RequestLine,
            (HeadPosition::HeaderName, b'\r') => HeadPosition::HeaderName,
            (HeadPosition::HeaderName, b'\n') if self.name.is_empty() => self.body(),
            (HeadPosition::HeaderName, b':') => self.value(byte),
            (HeadPosition::HeaderName, _) => {
                if self.name.len() < NAME_BYTES_MAX {
                    self.name.push(byte.to_ascii_lowercase());
                }
                self.end_line(*byte)
            }
            (HeadPosition::LengthValue, b'0'..=b'9') => {
                let length = self.length.unwrap_or(0).saturating_mul(10);
                self.length = Some(length.saturating_add(u64::from(*byte - b'0')));
                HeadPosition::LengthValue
            }
            (HeadPosition::LengthValue, b',') => {
                self.length = None;
                HeadPosition::LengthValue
            }
            (HeadPosition::HeaderValue | HeadPosition::LengthValue, _) => self.end_line(*byte),
            (HeadPosition::ChunkLength(0, _), b'\n') => HeadPosition::Trailer(true),
            (HeadPosition::ChunkLength(length, _), b'\n') => {
                HeadPosition::Chunk(length.saturating_add(2))
            }
            (HeadPosition::ChunkLength(length, is_behind), _) => {
                match char::from(*byte).to_digit(16) {
                    Some(digit) if !is_behind => {
                        let length = length.saturating_mul(16).saturating_add(u64::from(digit));
                        HeadPosition::ChunkLength(length, false)
                    }
                    _ => HeadPosition::ChunkLength(length, true),
                }
            }
            (HeadPosition::Trailer(true), b'\n') => HeadPosition::Between,
            (HeadPosition::Trailer(is_empty), b'\r') => HeadPosition::Trailer(is_empty),
            (HeadPosition::Trailer(_), other) => HeadPosition::Trailer(other == b'\n'),
            (position @ (HeadPosition::Body(_) | HeadPosition::Chunk(_)), _) => position,
        };
    }

    /// HeadPosition behind a byte of a header.
    fn end_line(&mut self, byte: u8) -> HeadPosition {
        if byte != b'\n' {
            return self.position;
        }
        self.name.clear();
        HeadPosition::HeaderName
    }

    /// HeadPosition behind the name of a header.
    fn value(&mut self, colon: &mut u8) -> HeadPosition {
        let (is_encoding, is_length) =
            (self.name == TRANSFER_ENCODING, self.name == CONTENT_LENGTH);
        if is_encoding && self.length.is_some() || is_length && self.has_encoding {
            *colon = FORBIDDEN_BYTE;
        }
        self.has_encoding |= is_encoding;
        match is_length {
            true => {
                self.length = None;
                HeadPosition::LengthValue
            }
            false => HeadPosition::HeaderValue,
        }
    }

    /// HeadPosition behind a head.
    fn body(&self) -> HeadPosition {
        match self.length {
            _ if self.has_encoding => HeadPosition::ChunkLength(0, false),
            None | Some(0) => HeadPosition::Between,
            Some(length) => HeadPosition::Body(length),
        }
    }
}

#[cfg(test)]
mod tests {
    use penstock_testkit::properties;
    use proptest::prelude::*;

    use super::*;

    /// Bytes that hyper gets, of a connection that delivers `size` bytes at a time.
    fn scanned(text: &str, size: usize) -> String {
        let mut scanner = HeadScanner::default();
        let mut bytes = text.as_bytes().to_vec();
        bytes.chunks_mut(size).for_each(|part| scanner.scan(part));
        String::from_utf8(bytes).unwrap()
    }

    /// Requests with bodies that look like heads to be refused.
    const GOOD: &str = "\r\nGET /a HTTP/1.1\r\nHost: x#y\r\n\r\n\
        PUT /b HTTP/1.1\r\ncontent-LENGTH: 21\r\nX-A:\r\n\r\nGET /a#b HTTP/1.1\r\n\r\n\
        PUT /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\
        5;x=3\r\n#\r\n#\n\r\n0A \r\nGET /#\r\n\r\n\r\n0\r\nA: #\r\n\r\n\
        PUT /d HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\nDELETE /e HTTP/1.1\r\n\r\n";

    #[test]
    fn bodies_and_good_heads_are_unchanged() {
        for size in [1, 2, 3, 7, 1000] {
            assert_eq!(scanned(GOOD, size), GOOD);
        }
    }

    #[test]
    fn fragment_is_damaged_behind_any_request() {
        for (end, _) in GOOD.match_indices("\r\n\r\n") {
            let next = &GOOD[end + 4..];
            if ["PUT", "DELETE"].iter().any(|method| next.starts_with(method)) {
                let text = format!("{}GET /f#g HTTP/1.1\r\n\r\n", &GOOD[..end + 4]);
                for size in [1, 5, 1000] {
                    assert_eq!(scanned(&text, size), text.replace("/f#g", "/f\x7fg"), "{text}");
                }
            }
        }
        let all = format!("{GOOD}DELETE /f#g HTTP/1.1\r\n\r\n");
        assert_eq!(scanned(&all, 1000), all.replace("f#g", "f\x7fg"));
    }

    #[test]
    fn two_framings_are_damaged() {
        let (encoding, length) = ("Transfer-Encoding: chunked\r\n", "Content-Length: 5\r\n");
        for (first, second) in [(encoding, length), (length, encoding)] {
            let text = format!("PUT /a HTTP/1.1\r\n{first}Host: x\r\n{second}\r\n");
            let damaged = text.replace(second, &second.replace(':', "\x7f"));
            assert_eq!(scanned(&text, 4), damaged);
        }
    }

    proptest! {
        #![proptest_config(properties())]

        #[test]
        fn any_bytes_are_scanned(parts in proptest::collection::vec(
            prop_oneof![
                Just("GET /a#b HTTP/1.1\r\n".to_owned()),
                Just("Content-Length: 3\r\n".to_owned()),
                Just("Transfer-Encoding: chunked\r\n".to_owned()),
                Just("\r\n".to_owned()),
                Just("ffffffffffffffffff\r\n".to_owned()),
                "[ -~]{0,8}",
            ], 0..40), size in 1..50_usize)
        {
            let text = parts.concat();
            let whole = scanned(&text, text.len().max(1));
            prop_assert_eq!(&scanned(&text, size), &whole);
            let mut pairs = text.bytes().zip(whole.bytes());
            let is_kept = pairs.all(|(before, after)| {
                before == after || after == FORBIDDEN_BYTE && matches!(before, b'#' | b':')
            });
            prop_assert!(is_kept, "{:?}", whole);
        }
    }
}
