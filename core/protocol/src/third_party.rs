//! A copy between two agents that a third party asks for.
//!
//! ```text
//!              requester
//!   Push │                 │ ThirdParty(session)
//!        ▼                 ▼
//!  destination ◄════════ source
//!          control and data
//! ```
//!
//! The requester opens a session at the destination as for any push, and hands that session to the
//! source, which comes back to it as if the requester's connection had been lost. The requester's token for
//! one agent is never seen by the other; what the source holds is the key of this one session. Data
//! never passes the requester, which hears [`FromSource`] and says [`ToSource`] over a link of its own.

use crate::control::{Failure, FileError, Placed, Settings, Tally};
use crate::digest::Digest;
use crate::manifest::RelativePath;
use crate::open::{Mark, Opened, Pull};
use crate::wire::{Bytes, Input, Wire, WireError, wire_enum, wire_struct};

wire_struct! {
    /// Asks an agent to send files into a session at another.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ThirdParty {
        /// What to send, and how; the options are those of the session.
        pub pull: Pull,
        /// Host of the destination.
        pub host: String,
        /// Its port.
        pub port: u16,
        /// Addresses of it to spread streams over, as text; none for those of its name.
        pub to: Vec<String>,
        /// Addresses of the source to connect from, as text; none for any.
        pub from: Vec<String>,
        /// TCP congestion control of data streams.
        pub congestion: Option<String>,
        /// SHA-256 of the destination's certificate.
        pub fingerprint: [u8; 32],
        /// The session that the requester opened there.
        pub session: Opened,
        /// How many seconds the destination may stay out of reach.
        pub give_up_after: u32,
        /// Whether the requester wants the digests of files in place.
        pub keep_placed: bool,
        /// Whether it wants those of files that were there before, which are read for it.
        pub digest_skipped: bool,
    }
}

impl Wire for FileError {
    const MIN_BYTES: usize = String::MIN_BYTES + Failure::MIN_BYTES;
    fn put(&self, out: &mut Vec<u8>) {
        self.path.put(out);
        self.failure.put(out);
    }
    fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
        Ok(Self { path: String::take(input)?, failure: Failure::take(input)? })
    }
}

impl Wire for Placed {
    const MIN_BYTES: usize = RelativePath::MIN_BYTES + Bytes::MIN_BYTES;
    fn put(&self, out: &mut Vec<u8>) {
        self.path.put(out);
        (u32::try_from(self.digest.0.len()).expect("a digest is short")).put(out);
        out.extend_from_slice(&self.digest.0);
    }
    fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
        Ok(Self { path: RelativePath::take(input)?, digest: Digest(Bytes::take(input)?.0) })
    }
}

/// The counts of a [`Tally`] cross the network; its errors and warnings do so once each.
impl Wire for Tally {
    const MIN_BYTES: usize = 15 * u64::MIN_BYTES + 2;
    fn put(&self, out: &mut Vec<u8>) {
        let counts = [
            self.entries,
            self.files,
            self.skipped_files,
            self.skipped_bytes,
            self.bytes,
            self.resumed_bytes,
            self.rejected_bytes,
            self.announced_bytes,
            self.announced,
            self.moved_bytes,
            self.wanted_bytes,
            self.wanted_files,
            self.failed,
            self.warned,
            self.links,
        ];
        counts.iter().for_each(|count| count.put(out));
        self.manifest_complete.put(out);
        self.integrity_failed.put(out);
    }
    fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
        Ok(Self {
            entries: u64::take(input)?,
            files: u64::take(input)?,
            skipped_files: u64::take(input)?,
            skipped_bytes: u64::take(input)?,
            bytes: u64::take(input)?,
            resumed_bytes: u64::take(input)?,
            rejected_bytes: u64::take(input)?,
            announced_bytes: u64::take(input)?,
            announced: u64::take(input)?,
            moved_bytes: u64::take(input)?,
            wanted_bytes: u64::take(input)?,
            wanted_files: u64::take(input)?,
            failed: u64::take(input)?,
            warned: u64::take(input)?,
            links: u64::take(input)?,
            manifest_complete: bool::take(input)?,
            integrity_failed: bool::take(input)?,
            errors: Vec::new(),
            warnings: Vec::new(),
        })
    }
}

wire_struct! {
    /// How a copy is going, as the source knows it.
    #[derive(Debug, Clone, Default)]
    pub struct Progress {
        /// What was done so far.
        pub tally: Tally,
        /// Streams now connected.
        pub streams: u16,
        /// Most streams that were connected at a time.
        pub streams_peak: u16,
        /// Rate over the last moments.
        pub bits_per_second: u64,
        /// What bounds it.
        pub bound_by: String,
        /// Storage engines of source and destination.
        pub engines: (String, String),
        /// TCP segments sent again.
        pub retransmits: u64,
        /// Bytes over the network, blocks sent twice included.
        pub network_bytes: u64,
        /// CPU time of source and destination in microseconds.
        pub cpu_us: (u64, u64),
        /// Streams that broke.
        pub streams_lost: u64,
        /// Blocks sent again.
        pub repeated: u64,
        /// Whose data it is.
        pub mark: Option<Mark>,
        /// How the packets of the source are labelled, or why they are not.
        pub label: String,
        /// Reader threads per device at the source.
        pub readers: u16,
        /// Its rate limit.
        pub rate_bps: Option<u64>,
        /// Addresses that were given up.
        pub dropped: Vec<String>,
    }
}

wire_enum! {
    /// How it ended.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Ended {
        /// Everything that could be copied is durable.
        Finished(()) = 0,
        /// Somebody stopped it.
        Cancelled(String) = 1,
        /// It cannot go on.
        Failed(String) = 2,
        /// The destination has forgotten the session: with a new one it goes on.
        Forgotten(String) = 3,
    }
}

wire_enum! {
    /// From the source to the requester.
    #[derive(Debug, Clone)]
    pub enum FromSource {
        /// How it is going.
        Progress(Box<Progress>) = 1,
        /// Entries that failed and were not told before.
        Errors(Vec<FileError>) = 2,
        /// Warnings that were not told before.
        Warnings(Vec<FileError>) = 5,
        /// Files in place that were not told before.
        Placed(Vec<Placed>) = 3,
        /// The last message.
        Ended(Ended) = 4,
    }
}

wire_enum! {
    /// From the requester to the source.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum ToSource {
        /// A change of settings.
        Settings(Settings) = 1,
        /// The user stops it, for this reason.
        Cancel(String) = 2,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::control::FailureKind;
    use crate::wire;

    #[test]
    fn messages_survive() {
        let tally = Tally { files: 3, moved_bytes: 5, manifest_complete: true, ..Tally::default() };
        let progress = Progress {
            tally,
            engines: ("direct".into(), "buffered".into()),
            ..Progress::default()
        };
        let errors = vec![FileError {
            path: "a\nb".into(),
            failure: Failure::new(FailureKind::Source, "gone"),
        }];
        for message in [
            FromSource::Progress(Box::new(progress)),
            FromSource::Errors(errors),
            FromSource::Ended(Ended::Forgotten("restarted".into())),
        ] {
            let bytes = wire::encode(&message);
            let back: FromSource = wire::decode(&bytes).expect("what was encoded");
            assert_eq!(format!("{back:?}"), format!("{message:?}"));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(message) = wire::decode::<FromSource>(&bytes) {
                prop_assert_eq!(wire::encode(&message), &bytes[..]);
            }
            if let Ok(message) = wire::decode::<ToSource>(&bytes) {
                prop_assert_eq!(wire::encode(&message), &bytes[..]);
            }
        }
    }
}
