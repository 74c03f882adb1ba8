//! Data plane: threads, sockets and storage engines that drive the state machines of
//! `penstock-protocol`.
//!
//! ```text
//! source                                                        destination
//! scan ─► readers ─► ready blocks ─► streams ══ network ══► streams ─► writers ─► committer
//!          per device                 one thread each       one thread each  per device
//! ```
//!
//! Buffers of one block each are the only coupling between stages: a slow stage leaves its neighbours
//! without buffers, and TCP closes its window. The pool bounds memory.
//!
//! # Entry points
//!
//! | to | use |
//! |---|---|
//! | serve transfers on a port | [`Agent::start`] with an [`AgentConfig`] and a [`Gatekeeper`] |
//! | copy to or from an agent | [`PeerConnector`] over a [`Dial`], [`ClientTransfer::start`] |
//! | copy between two agents | [`ThirdPartyTransfer::start`] |
//! | copy on this machine | two [`Endpoint`]s of a [`SessionBuilder`], [`join_locally`] |
//! | send on a controller's order | [`Agent::send`] with a [`SendRequest`] |
//! | fetch a file from another agent | [`Agent::fetch`] with a [`FetchRequest`] |
//! | count a transfer of another protocol | [`Agent::begin_gateway_transfer`] |
//! | receive a file of another protocol | [`FileUpload`] |
//! | list a tree | [`TreeWalk`] |
//!
//! # Folders
//!
//! Each folder depends only on those before it: `base` (threads, locks, limits), `net` (connections),
//! `session` (what the threads of a session share), `source` and `sink` (storage at either side),
//! `endpoint` (either end of a session), `client` (connecting side), `server` (accepting side).
//! `cargo xtask tidy` enforces the order.
//!
//! Not here: HTTP, configuration, authorisation (an agent calls its gatekeeper), printing, and
//! certificates (`penstock-identity`).

#![forbid(unsafe_code)]

mod base;
mod client;
mod endpoint;
mod net;
mod server;
mod session;
mod sink;
mod source;

pub use base::engine::{Engine, UnknownEngine};
pub use base::limits::{STREAMS_MAX, THREADS_PER_DEVICE_MAX, default_streams};
pub use base::temporary_name::is_temporary_name;
pub use client::auto_tuner::{RatePoint, TuningRecord};
pub use client::stream_tuning::{
    KnownStreams, SharedSearch, SharingBounds, StreamTuning, TuningBounds, TuningBoundsSource,
    TuningReport,
};
pub use client::third_party::{ThirdPartyConfig, ThirdPartyTransfer};
pub use client::transfer::{
    ClientTransfer, MakeEnd, SessionOrigin, TransferConfig, TransferSnapshot, join_locally,
    key_hasher,
};
pub use endpoint::end::Endpoint;
pub use endpoint::rate_meter::RateMeter;
pub use endpoint::receiver::{ReceiverControl, ReceiverEnd};
pub use endpoint::sender::{SenderControl, SenderEnd};
pub use endpoint::session_setup::{BuiltSession, SessionBuilder, check_options, target_at};
pub use net::channel::Channel;
pub use net::cleartext_networks::CleartextNetworks;
pub use net::connector::{
    Backoff, CopyError, PeerConnector, StreamDscp, TransportChoice, certificate_of,
};
pub use net::dial::{Dial, DialedPair, SshDial, TcpDial};
pub use net::firefly::{FireflyCounters, STATES as FIREFLY_STATES};
pub use net::handshake::random;
pub use net::labels::{Labelling, label_accepted};
pub use net::transport::Transport;
pub use penstock_tuner::{TunerSample, TuningMode};
pub use server::admission::AgentLoad;
pub use server::agent::{Agent, AgentConfig, UnknownTransfer};
pub use server::copy::AgentCopyRequest;
pub use server::dscp_policy::DscpPolicy;
pub use server::ended_log::{EndedTransfer, EndedTransferLog, StartConditions};
pub use server::gateway::{GatewayRequest, GatewayTransfer};
pub use server::initiated::{FetchRequest, InitiatedTransfer, SendFileRequest, SendRequest};
pub use server::limits::AgentLimits;
pub use server::listing::{ListedTransfer, TransferDirection};
pub use server::tuning::TuningChangeError;
pub use session::control::{ControlEndpoint, ProtocolFault};
pub use session::counters::AgentCounters;
pub use session::gatekeeper::{Caller, ExportSpace, Gatekeeper, ResolvedPath};
pub use session::outcome::SessionOutcome;
pub use session::rate_limit::SharedPacer;
pub use session::state::Session;
pub use sink::destination::{Destination, OpenTarget, ReleasePartial, TransferTarget};
pub use sink::file_locks::FileLocks;
pub use sink::hidden_names::{HiddenName, HiddenNames, LeftName};
pub use sink::name_locks::lock_name;
pub use sink::resume_journal::{JournalName, ResumeJournal, ResumeJournalError};
pub use sink::storage::DirectoryHandle;
pub use sink::upload::{
    CommittedUpload, FileUpload, JoinedUpload, RangeWriter, UploadCondition, UploadDurability,
    WrittenRange,
};
pub use source::scan::{Missing, ScanItem, ScanRoot, TreeWalk};
