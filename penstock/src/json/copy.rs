//! `penstock cp`, `penstock transfers` and `penstock show`.

use std::collections::BTreeMap;

use penstock_agent::http::api::{ControllerFacts, TransferFacts};
use penstock_agent::http::tuning::TuningFacts;
use penstock_controller::api::objects::{EventFacts, FileFacts, OrderFacts, RequestFacts};
use serde::Serialize;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// Result of a copy.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Copied {
    /// True where everything arrived.
    pub(crate) ok: bool,
    /// Reason why the copy as a whole ended early; null where it did not.
    pub(crate) error: Option<String>,
    /// Bytes of files in place, those that were there before included.
    pub(crate) bytes: u64,
    /// Files in place, those that were there before included.
    pub(crate) files: u64,
    /// Duration of the copy.
    pub(crate) seconds: f64,
    /// Mean rate: `moved_bytes` over `seconds`.
    pub(crate) bits_per_second: f64,
    /// Bytes of file contents that were moved, without the holes of sparse files.
    pub(crate) moved_bytes: u64,
    /// Bytes of file contents on the network, blocks that were sent twice included.
    pub(crate) network_bytes: u64,
    /// Bytes of unfinished files that an earlier copy had brought and this one did not send.
    pub(crate) resumed_bytes: u64,
    /// Bytes of files that were in place already.
    pub(crate) skipped_bytes: u64,
    /// Bytes of unfinished files that were read back and compared with the source before they were kept.
    pub(crate) verified_bytes: u64,
    /// Bytes of unfinished files that differed from the source and were sent again.
    pub(crate) rejected_bytes: u64,
    /// Files that were there already.
    pub(crate) skipped_files: u64,
    /// Files that did not arrive.
    pub(crate) failed: u64,
    /// Files that arrived with something amiss, such as an owner that could not be set, and temporary files of other copies
    /// that this end found in the source and left out.
    pub(crate) warnings: u64,
    /// TCP segments that were retransmitted.
    pub(crate) retransmits: u64,
    /// Largest number of data streams at a time.
    pub(crate) streams: u16,
    /// Data streams that broke.
    pub(crate) streams_lost: u64,
    /// Blocks that were sent more than once.
    pub(crate) blocks_repeated: u64,
    /// Sessions with the other end; more than one where it was lost and came back.
    pub(crate) sessions: u32,
    /// Storage engines of both ends, once where they are equal.
    pub(crate) engine: String,
    /// Storage engine of this end, such as `direct+io_uring`; empty where it moved no file contents.
    pub(crate) engine_local: String,
    /// Storage engine of the other end.
    pub(crate) engine_remote: String,
    /// Resource that limited the rate for most of the time: `rate limit`, `sender CPU`, `receiver CPU`, `source
    /// storage`, `destination storage`, `receiver` (its window), `send buffer` or `network`; `latency` where the copy
    /// ended before it was measured, `start` where it did not begin.
    pub(crate) bound_by: String,
    /// Smallest round-trip time of the sender's streams.
    pub(crate) rtt_seconds: Option<f64>,
    /// Rate that the socket buffers of this host allow one stream over `rtt_seconds`.
    pub(crate) stream_ceiling_bits_per_second: Option<u64>,
    /// Protection of the data streams: `full` (encrypted) or `integrity`.
    pub(crate) protect: &'static str,
    /// Transport of the data streams: `tcp`, `rdma`, or `mixed` where streams of both carried data; null where no stream
    /// was connected, and for a copy within this machine.
    pub(crate) transport: Option<&'static str>,
    /// Reason for this transport with `--transport auto` or `rdma`: the device, or what RDMA lacks; null with `tcp`.
    pub(crate) transport_reason: Option<String>,
    /// Scitag of the packets: owner and activity as one number; null where none was given.
    pub(crate) scitag: Option<u16>,
    /// Place of the scitag in the packets: `flow` (IPv6 flow label), `destination` (destination option) or `none`;
    /// null where none was given.
    pub(crate) label: Option<String>,
    /// Reason for another place than the one that was asked for; null for none.
    pub(crate) label_note: Option<String>,
    /// Algorithm of the digests.
    pub(crate) checksum: String,
    /// CPU time of this end.
    pub(crate) cpu_local_seconds: f64,
    /// CPU time of the other end.
    pub(crate) cpu_remote_seconds: f64,
    /// Largest resident memory of this process.
    pub(crate) memory_peak_bytes: u64,
    /// Addresses of the other end that were given up.
    pub(crate) paths_dropped: Vec<String>,
    /// Digest of each file in place by its path, in hexadecimal; at most 10,000.
    pub(crate) digests: BTreeMap<String, String>,
    /// True where `digests` leaves files out: `--checksum-file` lists all.
    pub(crate) digests_truncated: bool,
    /// Decisions about the number of streams, or the reason why there are none; null where the copy did not start.
    pub(crate) tuning: Option<TuningFacts>,
    /// Files that did not arrive.
    pub(crate) errors: Vec<FileError>,
}

/// A file that did not arrive.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct FileError {
    /// Path below the source.
    pub(crate) path: String,
    /// `source` (cannot be read), `changed` (changed while it was read), `destination` (cannot be written), `integrity`
    /// (its digest differs) or `refused`.
    pub(crate) kind: &'static str,
    /// Reason of the failure in words.
    pub(crate) error: String,
}

/// Transfers of an agent and copies of this user.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct TransferListJson {
    /// Transfers of the agent.
    pub(crate) transfers: Vec<TransferFacts>,
    /// Copies that this user runs on this machine.
    pub(crate) copies: Vec<Copy>,
    /// Link of the agent to its controller; left out where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) controller: Option<ControllerFacts>,
}

/// A copy of this user: a transfer whose `id` is the one that `set` and `cancel` take.
#[derive(Debug, Clone)]
pub(crate) struct Copy(pub(crate) TransferFacts);

/// The part of a transfer that a copy shows differently.
#[derive(Debug, Clone, ToSchema)]
struct CopyId {
    /// For a copy: `cp` and the number of its process, as `set` and `cancel` take it.
    #[allow(dead_code, reason = "only its schema is used")]
    id: String,
}

impl Serialize for Copy {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut facts = serde_json::to_value(&self.0).map_err(serde::ser::Error::custom)?;
        facts["id"] = serde_json::Value::from(format!("cp{}", self.0.id));
        facts.serialize(serializer)
    }
}

impl PartialSchema for Copy {
    fn schema() -> RefOr<Schema> {
        let (mut schema, id) = (TransferFacts::schema(), CopyId::schema());
        if let (RefOr::T(Schema::Object(copy)), RefOr::T(Schema::Object(id))) = (&mut schema, id) {
            copy.properties.extend(id.properties);
        }
        schema
    }
}

impl ToSchema for Copy {
    fn schemas(all: &mut Vec<(String, RefOr<Schema>)>) {
        TransferFacts::schemas(all);
    }
}

/// A transfer of the agent or a copy after a change.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Changed {
    /// A transfer of the agent.
    Transfer(TransferFacts),
    /// A copy of this user.
    Copy(Copy),
}

/// A request with its orders.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct RequestDetails {
    /// State of the request.
    pub(crate) request: RequestFacts,
    /// Orders that agents have for the request.
    pub(crate) orders: Vec<OrderFacts>,
    /// Files of the request; left out without `--files`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) files: Option<Vec<FileFacts>>,
    /// History of the request; left out without `--history`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) events: Option<Vec<EventFacts>>,
}
