//! Sending memory without copying it: its pages go into a pipe (vmsplice) and from the pipe to a
//! socket (splice). The kernel then holds references to the pages until they are acknowledged.
//!
//! Only [`PatternMemory`] can be sent: it never changes, so nothing on the wire can.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::pipe::{
    IoSliceRaw, PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice, vmsplice,
};

use super::PatternMemory;

/// A pipe through which memory reaches a socket.
#[derive(Debug)]
pub struct SplicePipe {
    read_end: OwnedFd,
    write_end: OwnedFd,
    capacity: usize,
    /// Bytes in the pipe that the socket has not taken yet.
    pending: usize,
}

impl SplicePipe {
    /// Makes a pipe that holds up to `capacity` bytes, or as many as this user may have: the
    /// kernel gives less once a user's pipes together pass `fs.pipe-user-pages-soft`.
    ///
    /// # Errors
    /// No pipe can be made at all.
    pub fn new(capacity: usize) -> io::Result<Self> {
        let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut wanted = capacity;
        let capacity = loop {
            match fcntl_setpipe_size(&write_end, wanted) {
                Ok(size) => break size,
                Err(_) if wanted > 1 << 16 => wanted /= 2,
                Err(_) => break rustix::pipe::fcntl_getpipe_size(&write_end)?,
            }
        };
        Ok(Self {
            read_end,
            write_end,
            capacity,
            pending: 0,
        })
    }

    /// Bytes the pipe holds.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Moves bytes of `memory`, at most `length` from its start, towards `socket`. Returns how
    /// many the socket took, which may be fewer: call again.
    ///
    /// Bytes that entered the pipe and were not taken stay there and go first the next time, so
    /// `length` must count only bytes that were never reported as taken.
    ///
    /// # Errors
    /// Whatever splice says; a send timeout of the socket shows as `WouldBlock`.
    pub fn send(
        &mut self,
        socket: &impl AsFd,
        memory: &PatternMemory,
        length: usize,
    ) -> io::Result<usize> {
        if self.pending == 0 {
            let bytes = memory.bytes();
            let count = length.min(bytes.len()).min(self.capacity);
            let slices = [IoSliceRaw::from_slice(&bytes[..count])];
            // SAFETY: the slice lives for the call; the kernel's references to the pages outlive
            // it, which is sound because nothing writes to a `PatternMemory` after it was made
            // and unmapping it does not free pages the kernel still holds.
            self.pending = unsafe { vmsplice(&self.write_end, &slices, SpliceFlags::empty()) }?;
        }
        let count = self.pending.min(length);
        let taken = splice(
            &self.read_end,
            None,
            socket,
            None,
            count,
            SpliceFlags::empty(),
        )?;
        self.pending -= taken;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use super::{PatternMemory, SplicePipe};

    #[test]
    fn the_receiver_reads_the_memory_over_and_over() {
        let memory = PatternMemory::new(300_000).unwrap();
        let mut pipe = SplicePipe::new(1 << 20).unwrap();
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
                left -= pipe.send(&client, &memory, left).unwrap();
            }
        }
        drop(client);
        assert!(reader.join().unwrap() == memory.bytes().repeat(3));
    }
}
