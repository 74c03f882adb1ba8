//! Connection of a queue pair to that of the other end of a TCP connection.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use penstock_sys::buffer::Buffer;
use penstock_sys::event::{Interest, Readiness, poll};
use penstock_sys::machine::raise_locked_memory;
use penstock_sys::verbs::{
    CompletionKind, CompletionQueue, CompletionStatus, ConnectionPath, Initialised, LocalMemory,
    MemoryAccess, MemoryRegion, ProtectionDomain, QueuePair, QueuePairCapacity, ReadyToSend,
    SendVerb, SendWorkRequest, WorkCompletion,
};
use thiserror::Error;

use crate::adapter::{RdmaAdapter, display_gid};
use crate::credit::{CreditError, PostedRequest};
use crate::exchange::{ConnectionOffer, OFFER_BYTES, OfferError, SLOTS_MAX};
use crate::parameters::{
    RETRIES_MAX, answer_timeout, completion_entries, path_mtu, signal_interval, timeout_exponent,
};
use crate::stream::SlotChannel;

/// Work number of receives. Requests of the send queue have their sequence numbers.
const RECEIVE_WORK: u64 = 1 << 63;
/// Work number of probes and of the request that ends an unsignalled tail.
const MARKER_WORK: u64 = 1 << 62;
/// Bytes of a probe.
const PROBE_BYTES: u32 = 8;
/// Least time for the answer to a probe.
const PROBE_TIMEOUT_MIN: Duration = Duration::from_secs(2);
/// Requests of the send queue beside the messages: probes and markers.
const SENDS_SPARE: u32 = 2;
/// Byte that each end sends when its queue pair is ready.
const READY_BYTE: u8 = b'R';

