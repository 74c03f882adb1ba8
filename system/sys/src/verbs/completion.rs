//! WorkCompletion queues and their events.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::abi::{
    Functions, IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_RETRY_EXC_ERR,
    IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, IbvCompChannel, IbvCq, IbvWc,
};
use super::device::{RdmaContext, check};

/// Completions that one call takes from a queue.
const POLL_BATCH: usize = 32;

/// Outcome of a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletionStatus {
    /// Done: for a send the peer's device acknowledged it.
    Success,
    /// Not done: the queue pair had failed before.
    Flushed,
    /// The peer's device did not acknowledge it within all retries.
    RetryExceeded,
    /// The peer posted no receive within all retries.
    ReceiverNotReady,
    /// Another status of `enum ibv_wc_status`.
    Other(u32),
}

/// Kind of a work request that succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletionKind {
    /// A request of the send queue.
    Sent,
    /// A message of the peer consumed a receive: its length and its immediate value.
    Received {
        /// Bytes that the peer wrote or sent.
        bytes: u32,
        /// Immediate value of the message.
        immediate: u32,
    },
    /// Unknown: a request that failed does not have its kind.
    Failed,
}

/// WorkCompletion of a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkCompletion {
    /// Number that the request was posted with.
    pub work_id: u64,
    /// Outcome of the request.
    pub status: CompletionStatus,
    /// Kind of the request.
    pub kind: CompletionKind,
}

/// A completion queue with a channel for its events. Its descriptor is readable when an armed queue has an event.
/// Clones share it.
#[derive(Clone)]
pub struct CompletionQueue {
    shared: Arc<OpenQueue>,
}

struct OpenQueue {
    queue: NonNull<IbvCq>,
    channel: NonNull<IbvCompChannel>,
    context: RdmaContext,
}

// SAFETY: libibverbs allows calls for a completion queue from any thread at the same time.
unsafe impl Send for OpenQueue {}
// SAFETY: as above.
unsafe impl Sync for OpenQueue {}

impl Drop for OpenQueue {
    fn drop(&mut self) {
        let functions = self.context.functions();
        // SAFETY: created by `new`, destroyed once and before the channel; queue pairs keep a clone, and every event is
        // acknowledged where it is read.
        unsafe {
            (functions.destroy_cq)(self.queue.as_ptr());
            (functions.destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}

impl CompletionQueue {
    /// Creates a queue of at least `entries` completions.
    ///
    /// # Errors
    /// Error of the provider, also for more entries than the device has.
    pub fn new(context: &RdmaContext, entries: u32) -> io::Result<Self> {
        let functions = context.functions();
        // SAFETY: the context is open.
        let channel = unsafe { (functions.create_comp_channel)(context.as_ptr()) };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: context and channel are open.
        let queue = unsafe {
            (functions.create_cq)(context.as_ptr(), entries, ptr::null_mut(), channel.as_ptr(), 0)
        };
        let Some(queue) = NonNull::new(queue) else {
            let error = io::Error::last_os_error();
            // SAFETY: created above, and no queue uses it.
            unsafe { (functions.destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let queue =
            Self { shared: Arc::new(OpenQueue { queue, channel, context: context.clone() }) };
        let fd = queue.as_fd();
        let flags = rustix::fs::fcntl_getfl(fd)?;
        rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(queue)
    }

    pub(super) fn as_ptr(&self) -> *mut IbvCq {
        self.shared.queue.as_ptr()
    }

    fn functions(&self) -> &'static Functions {
        self.shared.context.functions()
    }

    /// Requests an event for the next completion. Poll again afterwards: one that came before causes none.
    ///
    /// # Errors
    /// Error of the provider.
    pub fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue is open, so its context is.
        let operation = unsafe { (*self.shared.context.as_ptr()).ops.req_notify_cq };
        let operation = operation.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: the queue is open.
        check(unsafe { operation(self.as_ptr(), 0) })
    }

    /// Takes all events from the channel, without waiting.
    ///
    /// # Errors
    /// Error of the channel.
    pub fn drain_events(&self) -> io::Result<()> {
        loop {
            let mut queue = ptr::null_mut();
            let mut own = ptr::null_mut();
            // SAFETY: the channel is open, and both pointers are written.
            let result = unsafe {
                (self.functions().get_cq_event)(
                    self.shared.channel.as_ptr(),
                    &raw mut queue,
                    &raw mut own,
                )
            };
            if result != 0 {
                let error = io::Error::last_os_error();
                return match error.kind() {
                    io::ErrorKind::WouldBlock => Ok(()),
                    io::ErrorKind::Interrupted => continue,
                    _ => Err(error),
                };
            }
            // SAFETY: the channel belongs to this queue alone, which is open.
            unsafe { (self.functions().ack_cq_events)(queue, 1) };
        }
    }

    /// Appends completions to `to`, without waiting; returns their number, 0 if the queue is empty.
    ///
    /// # Errors
    /// Error of the provider, after an overflow of the queue too.
    pub fn poll(&self, to: &mut Vec<WorkCompletion>) -> io::Result<usize> {
        let mut entries = [IbvWc::default(); POLL_BATCH];
        // SAFETY: the queue is open, so its context is.
        let operation = unsafe { (*self.shared.context.as_ptr()).ops.poll_cq };
        let operation = operation.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: the library writes at most `POLL_BATCH` entries.
        let count = unsafe { operation(self.as_ptr(), POLL_BATCH as i32, entries.as_mut_ptr()) };
        let count =
            usize::try_from(count).map_err(|_| io::Error::other("the completion queue failed"))?;
        to.extend(entries.iter().take(count).map(completion));
        Ok(count)
    }

    /// Text of the library for a status.
    #[must_use]
    pub fn describe(&self, status: CompletionStatus) -> String {
        let number = match status {
            CompletionStatus::Success => IBV_WC_SUCCESS,
            CompletionStatus::Flushed => IBV_WC_WR_FLUSH_ERR,
            CompletionStatus::RetryExceeded => IBV_WC_RETRY_EXC_ERR,
            CompletionStatus::ReceiverNotReady => IBV_WC_RNR_RETRY_EXC_ERR,
            CompletionStatus::Other(number) => number,
        };
        // SAFETY: returns a constant string for every number.
        let text = unsafe { (self.functions().wc_status_str)(number) };
        if text.is_null() {
            return format!("status {number}");
        }
        // SAFETY: not NULL, and it ends with NUL.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open as long as `self`, and its structure begins as `IbvCompChannel`.
        unsafe { BorrowedFd::borrow_raw(self.shared.channel.as_ref().fd) }
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("device", &self.shared.context.name())
            .finish_non_exhaustive()
    }
}

fn completion(entry: &IbvWc) -> WorkCompletion {
    let status = match entry.status {
        IBV_WC_SUCCESS => CompletionStatus::Success,
        IBV_WC_WR_FLUSH_ERR => CompletionStatus::Flushed,
        IBV_WC_RETRY_EXC_ERR => CompletionStatus::RetryExceeded,
        IBV_WC_RNR_RETRY_EXC_ERR => CompletionStatus::ReceiverNotReady,
        other => CompletionStatus::Other(other),
    };
    let kind = match (status, entry.opcode) {
        (CompletionStatus::Success, IBV_WC_RECV | IBV_WC_RECV_RDMA_WITH_IMM) => {
            CompletionKind::Received {
                bytes: entry.byte_len,
                immediate: u32::from_be(entry.imm_data),
            }
        }
        (CompletionStatus::Success, _) => CompletionKind::Sent,
        _ => CompletionKind::Failed,
    };
    WorkCompletion { work_id: entry.wr_id, status, kind }
}
