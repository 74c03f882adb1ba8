//! Checksums of FTS3 files, and their comparison with digests of storages.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Longest name of an algorithm.
const ALGORITHM_CHARS_MAX: usize = 16;

/// Longest value of a checksum: SHA-512 in hexadecimal.
const VALUE_CHARS_MAX: usize = 128;

/// Lengths of digests in bytes: Adler-32, MD5, SHA-1, SHA-256, SHA-384, SHA-512.
const DIGEST_BYTES: [usize; 6] = [4, 16, 20, 32, 48, 64];

/// Ends at which FTS3 compares a file's checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChecksumMode {
    /// No comparison.
    None,
    /// The source's digest with the value of the job.
    Source,
    /// The destination's digest with the value of the job.
    Target,
    /// Both digests with the value of the job, or with each other.
    Both,
}

impl ChecksumMode {
    /// Returns true if the digest of the source is needed.
    #[must_use]
    pub const fn reads_source(self) -> bool {
        matches!(self, Self::Source | Self::Both)
    }

    /// Returns true if the digest of the destination is needed.
    #[must_use]
    pub const fn reads_target(self) -> bool {
        matches!(self, Self::Target | Self::Both)
    }

    /// Returns the word in the interface of FTS3.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Source => "source",
            Self::Target => "target",
            Self::Both => "both",
        }
    }

    /// Parses the word or its first letter, as FTS3 does.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        match word.as_bytes().first()?.to_ascii_lowercase() {
            b'n' => Some(Self::None),
            b's' => Some(Self::Source),
            b't' => Some(Self::Target),
            b'b' => Some(Self::Both),
            _ => None,
        }
    }
}

/// A checksum `ALGORITHM[:VALUE]` of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FtsChecksum {
    /// Name of the algorithm in lower case, as in `Want-Digest`.
    pub algorithm: String,
    /// Comparable value; none if only the algorithm is given.
    pub value: Option<String>,
}

impl FtsChecksum {
    /// Parses a checksum of a job; none if it is malformed.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (algorithm, value) = match text.split_once(':') {
            Some((algorithm, value)) => (algorithm, Some(value.trim())),
            None => (text, None),
        };
        let algorithm = algorithm.trim().to_ascii_lowercase();
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if algorithm.is_empty()
            || algorithm.len() > ALGORITHM_CHARS_MAX
            || !algorithm.chars().all(is_name)
        {
            return None;
        }
        let value = match value.filter(|value| !value.is_empty()) {
            Some(value) => Some(comparable(value)?),
            None => None,
        };
        Some(Self { algorithm, value })
    }

    /// Returns true if the algorithm is one that storages compute, and the value is no longer than its digests.
    #[must_use]
    pub fn is_known(&self) -> bool {
        let width = self.width();
        width.is_some_and(|width| self.value.as_ref().is_none_or(|value| value.len() <= width))
    }

    /// Digits of the algorithm's digests; none for an unknown one.
    fn width(&self) -> Option<usize> {
        match self.algorithm.replace('-', "").as_str() {
            "adler32" | "crc32" | "crc32c" => Some(8),
            "md5" => Some(32),
            "sha" | "sha1" => Some(40),
            "sha224" => Some(56),
            "sha256" | "blake3" => Some(64),
            "sha384" => Some(96),
            "sha512" => Some(128),
            _ => None,
        }
    }

    /// Returns a comparable value with all digits of the algorithm, for messages.
    #[must_use]
    pub fn padded(&self, value: &str) -> String {
        format!("{value:0>width$}", width = self.width().unwrap_or(0))
    }

    /// Returns the digest `algorithm:hexadecimal` for orders of agents; none without a value of an algorithm that agents
    /// compute.
    #[must_use]
    pub fn digest(&self) -> Option<String> {
        let name = self.algorithm.replace('-', "");
        let value = self.value.as_ref().filter(|_| self.is_known())?;
        let is_computed = ["adler32", "crc32c", "md5", "sha256", "blake3"].contains(&name.as_str());
        is_computed.then(|| format!("{name}:{}", self.padded(value)))
    }

    /// Returns the comparable digest of this algorithm in a header `Digest` (RFC 3230); none if it has none.
    #[must_use]
    pub fn find_in(&self, header: &str) -> Option<String> {
        header.split(',').find_map(|one| {
            let (name, value) = one.split_once('=')?;
            let is_same =
                |a: &str, b: &str| a.replace('-', "").eq_ignore_ascii_case(&b.replace('-', ""));
            is_same(name.trim(), &self.algorithm).then(|| comparable(value.trim()))?
        })
    }
}

