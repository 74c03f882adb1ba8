//! Byte ranges of a request (RFC 9110 section 14).

/// Most ranges of a request; analysis programs ask for some hundreds at once.
pub(crate) const RANGES_MAX: usize = 1024;

/// First byte and length of a part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteRange {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

impl ByteRange {
    /// Value of `Content-Range` for a file of `size` bytes.
    pub(crate) fn content_range(self, size: u64) -> String {
        format!("bytes {}-{}/{size}", self.start, self.start + self.bytes - 1)
    }
}

/// Parts of a file that a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestedRanges {
    /// The whole file: no range, another unit, or a header with an error, which is ignored (RFC 9110 section 14.2).
    Whole,
    /// These parts, at least one, none empty.
    Parts(Vec<ByteRange>),
    /// None that the file has.
    Unsatisfiable,
    /// Too many, or more bytes than twice the file.
    Excessive,
}

/// Evaluates the header `Range` for a file of `size` bytes.
pub(crate) fn requested(header: Option<&str>, size: u64) -> RequestedRanges {
    let list = header.and_then(|header| {
        let (unit, list) = header.trim().split_once('=')?;
        unit.eq_ignore_ascii_case("bytes").then_some(list)
    });
    let Some(list) = list else { return RequestedRanges::Whole };
    if list.split(',').count() > RANGES_MAX {
        return RequestedRanges::Excessive;
    }
    let mut parts = Vec::new();
    for spec in list.split(',').map(str::trim).filter(|spec| !spec.is_empty()) {
        match one(spec, size) {
            Some(Some(range)) => parts.push(range),
            Some(None) => {}
            None => return RequestedRanges::Whole,
        }
    }
    let total = parts.iter().fold(0_u64, |total, part| total.saturating_add(part.bytes));
    if parts.is_empty() {
        return RequestedRanges::Unsatisfiable;
    }
    // Overlapping ranges would multiply the work (RFC 9110 section 17.15).
    if total > size.saturating_mul(2) {
        return RequestedRanges::Excessive;
    }
    RequestedRanges::Parts(parts)
}

/// Evaluates one range: `None` if it is no range, `Some(None)` if the file has none of it.
fn one(spec: &str, size: u64) -> Option<Option<ByteRange>> {
    let (first, last) = spec.split_once('-')?;
    let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true if !text.is_empty() => Some(text.parse().unwrap_or(u64::MAX)),
        _ => None,
    };
    if first.is_empty() {
        let bytes = number(last)?.min(size);
        return Some((bytes > 0).then_some(ByteRange { start: size - bytes, bytes }));
    }
    let start = number(first)?;
    let end = if last.is_empty() { u64::MAX } else { number(last)? };
    if end < start {
        return None;
    }
    if start >= size {
        return Some(None);
    }
    Some(Some(ByteRange { start, bytes: end.saturating_add(1).min(size) - start }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::RequestedRanges::{Excessive, Parts, Unsatisfiable, Whole};
    use super::*;

    fn parts(all: &[(u64, u64)]) -> RequestedRanges {
        Parts(all.iter().map(|(start, bytes)| ByteRange { start: *start, bytes: *bytes }).collect())
    }

    #[test]
    fn ranges_are_those_of_the_file() {
        for (header, expected) in [
            ("bytes=0-0", parts(&[(0, 1)])),
            ("bytes=0-9", parts(&[(0, 10)])),
            ("bytes=5-", parts(&[(5, 5)])),
            ("bytes=5-1000", parts(&[(5, 5)])),
            ("bytes=-3", parts(&[(7, 3)])),
            ("bytes=-30", parts(&[(0, 10)])),
            ("bytes=0-18446744073709551615", parts(&[(0, 10)])),
            ("bytes=0-99999999999999999999999", parts(&[(0, 10)])),
            ("bytes= 0-1 , 4-5,, 20-30", parts(&[(0, 2), (4, 2)])),
            ("bytes=10-", Unsatisfiable),
            ("bytes=-0", Unsatisfiable),
            ("bytes=0-9,0-9,0-9", Excessive),
            ("Bytes=0-9,0-9", parts(&[(0, 10), (0, 10)])),
            ("bytes=", Unsatisfiable),
            ("bytes=5-4", Whole),
            ("bytes=x-4", Whole),
            ("bytes=+1-4", Whole),
            ("bytes=1", Whole),
            ("lines=0-1", Whole),
        ] {
            assert_eq!(requested(Some(header), 10), expected, "{header}");
        }
        assert_eq!(requested(None, 10), Whole);
        assert_eq!(requested(Some("bytes=0-"), 0), Unsatisfiable);
        let bomb = format!("bytes={}", "0-0,".repeat(RANGES_MAX + 1));
        assert_eq!(requested(Some(&bomb), 1 << 20), Excessive);
        let part = ByteRange { start: 5, bytes: 5 };
        assert_eq!(part.content_range(10), "bytes 5-9/10");
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn parts_lie_in_the_file(header in "bytes=[0-9,\\- ]{0,40}", size in 0_u64..2000) {
            if let Parts(parts) = requested(Some(&header), size) {
                prop_assert!(!parts.is_empty());
                for part in parts {
                    prop_assert!(part.bytes > 0 && part.start + part.bytes <= size);
                }
            }
        }
    }
}
