//! Queue pairs of reliable connections, with their states as types.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use super::abi::{
    IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT,
    IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT,
    IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_RC, IBV_SEND_SIGNALED,
    IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND_WITH_IMM,
    IbvAhAttr, IbvGid, IbvGlobalRoute, IbvQp, IbvQpAttr, IbvQpCap, IbvQpInitAttr, IbvRecvWr,
    IbvSendWr, IbvSge,
};
use super::completion::CompletionQueue;
use super::device::check;
use super::memory::{LocalMemory, MemoryAccess, ProtectionDomain};

/// Number of routers that packets may pass.
const HOP_LIMIT: u8 = 64;
/// Code of the shortest wait of 0.64 ms that a receiver without a posted receive asks for (`min_rnr_timer`).
const RECEIVER_NOT_READY_TIMER: u8 = 12;
/// Retries of a receiver that is not ready: 7 stands for no limit.
const RECEIVER_NOT_READY_RETRIES: u8 = 7;

/// Parts of local memory in a request of the send queue.
const SEND_PARTS_MAX: usize = 2;

/// State INIT: receives may be posted.
#[derive(Debug)]
pub struct Initialised;
/// State RTR: the peer's messages arrive.
#[derive(Debug)]
pub struct ReadyToReceive;
/// State RTS: messages can be sent.
#[derive(Debug)]
pub struct ReadyToSend;

/// Sizes of the queues of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePairCapacity {
    /// Requests in the send queue.
    pub sends: u32,
    /// Requests in the receive queue.
    pub receives: u32,
}

/// Parameters of the connection of a queue pair to its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionPath {
    /// Port of the local device, from 1.
    pub port: u8,
    /// Index of the local GID.
    pub gid_index: u8,
    /// GID of the peer.
    pub peer_gid: [u8; 16],
    /// Queue pair of the peer.
    pub peer_queue_pair: u32,
    /// First sequence number of the peer's packets, 24 bits.
    pub peer_sequence: u32,
    /// First sequence number of this end's packets, 24 bits.
    pub own_sequence: u32,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu_bytes: u32,
    /// Reads of the peer that this end answers at a time.
    pub reads_answered: u8,
    /// Reads that this end has outstanding.
    pub reads_issued: u8,
    /// Traffic class (DSCP and ECN) of the packets.
    pub traffic_class: u8,
    /// Flow label, 20 bits, which also selects the UDP source port.
    pub flow_label: u32,
    /// Retransmission timer: 4.096 us times 2 to the power of this.
    pub timeout_exponent: u8,
    /// Retransmissions before the queue pair fails, at most 6: software RoCE takes 7 for no limit.
    pub retries: u8,
}

/// Verb of the send queue. An address and key are of the peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendVerb {
    /// Writes into memory of the peer, which is not notified.
    Write {
        /// Address in the peer's memory.
        address: u64,
        /// Key of the peer's memory.
        key: u32,
    },
    /// Writes into memory of the peer and consumes one of its receives.
    WriteWithImmediate {
        /// Address in the peer's memory.
        address: u64,
        /// Key of the peer's memory.
        key: u32,
        /// Value that the peer receives.
        immediate: u32,
    },
    /// Sends a value, and consumes a receive of the peer.
    SendWithImmediate {
        /// Value that the peer receives.
        immediate: u32,
    },
    /// Reads from memory of the peer.
    Read {
        /// Address in the peer's memory.
        address: u64,
        /// Key of the peer's memory.
        key: u32,
    },
}

/// Request of the send queue.
#[derive(Debug, Clone, Copy)]
pub struct SendWorkRequest<'a> {
    /// Number in its completion.
    pub work_id: u64,
    /// Operation and the peer's memory.
    pub verb: SendVerb,
    /// Local memory, at most two parts, which follow each other in the message; none for a message without data.
    pub memory: &'a [LocalMemory<'a>],
    /// Requests a completion; without one the next that has one also completes this.
    pub signalled: bool,
}

/// A queue pair of a reliable connection in state `S`. Destroyed when dropped; afterwards the device carries out none of
/// its work.
pub struct QueuePair<S> {
    pair: NonNull<IbvQp>,
    domain: ProtectionDomain,
    completions: CompletionQueue,
    state: PhantomData<S>,
}

