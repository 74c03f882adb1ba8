//! What the two ends of a running session tell each other over the control link.
//!
//! Everything that concerns many files is a list, so that a million small files cost thousands of
//! messages and not millions.

use std::time::Duration;

use crate::digest::Digest;
use crate::extents::Extent;
use crate::manifest::{Entry, RelativePath};
use crate::wire::{Bytes, Input, Wire, WireError, wire_enum, wire_struct};

/// Why a file was not copied, in the classes that decide the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// The source could not be read.
    Source,
    /// The source kept changing.
    Changed,
    /// The destination could not be written.
    Destination,
    /// Bytes were not what they should be.
    Integrity,
    /// The destination does not take it, however often it is tried.
    Refused,
}

impl Wire for FailureKind {
    const MIN_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
        match u8::take(input)? {
            0 => Ok(Self::Source),
            1 => Ok(Self::Changed),
            2 => Ok(Self::Destination),
            3 => Ok(Self::Integrity),
            4 => Ok(Self::Refused),
            _ => Err(WireError::Invalid("failure kind")),
        }
    }
}

wire_struct! {
    /// Why one file was not copied.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Failure {
        /// Its class.
        pub kind: FailureKind,
        /// One line: the reason and the remedy.
        pub text: String,
    }
}

impl Failure {
    /// A failure of `kind` with its line.
    pub fn new(kind: FailureKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

wire_struct! {
    /// Entries with consecutive numbers.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Announcement {
        /// Number of the first entry.
        pub first: u64,
        /// The entries.
        pub entries: Vec<Entry>,
    }
}

wire_struct! {
    /// A change to a running transfer; what is absent stays as it is.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct Settings {
        /// Total rate in bits per second; zero means no limit.
        pub rate_bps: Option<u64>,
        /// Data streams.
        pub streams: Option<u16>,
        /// Reader threads per device.
        pub readers: Option<u16>,
        /// Writer threads per device.
        pub writers: Option<u16>,
    }
}

impl Settings {
    /// Adds a later change.
    pub fn merge(&mut self, later: &Self) {
        self.rate_bps = later.rate_bps.or(self.rate_bps);
        self.streams = later.streams.or(self.streams);
        self.readers = later.readers.or(self.readers);
        self.writers = later.writers.or(self.writers);
    }
}

wire_struct! {
    /// What one end measures, told to the other every second and at the end.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct Report {
        /// CPU time of this end's process since the session began, in microseconds.
        pub cpu_us: u64,
        /// Busy time of all processors of this end's machine, in thousandths of what they have.
        pub machine_busy_permille: u16,
        /// TCP segments sent again, over all streams of the session.
        pub retransmits: u64,
        /// Streams now connected.
        pub streams: u16,
        /// Storage engine of this end.
        pub engine: String,
        /// How the packets that this end sends are labelled, or why they are not; empty where nobody asked.
        pub label: String,
        /// Microseconds that its streams waited for blocks or for buffers.
        pub waited_storage_us: u64,
        /// Microseconds that its streams waited for the network.
        pub waited_network_us: u64,
        /// Of those, microseconds in which TCP was held by the receiver's window.
        pub waited_window_us: u64,
        /// Of those, microseconds in which TCP was held by this end's send buffer.
        pub waited_buffer_us: u64,
        /// Smallest round-trip time of its streams in microseconds; 0 where none was measured.
        pub rtt_us: u32,
    }
}

wire_enum! {
    /// From the sender of data.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum ToReceiver {
        /// More of the manifest.
        Announce(Announcement) = 1,
        /// Whole-file digests of files that were read to the end.
        FileEnds(Vec<(u64, Bytes)>) = 2,
        /// A file of which everything is to be forgotten: it failed, or, where no failure is given, it
        /// changed and is announced again.
        FileFailed((u64, Option<Failure>)) = 3,
        /// The manifest is complete and has this many entries.
        ManifestEnd(u64) = 4,
        /// A file whose digest is that of the one at the destination.
        Same(u64) = 5,
        /// Measurements.
        Report(Report) = 6,
        /// A change of settings.
        Settings(Settings) = 7,
        /// Every entry is settled.
        Finish(()) = 8,
        /// The user or the operator stops the transfer, for this reason.
        Cancel(String) = 9,
        /// Things that cannot be announced, by printable path, and why.
        Missing(Vec<(String, Failure)>) = 10,
    }
}

wire_enum! {
    /// What the receiver wants of a file.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Decision {
        /// All of it.
        Send(()) = 0,
        /// Nothing: it is there.
        Skip(()) = 1,
        /// All but these ranges, which the receiver compares with their parts while the others are sent.
        Resume(Vec<Extent>) = 2,
        /// Nothing, if this is its digest.
        Compare(Bytes) = 3,
    }
}

wire_enum! {
    /// How a file ended.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Outcome {
        /// In place, with this digest.
        Done(Bytes) = 0,
        /// Not in place.
        Failed(Failure) = 1,
    }
}

