//! Reports of third-party copies: performance markers and the final line.
//!
//! Servers differ in the case of the words, in line ends, and in the newline of the last line; unknown lines are skipped.

/// Longest line that is kept; the rest of a longer one is dropped.
const LINE_BYTES_MAX: usize = 2048;

/// Most stripes of a marker that are counted.
const STRIPES_MAX: usize = 128;

/// Final line of a third-party copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyEnd {
    /// `success: ...`.
    Success,
    /// `failure: TEXT`.
    Failure(String),
    /// `aborted: TEXT`.
    Aborted(String),
}

/// Reader of the body of a response to `COPY`, in pieces of any size.
#[derive(Debug, Default)]
pub struct CopyReport {
    line: Vec<u8>,
    stripe: usize,
    stripes: Vec<u64>,
    end: Option<CopyEnd>,
}

impl CopyReport {
    /// Reads the next piece.
    pub fn feed(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' => self.end_line(),
                _ if self.line.len() < LINE_BYTES_MAX => self.line.push(*byte),
                _ => {}
            }
        }
    }

    /// Returns the bytes copied so far, as claimed by the server.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.stripes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Ends the body and returns the final line; none if the body ended without one.
    #[must_use]
    pub fn finish(mut self) -> Option<CopyEnd> {
        self.end_line();
        self.end
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        let line = line.trim();
        let lower = line.to_ascii_lowercase();
        let rest = |word: &str| {
            let text = lower.starts_with(word).then(|| line.get(word.len()..).unwrap_or_default());
            text.map(|text| text.trim_start_matches(':').trim().to_owned())
        };
        if rest("success").is_some() {
            self.end = Some(CopyEnd::Success);
        } else if let Some(text) = rest("failure").or_else(|| rest("failed")) {
            self.end = Some(CopyEnd::Failure(text));
        } else if let Some(text) = rest("aborted") {
            self.end = Some(CopyEnd::Aborted(text));
        } else if let Some(index) = rest("stripe index") {
            self.stripe = index.parse().unwrap_or(0);
        } else if let Some(bytes) = rest("stripe bytes transferred")
            && let Ok(bytes) = bytes.parse()
            && self.stripe < STRIPES_MAX
        {
            if self.stripes.len() <= self.stripe {
                self.stripes.resize(self.stripe + 1, 0);
            }
            self.stripes[self.stripe] = bytes;
        }
    }
}

/// Words of errors that another attempt does not cure, as FTS3 classifies them.
const PERMANENT_WORDS: [&str; 11] = [
    "no such file",
    "not found",
    "permission denied",
    "exists",
    "read-only",
    "no space",
    "checksum",
    "digest",
    "forbidden",
    "is a directory",
    "not permitted",
];

/// Statuses of HTTP with the same meaning, where a text has them as a number of its own.
const PERMANENT_STATUSES: [&str; 3] = ["401", "403", "404"];

/// An error in lower case, without paths and URLs, which may contain any word.
fn without_paths(text: &str) -> String {
    let is_path = |word: &str| {
        word.trim_start_matches(['(', '[', '"', '\'']).starts_with('/') || word.contains("://")
    };
    let words: Vec<&str> = text.split_whitespace().filter(|word| !is_path(word)).collect();
    words.join(" ").to_ascii_lowercase()
}

/// Returns true if an attempt failed with this text because the destination exists.
#[must_use]
pub fn is_of_existing_file(text: &str) -> bool {
    without_paths(text).contains("exist")
}

/// Returns true if an attempt that failed with this text may succeed later.
#[must_use]
pub fn is_transient(text: &str) -> bool {
    let text = without_paths(text);
    // Names of files, ports and byte counts contain such numbers, too.
    let mut words = text
        .split(|c: char| c.is_whitespace() || matches!(c, '(' | ')' | '[' | ']' | ',' | ';' | '='));
    let has_status =
        words.any(|word| PERMANENT_STATUSES.contains(&word.trim_end_matches([':', '.'])));
    !has_status && !PERMANENT_WORDS.iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MARKER: &str = "Perf Marker\nTimestamp: 1\nStripe Index: 0\nStripe Bytes Transferred: 238745\n\
                          Total Stripe Count: 1\nRemoteConnections: tcp:129.93.3.4:1234\nEnd\n";

    fn read(text: &str) -> (u64, Option<CopyEnd>) {
        let mut progress = CopyReport::default();
        progress.feed(text.as_bytes());
        (progress.bytes(), progress.finish())
    }

    #[test]
    fn final_lines_of_servers_are_read() {
        let ok = Some(CopyEnd::Success);
        assert_eq!(read(&format!("{MARKER}success: Created")), (238_745, ok.clone()));
        assert_eq!(read("Success: Created\r\n"), (0, ok));
        assert_eq!(read("failed X\n"), (0, Some(CopyEnd::Failure("X".to_owned()))));
        assert_eq!(read("failure: a: b"), (0, Some(CopyEnd::Failure("a: b".to_owned()))));
        assert_eq!(read("aborted: x\n"), (0, Some(CopyEnd::Aborted("x".to_owned()))));
        assert_eq!(read(MARKER), (238_745, None));
        assert_eq!(read("Stripe Index: 99999\nStripe Bytes Transferred: 1\n"), (0, None));
    }

    #[test]
    fn errors_classify_as_in_fts() {
        assert!(is_transient("connection reset by peer") && is_transient("Connection timed out"));
        for permanent in [
            "Remote side failed with status code 404",
            "Remote side failed with status code 403; error message: x",
            "HTTP 401 : Authentication Error",
            "it answers 404: x",
        ] {
            assert!(!is_transient(permanent), "{permanent}");
        }
        for transient in [
            "end-of-file: 1404000 of 5000000 bytes",
            "reset by [2001:db8::1]:40443 of /store/mc/404/AOD._000401.pool.root",
            "/store/checksums/f: connection reset",
            "cannot read \"/store/exists\" of https://h/digest: timeout",
        ] {
            assert!(is_transient(transient), "{transient}");
        }
        assert!(is_of_existing_file("/store/f: already exists"));
        assert!(!is_of_existing_file("/store/existing: connection reset"));
        assert!(!is_transient("Destination file exists and overwrite is not enabled"));
    }

    proptest! {
        #[test]
        fn pieces_read_as_the_whole(text in "(success: C|failure: x|\r|\n|Stripe Index: 1|Stripe Bytes Transferred: 7){0,8}", at in 0_usize..200) {
            let at = at.min(text.len());
            let mut progress = CopyReport::default();
            progress.feed(&text.as_bytes()[..at]);
            progress.feed(&text.as_bytes()[at..]);
            prop_assert_eq!((progress.bytes(), progress.finish()), read(&text));
        }

        #[test]
        fn any_bytes_are_read_safely(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut progress = CopyReport::default();
            progress.feed(&bytes);
            let _ = progress.finish();
        }
    }
}
