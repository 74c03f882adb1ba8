//! io_uring behind [`BlockIo`].
//!
//! For: many reads and writes of regular files in flight from one thread. From `submit` until `complete` returns the
//! operation, or the ring is dropped, the ring owns its buffer and its file.
//!
//! Not for: anything that may never finish, such as an empty pipe: dropping the ring waits for what is in flight.
//! The kernel cancels what a thread submitted when that thread ends: keep a ring to one thread, or to one that outlives it.
//!
//! Fails to start where io_uring is missing or forbidden; [`Ring::probe`] says why.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::thread;

use io_uring::{IoUring, Probe, opcode, types};

use super::{
    BlockIo, Completion, Operation, OperationKind, PartialOperation, no_room, nothing_in_flight,
};

/// Attempts of a call that the kernel answers with EAGAIN or EBUSY.
const SUBMIT_ATTEMPTS_MAX: u32 = 100_000;

/// File operations through io_uring, up to its depth at a time.
pub struct Ring {
    ring: IoUring,
    /// Operations submitted or queued, by their `user_data`.
    slots: Vec<Option<PartialOperation>>,
    free: Vec<usize>,
    done: VecDeque<Completion>,
    depth: usize,
}

impl Ring {
    /// Creates a ring for `depth` operations at a time, from 1 to the kernel's limit (32768).
    pub fn new(depth: usize) -> io::Result<Self> {
        if depth == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a ring of depth 0 can do nothing",
            ));
        }
        let entries = u32::try_from(depth).unwrap_or(u32::MAX);
        let ring = IoUring::builder().setup_clamp().dontfork().build(entries)?;
        let depth = depth.min(ring.params().sq_entries() as usize);
        Ok(Self {
            ring,
            slots: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            done: VecDeque::new(),
            depth,
        })
    }

    /// Checks whether io_uring is usable, once per process; the error has the reason for operators.
    pub fn probe() -> Result<(), UringUnavailable> {
        static PROBED: OnceLock<Result<(), UringUnavailable>> = OnceLock::new();
        PROBED.get_or_init(probe).clone()
    }

    /// Maximum operations in flight.
    pub fn depth(&self) -> usize {
        self.depth
    }

    fn with_kernel(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Queues and submits the next call of the operation in `slot`.
    fn start(&mut self, slot: usize) {
        let Some(progress) = self.slots.get_mut(slot).and_then(Option::as_mut) else {
            return;
        };
        let fd = types::Fd(progress.operation.file.as_raw_fd());
        let kind = progress.operation.kind;
        let (bytes, offset) = progress.remaining();
        // `remaining` gives at most 1 GiB.
        let (start, len) = (bytes.as_mut_ptr(), bytes.len() as u32);
        let entry = match kind {
            OperationKind::Read => opcode::Read::new(fd, start, len).offset(offset).build(),
            OperationKind::Write => opcode::Write::new(fd, start, len).offset(offset).build(),
        };
        // SAFETY: descriptor and memory stay valid until the kernel is through with them. Both belong to the operation in
        // `slot`, which leaves it in `reap` alone, when its completion has come; `drop` waits for that or leaks it. The
        // memory does not move with the `Buffer` and nothing refers to it meanwhile.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(slot as u64)) };
        match pushed {
            // The kernel may answer "not now" (EAGAIN, EBUSY); the entry stays queued and `complete` tries again, and
            // reports what else may be wrong.
            Ok(()) => drop(self.ring.submit()),
            // Unreachable: there are at least as many entries as slots, and each slot has at most one.
            Err(full) => self.leave(slot, Err(io::Error::other(full))),
        }
    }

    /// Processes one completion, if any.
    fn reap(&mut self) -> bool {
        let Some(entry) = self.ring.completion().next() else {
            return false;
        };
        let slot = entry.user_data() as usize;
        let Some(progress) = self.slots.get_mut(slot).and_then(Option::as_mut) else {
            return true;
        };
        let moved = match usize::try_from(entry.result()) {
            Ok(moved) => Ok(moved),
            // The kernel would have to block and did not use a worker thread.
            Err(_) if entry.result() == -libc::EAGAIN => progress.transfer_once(),
            Err(_) => Err(io::Error::from_raw_os_error(-entry.result())),
        };
        match progress.advance(moved) {
            None => self.start(slot),
            Some(result) => self.leave(slot, result),
        }
        true
    }

    /// Finishes the operation in `slot`, which the kernel has completed.
    fn leave(&mut self, slot: usize, result: io::Result<usize>) {
        if let Some(progress) = self.slots.get_mut(slot).and_then(Option::take) {
            self.free.push(slot);
            self.done.push_back(progress.finish(result));
        }
    }

    /// Submits queued entries and waits for a completion.
    fn wait(&self) -> io::Result<()> {
        for _ in 0..SUBMIT_ATTEMPTS_MAX {
            match self.ring.submit_and_wait(1) {
                Ok(_) => return Ok(()),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => return Ok(()),
                    Some(libc::EAGAIN | libc::EBUSY) => thread::yield_now(),
                    _ => return Err(error),
                },
            }
        }
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
    }
}

impl BlockIo for Ring {
    fn submit(&mut self, operation: Operation) {
        if !self.has_room() {
            self.done.push_back(no_room(operation));
            return;
        }
        match (PartialOperation::begin(operation), self.free.pop()) {
            (Ok(progress), Some(slot)) => {
                self.slots[slot] = Some(progress);
                self.start(slot);
            }
            (Ok(progress), None) => self.done.push_back(no_room(progress.operation)),
            (Err(completion), slot) => {
                self.free.extend(slot);
                self.done.push_back(completion);
            }
        }
    }