// SAFETY: libibverbs allows calls for a queue pair from any thread at the same time.
unsafe impl<S> Send for QueuePair<S> {}
// SAFETY: as above.
unsafe impl<S> Sync for QueuePair<S> {}

impl<S> Drop for QueuePair<S> {
    fn drop(&mut self) {
        // SAFETY: created by `new`, destroyed once; domain and completion queue are dropped afterwards.
        unsafe { (self.domain.context().functions().destroy_qp)(self.pair.as_ptr()) };
    }
}

impl QueuePair<Initialised> {
    /// Creates a queue pair on a port, whose peer has `access` to the memory of the domain.
    ///
    /// # Errors
    /// Error of the provider, also for larger queues than the device has.
    pub fn new(
        domain: &ProtectionDomain,
        completions: &CompletionQueue,
        capacity: QueuePairCapacity,
        port: u8,
        access: MemoryAccess,
    ) -> io::Result<Self> {
        let mut attributes = IbvQpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: completions.as_ptr(),
            recv_cq: completions.as_ptr(),
            srq: ptr::null_mut(),
            cap: IbvQpCap {
                max_send_wr: capacity.sends,
                max_recv_wr: capacity.receives,
                max_send_sge: SEND_PARTS_MAX as u32,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        let functions = domain.context().functions();
        // SAFETY: the domain is allocated and the attributes have the size of the C structure.
        let pair = unsafe { (functions.create_qp)(domain.as_ptr(), &raw mut attributes) };
        let pair = Self {
            pair: NonNull::new(pair).ok_or_else(io::Error::last_os_error)?,
            domain: domain.clone(),
            completions: completions.clone(),
            state: PhantomData,
        };
        let attributes = IbvQpAttr {
            qp_state: IBV_QPS_INIT,
            pkey_index: 0,
            port_num: port,
            qp_access_flags: access.flags() as u32,
            ..IbvQpAttr::default()
        };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        pair.modify(attributes, mask)?;
        Ok(pair)
    }

    /// Connects to the peer's queue pair (RTR).
    ///
    /// # Errors
    /// `ENETUNREACH` or `ETIMEDOUT` where the peer's address does not resolve, and other errors of kernel and provider.
    pub fn ready_to_receive(self, path: &ConnectionPath) -> io::Result<QueuePair<ReadyToReceive>> {
        let route = IbvGlobalRoute {
            dgid: IbvGid(path.peer_gid),
            flow_label: path.flow_label,
            sgid_index: path.gid_index,
            hop_limit: HOP_LIMIT,
            traffic_class: path.traffic_class,
        };
        let attributes = IbvQpAttr {
            qp_state: IBV_QPS_RTR,
            path_mtu: path.mtu_bytes.checked_ilog2().unwrap_or(0).saturating_sub(7),
            dest_qp_num: path.peer_queue_pair,
            rq_psn: path.peer_sequence,
            max_dest_rd_atomic: path.reads_answered,
            min_rnr_timer: RECEIVER_NOT_READY_TIMER,
            ah_attr: IbvAhAttr {
                grh: route,
                is_global: 1,
                port_num: path.port,
                ..IbvAhAttr::default()
            },
            ..IbvQpAttr::default()
        };
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.modify(attributes, mask)?;
        Ok(self.into_state())
    }
}

impl QueuePair<ReadyToReceive> {
    /// Enables sending: moves the queue pair to RTS.
    ///
    /// # Errors
    /// Error of the provider.
    pub fn ready_to_send(self, path: &ConnectionPath) -> io::Result<QueuePair<ReadyToSend>> {
        let attributes = IbvQpAttr {
            qp_state: IBV_QPS_RTS,
            sq_psn: path.own_sequence,
            timeout: path.timeout_exponent,
            retry_cnt: path.retries,
            rnr_retry: RECEIVER_NOT_READY_RETRIES,
            max_rd_atomic: path.reads_issued,
            ..IbvQpAttr::default()
        };
        let mask = IBV_QP_STATE
            | IBV_QP_SQ_PSN
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(attributes, mask)?;
        Ok(self.into_state())
    }
}

impl QueuePair<ReadyToSend> {
    /// Posts a request to the send queue.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full, and other errors of the provider.
    ///
    /// # Panics
    /// If the local memory has more than two parts.
    pub fn post_send(&self, request: &SendWorkRequest<'_>) -> io::Result<()> {
        let mut elements = [IbvSge { addr: 0, length: 0, lkey: 0 }; SEND_PARTS_MAX];
        assert!(request.memory.len() <= elements.len(), "a request of too many parts");
        for (element, part) in elements.iter_mut().zip(request.memory) {
            *element = IbvSge { addr: part.address, length: part.bytes, lkey: part.key };
        }
        let (opcode, immediate, address, key) = match request.verb {
            SendVerb::Write { address, key } => (IBV_WR_RDMA_WRITE, 0, address, key),
            SendVerb::WriteWithImmediate { address, key, immediate } => {
                (IBV_WR_RDMA_WRITE_WITH_IMM, immediate, address, key)
            }
            SendVerb::SendWithImmediate { immediate } => (IBV_WR_SEND_WITH_IMM, immediate, 0, 0),
            SendVerb::Read { address, key } => (IBV_WR_RDMA_READ, 0, address, key),
        };
        let mut work = IbvSendWr {
            wr_id: request.work_id,
            next: ptr::null_mut(),
            num_sge: request.memory.len() as i32,
            sg_list: elements.as_mut_ptr(),
            opcode,
            send_flags: if request.signalled { IBV_SEND_SIGNALED } else { 0 },
            imm_data: immediate.to_be(),
            remote_addr: address,
            rkey: key,
            other: [0; 19],
        };
        let mut failed = ptr::null_mut();
        // SAFETY: the queue pair is open, so its context is.
        let operation = unsafe { (*(*self.pair.as_ptr()).context).ops.post_send };
        let operation = operation.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: the provider copies the request and its elements; the device checks the local keys, which are invalid
        // once their memory is unmapped.
        check(unsafe { operation(self.pair.as_ptr(), &raw mut work, &raw mut failed) })
    }
}

impl<S> QueuePair<S> {
    /// Number of the queue pair, 24 bits, for the peer.
    #[must_use]
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair is open, and its structure begins as `IbvQp`.
        unsafe { self.pair.as_ref() }.qp_num
    }

