//! Digests of whole files: names on the wire, and values kept in extended attributes.
//!
//! Clients ask by `Want-Digest` (RFC 3230) or `Want-Repr-Digest` (RFC 9530). A digest is computed while a file is
//! uploaded, or once when a client asks, and kept in the attribute `user.penstock.ALGORITHM` with the inode, the size and
//! the modification time that it belongs to: a change of one of these makes it void. The change time cannot take part, as
//! storing the attribute sets it: a program that writes in place and sets the modification time back keeps the digest.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use penstock_mover::{CommittedUpload, JoinedUpload, UploadCondition};
use penstock_protocol::digest::{Algorithm, Digest, Serial};
use penstock_sys::fs::{self, Stat};

/// Bytes read at once to compute a digest.
const READ_BYTES: usize = 1 << 20;

/// Characters of a malformed digest that are shown.
const DIGEST_CHARS_SHOWN_MAX: usize = 100;

/// Algorithms that clients may ask for, with their names in RFC 3230 and RFC 9530.
const NAMES: [(Algorithm, &str, &str); 4] = [
    (Algorithm::Adler32, "adler32", "adler"),
    (Algorithm::Crc32c, "crc32c", "crc32c"),
    (Algorithm::Md5, "md5", "md5"),
    (Algorithm::Sha256, "sha-256", "sha-256"),
];

/// Header in which the client asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DigestField {
    /// `Want-Digest` of RFC 3230: checksums in hexadecimal, hashes in base64.
    Digest,
    /// `Want-Repr-Digest` of RFC 9530: base64 between colons.
    ReprDigest,
}

/// A digest that a client asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WantedDigest {
    pub(crate) algorithm: Algorithm,
    pub(crate) field: DigestField,
}

/// Returns the algorithm of a name on the wire, regardless of case.
pub(crate) fn algorithm(name: &str) -> Option<Algorithm> {
    let is_it = |one: &&(Algorithm, &str, &str)| {
        one.1.eq_ignore_ascii_case(name) || one.2.eq_ignore_ascii_case(name)
    };
    match name {
        _ if name.eq_ignore_ascii_case("sha256") => Some(Algorithm::Sha256),
        _ => NAMES.iter().find(is_it).map(|(algorithm, ..)| *algorithm),
    }
}

/// Returns the digest that a request asks for. Lines of one header are one list (RFC 9110 section 5.3).
pub(crate) fn wanted_by(headers: &HeaderMap) -> Option<WantedDigest> {
    let [digest, repr_digest] = ["want-digest", "want-repr-digest"].map(|name| {
        let lines = headers.get_all(name).iter().filter_map(|line| line.to_str().ok());
        lines.collect::<Vec<_>>().join(",")
    });
    wanted(Some(&digest), Some(&repr_digest))
}

/// Evaluates `Want-Repr-Digest`, then `Want-Digest`: the known algorithm of the highest preference, the first of equals.
pub(crate) fn wanted(digest: Option<&str>, repr_digest: Option<&str>) -> Option<WantedDigest> {
    let best = |list: &str, separator: char, prefix: &str, field| {
        let mut best: Option<(f64, Algorithm)> = None;
        for one in list.split(',') {
            let (name, weight) = one.split_once(separator).unwrap_or((one, ""));
            let weight = weight.trim().strip_prefix(prefix).unwrap_or_default().trim();
            let weight = weight.parse::<f64>().ok().filter(|weight| weight.is_finite());
            let weight = weight.unwrap_or(1.0);
            let Some(algorithm) = algorithm(name.trim()).filter(|_| weight > 0.0) else { continue };
            if best.is_none_or(|(most, _)| weight > most) {
                best = Some((weight, algorithm));
            }
        }
        best.map(|(_, algorithm)| WantedDigest { algorithm, field })
    };
    repr_digest
        .and_then(|list| best(list, '=', "", DigestField::ReprDigest))
        .or_else(|| digest.and_then(|list| best(list, ';', "q=", DigestField::Digest)))
}

/// Formats a digest as the value of the header in which the client asked.
pub(crate) fn header_value(wanted: WantedDigest, digest: &Digest) -> String {
    let (_, name, repr_name) = NAMES
        .iter()
        .find(|(algorithm, ..)| *algorithm == wanted.algorithm)
        .expect("wanted algorithms have names");
    match (wanted.field, wanted.algorithm) {
        (DigestField::ReprDigest, _) => format!("{repr_name}=:{}:", STANDARD.encode(&digest.0)),
        (DigestField::Digest, Algorithm::Adler32 | Algorithm::Crc32c) => format!("{name}={digest}"),
        (DigestField::Digest, _) => format!("{name}={}", STANDARD.encode(&digest.0)),
    }
}

