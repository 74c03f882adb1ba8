//! Zero-copy sending: pages go into a pipe once (vmsplice), are duplicated into a second pipe (tee) and move from there
//! to a socket (splice). The kernel holds references to the pages until they are acknowledged, and looks them up only
//! once, which is the gain over a vmsplice per send.
//!
//! Only [`PatternMemory`] can be sent: it never changes, so nothing on the wire can.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::pipe::{
    IoSliceRaw, PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice,
    tee, vmsplice,
};

use super::PatternMemory;

/// An endless supply of one piece of memory for one socket.
#[derive(Debug)]
pub struct SplicePipe {
    /// Holds the memory's pages until drop.
    supply: Pipe,
    /// Bytes in `supply`.
    length: usize,
    /// Holds duplicates on their way to the socket.
    outlet: Pipe,
    /// Bytes in `outlet` that the socket has not accepted yet.
    pending: usize,
}

/// Both ends of a pipe.
#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) read_end: OwnedFd,
    pub(super) write_end: OwnedFd,
}

impl SplicePipe {
    /// Fills a pipe with `memory`, or as much of its start as this user's pipes may hold (`fs.pipe-user-pages-soft`).
    ///
    /// # Errors
    /// The error of `pipe2` or `vmsplice`.
    pub fn new(memory: &PatternMemory) -> io::Result<Self> {
        let bytes = memory.bytes();
        let supply = Pipe::new(bytes.len())?;
        let outlet = Pipe::new(bytes.len())?;
        let slices = [IoSliceRaw::from_slice(bytes)];
        // SAFETY: the slice lives for the call; the kernel's references to the pages outlive it,
        // which is sound because nothing writes to a `PatternMemory` after it was made and
        // unmapping it does not free pages the kernel still holds.
        let length = unsafe { vmsplice(&supply.write_end, &slices, SpliceFlags::NONBLOCK) }?;
        Ok(Self { supply, length, outlet, pending: 0 })
    }

    /// Bytes of the memory that the pipe holds.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length
    }

    /// Sends up to `length` bytes. Returns the bytes that the socket accepted; call again for the rest. The stream consists
    /// of pieces of the memory's start.
    ///
    /// # Errors
    /// The error of `tee` or `splice`; `WouldBlock` after the socket's send timeout.
    pub fn send(&mut self, socket: &impl AsFd, length: usize) -> io::Result<usize> {
        if self.pending == 0 {
            let count = length.min(self.length);
            let (from, to) = (&self.supply.read_end, &self.outlet.write_end);
            self.pending = tee(from, to, count, SpliceFlags::NONBLOCK)?;
        }
        let count = self.pending.min(length);
        let taken = splice(&self.outlet.read_end, None, socket, None, count, SpliceFlags::empty())?;
        self.pending -= taken;
        Ok(taken)
    }
}

impl Pipe {
    /// Creates a pipe that holds `capacity` bytes, or as many as the system allows.
    pub(super) fn new(capacity: usize) -> io::Result<Self> {
        let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut wanted = capacity;
        let smallest = fcntl_getpipe_size(&write_end)?;
        while wanted > smallest && fcntl_setpipe_size(&write_end, wanted).is_err() {
            wanted /= 2;
        }
        Ok(Self { read_end, write_end })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use super::{PatternMemory, SplicePipe};

    #[test]
    fn receiver_reads_memory_repeatedly() {
        let memory = PatternMemory::new(300_000).unwrap();
        let mut pipe = SplicePipe::new(&memory).unwrap();
        assert_eq!(pipe.length(), memory.bytes().len());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            server.read_to_end(&mut all).unwrap();
            all
        });
        for _ in 0..3 {
            let mut left = memory.bytes().len();
            while left > 0 {
                left -= pipe.send(&client, left).unwrap();
            }
        }
        drop(client);
        assert!(reader.join().unwrap() == memory.bytes().repeat(3));
    }
}
