//! Validators of files and conditional requests (RFC 9110 sections 8.8 and 13).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use penstock_http::ProblemDetails;
use penstock_sys::fs::Stat;

/// Validators of one state of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Validators {
    /// Strong entity tag with its quotes: inode, size and modification time.
    pub(crate) etag: String,
    /// Modification time in whole seconds.
    modified: SystemTime,
}

/// Evaluation of the conditions of a `GET` or `HEAD`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadCondition {
    /// Send the file, and its ranges if they were asked for.
    Send {
        /// False if `If-Range` names another state: then ranges are ignored.
        ranges: bool,
    },
    /// 304: the client has this state.
    NotModified,
}

impl Validators {
    pub(crate) fn of(stat: &Stat) -> Self {
        let seconds = u64::try_from(stat.mtime.seconds).unwrap_or(0);
        Self {
            etag: format!(
                "\"{:x}-{:x}-{:x}\"",
                stat.inode,
                stat.size,
                i128::from(stat.mtime.seconds) * 1_000_000_000 + i128::from(stat.mtime.nanos)
            ),
            modified: UNIX_EPOCH + Duration::from_secs(seconds),
        }
    }

    /// Value of `Last-Modified`.
    pub(crate) fn last_modified(&self) -> String {
        httpdate::fmt_http_date(self.modified)
    }

    fn matches(&self, list: &str) -> bool {
        tags(list).any(|tag| tag == "*" || tag == self.etag)
    }

    /// Weak comparison, for which `W/` does not matter.
    fn matches_weakly(&self, list: &str) -> bool {
        tags(list)
            .map(|tag| tag.strip_prefix("W/").unwrap_or(tag))
            .any(|tag| tag == "*" || tag == self.etag)
    }

    /// Checks `If-Match` and `If-Unmodified-Since`, which may forbid any method.
    ///
    /// # Errors
    /// 412.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), ProblemDetails> {
        let holds = match tag_list(headers, header::IF_MATCH) {
            Some(list) => self.matches(&list),
            None => date(headers, header::IF_UNMODIFIED_SINCE).is_none_or(|at| self.modified <= at),
        };
        match holds {
            true => Ok(()),
            false => Err(precondition_failed("the file is in another state")),
        }
    }

    /// Evaluates all conditions of a `GET` or `HEAD`.
    ///
    /// # Errors
    /// 412.
    pub(crate) fn evaluate_read(
        &self,
        headers: &HeaderMap,
    ) -> Result<ReadCondition, ProblemDetails> {
        self.check(headers)?;
        let unmodified = match tag_list(headers, header::IF_NONE_MATCH) {
            Some(list) => self.matches_weakly(&list),
            None => date(headers, header::IF_MODIFIED_SINCE).is_some_and(|at| self.modified <= at),
        };
        if unmodified {
            return Ok(ReadCondition::NotModified);
        }
        let ranges = match text(headers, header::IF_RANGE) {
            None => true,
            // A date does not tell two states within a second apart, and each file has an entity tag.
            Some(tag) => tag == self.etag,
        };
        Ok(ReadCondition::Send { ranges })
    }
}

/// Checks the conditions of a request that writes a file, whose present state is `there`.
///
/// # Errors
/// 412.
pub(crate) fn check_write(
    headers: &HeaderMap,
    there: Option<&Validators>,
) -> Result<(), ProblemDetails> {
    match there {
        None if headers.contains_key(header::IF_MATCH) => {
            Err(precondition_failed("the file does not exist"))
        }
        None => Ok(()),
        Some(there) => {
            there.check(headers)?;
            match tag_list(headers, header::IF_NONE_MATCH) {
                Some(list) if there.matches_weakly(&list) => {
                    Err(precondition_failed("the file exists"))
                }
                _ => Ok(()),
            }
        }
    }
}

/// Returns true if a request has a condition that [`check_write`] evaluates.
pub(crate) fn has_any(headers: &HeaderMap) -> bool {
    let names = [header::IF_MATCH, header::IF_NONE_MATCH, header::IF_UNMODIFIED_SINCE];
    names.iter().any(|name| headers.contains_key(name))
}

/// Checks the conditions of a `MOVE`, or of a `COPY` with `Destination`, on the state of its `source`. `If-None-Match: *` is
/// about the destination, which [`keeps_existing`] protects: about the source it could never hold.
///
/// # Errors
/// 412.
pub(crate) fn check_pair(headers: &HeaderMap, source: &Validators) -> Result<(), ProblemDetails> {
    source.check(headers)?;
    match tag_list(headers, header::IF_NONE_MATCH) {
        Some(list) if !keeps_existing(headers) && source.matches_weakly(&list) => {
            Err(precondition_failed("the source is in this state"))
        }
        _ => Ok(()),
    }
}