/// A digest with a file that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{}' is no digest: write Digest: adler32=HEXADECIMAL, md5=BASE64 or sha-256=BASE64, Repr-Digest: md5=:BASE64:, \
     or Content-MD5: BASE64",
    .0.escape_debug()
)]
pub(crate) struct MalformedDigest(String);

/// Parses the digests that a client or server sends with a file, in `Digest` or `Repr-Digest`; unknown algorithms are
/// left out.
///
/// # Errors
/// If one has no name, or a known one has no value of its length.
pub(crate) fn sent(
    header: &str,
    field: DigestField,
) -> Result<Vec<(Algorithm, Digest)>, MalformedDigest> {
    let mut all = Vec::new();
    for text in header.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        let malformed = || MalformedDigest(text.chars().take(DIGEST_CHARS_SHOWN_MAX).collect());
        let (name, value) = text.split_once('=').ok_or_else(malformed)?;
        let Some(algorithm) = algorithm(name.trim()) else { continue };
        let bytes = match field {
            DigestField::ReprDigest => repr_bytes(algorithm, value),
            DigestField::Digest => value_bytes(algorithm, value.trim()),
        };
        all.push((algorithm, Digest(bytes.ok_or_else(malformed)?)));
    }
    Ok(all)
}

/// Length of a digest in bytes.
fn digest_bytes(algorithm: Algorithm) -> usize {
    match algorithm {
        Algorithm::Adler32 | Algorithm::Crc32c => 4,
        Algorithm::Md5 => 16,
        _ => 32,
    }
}

/// Bytes of a value in `Repr-Digest`, whose parameters do not matter (RFC 8941 section 3.2).
fn repr_bytes(algorithm: Algorithm, value: &str) -> Option<Vec<u8>> {
    let value = value.split(';').next().unwrap_or_default().trim();
    let bytes = STANDARD.decode(value.strip_prefix(':')?.strip_suffix(':')?).ok()?;
    (bytes.len() == digest_bytes(algorithm)).then_some(bytes)
}

/// Bytes of a value in `Digest`. Servers write checksums in hexadecimal, and some in base64.
fn value_bytes(algorithm: Algorithm, value: &str) -> Option<Vec<u8>> {
    let length = digest_bytes(algorithm);
    let is_hex = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_hexdigit());
    let bytes = if is_hex && value.len() <= 2 * length {
        let padded = format!("{value:0>width$}", width = 2 * length);
        (0..length).map(|at| u8::from_str_radix(&padded[2 * at..2 * at + 2], 16).ok()).collect()
    } else {
        STANDARD.decode(value).ok()
    };
    bytes.filter(|bytes: &Vec<u8>| bytes.len() == length)
}

fn attribute(algorithm: Algorithm) -> OsString {
    OsString::from(format!("user.penstock.{algorithm}"))
}

/// State of the file that a stored digest belongs to.
fn version(stat: &Stat) -> String {
    format!("{} {} {}.{:09}", stat.inode, stat.size, stat.mtime.seconds, stat.mtime.nanos)
}

/// Keeps a digest with the file. A file system without extended attributes keeps none.
pub(crate) fn store(file: &File, stat: &Stat, algorithm: Algorithm, digest: &Digest) {
    let value = format!("{digest} {}", version(stat));
    if let Err(error) = fs::set_xattr(file, &attribute(algorithm), value.as_bytes()) {
        tracing::debug!("a digest is not kept: {error}");
    }
}

/// Commits an upload as [`JoinedUpload::commit_if`] does, with its digests, which become durable by the same sync.
///
/// # Errors
/// As those of [`JoinedUpload::commit_if`].
pub(crate) fn commit(
    upload: JoinedUpload,
    condition: UploadCondition<'_>,
    replace: bool,
    expected: &[(Algorithm, Digest)],
) -> io::Result<CommittedUpload> {
    let before = fs::stat_file(upload.file())?;
    store_all(upload.file(), &before, upload.digests());
    let committed = upload.commit_if(condition, replace, expected)?;
    // NFS sets the modification time when the data reaches the server.
    if version(&committed.stat) != version(&before) {
        store_all(&committed.file, &committed.stat, &committed.digests);
    }
    Ok(committed)
}

fn store_all(file: &File, stat: &Stat, digests: &[(Algorithm, Digest)]) {
    for (algorithm, digest) in digests {
        store(file, stat, *algorithm, digest);
    }
}