    /// Queue of the completions of both its queues.
    #[must_use]
    pub const fn completions(&self) -> &CompletionQueue {
        &self.completions
    }

    /// Posts a receive without memory, for a message that carries an immediate value alone or wrote its data.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full, and other errors of the provider.
    pub fn post_receive(&self, work_id: u64) -> io::Result<()> {
        let mut work = IbvRecvWr {
            wr_id: work_id,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
        };
        let mut failed = ptr::null_mut();
        // SAFETY: the queue pair is open, so its context is.
        let operation = unsafe { (*(*self.pair.as_ptr()).context).ops.post_recv };
        let operation = operation.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: the provider copies the request.
        check(unsafe { operation(self.pair.as_ptr(), &raw mut work, &raw mut failed) })
    }

    /// Moves the queue pair to the error state: requests of both queues complete as flushed, and the peer can no longer
    /// write.
    ///
    /// # Errors
    /// Error of the provider.
    pub fn fail(&self) -> io::Result<()> {
        let attributes = IbvQpAttr { qp_state: IBV_QPS_ERR, ..IbvQpAttr::default() };
        self.modify(attributes, IBV_QP_STATE)
    }

    fn modify(&self, mut attributes: IbvQpAttr, mask: i32) -> io::Result<()> {
        let functions = self.domain.context().functions();
        // SAFETY: the queue pair is open and the attributes have the size of the C structure.
        check(unsafe { (functions.modify_qp)(self.pair.as_ptr(), &raw mut attributes, mask) })
    }

    fn into_state<T>(self) -> QueuePair<T> {
        let this = std::mem::ManuallyDrop::new(self);
        QueuePair {
            pair: this.pair,
            // SAFETY: `this` is not dropped, so each field has one owner.
            domain: unsafe { ptr::read(&raw const this.domain) },
            // SAFETY: as above.
            completions: unsafe { ptr::read(&raw const this.completions) },
            state: PhantomData,
        }
    }
}

impl<S> fmt::Debug for QueuePair<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair").field("number", &self.number()).finish_non_exhaustive()
    }
}
