//! Third-party copy: a requester makes one agent send files to another.
//!
//! ```text
//!              requester
//!   Push │                 │ ThirdParty(session)
//!        ▼                 ▼
//!  destination ◄════════ source
//!          control and data
//! ```
//!
//! The requester opens a session at the destination as for any push and hands it to the source, which
//! reconnects to it as if the requester's connection had been lost. Neither agent sees the requester's
//! token for the other; the source holds only the key of this session. Data does not pass through the
//! requester, which exchanges [`FromSource`] and [`ToSource`] with the source over a separate link.

use crate::control::{EntryFailure, Failure, Placed, Settings, TransferTally};
use crate::digest::Digest;
use crate::manifest::RelativePath;
use crate::open::{Mark, Opened, Pull};
use crate::wire::{Bytes, WireError, WireFormat, WireReader, wire_enum, wire_struct};

wire_struct! {
    /// Request to send files into a session at another agent.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ThirdParty {
        /// Sources and options; the options are those of the session.
        pub pull: Pull,
        /// Host name of the destination.
        pub host: String,
        /// Port of the destination.
        pub port: u16,
        /// Destination addresses to spread streams over, as text; empty to resolve `host`.
        pub to: Vec<String>,
        /// Source addresses to connect from, as text; empty for any.
        pub from: Vec<String>,
        /// TCP congestion control of data streams; absent for the system default.
        pub congestion: Option<String>,
        /// SHA-256 of the destination's certificate.
        pub fingerprint: [u8; 32],
        /// Session opened by the requester at the destination.
        pub session: Opened,
        /// Seconds for which the destination may stay unreachable.
        pub give_up_after: u32,
        /// Set when the requester wants the digests of committed files.
        pub keep_placed: bool,
        /// Set when it also wants the digests of skipped files, which must be read for it.
        pub digest_skipped: bool,
    }
}

impl WireFormat for EntryFailure {
    const MIN_BYTES: usize = String::MIN_BYTES + Failure::MIN_BYTES;
    fn put(&self, out: &mut Vec<u8>) {
        self.path.put(out);
        self.failure.put(out);
    }
    fn take(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        Ok(Self { path: String::take(input)?, failure: Failure::take(input)? })
    }
}

impl WireFormat for Placed {
    const MIN_BYTES: usize = RelativePath::MIN_BYTES + Bytes::MIN_BYTES;
    fn put(&self, out: &mut Vec<u8>) {
        self.path.put(out);
        (u32::try_from(self.digest.0.len()).expect("a digest is short")).put(out);
        out.extend_from_slice(&self.digest.0);
    }
    fn take(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        Ok(Self { path: RelativePath::take(input)?, digest: Digest(Bytes::take(input)?.0) })
    }
}

/// Encodes only the counters of a [`TransferTally`]; errors and warnings have separate messages.
impl WireFormat for TransferTally {
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
            self.verified_bytes,
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
    fn take(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            entries: u64::take(input)?,
            files: u64::take(input)?,
            skipped_files: u64::take(input)?,
            skipped_bytes: u64::take(input)?,
            bytes: u64::take(input)?,
            resumed_bytes: u64::take(input)?,
            rejected_bytes: u64::take(input)?,
            verified_bytes: u64::take(input)?,
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
    /// Progress of the copy as known to the source.
    #[derive(Debug, Clone, Default)]
    pub struct Progress {
        /// Counters of the session.
        pub tally: TransferTally,
        /// Number of streams now connected.
        pub streams: u16,
        /// Peak number of connected streams.
        pub streams_peak: u16,
        /// Rate over the last seconds.
        pub bits_per_second: u64,
        /// Bottleneck, as text for users; see the mover's `bottleneck`.
        pub bound_by: String,
        /// Storage engines of source and destination.
        pub engines: (String, String),
        /// TCP segments retransmitted by the source.
        pub retransmits: u64,
        /// Bytes on the network, including blocks sent twice.
        pub network_bytes: u64,
        /// CPU time of source and destination in microseconds.
        pub cpu_us: (u64, u64),
        /// Number of streams lost.
        pub streams_lost: u64,
        /// Number of blocks sent again.
        pub repeated: u64,
        /// Scitag of the transfer.
        pub mark: Option<Mark>,
        /// Label method of the source's packets, or why there is none.
        pub label: String,
        /// Reader threads per device at the source.
        pub readers: u16,
        /// Rate limit of the source.
        pub rate_bps: Option<u64>,
        /// Addresses that the source no longer uses.
        pub dropped: Vec<String>,
    }
}

wire_struct! {
    /// Transport of the data streams of a third-party copy.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct TransportReport {
        /// `tcp`, `rdma` or `mixed`; empty before the first stream.
        pub name: String,
        /// Reason for this transport, as the source states it; empty before there is one.
        pub reason: String,
    }
}

wire_enum! {
    /// Final result of a third-party copy.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Ended {
        /// Every file that could be copied is durable.
        Finished(()) = 0,
        /// Stopped by a user or operator, for this reason.
        Cancelled(String) = 1,
        /// Failed, for this reason.
        Failed(String) = 2,
        /// The destination no longer knows the session; a new session can continue the copy.
        Forgotten(String) = 3,
    }
}

wire_enum! {
    /// Message from the source to the requester.
    #[derive(Debug, Clone)]
    pub enum FromSource {
        /// Progress, about once a second.
        Progress(Box<Progress>) = 1,
        /// Entries that failed since the last such message.
        Errors(Vec<EntryFailure>) = 2,
        /// Warnings since the last such message.
        Warnings(Vec<EntryFailure>) = 5,
        /// Files committed since the last such message.
        Placed(Vec<Placed>) = 3,
        /// Result of the copy; the last message.
        Ended(Ended) = 4,
        /// Transport of the streams, when it changes; only to a requester that left the choice or asked for RDMA.
        Transport(TransportReport) = 6,
    }
}

wire_enum! {
    /// Message from the requester to the source.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum ToSource {
        /// Change of the transfer's settings.
        Settings(Settings) = 1,
        /// Stop the copy, for this reason.
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
    fn messages_round_trip() {
        let tally = TransferTally {
            files: 3,
            moved_bytes: 5,
            manifest_complete: true,
            ..TransferTally::default()
        };
        let progress = Progress {
            tally,
            engines: ("direct".into(), "buffered".into()),
            ..Progress::default()
        };
        let errors = vec![EntryFailure {
            path: "a\nb".into(),
            failure: Failure::new(FailureKind::Source, "gone"),
        }];
        for message in [
            FromSource::Progress(Box::new(progress)),
            FromSource::Errors(errors),
            FromSource::Ended(Ended::Forgotten("restarted".into())),
            FromSource::Transport(TransportReport {
                name: "mixed".into(),
                reason: "UDP port 4791".into(),
            }),
        ] {
            let bytes = wire::encode(&message);
            let back: FromSource = wire::decode(&bytes).expect("what was encoded");
            assert_eq!(format!("{back:?}"), format!("{message:?}"));
        }
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn arbitrary_message_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(message) = wire::decode::<FromSource>(&bytes) {
                prop_assert_eq!(wire::encode(&message), &bytes[..]);
            }
            if let Ok(message) = wire::decode::<ToSource>(&bytes) {
                prop_assert_eq!(wire::encode(&message), &bytes[..]);
            }
        }
    }
}