/// Failure of RDMA at this end, with the remedy.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RdmaFailure {
    /// The library is missing, or the program is static.
    #[error(
        "cannot load the RDMA library: {0}; install libibverbs1 and ibverbs-providers (Debian) or rdma-core"
    )]
    Library(#[source] io::Error),
    /// A device does not open.
    #[error("cannot open the RDMA devices: {0}; are /dev/infiniband/uverbs* there, and readable?")]
    Devices(#[source] io::Error),
    /// The kernel knows no device.
    #[error(
        "this host has no RDMA device (`rdma link` lists them); software RoCE: `rdma link add rxe0 type rxe netdev INTERFACE`"
    )]
    NoDevice,
    /// The kernel has devices, and this process none of their files.
    #[error(
        "the files of {0} in /dev/infiniband are hidden from this process: a unit of systemd needs the drop-in rdma.conf, a container the devices"
    )]
    HiddenDevices(String),
    /// No device has the address of the connection.
    #[error(
        "no RoCE v2 GID for {address} on {devices}: connect from and to an address of an RDMA interface (`rdma link` names it)"
    )]
    NoGid {
        /// Local address of the connection.
        address: IpAddr,
        /// Names of the devices.
        devices: String,
    },
    /// The port has no link.
    #[error("the port of {0} is down: `ip link` and `rdma link` show its state")]
    PortDown(String),
    /// The limit of locked memory is too low.
    #[error(
        "cannot register {bytes} B of memory: the limit of locked memory is {limit} B; raise it (`ulimit -l unlimited`, LimitMEMLOCK=infinity of systemd, CAP_IPC_LOCK)"
    )]
    LockedMemory {
        /// Bytes to register.
        bytes: u64,
        /// Limit of the process.
        limit: u64,
    },
    /// More messages in flight than the device has work requests.
    #[error(
        "depth {wanted}: {device} has at most {limit} work requests for a queue pair; use more streams instead"
    )]
    Depth {
        /// Depth that was asked for.
        wanted: u32,
        /// Name of the device.
        device: String,
        /// Limit of the device.
        limit: u32,
    },
    /// A call of the library failed.
    #[error("{device}: cannot {step}: {source}")]
    Step {
        /// Name of the device.
        device: String,
        /// Operation as verb and object.
        step: &'static str,
        /// Error of the provider.
        source: io::Error,
    },
    /// The TCP connection of the exchange failed.
    #[error("the exchange of RDMA parameters failed: {0}")]
    Exchange(#[source] io::Error),
    /// The other end closed the TCP connection.
    #[error("the other end closed the connection")]
    PeerClosed,
    /// Bytes of the other end that are no offer.
    #[error(transparent)]
    Offer(#[from] OfferError),
    /// The offer of the other end has no slots of the right size.
    #[error(
        "the other end offers {slots} slots of {slot_bytes} B, this end needs slots of {needed} B"
    )]
    Slots {
        /// Slots of the offer.
        slots: u32,
        /// Bytes of a slot.
        slot_bytes: u32,
        /// Bytes of a message.
        needed: u32,
    },
    /// The address of the other end does not resolve on the interface of the device.
    #[error(
        "{device}: no path to {peer}: {source}; does `ping {peer}` by the interface of {device} (`rdma link`) answer?"
    )]
    Unreachable {
        /// Name of the device.
        device: String,
        /// Address of the other end's GID.
        peer: String,
        /// Error of the kernel.
        source: io::Error,
    },
    /// A probe had no answer.
    #[error(
        "{device}: no answer from {peer} by RDMA in {seconds:.0} s: does every firewall between pass UDP port 4791, and every link packets of {mtu_bytes} B?"
    )]
    Unanswered {
        /// Name of the device.
        device: String,
        /// Address of the other end's GID.
        peer: String,
        /// Time of waiting in seconds.
        seconds: f64,
        /// Path MTU.
        mtu_bytes: u32,
    },
    /// A work request failed.
    #[error("{device}: {status}")]
    Completion {
        /// Name of the device.
        device: String,
        /// Text of the library.
        status: String,
    },
    /// The device neither completed a request nor reported its failure.
    #[error(
        "messages by RDMA got lost, and the device did not report it in {0:.0} s (its driver stopped sending them again)"
    )]
    NoCompletion(f64),
    /// The other end broke the protocol of credits.
    #[error(transparent)]
    Credit(#[from] CreditError),
    /// A message of the other end is empty or longer than its slot.
    #[error("the other end wrote a message of {bytes} B into a slot of {slot_bytes} B")]
    MessageLength {
        /// Bytes of the message.
        bytes: u32,
        /// Bytes of a slot.
        slot_bytes: usize,
    },
    /// Messages at the end of a stream are not acknowledged.
    #[error("the last messages by RDMA were not acknowledged in {0:.0} s")]
    Unacknowledged(f64),
}

impl RdmaFailure {
    pub(crate) fn step(device: &str, step: &'static str, source: io::Error) -> Self {
        Self::Step { device: device.to_owned(), step, source }
    }
}

/// Part of an end in the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionPart {
    /// Posts writes or reads; the other end has the slots.
    Initiator,
    /// Has slots that the initiator writes into.
    WriteTarget,
    /// Has slots that the initiator reads from.
    ReadTarget,
}

/// Settings of one end of a connection.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionSettings {
    /// Part of this end.
    pub part: ConnectionPart,
    /// Messages in flight, and slots of the end that has them.
    pub depth: u32,
    /// Largest message in bytes.
    pub message_bytes: u32,
    /// Bytes at the start of a message that an initiator has memory for, where the rest comes from blocks; else it has
    /// memory for whole messages.
    pub head_bytes: Option<u32>,
    /// Slots with memory of their own, at most the depth.
    pub distinct_slots: u32,
    /// Round-trip time of the path, as far as known; it only lengthens the timer.
    pub round_trip: Duration,
    /// IP MTU of the path, as far as known.
    pub ip_mtu: Option<u32>,
    /// Traffic class of this end's packets.
    pub traffic_class: u8,
    /// Flow label of this end's packets, 20 bits; 0 for none.
    pub flow_label: u32,
    /// First sequence number of this end's packets, any 24 bits.
    pub sequence: u32,
}