/// Returns the digest that is kept with the file and belongs to its state.
fn stored(file: &File, stat: &Stat, algorithm: Algorithm) -> Option<Digest> {
    let value = fs::get_xattr(file, &attribute(algorithm)).ok()??;
    let (digest, kept) = std::str::from_utf8(&value).ok()?.split_once(' ')?;
    if kept != version(stat) {
        return None;
    }
    value_bytes(algorithm, digest).map(Digest)
}

/// Resolution of modification times: a tick of the kernel, at most 10 ms.
const CLOCK_TICK: Duration = Duration::from_millis(10);

/// Most waits of a tick for a file that is being written.
const SETTLE_ATTEMPTS_MAX: u32 = 50;

/// Returns the state of a file that was last written two ticks ago or more: a later write changes its modification time, where two
/// writes within a tick leave one time.
///
/// # Errors
/// When the file is written all the time.
fn settled(file: &File) -> io::Result<Stat> {
    for _ in 0..SETTLE_ATTEMPTS_MAX {
        let stat = fs::stat_file(file)?;
        let modified = u64::try_from(stat.mtime.seconds).unwrap_or(0);
        let modified = UNIX_EPOCH + Duration::new(modified, stat.mtime.nanos);
        match SystemTime::now().duration_since(modified) {
            Ok(age) if age < 2 * CLOCK_TICK => std::thread::sleep(CLOCK_TICK),
            // A time of the future was set by a program, not by a write.
            _ => return Ok(stat),
        }
    }
    Err(io::Error::other("the file is being written: ask for its digest afterwards"))
}