    fn complete(&mut self) -> io::Result<Completion> {
        loop {
            if let Some(completion) = self.done.pop_front() {
                return Ok(completion);
            }
            if self.with_kernel() == 0 {
                return Err(nothing_in_flight());
            }
            if !self.reap() {
                self.wait()?;
            }
        }
    }

    fn has_room(&self) -> bool {
        self.in_flight() < self.depth
    }

    fn in_flight(&self) -> usize {
        self.with_kernel() + self.done.len()
    }

    fn name(&self) -> &'static str {
        "io_uring"
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while self.with_kernel() > 0 {
            // Not `reap`, which would resubmit partial transfers.
            let entry = self.ring.completion().next();
            if let Some(entry) = entry {
                self.leave(entry.user_data() as usize, Ok(0));
                self.done.clear();
            } else if self.wait().is_err() {
                // The kernel may still write into these buffers: better lost than used by another.
                mem::forget(mem::take(&mut self.slots));
                return;
            }
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("depth", &self.depth)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

/// Reason why io_uring cannot be used, with the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UringUnavailable {
    /// Disabled for every user.
    #[error("io_uring is disabled: sysctl kernel.io_uring_disabled=2 (0 enables it)")]
    Disabled,
    /// Disabled for users outside a group.
    #[error(
        "io_uring is disabled for this user: sysctl kernel.io_uring_disabled=1 (0 enables it, or join the group that kernel.io_uring_group names)"
    )]
    DisabledForUser,
    /// Refused although it is enabled.
    #[error(
        "io_uring is forbidden, most likely by the seccomp filter of a container runtime or service"
    )]
    Forbidden,
    /// Refused by a security module.
    #[error("io_uring is forbidden by a security module (SELinux, AppArmor)")]
    SecurityModule,
    /// Not in this kernel.
    #[error("io_uring is missing: the kernel was built without it, or a seccomp filter hides it")]
    Missing,
    /// No memory may be locked.
    #[error("io_uring was refused memory: raise the limit on locked memory (LimitMEMLOCK)")]
    LockedMemory,
    /// Any other failure; with its description.
    #[error("io_uring cannot be used: {0}")]
    Other(String),
    /// The kernel does not report the operations that it has; with its error.
    #[error("io_uring does not report its operations (needs Linux 5.6 or newer): {0}")]
    NoProbe(String),
    /// The kernel has no operations for files.
    #[error("io_uring cannot read and write files on this kernel (needs Linux 5.6 or newer)")]
    NoFileOperations,
}

fn probe() -> Result<(), UringUnavailable> {
    let ring = IoUring::new(2).map_err(|error| {
        let disabled =
            std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
        reason(&error, disabled.trim())
    })?;
    let mut probe = Probe::new();
    ring.submitter()
        .register_probe(&mut probe)
        .map_err(|error| UringUnavailable::NoProbe(error.to_string()))?;
    if probe.is_supported(opcode::Read::CODE) && probe.is_supported(opcode::Write::CODE) {
        Ok(())
    } else {
        Err(UringUnavailable::NoFileOperations)
    }
}

/// Returns why io_uring is unavailable; `disabled` is the value of `kernel.io_uring_disabled`, empty without that sysctl.
fn reason(error: &io::Error, disabled: &str) -> UringUnavailable {
    match (error.raw_os_error(), disabled) {
        (Some(libc::EPERM), "2") => UringUnavailable::Disabled,
        (Some(libc::EPERM), "1") => UringUnavailable::DisabledForUser,
        (Some(libc::EPERM), _) => UringUnavailable::Forbidden,
        (Some(libc::EACCES), _) => UringUnavailable::SecurityModule,
        (Some(libc::ENOSYS), _) => UringUnavailable::Missing,
        (Some(libc::ENOMEM), _) => UringUnavailable::LockedMemory,
        _ => UringUnavailable::Other(crate::fs::describe(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_errors_name_the_remedy() {
        let reason =
            |errno, disabled| reason(&io::Error::from_raw_os_error(errno), disabled).to_string();
        assert_eq!(
            reason(libc::EPERM, "2"),
            "io_uring is disabled: sysctl kernel.io_uring_disabled=2 (0 enables it)"
        );
        assert!(reason(libc::EPERM, "1").contains("kernel.io_uring_group"));
        assert!(reason(libc::EPERM, "0").contains("seccomp"));
        assert!(reason(libc::EPERM, "").contains("seccomp"));
        assert!(reason(libc::ENOSYS, "").contains("built without"));
        assert!(reason(libc::ENOMEM, "0").contains("LimitMEMLOCK"));
        assert!(reason(libc::EMFILE, "0").contains("LimitNOFILE"));
    }

    #[test]
    fn depth_is_checked_and_clamped() {
        assert_eq!(Ring::new(0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        if let Err(reason) = Ring::probe() {
            penstock_testkit::skip(penstock_testkit::Requirement::Kernel, &reason.to_string());
            return;
        }
        assert_eq!(Ring::new(3).unwrap().depth(), 3);
        let clamped = Ring::new(1 << 20).unwrap().depth();
        assert!((1..1 << 20).contains(&clamped));
    }
}