/// A connected queue pair and the memory at this end. When it is dropped the queue pair is destroyed before the memory.
#[derive(Debug)]
pub struct RdmaConnection {
    pair: QueuePair<ReadyToSend>,
    region: MemoryRegion,
    peer: ConnectionOffer,
    domain: ProtectionDomain,
    device: String,
    slot_bytes: u32,
    /// Bytes of this end's memory of a slot.
    local_bytes: u32,
    depth: u32,
    distinct_slots: u32,
    mtu_bytes: u32,
    timeout_exponent: u8,
}

/// Event of the queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RdmaEvent {
    /// Requests up to this number are done.
    Completed(u64),
    /// The marker is done, so all requests before it are.
    Marker,
    /// A message arrived: its bytes and its immediate value.
    Message {
        /// Bytes that the other end wrote; 0 for a grant.
        bytes: u32,
        /// Immediate value: the slot.
        immediate: u32,
    },
}

/// A queue pair and its memory, before the exchange with the other end.
#[derive(Debug)]
pub struct PreparedConnection {
    pair: QueuePair<Initialised>,
    region: MemoryRegion,
    domain: ProtectionDomain,
    own: ConnectionOffer,
    settings: ConnectionSettings,
    device: String,
    port: u8,
    gid_index: u8,
    reads_issued: u8,
    distinct_slots: u32,
}

impl PreparedConnection {
    /// Registers the memory and creates the queue pair, in a domain of their own.
    ///
    /// # Errors
    /// [`RdmaFailure`] for limits of the device and of locked memory.
    pub fn new(adapter: &RdmaAdapter, settings: &ConnectionSettings) -> Result<Self, RdmaFailure> {
        Self::in_domain(adapter, adapter.domain()?, settings)
    }