/// Returns the digest of a file: the one kept with it, else computed by reading it, and kept. Blocks.
///
/// # Errors
/// When the file cannot be read, or changes meanwhile, and once `is_wanted` returns false.
pub(crate) fn of_file(
    file: &File,
    algorithm: Algorithm,
    is_wanted: &dyn Fn() -> bool,
) -> io::Result<Option<Digest>> {
    let before = fs::stat_file(file)?;
    if let Some(digest) = stored(file, &before, algorithm) {
        return Ok(Some(digest));
    }
    let before = settled(file)?;
    let Some(mut hasher) = Serial::new(algorithm) else { return Ok(None) };
    let mut buffer = vec![0; READ_BYTES];
    while let count @ 1.. = fs::read_at_most(file, &mut buffer, hasher.next())? {
        if !is_wanted() {
            return Err(io::Error::other("the client that asked for the digest disconnected"));
        }
        hasher.update(&buffer[..count]);
    }
    let after = fs::stat_file(file)?;
    if version(&after) != version(&before) || hasher.next() != after.size {
        return Err(io::Error::other("the file changes while its digest is computed"));
    }
    let digest = hasher.finish();
    store(file, &after, algorithm, &digest);
    Ok(Some(digest))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn want(algorithm: Algorithm, field: DigestField) -> Option<WantedDigest> {
        Some(WantedDigest { algorithm, field })
    }

    #[test]
    fn highest_preference_is_used() {
        use DigestField::{Digest, ReprDigest};
        for (digest, repr, expected) in [
            (Some("ADLER32"), None, want(Algorithm::Adler32, Digest)),
            (Some("SHA;q=1, md5;q=0.3, adler32;q=0.5"), None, want(Algorithm::Adler32, Digest)),
            (Some("md5;q=0, unixsum"), None, None),
            (Some("sha256"), None, want(Algorithm::Sha256, Digest)),
            (Some("md5"), Some("sha-256=3, adler=10"), want(Algorithm::Adler32, ReprDigest)),
            (Some("md5"), Some("sha-512=3"), want(Algorithm::Md5, Digest)),
            (Some("md5;q=NaN"), None, want(Algorithm::Md5, Digest)),
            (None, None, None),
        ] {
            assert_eq!(wanted(digest, repr), expected, "{digest:?} {repr:?}");
        }
    }

    #[test]
    fn header_lines_are_one_list() {
        let mut headers = HeaderMap::new();
        for value in ["sha-512", "md5;q=0.2", "ADLER32;q=0.5"] {
            headers.append("want-digest", value.parse().unwrap());
        }
        assert_eq!(wanted_by(&headers), want(Algorithm::Adler32, DigestField::Digest));
        headers.insert("want-repr-digest", "md5=1".parse().unwrap());
        assert_eq!(wanted_by(&headers), want(Algorithm::Md5, DigestField::ReprDigest));
        assert_eq!(wanted_by(&HeaderMap::new()), None);
    }

    #[test]
    fn values_follow_their_field() {
        let value = |algorithm, field, bytes: &[u8]| {
            header_value(WantedDigest { algorithm, field }, &Digest(bytes.to_vec()))
        };
        let sum = [0xe5, 0x20, 0x07, 0x34];
        assert_eq!(value(Algorithm::Adler32, DigestField::Digest, &sum), "adler32=e5200734");
        assert_eq!(value(Algorithm::Adler32, DigestField::ReprDigest, &sum), "adler=:5SAHNA==:");
        assert_eq!(
            value(Algorithm::Md5, DigestField::Digest, &[0; 16]),
            "md5=AAAAAAAAAAAAAAAAAAAAAA=="
        );
        // XRootD 5.5.3 writes crc32c in base64, other servers in hexadecimal, with or without leading zeros.
        let expected = Ok(vec![(Algorithm::Crc32c, Digest(vec![0xd9, 0xe8, 0xbd, 0x27]))]);
        assert_eq!(sent("crc32c=2ei9Jw==", DigestField::Digest), expected);
        assert_eq!(sent("CRC32C=d9e8bd27, sha=x", DigestField::Digest), expected);
        assert_eq!(sent("crc32c=:2ei9Jw==:", DigestField::ReprDigest), expected);
        let short = sent("adler32=34", DigestField::Digest);
        assert_eq!(short, Ok(vec![(Algorithm::Adler32, Digest(vec![0, 0, 0, 0x34]))]));
        assert_eq!(sent("crc32c=:2ei9Jw==:;a=1,", DigestField::ReprDigest), expected);
        assert_eq!(sent("unixsum=30637, sha-512=x", DigestField::Digest), Ok(Vec::new()));
        for (text, field) in [
            ("adler32=123456789", DigestField::Digest),
            ("adler32=zzzz", DigestField::Digest),
            ("adler32=", DigestField::Digest),
            ("unixsum=1, md5=zz", DigestField::Digest),
            ("garbage", DigestField::Digest),
            ("md5=!!!", DigestField::Digest),
            ("md5=XrY7u+Ae7tCTyyK7j1rNww==", DigestField::ReprDigest),
            ("md5=:2ei9Jw==:", DigestField::ReprDigest),
        ] {
            assert!(sent(text, field).is_err(), "{text}");
        }
    }

    /// The digest that a file keeps with its attributes in a copy is not that of the copy.
    #[test]
    fn other_inode_voids_the_digest() {
        let directory = tempfile::tempdir().unwrap();
        let create = |name: &str, content: &[u8]| {
            let path = directory.path().join(name);
            std::fs::write(&path, content).unwrap();
            let file = File::options().read(true).write(true).open(path).unwrap();
            let mtime = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
            file.set_modified(mtime).unwrap();
            file
        };
        let (first, second) = (create("a", b"abc"), create("b", b"abd"));
        of_file(&first, Algorithm::Adler32, &|| true).unwrap();
        let name = attribute(Algorithm::Adler32);
        let Ok(Some(value)) = fs::get_xattr(&first, &name) else {
            return penstock_testkit::skip(
                penstock_testkit::Requirement::Kernel,
                "user extended attributes in the temporary directory",
            );
        };
        fs::set_xattr(&second, &name, &value).unwrap();
        assert_eq!(
            of_file(&second, Algorithm::Adler32, &|| true).unwrap().unwrap().to_string(),
            "024e0128"
        );
    }

    /// Two writes within a tick of the file system's clock leave one modification time.
    #[test]
    fn soon_changed_file_voids_its_digest() {
        for _ in 0..20 {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(b"abc").unwrap();
            of_file(&file, Algorithm::Adler32, &|| true).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, b"abd", 0).unwrap();
            let changed = fs::stat_file(&file).unwrap();
            assert_eq!(stored(&file, &changed, Algorithm::Adler32), None);
        }
    }

    #[test]
    fn changed_file_voids_its_digest() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"abc").unwrap();
        let digest = of_file(&file, Algorithm::Adler32, &|| true).unwrap().unwrap();
        assert_eq!(digest.to_string(), "024d0127");
        let stat = fs::stat_file(&file).unwrap();
        let kept = stored(&file, &stat, Algorithm::Adler32);
        assert!(kept.is_none_or(|kept| kept == digest));
        file.write_all(b"d").unwrap();
        let changed = fs::stat_file(&file).unwrap();
        assert_eq!(stored(&file, &changed, Algorithm::Adler32), None);
        assert_eq!(
            of_file(&file, Algorithm::Adler32, &|| true).unwrap().unwrap().to_string(),
            "03d8018b"
        );
    }
}
