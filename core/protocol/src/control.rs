//! Control messages of a running session, carried by [`crate::link`].
//!
//! Everything that concerns files is a list, so that a million small files cost thousands of messages
//! and not millions.

use std::time::Duration;

use crate::digest::Digest;
use crate::extents::Extent;
use crate::manifest::{Entry, RelativePath};
use crate::wire::{Bytes, WireError, WireFormat, WireReader, wire_enum, wire_struct};

/// Class of a file's failure; decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// The source could not be read.
    Source,
    /// The source changed during every attempt.
    Changed,
    /// The destination could not be written.
    Destination,
    /// A checksum or digest does not match.
    Integrity,
    /// The destination refuses the file permanently; retrying does not help.
    Refused,
    /// The source has another digest than the client expects; retrying does not help.
    Unexpected,
}

impl WireFormat for FailureKind {
    const MIN_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        match u8::take(input)? {
            0 => Ok(Self::Source),
            1 => Ok(Self::Changed),
            2 => Ok(Self::Destination),
            3 => Ok(Self::Integrity),
            4 => Ok(Self::Refused),
            5 => Ok(Self::Unexpected),
            _ => Err(WireError::Invalid("failure kind")),
        }
    }
}

wire_struct! {
    /// Failure of one file.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Failure {
        /// Class, which decides the exit code.
        pub kind: FailureKind,
        /// One line: the reason and the remedy.
        pub text: String,
    }
}

impl Failure {
    /// Creates a failure with its one-line text.
    pub fn new(kind: FailureKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

wire_struct! {
    /// Announces manifest entries with consecutive numbers.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Announcement {
        /// Number of the first entry.
        pub first: u64,
        /// Entries `first`, `first + 1` and so on.
        pub entries: Vec<Entry>,
    }
}

wire_struct! {
    /// Change of the settings of a running transfer; absent fields keep their value.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct Settings {
        /// Total rate in bits per second; zero means no limit.
        pub rate_bps: Option<u64>,
        /// Number of data streams.
        pub streams: Option<u16>,
        /// Reader threads per device.
        pub readers: Option<u16>,
        /// Writer threads per device.
        pub writers: Option<u16>,
    }
}

impl Settings {
    /// Overwrites fields that `later` sets.
    pub fn merge(&mut self, later: &Self) {
        self.rate_bps = later.rate_bps.or(self.rate_bps);
        self.streams = later.streams.or(self.streams);
        self.readers = later.readers.or(self.readers);
        self.writers = later.writers.or(self.writers);
    }
}

wire_struct! {
    /// Measurements of one end, sent to the other every [`REPORT_INTERVAL`] and at the end.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct Report {
        /// CPU time of this end's process since the session began, in microseconds.
        pub cpu_us: u64,
        /// Busy time of all processors of this machine, in thousandths of their total.
        pub machine_busy_permille: u16,
        /// TCP segments retransmitted, over all streams of the session.
        pub retransmits: u64,
        /// Number of streams now connected.
        pub streams: u16,
        /// Name of this end's storage engine.
        pub engine: String,
        /// Label method of this end's packets, or why there is none; empty if no label was requested.
        pub label: String,
        /// Microseconds that its streams waited for blocks or buffers.
        pub waited_storage_us: u64,
        /// Microseconds that its streams waited for the network.
        pub waited_network_us: u64,
        /// Of those, microseconds limited by the receiver's window.
        pub waited_window_us: u64,
        /// Of those, microseconds limited by this end's send buffer.
        pub waited_buffer_us: u64,
        /// Smallest round-trip time of its streams in microseconds; 0 if not measured.
        pub rtt_us: u32,
    }
}

wire_enum! {
    /// Message from the sender of data to the receiver.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum ToReceiver {
        /// Further entries of the manifest.
        Announce(Announcement) = 1,
        /// Whole-file digests, by file number, of files that were read to the end.
        FileEnds(Vec<(u64, Bytes)>) = 2,
        /// Drop all state of this file: it failed, or, without a failure, it changed and is announced
        /// again.
        FileFailed((u64, Option<Failure>)) = 3,
        /// The manifest is complete and has this many entries.
        ManifestEnd(u64) = 4,
        /// Number of a file whose digest equals that of the file at the destination.
        Same(u64) = 5,
        /// Periodic measurements of the sender.
        Report(Report) = 6,
        /// A change of settings.
        Settings(Settings) = 7,
        /// Every entry is settled; the receiver may finish.
        Finish(()) = 8,
        /// The user or the operator stops the transfer, for this reason.
        Cancel(String) = 9,
        /// Sources that cannot be announced: printable path and failure.
        Missing(Vec<(String, Failure)>) = 10,
    }
}

wire_enum! {
    /// Receiver's decision about an announced file.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Decision {
        /// Send the whole file.
        Send(()) = 0,
        /// Send nothing: the destination already has the file.
        Skip(()) = 1,
        /// Send all but these ranges, which the receiver verifies meanwhile.
        Resume(Vec<Extent>) = 2,
        /// Send nothing if the source has this digest.
        Compare(Bytes) = 3,
    }
}

wire_enum! {
    /// Final result of a file.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Outcome {
        /// Committed, with this digest.
        Done(Bytes) = 0,
        /// Not committed, for this reason.
        Failed(Failure) = 1,
    }
}

wire_struct! {
    /// Failure of an entry that was already settled.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Note {
        /// Path below the target.
        pub path: RelativePath,
        /// Reason with its remedy.
        pub failure: Failure,
    }
}

wire_struct! {
    /// Range of acknowledged frame numbers.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FrameRange {
        /// Number of the first frame.
        pub first: u64,
        /// Number of frames in the range.
        pub count: u64,
    }
}

