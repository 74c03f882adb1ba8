//! Parser of FTS3 submissions.
//!
//! `null` means the default and unknown keys are ignored, as FTS3 does. Values without effect here (`nostreams`,
//! `buffer_size`, space tokens, `gridftp`, `credential`) are accepted; those that promise tape are refused.

use serde_json::{Map, Value};

use super::checksum::{ChecksumMode, FtsChecksum};
use super::state::FtsJobKind;
use crate::file::FILE_BYTES_MAX;

/// Most transfers of a job.
pub const FTS_FILES_MAX: usize = 10_000;

/// Longest URL in bytes.
const URL_BYTES_MAX: usize = 4096;

/// Longest token of a storage in bytes.
const STORAGE_TOKEN_BYTES_MAX: usize = 8192;

/// Longest text of metadata in bytes, as JSON.
const METADATA_BYTES_MAX: usize = 64 << 10;

/// Priorities of jobs.
const PRIORITIES: std::ops::RangeInclusive<i64> = 1..=5;

/// Priority of a job without one.
const PRIORITY_DEFAULT: i64 = 3;

/// Retries of a file; -1 means none.
const RETRIES: std::ops::RangeInclusive<i64> = -1..=100;

/// Form of a checksum of a file.
const CHECKSUM_FORM: &str = "ALGORITHM:VALUE of adler32, crc32, crc32c, md5, sha1, sha224, sha256, sha384, sha512 or \
                             blake3, with no more digits than the algorithm has";

/// Range of experiment and activity numbers of scitags.
const SCITAG_NUMBERS: std::ops::RangeInclusive<i64> = 65..=65535;

/// Fault of a submission, at a place of its JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {fault}")]
pub struct InvalidFtsJob {
    /// Place, such as `files[0].sources`.
    pub at: String,
    /// Fault of the value at the place.
    pub fault: FtsFault,
}

/// Fault of a value of a submission.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FtsFault {
    /// The body is no JSON.
    #[error("it is no JSON: {0}")]
    NoJson(String),
    /// A value of another type.
    #[error("it must be {0}")]
    Type(&'static str),
    /// A value out of its range.
    #[error("it must be {0}")]
    Range(&'static str),
    /// More than a limit.
    #[error("it has more than {0}: submit several jobs")]
    TooMany(usize),
    /// A URL of a protocol that is not offered.
    #[error("'{0}' is no URL of https, davs, http, dav or penstock")]
    Url(String),
    /// A feature that is not offered.
    #[error("{0} is not offered here")]
    NotOffered(&'static str),
}

/// Parameters of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct FtsParams {
    /// Ends at which checksums are compared; none for the default.
    pub verify: ChecksumMode,
    /// True if existing destinations are replaced.
    pub overwrite: bool,
    /// Priority from 1 to 5, the highest.
    pub priority: i64,
    /// Retries of a file; 0 for the default, negative for none.
    pub retry: i64,
    /// Seconds between attempts; 0 for the default.
    pub retry_delay_s: i64,
    /// Seconds of an attempt; 0 for the default.
    pub timeout_s: i64,
    /// Seconds in the queue after which a file fails; 0 for unlimited.
    pub queue_s: i64,
    /// Metadata, returned as an object where it is null.
    pub metadata: Value,
    /// Key of a deterministic id, if asked for.
    pub sid: Option<String>,
}

/// A transfer of a job: one source to one destination.
#[derive(Debug, Clone, PartialEq)]
pub struct FtsTransfer {
    /// URL of the source.
    pub source: String,
    /// URL of the destination.
    pub destination: String,
    /// Bearer token for the source.
    pub source_token: Option<String>,
    /// Bearer token for the destination.
    pub destination_token: Option<String>,
    /// Checksum that the source or the destination must have.
    pub checksum: Option<FtsChecksum>,
    /// Expected size in bytes.
    pub filesize: Option<i64>,
    /// Activity, by whose name the class of work is chosen.
    pub activity: Option<String>,
    /// Metadata, returned as submitted.
    pub metadata: Value,
    /// Number of experiment and activity.
    pub scitag: Option<i64>,
}

/// Parsed body of a submission.
#[derive(Debug, Clone, PartialEq)]
pub struct FtsSubmission {
    /// Relation of the transfers.
    pub kind: FtsJobKind,
    /// Parameters of all transfers.
    pub params: FtsParams,
    /// Transfers in the order of their indexes, at least one.
    pub transfers: Vec<FtsTransfer>,
}

type Parsed<T> = Result<T, InvalidFtsJob>;

fn fault<T>(at: impl Into<String>, fault: FtsFault) -> Parsed<T> {
    Err(InvalidFtsJob { at: at.into(), fault })
}

/// Returns the value of a key; none if it is absent or null.
fn given<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    object.get(key).filter(|value| !value.is_null())
}