/// Returns a value in hexadecimal without leading zeros, from hexadecimal or base64.
fn comparable(value: &str) -> Option<String> {
    if value.is_empty() || value.len() > VALUE_CHARS_MAX {
        return None;
    }
    let hex = if value.chars().all(|c| c.is_ascii_hexdigit()) && !value.ends_with('=') {
        value.to_ascii_lowercase()
    } else {
        let is_digest = |bytes: &Vec<u8>| DIGEST_BYTES.contains(&bytes.len());
        let bytes = STANDARD.decode(value).ok().filter(is_digest)?;
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let short = hex.trim_start_matches('0');
    Some(if short.is_empty() { "0".to_owned() } else { short.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn checksums_of_clients_are_read() {
        let sum = FtsChecksum::parse("ADLER32:0A0b0c0d").unwrap();
        assert_eq!((sum.algorithm.as_str(), sum.value.as_deref()), ("adler32", Some("a0b0c0d")));
        assert_eq!(FtsChecksum::parse("ADLER32").unwrap().value, None);
        for text in ["", ":", "a b:1", "md5:zz!", "adler32:0x12"] {
            assert_eq!(FtsChecksum::parse(text), None, "{text}");
        }
    }

    #[test]
    fn digests_compare_across_forms() {
        let crc = FtsChecksum::parse("CRC32C:d9e8bd27").unwrap();
        for header in ["crc32c=2ei9Jw==", "md5=x, CRC32c=d9e8bd27", "crc32c=D9E8BD27"] {
            assert_eq!(crc.find_in(header), crc.value, "{header}");
        }
        assert_eq!(crc.find_in("adler32=d9e8bd27"), None);
        let sum = FtsChecksum::parse("adler32:00000001").unwrap();
        assert_eq!(sum.find_in("adler32=1"), sum.value);
    }

    #[test]
    fn messages_show_all_digits() {
        let sum = FtsChecksum::parse("ADLER32:062c0215").unwrap();
        assert_eq!(sum.padded("62c0215"), "062c0215");
        assert_eq!(FtsChecksum::parse("other").unwrap().padded("1"), "1");
    }

    #[test]
    fn digests_of_orders_have_full_width() {
        let digest = |text: &str| FtsChecksum::parse(text).unwrap().digest();
        assert_eq!(digest("ADLER32:a0b0c0d").unwrap(), "adler32:0a0b0c0d");
        assert_eq!(digest("sha-256:01").unwrap(), format!("sha256:{:0>64}", "1"));
        for text in ["ADLER32", "adler32:123456789", "sha512:1"] {
            assert_eq!(digest(text), None, "{text}");
        }
    }

    #[test]
    fn modes_read_by_first_letter() {
        for (word, mode) in
            [("b", "both"), ("Target", "target"), ("n", "none"), ("source", "source")]
        {
            assert_eq!(ChecksumMode::from_word(word).unwrap().as_str(), mode);
        }
        assert_eq!(ChecksumMode::from_word("x"), None);
        assert_eq!(ChecksumMode::from_word(""), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_safely(text in ".{0,200}", header in ".{0,200}") {
            if let Some(sum) = FtsChecksum::parse(&text) {
                let _ = sum.find_in(&header);
            }
        }

        #[test]
        fn value_survives_round_trip(value in "[0-9a-f]{8}") {
            let sum = FtsChecksum::parse(&format!("adler32:{value}")).unwrap();
            prop_assert_eq!(sum.find_in(&format!("adler32={value}")), sum.value);
        }
    }
}
