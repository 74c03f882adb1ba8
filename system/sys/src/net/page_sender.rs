//! Sending of a buffer's pages without a copy: vmsplice puts references to them into a pipe, splice moves these to a
//! socket.
//!
//! For: large payloads that the sender keeps until their receiver confirms them. The kernel reads the pages when it
//! transmits or, over loopback, when the receiver reads: a page that changes before that changes what arrives. Who
//! sends a [`Buffer`] therefore neither writes to it nor returns it to its pool before the confirmation, and
//! [discards](Buffer::discard) it if none will come. Only buffers can be sent, whose pages hold nothing but blocks.
//!
//! Not for: small payloads (looking up pages costs more than copying them) or nonblocking sockets.
//!
//! Fails with the errors of the socket. After one the pipe may hold a part of the payload: the sender is as broken as
//! its connection. [`PageSender::new`] fails where pipes are refused; callers then send by copying.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use rustix::net::{SendFlags, send};
use rustix::pipe::{IoSliceRaw, SpliceFlags, splice, vmsplice};

use super::splice_pipe::Pipe;
use crate::buffer::Buffer;

/// Capacity asked of the pipe, in bytes: the limit for users without privileges (`fs.pipe-max-size`).
const PIPE_BYTES: usize = 1 << 20;

/// Sender of pages to one connection.
#[derive(Debug)]
pub struct PageSender {
    pipe: Pipe,
}

impl PageSender {
    /// Creates a sender with a pipe of its own, if this process may use the system calls: sandboxes refuse some.
    ///
    /// # Errors
    /// The error of `pipe2`, `vmsplice` or `splice`.
    pub fn new() -> io::Result<Self> {
        let pipe = Pipe::new(PIPE_BYTES)?;
        let nothing = [IoSliceRaw::from_slice(&[])];
        // SAFETY: no byte is referred to.
        unsafe { vmsplice(&pipe.write_end, &nothing, SpliceFlags::NONBLOCK) }?;
        splice(&pipe.read_end, None, &pipe.write_end, None, 0, SpliceFlags::empty())?;
        Ok(Self { pipe })
    }

    /// Copies all of `head` to the socket; it leaves together with what follows.
    ///
    /// # Errors
    /// The error of `send`.
    pub fn send_head(&self, socket: &impl AsFd, mut head: &[u8]) -> io::Result<()> {
        while !head.is_empty() {
            match send(socket, head, SendFlags::MORE | SendFlags::NOSIGNAL) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => head = &head[count..],
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Sends a range of a buffer to a blocking socket.
    ///
    /// # Errors
    /// The error of `vmsplice` or `splice`.
    pub fn send(&self, socket: &impl AsFd, buffer: &Buffer, range: Range<usize>) -> io::Result<()> {
        let mut left = &buffer[range];
        while !left.is_empty() {
            let slices = [IoSliceRaw::from_slice(left)];
            // SAFETY: the slice lives for the call. The kernel's references to the pages outlive it and only read: they
            // belong to the mapping of a `Buffer`, whose pages stay allocated while the kernel refers to them and
            // never hold anything but blocks.
            let filled = unsafe {
                vmsplice(&self.pipe.write_end, &slices, SpliceFlags::NONBLOCK | SpliceFlags::MORE)
            };
            let filled = match filled {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(filled) => filled,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            left = &left[filled..];
            let flags = if left.is_empty() { SpliceFlags::empty() } else { SpliceFlags::MORE };
            self.drain(socket, filled, flags)?;
        }
        Ok(())
    }

    /// Moves the pipe's content to the socket.
    fn drain(&self, socket: &impl AsFd, mut bytes: usize, flags: SpliceFlags) -> io::Result<()> {
        while bytes > 0 {
            match splice(&self.pipe.read_end, None, socket, None, bytes, flags) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(moved) => bytes -= moved,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;
    use crate::buffer::BufferPool;

    const PAYLOAD_BYTES: [usize; 9] =
        [0, 1, 4095, 4096, 4097, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5 << 20];

    fn arrives<S: AsFd + Send, R: Read + Send>(sending: S, mut receiving: R) {
        let mut buffer = BufferPool::new(1, 5 << 20).take().expect("a buffer");
        for (index, byte) in buffer.iter_mut().enumerate() {
            *byte = ((index * 31) >> 3) as u8;
        }
        thread::scope(|scope| {
            let received = scope.spawn(move || {
                PAYLOAD_BYTES.map(|size| {
                    let mut all = vec![0; 5 + size];
                    receiving.read_exact(&mut all).expect("everything sent");
                    all
                })
            });
            let sender = PageSender::new().expect("a pipe");
            for size in PAYLOAD_BYTES {
                sender.send_head(&sending, b"head ").expect("sent");
                sender.send(&sending, &buffer, buffer.len() - size..buffer.len()).expect("sent");
            }
            for (size, all) in PAYLOAD_BYTES.into_iter().zip(received.join().expect("no panic")) {
                assert_eq!(&all[..5], b"head ");
                assert!(all[5..] == buffer[buffer.len() - size..], "{size} bytes");
            }
        });
    }

    #[test]
    fn every_size_arrives_by_tcp() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sending = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        arrives(sending, listener.accept().unwrap().0);
    }

    #[test]
    fn every_size_arrives_by_socket_pair() {
        let (sending, receiving) = UnixStream::pair().unwrap();
        arrives(sending, receiving);
    }

    #[test]
    fn discarded_buffer_still_arrives() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sending = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiving, _) = listener.accept().unwrap();
        let pool = BufferPool::new(1, 64 << 10);
        let mut buffer = pool.take().expect("a buffer");
        buffer.fill(7);
        PageSender::new().unwrap().send(&sending, &buffer, 0..buffer.len()).unwrap();
        buffer.discard();
        let mut other = pool.take().expect("another one");
        assert_eq!(other[0], 0, "newly mapped");
        other.fill(9);
        let mut all = vec![0; other.len()];
        receiving.read_exact(&mut all).unwrap();
        assert!(all.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn closed_connection_is_an_error() {
        let (sending, receiving) = UnixStream::pair().unwrap();
        drop(receiving);
        let buffer = BufferPool::new(1, 4096).take().expect("a buffer");
        let sent = PageSender::new().unwrap().send(&sending, &buffer, 0..4096);
        assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