wire_struct! {
    /// Something about an entry that was settled before.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Note {
        /// Its path.
        pub path: RelativePath,
        /// What went wrong.
        pub failure: Failure,
    }
}

wire_struct! {
    /// A run of acknowledged frames.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Run {
        /// First number.
        pub first: u64,
        /// How many.
        pub count: u64,
    }
}

wire_enum! {
    /// From the receiver of data.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum ToSender {
        /// What it wants of announced files.
        Decisions(Vec<(u64, Decision)>) = 1,
        /// Frames that are written.
        Written(Vec<Run>) = 2,
        /// Files that need nothing more.
        Settled(Vec<(u64, Outcome)>) = 3,
        /// Measurements.
        Report(Report) = 4,
        /// A change of settings.
        Settings(Settings) = 5,
        /// Everything is durable; the session is over.
        Finished(()) = 6,
        /// The user or the operator stops the transfer, for this reason.
        Cancel(String) = 7,
        /// Entries that failed after they were settled: directories that cannot get their metadata.
        Noted(Vec<Note>) = 8,
        /// Entries that are in place without something that was to come with them.
        Warned(Vec<Note>) = 9,
        /// More paths that a listed pull is to send, below its one source.
        Listed(Vec<Bytes>) = 10,
        /// That was the list.
        ListEnd(()) = 11,
        /// Ranges of [`Decision::Resume`], by file and offset, that are not what was sent and are wanted again.
        Resend(Vec<(u64, u64)>) = 12,
    }
}

/// One file that was not copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileError {
    /// Its path, printable.
    pub path: String,
    /// Why.
    pub failure: Failure,
}

/// A file that is in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Its path.
    pub path: RelativePath,
    /// Its digest; empty where it was there before and was not read.
    pub digest: Digest,
}

/// What became of something that was to be sent, for a carrier that keeps an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// Its path.
    pub path: Vec<u8>,
    /// Its size.
    pub bytes: u64,
    /// It was there before.
    pub was_there: bool,
    /// Its digest, empty where none was made; or why it is not in place.
    pub result: Result<Digest, Failure>,
}

/// Most file errors that are kept with their text; all are counted.
pub const ERRORS_KEPT: usize = 10_000;

/// What a session has done so far. `bytes = sent + resumed`, save for blocks sent twice.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Files, directories and links in place.
    pub entries: u64,
    /// Files in place.
    pub files: u64,
    /// Symbolic links in place.
    pub links: u64,
    /// Of the files, files that were there before.
    pub skipped_files: u64,
    /// Bytes of those.
    pub skipped_bytes: u64,
    /// Bytes of files in place.
    pub bytes: u64,
    /// Bytes that were there before and are not sent: `skipped_bytes`, and those of unfinished copies, which the
    /// receiver reads back and compares with the checksums under which they were received.
    pub resumed_bytes: u64,
    /// Bytes of unfinished copies that differed from their checksums when they were read back, and are sent again.
    pub rejected_bytes: u64,
    /// Bytes of files announced so far.
    pub announced_bytes: u64,
    /// Entries announced so far.
    pub announced: u64,
    /// Whether that is all of them.
    pub manifest_complete: bool,
    /// Bytes of files that were sent and written, of unfinished files too.
    pub moved_bytes: u64,
    /// Bytes that the receiver did not have and asked for, as the sender knows: what it is found to have
    /// later was moved, though it may have been lost before it could say so.
    pub wanted_bytes: u64,
    /// Files that it asked for, whole or in part.
    pub wanted_files: u64,
    /// How many entries failed.
    pub failed: u64,
    /// The first of them.
    pub errors: Vec<FileError>,
    /// Whether one of them failed its integrity check.
    pub integrity_failed: bool,
    /// How many entries are in place without something that was to come with them.
    pub warned: u64,
    /// The first of them.
    pub warnings: Vec<FileError>,
}

impl Tally {
    /// Whether any file or link is in place: directories alone are no delivery.
    #[must_use]
    pub const fn has_arrivals(&self) -> bool {
        self.files > 0 || self.links > 0
    }

    /// Counts an entry that is in place without something that was to come with it.
    pub fn warn(&mut self, path: String, failure: Failure) {
        self.warned += 1;
        if self.warnings.len() < ERRORS_KEPT {
            self.warnings.push(FileError { path, failure });
        }
    }

    /// Counts an entry that failed.
    pub fn fail(&mut self, path: String, failure: Failure) {
        self.failed += 1;
        self.integrity_failed |= failure.kind == FailureKind::Integrity;
        if self.errors.len() < ERRORS_KEPT {
            self.errors.push(FileError { path, failure });
        }
    }
}

/// How often reports are sent.
pub const REPORT_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_warnings_are_kept_up_to_a_number_and_all_counted() {
        let mut tally = Tally::default();
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
        assert!(tally.integrity_failed, "one that is not kept counts too");
    }
}