    /// As [`Self::new`], in a domain of the adapter's device. Initiators in one domain share the registrations of the
    /// blocks that they send.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn in_domain(
        adapter: &RdmaAdapter,
        domain: ProtectionDomain,
        settings: &ConnectionSettings,
    ) -> Result<Self, RdmaFailure> {
        let device = adapter.context().name();
        let step = |step, source| RdmaFailure::step(device, step, source);
        let limits = adapter.limits();
        let depth = settings.depth.max(1);
        // Grants bound the messages in flight, not the send queue: its completions come for several requests together.
        let sends = depth.saturating_add(signal_interval(depth)).saturating_add(SENDS_SPARE);
        let limit = limits.work_requests.saturating_sub(sends - depth).min(SLOTS_MAX);
        if depth > limit {
            return Err(RdmaFailure::Depth { wanted: depth, device: device.to_owned(), limit });
        }
        let (access, slots) = match settings.part {
            ConnectionPart::Initiator => (MemoryAccess::Local, 0),
            ConnectionPart::WriteTarget => (MemoryAccess::RemoteWrite, depth),
            ConnectionPart::ReadTarget => (MemoryAccess::RemoteRead, depth),
        };
        let distinct_slots = settings.distinct_slots.clamp(1, depth);
        let region = register(&domain, distinct_slots, local_bytes(settings), access, device)?;
        let entries = completion_entries(sends, depth).min(limits.completions);
        let completions = CompletionQueue::new(domain.context(), entries)
            .map_err(|error| step("create a completion queue", error))?;
        let capacity = QueuePairCapacity { sends, receives: depth };
        let port = adapter.gid().port;
        let pair = QueuePair::new(&domain, &completions, capacity, port, access)
            .map_err(|error| step("create a queue pair", error))?;
        for _ in 0..depth {
            pair.post_receive(RECEIVE_WORK).map_err(|error| step("post a receive", error))?;
        }
        let own = ConnectionOffer {
            queue_pair: pair.number(),
            sequence: settings.sequence & 0x00ff_ffff,
            gid: adapter.gid().gid,
            mtu_bytes: adapter.mtu_bytes(),
            slots,
            distinct_slots: if slots > 0 { distinct_slots } else { 0 },
            slot_bytes: if slots > 0 { settings.message_bytes } else { 0 },
            address: region.address(),
            key: region.remote_key(),
            reads_answered: limits.reads_answered,
        };
        Ok(Self {
            pair,
            region,
            domain,
            own,
            settings: *settings,
            device: device.to_owned(),
            port,
            gid_index: u8::try_from(adapter.gid().index).unwrap_or(u8::MAX),
            reads_issued: limits.reads_issued,
            distinct_slots,
        })
    }

    /// Exchanges offers on `socket` and connects. Returns when both ends are ready.
    ///
    /// # Errors
    /// [`RdmaFailure`]; the caller closes `socket`, so that the other end fails, too.
    pub fn connect(self, socket: &mut (impl Read + Write)) -> Result<RdmaConnection, RdmaFailure> {
        let Self { pair, region, domain, own, settings, device, .. } = self;
        socket.write_all(&own.encode()).map_err(exchange)?;
        let mut bytes = [0; OFFER_BYTES];
        socket.read_exact(&mut bytes).map_err(exchange)?;
        let peer = ConnectionOffer::decode(&bytes)?;
        if own.slots == 0 && (peer.slots == 0 || peer.slot_bytes < settings.message_bytes) {
            let (slots, slot_bytes) = (peer.slots, peer.slot_bytes);
            return Err(RdmaFailure::Slots { slots, slot_bytes, needed: settings.message_bytes });
        }
        let path = ConnectionPath {
            port: self.port,
            gid_index: self.gid_index,
            peer_gid: peer.gid,
            peer_queue_pair: peer.queue_pair,
            peer_sequence: peer.sequence,
            own_sequence: own.sequence,
            mtu_bytes: path_mtu(own.mtu_bytes, peer.mtu_bytes, settings.ip_mtu),
            reads_answered: own.reads_answered,
            reads_issued: self.reads_issued.min(peer.reads_answered),
            traffic_class: settings.traffic_class,
            flow_label: settings.flow_label & 0x000f_ffff,
            timeout_exponent: timeout_exponent(settings.round_trip),
            retries: RETRIES_MAX,
        };
        let pair = pair
            .ready_to_receive(&path)
            .map_err(|source| RdmaFailure::Unreachable {
                device: device.clone(),
                peer: display_gid(&peer.gid),
                source,
            })?
            .ready_to_send(&path)
            .map_err(|error| RdmaFailure::step(&device, "enable sending", error))?;
        socket.write_all(&[READY_BYTE]).map_err(exchange)?;
        let mut ready = [0];
        socket.read_exact(&mut ready).map_err(exchange)?;
        if ready != [READY_BYTE] {
            return Err(OfferError::Magic.into());
        }
        Ok(RdmaConnection {
            pair,
            region,
            peer,
            domain,
            device,
            slot_bytes: settings.message_bytes,
            local_bytes: local_bytes(&settings),
            depth: settings.depth.max(1),
            distinct_slots: self.distinct_slots,
            mtu_bytes: path.mtu_bytes,
            timeout_exponent: path.timeout_exponent,
        })
    }
}

impl RdmaConnection {
    /// Creates a queue pair with memory, exchanges offers on `socket` and connects. Returns when both ends are ready.
    ///
    /// # Errors
    /// [`RdmaFailure`]; the caller closes `socket`, so that the other end fails, too.
    pub fn open(
        adapter: &RdmaAdapter,
        settings: &ConnectionSettings,
        socket: &mut (impl Read + Write),
    ) -> Result<Self, RdmaFailure> {
        PreparedConnection::new(adapter, settings)?.connect(socket)
    }