fn integer(object: &Map<String, Value>, at: &str, key: &str) -> Parsed<Option<i64>> {
    let Some(value) = given(object, key) else { return Ok(None) };
    let text = value.as_str().and_then(|text| text.trim().parse().ok());
    match value.as_i64().or(text) {
        Some(number) => Ok(Some(number)),
        None => fault(format!("{at}.{key}"), FtsFault::Type("a whole number")),
    }
}

fn flag(object: &Map<String, Value>, key: &str) -> Parsed<bool> {
    match given(object, key) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(Value::Number(number)) => Ok(number.as_i64() != Some(0)),
        Some(Value::String(text)) => {
            Ok(["y", "yes", "true", "1"].contains(&text.to_ascii_lowercase().as_str()))
        }
        Some(_) => fault(format!("params.{key}"), FtsFault::Type("true or false")),
    }
}

/// Returns metadata of any type that is not too long.
fn metadata(object: &Map<String, Value>, at: &str, key: &str) -> Parsed<Value> {
    let value = object.get(key).cloned().unwrap_or_default();
    if value.to_string().len() > METADATA_BYTES_MAX {
        return fault(format!("{at}.{key}"), FtsFault::Range("at most 64 KiB of JSON"));
    }
    Ok(value)
}

/// Returns the texts of a list, or a single text, each of at most `bytes_max` bytes.
fn texts(
    object: &Map<String, Value>,
    at: &str,
    key: &str,
    bytes_max: usize,
) -> Parsed<Vec<String>> {
    let values = match given(object, key) {
        None => return Ok(Vec::new()),
        Some(Value::Array(values)) => values.as_slice(),
        Some(value) => std::slice::from_ref(value),
    };
    if values.len() > FTS_FILES_MAX {
        return fault(format!("{at}.{key}"), FtsFault::TooMany(FTS_FILES_MAX));
    }
    let read = |value: &Value| match value.as_str() {
        Some(text)
            if !text.is_empty()
                && text.len() <= bytes_max
                && text.bytes().all(|byte| byte.is_ascii_graphic()) =>
        {
            Ok(text.to_owned())
        }
        _ => fault(format!("{at}.{key}"), FtsFault::Type("texts of printable ASCII, not too long")),
    };
    values.iter().map(read).collect()
}

fn urls(object: &Map<String, Value>, at: &str, key: &str) -> Parsed<Vec<String>> {
    let urls = texts(object, at, key, URL_BYTES_MAX)?;
    if urls.is_empty() {
        return fault(format!("{at}.{key}"), FtsFault::Type("a list of at least one URL"));
    }
    let is_offered = |url: &str| {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        ["https", "davs", "http", "dav", "penstock"].contains(&scheme) && !rest.is_empty()
    };
    match urls.iter().find(|url| !is_offered(url)) {
        Some(url) => fault(format!("{at}.{key}"), FtsFault::Url(url.chars().take(200).collect())),
        None => Ok(urls),
    }
}

/// Returns one token for each of `count` URLs.
fn tokens(object: &Map<String, Value>, at: &str, key: &str, count: usize) -> Parsed<Vec<String>> {
    let tokens = texts(object, at, key, STORAGE_TOKEN_BYTES_MAX)?;
    if !tokens.is_empty() && tokens.len() != count {
        return fault(format!("{at}.{key}"), FtsFault::Range("one token for each URL"));
    }
    Ok(tokens)
}