/// Returns true if the client wants nothing replaced: `If-None-Match: *`.
pub(crate) fn keeps_existing(headers: &HeaderMap) -> bool {
    tag_list(headers, header::IF_NONE_MATCH).is_some_and(|list| tags(&list).any(|tag| tag == "*"))
}

/// Creates a 412 problem.
pub(crate) fn precondition_failed(text: &str) -> ProblemDetails {
    ProblemDetails::new(StatusCode::PRECONDITION_FAILED, text)
}

/// Entity tags of all lines of a header. Bytes that are no text, which no tag of ours has, are replaced.
fn tag_list(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    let lines = headers.get_all(name).iter().map(|line| String::from_utf8_lossy(line.as_bytes()));
    let lines: Vec<_> = lines.collect();
    (!lines.is_empty()).then(|| lines.join(","))
}

/// Entity tags of a list. A tag in quotes may have commas.
fn tags(list: &str) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    list.split(move |c| {
        is_quoted ^= c == '"';
        c == ',' && !is_quoted
    })
    .map(str::trim)
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

fn date(headers: &HeaderMap, name: HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(text(headers, name)?).ok()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            // Each character is a byte.
            let bytes: Vec<u8> = value.chars().map(|c| u8::try_from(c).unwrap()).collect();
            headers.append(HeaderName::from_static(name), HeaderValue::from_bytes(&bytes).unwrap());
        }
        headers
    }

    #[test]
    fn conditions_compare_states() {
        let file = Validators {
            etag: "\"1-2-3\"".to_owned(),
            modified: httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap(),
        };
        let (here, before, after) = (
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:36 GMT",
            "Sun, 06 Nov 1994 08:49:38 GMT",
        );
        let send = |ranges| Ok(ReadCondition::Send { ranges });
        for (all, expected) in [
            (&[][..], send(true)),
            (&[("if-none-match", "\"1-2-3\"")][..], Ok(ReadCondition::NotModified)),
            (&[("if-none-match", "W/\"1-2-3\", \"x\"")][..], Ok(ReadCondition::NotModified)),
            (&[("if-none-match", "\"x\""), ("if-modified-since", after)][..], send(true)),
            (&[("if-modified-since", here)][..], Ok(ReadCondition::NotModified)),
            (&[("if-modified-since", before)][..], send(true)),
            (&[("if-modified-since", "yesterday")][..], send(true)),
            (&[("if-match", "\"x\", \"1-2-3\"")][..], send(true)),
            (&[("if-match", "\"x\"")][..], Err(412)),
            (&[("if-match", "W/\"1-2-3\"")][..], Err(412)),
            (&[("if-match", "\"x\""), ("if-match", "\"1-2-3\"")][..], send(true)),
            (&[("if-match", "\"caf\u{e9}\"")][..], Err(412)),
            (&[("if-match", "\"a,*,b\"")][..], Err(412)),
            (
                &[("if-none-match", "\"x\""), ("if-none-match", "\"1-2-3\"")][..],
                Ok(ReadCondition::NotModified),
            ),
            (&[("if-none-match", "\"a,*,b\"")][..], send(true)),
            (&[("if-unmodified-since", before)][..], Err(412)),
            (&[("if-unmodified-since", here)][..], send(true)),
            (&[("if-range", "\"1-2-3\"")][..], send(true)),
            (&[("if-range", "\"x\"")][..], send(false)),
            (&[("if-range", here)][..], send(false)),
            (&[("if-range", after)][..], send(false)),
        ] {
            let evaluated = file.evaluate_read(&headers(all)).map_err(|problem| problem.status);
            assert_eq!(evaluated, expected, "{all:?}");
        }
        let write = |all: &[(&'static str, &str)], there| {
            check_write(&headers(all), there).map_err(|problem| problem.status)
        };
        assert_eq!(write(&[("if-none-match", "*")], Some(&file)), Err(412));
        assert_eq!(write(&[("if-none-match", "*")], None), Ok(()));
        let lines = [("if-none-match", "\"x\""), ("if-none-match", "*")];
        assert_eq!(write(&lines, Some(&file)), Err(412));
        assert!(keeps_existing(&headers(&lines)));
        assert_eq!(write(&[("if-match", "\"caf\u{e9}\"")], Some(&file)), Err(412));
        assert_eq!(write(&[("if-match", "*")], None), Err(412));
        assert_eq!(write(&[("if-match", "*")], Some(&file)), Ok(()));
        for (all, expected) in [
            (&[("if-match", "\"x\"")][..], Err(412)),
            (&[("if-match", "\"1-2-3\"")][..], Ok(())),
            (&[("if-unmodified-since", before)][..], Err(412)),
            (&[("if-none-match", "*")][..], Ok(())),
            (&[("if-none-match", "\"1-2-3\"")][..], Err(412)),
        ] {
            let checked = check_pair(&headers(all), &file).map_err(|problem| problem.status);
            assert_eq!(checked, expected, "{all:?}");
        }
    }
}