    /// Offer of the other end.
    #[must_use]
    pub const fn peer(&self) -> &ConnectionOffer {
        &self.peer
    }

    /// Name of the device at this end.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Messages in flight at most, and slots of the end that has them.
    #[must_use]
    pub const fn depth(&self) -> u32 {
        self.depth
    }

    /// Path MTU of the connection in bytes.
    #[must_use]
    pub const fn mtu_bytes(&self) -> u32 {
        self.mtu_bytes
    }

    /// Exponent of the retransmission timer.
    #[must_use]
    pub const fn timeout_exponent(&self) -> u8 {
        self.timeout_exponent
    }

    /// Time in which a working queue pair completes a request, or fails.
    #[must_use]
    pub fn answer_timeout(&self) -> Duration {
        answer_timeout(self.timeout_exponent, RETRIES_MAX)
    }

    /// Memory at this end.
    #[must_use]
    pub const fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Offset of a slot in the memory at this end.
    #[must_use]
    pub const fn slot_offset(&self, slot: u32) -> usize {
        (slot % self.distinct_slots) as usize * self.local_bytes as usize
    }

    /// Writes the first `bytes` of the local slot into the slot of the other end, which receives its number.
    ///
    /// # Errors
    /// [`RdmaFailure::Step`].
    pub fn write(&self, request: PostedRequest, bytes: u32) -> Result<(), RdmaFailure> {
        self.write_from(request, &[self.region.part(self.slot_offset(request.slot), bytes)])
    }

    fn write_from(
        &self,
        request: PostedRequest,
        memory: &[LocalMemory<'_>],
    ) -> Result<(), RdmaFailure> {
        let (address, key) = (self.peer.slot_address(request.slot), self.peer.key);
        let verb = SendVerb::WriteWithImmediate { address, key, immediate: request.slot };
        let (work_id, signalled) = (request.sequence, request.signalled);
        self.post(&SendWorkRequest { work_id, verb, memory, signalled }, "post a write")
    }

    /// Reads the first `bytes` of the other end's slot into the local slot.
    ///
    /// # Errors
    /// [`RdmaFailure::Step`].
    pub fn read(&self, request: PostedRequest, bytes: u32) -> Result<(), RdmaFailure> {
        let (address, key) = (self.peer.slot_address(request.slot), self.peer.key);
        let memory = &[self.region.part(self.slot_offset(request.slot), bytes)];
        let (work_id, signalled) = (request.sequence, request.signalled);
        let verb = SendVerb::Read { address, key };
        self.post(&SendWorkRequest { work_id, verb, memory, signalled }, "post a read")
    }

    /// Grants a slot of this end, after a receive for its next message is posted.
    ///
    /// # Errors
    /// [`RdmaFailure::Step`].
    pub fn grant(&self, request: PostedRequest) -> Result<(), RdmaFailure> {
        self.post_receive()?;
        let verb = SendVerb::SendWithImmediate { immediate: request.slot };
        let (work_id, signalled) = (request.sequence, request.signalled);
        self.post(&SendWorkRequest { work_id, verb, memory: &[], signalled }, "post a grant")
    }

    /// Posts a receive in the place of one that a grant consumed.
    ///
    /// # Errors
    /// [`RdmaFailure::Step`].
    pub fn post_receive(&self) -> Result<(), RdmaFailure> {
        self.pair
            .post_receive(RECEIVE_WORK)
            .map_err(|error| RdmaFailure::step(&self.device, "post a receive", error))
    }

    /// Posts a request whose completion, [`RdmaEvent::Marker`], stands for all requests before it.
    ///
    /// # Errors
    /// [`RdmaFailure::Step`].
    pub fn mark(&self, reads: bool) -> Result<(), RdmaFailure> {
        let (address, key) = (self.peer.slot_address(0), self.peer.key);
        let verb = match reads {
            true => SendVerb::Read { address, key },
            false => SendVerb::Write { address, key },
        };
        // The last page of a region may be shorter than a slot, its first bytes are there in any case.
        let probe = self.region.part(0, PROBE_BYTES);
        let memory: &[_] = if reads { &[probe] } else { &[] };
        self.post(
            &SendWorkRequest { work_id: MARKER_WORK, verb, memory, signalled: true },
            "post a marker",
        )
    }

    fn post(&self, request: &SendWorkRequest<'_>, step: &'static str) -> Result<(), RdmaFailure> {
        self.pair.post_send(request).map_err(|error| RdmaFailure::step(&self.device, step, error))
    }

    /// Measures the time of one small write or read, before messages are posted.
    ///
    /// # Errors
    /// [`RdmaFailure::Unanswered`] without an answer in two seconds or four round-trip times of the settings.
    pub fn probe(
        &self,
        reads: bool,
        round_trip: Duration,
        socket: BorrowedFd<'_>,
    ) -> Result<Duration, RdmaFailure> {
        let started = Instant::now();
        let timeout = PROBE_TIMEOUT_MIN.max(round_trip * 4);
        self.mark(reads)?;
        let mut events = Vec::new();
        loop {
            let left = timeout.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Err(RdmaFailure::Unanswered {
                    device: self.device.clone(),
                    peer: display_gid(&self.peer.gid),
                    seconds: timeout.as_secs_f64(),
                    mtu_bytes: self.mtu_bytes,
                });
            }
            let socket = self.events(socket, left, &mut events)?;
            if events.contains(&RdmaEvent::Marker) {
                return Ok(started.elapsed());
            }
            if socket.any() {
                return Err(RdmaFailure::PeerClosed);
            }
        }
    }