/// Parses a time in the queue: hours, or a number with a unit of s, m, h or d.
fn queue_seconds(params: &Map<String, Value>) -> Parsed<i64> {
    let at = "params.max_time_in_queue";
    let (number, unit) = match given(params, "max_time_in_queue") {
        None => return Ok(0),
        Some(Value::String(text)) => match text.trim().char_indices().next_back() {
            Some((end, unit)) if unit.is_ascii_alphabetic() => {
                (text.trim()[..end].parse::<i64>().ok(), unit)
            }
            _ => (text.trim().parse().ok(), 'h'),
        },
        Some(value) => (value.as_i64(), 'h'),
    };
    let unit_s = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return fault(at, FtsFault::Range("hours, or a number with s, m, h or d")),
    };
    match number.and_then(|number| number.checked_mul(unit_s)) {
        Some(seconds) if seconds <= 10 * 365 * 86_400 => Ok(seconds.max(0)),
        _ => fault(at, FtsFault::Range("at most ten years")),
    }
}

fn verify(params: &Map<String, Value>) -> Parsed<ChecksumMode> {
    match given(params, "verify_checksum") {
        None | Some(Value::Bool(false)) => Ok(ChecksumMode::None),
        Some(Value::Bool(true)) => Ok(ChecksumMode::Both),
        Some(value) => match value.as_str().and_then(ChecksumMode::from_word) {
            Some(mode) => Ok(mode),
            None => fault(
                "params.verify_checksum",
                FtsFault::Range("none, source, target, both, true or false"),
            ),
        },
    }
}

/// Returns the priority among the parameters of a job.
///
/// # Errors
/// Unless it is a whole number from 1 to 5.
pub fn priority_of(params: &Map<String, Value>) -> Result<Option<i64>, InvalidFtsJob> {
    match integer(params, "params", "priority")? {
        Some(priority) if !PRIORITIES.contains(&priority) => {
            fault("params.priority", FtsFault::Range("from 1 to 5"))
        }
        priority => Ok(priority),
    }
}

fn parse_params(params: &Map<String, Value>) -> Parsed<FtsParams> {
    let number = |key: &str| Ok(integer(params, "params", key)?.unwrap_or(0));
    for key in ["bring_online", "archive_timeout"] {
        if number(key)? > 0 {
            return fault(format!("params.{key}"), FtsFault::NotOffered("tape"));
        }
    }
    let priority = priority_of(params)?.unwrap_or(PRIORITY_DEFAULT);
    let retry = number("retry")?;
    if !RETRIES.contains(&retry) {
        return fault("params.retry", FtsFault::Range("-1 for none, 0 for the default, up to 100"));
    }
    let sid = match given(params, "id_generator").and_then(Value::as_str) {
        Some("deterministic") => {
            let sid = texts(params, "params", "sid", 255)?;
            match sid.into_iter().next() {
                Some(sid) => Some(sid),
                None => {
                    return fault("params.sid", FtsFault::Type("the key of a deterministic id"));
                }
            }
        }
        _ => None,
    };
    Ok(FtsParams {
        verify: verify(params)?,
        overwrite: flag(params, "overwrite")?,
        priority,
        retry,
        retry_delay_s: number("retry_delay")?.clamp(0, 86_400),
        timeout_s: number("timeout")?.clamp(0, 30 * 86_400),
        queue_s: queue_seconds(params)?,
        metadata: metadata(params, "params", "job_metadata")?,
        sid,
    })
}