wire_enum! {
    /// Message from the receiver of data to the sender.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum ToSender {
        /// Decisions by file number.
        Decisions(Vec<(u64, Decision)>) = 1,
        /// Frames that are written to storage.
        Written(Vec<FrameRange>) = 2,
        /// Final results by file number.
        Settled(Vec<(u64, Outcome)>) = 3,
        /// Periodic measurements of the receiver.
        Report(Report) = 4,
        /// A change of settings.
        Settings(Settings) = 5,
        /// Everything is durable; the session is over.
        Finished(()) = 6,
        /// The user or the operator stops the transfer, for this reason.
        Cancel(String) = 7,
        /// Directories whose metadata could not be set after they were settled.
        Noted(Vec<Note>) = 8,
        /// Entries committed with incomplete metadata.
        Warned(Vec<Note>) = 9,
        /// Further paths of a listed pull, below its one source.
        Listed(Vec<Bytes>) = 10,
        /// End of the list.
        ListEnd(()) = 11,
        /// Ranges of [`Decision::Resume`], by file and offset, that failed verification and must be
        /// sent again.
        Resend(Vec<(u64, u64)>) = 12,
    }
}

/// Entry that was not copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryFailure {
    /// Printable path below the target.
    pub path: String,
    /// Reason, with the remedy.
    pub failure: Failure,
}

/// File that was committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Path below the target.
    pub path: RelativePath,
    /// Digest; empty if the file existed before and was not read.
    pub digest: Digest,
}

/// Final result of one source entry, for a driver that records them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// Path below the target, unescaped.
    pub path: Vec<u8>,
    /// Size in bytes; 0 if unknown.
    pub bytes: u64,
    /// Set when the destination already had the file.
    pub was_there: bool,
    /// Digest, empty if not computed; or the failure.
    pub result: Result<Digest, Failure>,
}

/// Number of file errors, and of warnings, kept with their text; all are counted.
pub const ERRORS_KEPT: usize = 10_000;

/// Counters of a session. `bytes = sent + resumed + holes`, except for blocks sent twice.
#[derive(Debug, Clone, Default)]
pub struct TransferTally {
    /// Files, directories and links committed.
    pub entries: u64,
    /// Regular files committed, including skipped ones.
    pub files: u64,
    /// Number of symbolic links committed.
    pub links: u64,
    /// Files skipped because the destination already had them.
    pub skipped_files: u64,
    /// Bytes of skipped files.
    pub skipped_bytes: u64,
    /// Bytes of files committed, skipped ones included.
    pub bytes: u64,
    /// Bytes that need not be sent: `skipped_bytes` and the verified ranges of unfinished copies.
    pub resumed_bytes: u64,
    /// Bytes of unfinished copies that failed verification and are sent again.
    pub rejected_bytes: u64,
    /// Bytes of ranges that were read back and agreed with their checksums, in all sessions.
    pub verified_bytes: u64,
    /// Bytes of files announced so far.
    pub announced_bytes: u64,
    /// Entries announced so far.
    pub announced: u64,
    /// Set when all entries are announced.
    pub manifest_complete: bool,
    /// File bytes sent and written, including those of unfinished files, without the holes of sparse files.
    pub moved_bytes: u64,
    /// Bytes that the receiver requested, as known to the sender. Bytes found at the destination later
    /// were moved, even if their acknowledgement was lost.
    pub wanted_bytes: u64,
    /// Files requested, whole or in part.
    pub wanted_files: u64,
    /// Number of entries that failed.
    pub failed: u64,
    /// The first [`ERRORS_KEPT`] failures.
    pub errors: Vec<EntryFailure>,
    /// Set when any entry failed its integrity check, kept in `errors` or not.
    pub integrity_failed: bool,
    /// Number of entries committed with incomplete metadata, and, at the sender, of temporary files left out.
    pub warned: u64,
    /// The first [`ERRORS_KEPT`] warnings.
    pub warnings: Vec<EntryFailure>,
}

impl TransferTally {
    /// True if any file or link was committed; directories alone do not count.
    #[must_use]
    pub const fn has_arrivals(&self) -> bool {
        self.files > 0 || self.links > 0
    }

    /// Counts an entry committed with incomplete metadata, or left out.
    pub fn warn(&mut self, path: String, failure: Failure) {
        self.warned += 1;
        if self.warnings.len() < ERRORS_KEPT {
            self.warnings.push(EntryFailure { path, failure });
        }
    }

    /// Counts an entry that failed.
    pub fn fail(&mut self, path: String, failure: Failure) {
        self.failed += 1;
        self.integrity_failed |=
            matches!(failure.kind, FailureKind::Integrity | FailureKind::Unexpected);
        if self.errors.len() < ERRORS_KEPT {
            self.errors.push(EntryFailure { path, failure });
        }
    }
}

/// Interval between [`Report`] messages.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_beyond_limit_are_only_counted() {
        let mut tally = TransferTally::default();
        let one = |number: u64| {
            let kind = if number == 10_001 { FailureKind::Integrity } else { FailureKind::Source };
            (number.to_string(), Failure::new(kind, "gone"))
        };
        for (path, failure) in (1..=10_002).map(one) {
            tally.fail(path.clone(), failure.clone());
            tally.warn(path, failure);
        }
        assert_eq!((tally.failed, tally.warned), (10_002, 10_002));
        for kept in [&tally.errors, &tally.warnings] {
            assert_eq!((kept.len(), &*kept[9_999].path), (10_000, "10000"));
        }
        assert!(tally.integrity_failed, "errors beyond the limit count too");
    }
}