    /// Waits for events of the queue pair, for the socket to become readable, or for `timeout`. Returns the state of the
    /// socket, if it was waited for.
    ///
    /// # Errors
    /// [`RdmaFailure::Completion`] after an error of the queue pair.
    pub fn events(
        &self,
        socket: BorrowedFd<'_>,
        timeout: Duration,
        events: &mut Vec<RdmaEvent>,
    ) -> Result<Readiness, RdmaFailure> {
        self.wait(Some(socket), timeout, events)
    }

    /// As [`Self::events`], without a socket where there is none to wait for.
    ///
    /// # Errors
    /// [`RdmaFailure::Completion`] after an error of the queue pair.
    pub fn wait(
        &self,
        socket: Option<BorrowedFd<'_>>,
        timeout: Duration,
        events: &mut Vec<RdmaEvent>,
    ) -> Result<Readiness, RdmaFailure> {
        events.clear();
        if self.take_events(events)? {
            return Ok(Readiness::default());
        }
        let step = |error| RdmaFailure::step(&self.device, "wait for completions", error);
        let completions = self.pair.completions();
        completions.arm().map_err(step)?;
        if self.take_events(events)? {
            return Ok(Readiness::default());
        }
        let channel = std::os::fd::AsFd::as_fd(completions);
        let waits: Vec<_> =
            std::iter::once(channel).chain(socket).map(|fd| (fd, Interest::READ)).collect();
        let ready = poll(&waits, Some(timeout)).map_err(step)?;
        completions.drain_events().map_err(step)?;
        self.take_events(events)?;
        Ok(ready.get(1).copied().unwrap_or_default())
    }