/// Parses one element of `files` into its transfers: each pair of a source and a destination.
fn parse_file(file: &Map<String, Value>, at: &str, out: &mut Vec<FtsTransfer>) -> Parsed<()> {
    let (sources, destinations) = (urls(file, at, "sources")?, urls(file, at, "destinations")?);
    let source_tokens = tokens(file, at, "source_tokens", sources.len())?;
    let destination_tokens = tokens(file, at, "destination_tokens", destinations.len())?;
    if source_tokens.is_empty() != destination_tokens.is_empty() {
        return fault(
            format!("{at}.source_tokens"),
            FtsFault::Range("given together with destination_tokens"),
        );
    }
    let checksum = match given(file, "checksum").or_else(|| given(file, "checksums")) {
        None => None,
        Some(value) => match value.as_str().and_then(FtsChecksum::parse) {
            Some(checksum) if checksum.is_known() => Some(checksum),
            None if value.as_str() == Some("") => None,
            _ => return fault(format!("{at}.checksum"), FtsFault::Type(CHECKSUM_FORM)),
        },
    };
    let filesize = integer(file, at, "filesize")?;
    if filesize.is_some_and(|bytes| bytes < 0) {
        return fault(format!("{at}.filesize"), FtsFault::Range("0 for unknown, or more"));
    }
    // Only for comparison and sums: no file is larger.
    let filesize =
        filesize.filter(|bytes| *bytes > 0).map(|bytes| bytes.min(FILE_BYTES_MAX as i64));
    let scitag = integer(file, at, "scitag")?;
    if scitag.is_some_and(|scitag| !SCITAG_NUMBERS.contains(&scitag)) {
        return fault(format!("{at}.scitag"), FtsFault::Range("from 65 to 65535"));
    }
    let activity = match given(file, "activity") {
        None => None,
        Some(Value::String(text)) if text.len() <= 255 => Some(text.clone()),
        Some(_) => {
            return fault(format!("{at}.activity"), FtsFault::Type("a text of at most 255 bytes"));
        }
    };
    let metadata = metadata(file, at, "metadata")?;
    for (s, source) in sources.iter().enumerate() {
        for (d, destination) in destinations.iter().enumerate() {
            if out.len() == FTS_FILES_MAX {
                return fault("files", FtsFault::TooMany(FTS_FILES_MAX));
            }
            out.push(FtsTransfer {
                source: source.clone(),
                destination: destination.clone(),
                source_token: source_tokens.get(s).cloned(),
                destination_token: destination_tokens.get(d).cloned(),
                checksum: checksum.clone(),
                filesize,
                activity: activity.clone(),
                metadata: metadata.clone(),
                scitag,
            });
        }
    }
    Ok(())
}

impl FtsSubmission {
    /// Parses the body of a submission.
    ///
    /// # Errors
    /// With the place of the first fault.
    pub fn parse(body: &[u8]) -> Result<Self, InvalidFtsJob> {
        let value: Value = match serde_json::from_slice(body) {
            Ok(value) => value,
            Err(error) => return fault("body", FtsFault::NoJson(error.to_string())),
        };
        let Some(job) = value.as_object() else {
            return fault("body", FtsFault::Type("an object with files and params"));
        };
        let none = Map::new();
        let params = match given(job, "params") {
            None => &none,
            Some(Value::Object(params)) => params,
            Some(_) => return fault("params", FtsFault::Type("an object")),
        };
        let Some(Value::Array(files)) = given(job, "files") else {
            let is_deletion = given(job, "delete").is_some();
            let what = match is_deletion {
                true => FtsFault::NotOffered("deletion"),
                false => FtsFault::Type("a list of transfers"),
            };
            return fault("files", what);
        };
        let mut transfers = Vec::new();
        let mut has_alternatives = false;
        for (index, file) in files.iter().enumerate() {
            let at = format!("files[{index}]");
            let Some(file) = file.as_object() else {
                return fault(at, FtsFault::Type("an object"));
            };
            let before = transfers.len();
            parse_file(file, &at, &mut transfers)?;
            has_alternatives |= transfers.len() > before + 1;
        }
        if transfers.is_empty() {
            return fault("files", FtsFault::Type("a list of at least one transfer"));
        }
        let reuse = given(params, "reuse").and_then(Value::as_str).unwrap_or_default();
        let is_multihop = flag(params, "multihop")? || reuse.eq_ignore_ascii_case("h");
        let kind = match (is_multihop, has_alternatives) {
            (true, false) => FtsJobKind::MultiHop,
            (false, true) if files.len() == 1 => FtsJobKind::MultiReplica,
            (_, true) => {
                let text = "one file without multihop where a file has several sources";
                return fault("files", FtsFault::Range(text));
            }
            _ if flag(params, "reuse")? => FtsJobKind::Reuse,
            _ => FtsJobKind::Independent,
        };
        let mut params = parse_params(params)?;
        let has_checksum = transfers.iter().any(|one| one.checksum.is_some());
        if params.verify == ChecksumMode::None && has_checksum && !is_none_asked(job.get("params"))
        {
            params.verify = ChecksumMode::Target;
        }
        Ok(Self { kind, params, transfers })
    }
}

/// True if the client asked for no comparison by word; `false` with a checksum compares the target, as in FTS3.
fn is_none_asked(params: Option<&Value>) -> bool {
    let word = params.and_then(|params| params.get("verify_checksum")).and_then(Value::as_str);
    word.is_some_and(|word| word.to_ascii_lowercase().starts_with('n'))
}

#[cfg(test)]
mod tests;