    /// Takes all completions; true if there were any.
    fn take_events(&self, events: &mut Vec<RdmaEvent>) -> Result<bool, RdmaFailure> {
        let mut completions: Vec<WorkCompletion> = Vec::new();
        let step = |error| RdmaFailure::step(&self.device, "poll the completion queue", error);
        while self.pair.completions().poll(&mut completions).map_err(step)? > 0 {}
        let is_failure = |status| status != CompletionStatus::Success;
        let failed =
            completions.iter().map(|completion| completion.status).filter(|one| is_failure(*one));
        // One request has the cause; the others of both queues are flushed, some of them before it.
        if let Some(failed) = failed.min_by_key(|status| *status == CompletionStatus::Flushed) {
            let status = self.pair.completions().describe(failed);
            return Err(RdmaFailure::Completion { device: self.device.clone(), status });
        }
        events.extend(completions.iter().map(|completion| match completion.kind {
            CompletionKind::Received { bytes, immediate } => {
                RdmaEvent::Message { bytes, immediate }
            }
            _ if completion.work_id == MARKER_WORK => RdmaEvent::Marker,
            _ => RdmaEvent::Completed(completion.work_id),
        }));
        Ok(!events.is_empty())
    }
}

impl SlotChannel for RdmaConnection {
    type Block = Buffer;

    fn slot_bytes(&self) -> usize {
        self.slot_bytes as usize
    }

    fn head_bytes(&self) -> usize {
        self.local_bytes as usize
    }

    fn answer_timeout(&self) -> Duration {
        Self::answer_timeout(self)
    }

    fn copy_out(&self, slot: u32, offset: usize, bytes: &mut [u8]) {
        self.region.copy_out(self.slot_offset(slot) + offset, bytes);
    }

    fn write(
        &self,
        request: PostedRequest,
        head: &[u8],
        part: Option<(&Buffer, Range<usize>)>,
    ) -> Result<(), RdmaFailure> {
        let offset = self.slot_offset(request.slot);
        self.region.copy_in(offset, head);
        let copied = self.region.part(offset, u32::try_from(head.len()).unwrap_or(u32::MAX));
        let Some((block, bytes)) = part else { return self.write_from(request, &[copied]) };
        let part = LocalMemory::of_buffer(block, &self.domain, bytes)
            .map_err(|error| RdmaFailure::step(&self.device, "register a block", error))?;
        match head.is_empty() {
            true => self.write_from(request, &[part]),
            false => self.write_from(request, &[copied, part]),
        }
    }

    fn grant(&self, request: PostedRequest) -> Result<(), RdmaFailure> {
        Self::grant(self, request)
    }

    fn post_receive(&self) -> Result<(), RdmaFailure> {
        Self::post_receive(self)
    }

    fn mark(&self) -> Result<(), RdmaFailure> {
        Self::mark(self, false)
    }

    fn wait(
        &self,
        socket: Option<BorrowedFd<'_>>,
        timeout: Duration,
        events: &mut Vec<RdmaEvent>,
    ) -> Result<Readiness, RdmaFailure> {
        Self::wait(self, socket, timeout, events)
    }
}

/// Bytes of this end's memory for each slot.
fn local_bytes(settings: &ConnectionSettings) -> u32 {
    match settings.part {
        ConnectionPart::Initiator => settings.head_bytes.unwrap_or(settings.message_bytes),
        ConnectionPart::WriteTarget | ConnectionPart::ReadTarget => settings.message_bytes,
    }
}

fn register(
    domain: &ProtectionDomain,
    slots: u32,
    slot_bytes: u32,
    access: MemoryAccess,
    device: &str,
) -> Result<MemoryRegion, RdmaFailure> {
    let bytes = u64::from(slots) * u64::from(slot_bytes);
    let wanted = usize::try_from(bytes).unwrap_or(usize::MAX);
    let limit = raise_locked_memory().ok().flatten();
    MemoryRegion::register(domain, wanted, access).map_err(|error| match (error.kind(), limit) {
        (io::ErrorKind::OutOfMemory, Some(limit)) => RdmaFailure::LockedMemory { bytes, limit },
        _ => RdmaFailure::step(device, "register memory", error),
    })
}

fn exchange(error: io::Error) -> RdmaFailure {
    match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => RdmaFailure::PeerClosed,
        _ => RdmaFailure::Exchange(error),
    }
}
